"""The one way from measurements to a verdict: `evaluate` compares what a trial measured with its case's thresholds.

Each threshold gets exactly one finding, by the first rule that applies:
- a result of its metric is missing or wrong: unmeasured;
- it compares with another shape: the scaling efficiency, or waived if there is no base (`scaling.py`);
- it is on a speed, or has a reference: the noise test over all trials of the case (`noise_test.py`);
- it is a bare limit on anything else: every trial must meet it.
Where several nodes train alone, every node must meet it, and the text names the worst; the value is their mean.

`conclude` makes the verdict of the findings. It fails closed: PASSED needs a met threshold on throughput and on
accuracy, and no missing result. What the history shows beside that (drift, change points, suspicious values) is a
warning, unless the user wants a drift to fail a case.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_aisbench.judge.noise_test import (
    ASSUMED_NOISE,
    ASSUMED_NOISE_OF_ACCURACY,
    CALCULATION,
    Decision,
    average,
    decide,
    pooled_noise,
)
from pytest_aisbench.judge.scaling import Speed, decide_scaling, scaling_base, waived_finding
from pytest_aisbench.judge.trend import (
    ANCHOR_VALUES,
    Level,
    change_points,
    find_drift,
    first_level,
    loss_within_margin,
    newest_level,
    suspicions,
)
from pytest_aisbench.judge.values import SPEEDS, CaseValues
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.messages import joined, message, without
from pytest_aisbench.model.metric import ACCURACY, LARGEST, THROUGHPUT, TIME_TO_ACCURACY, MissingResult
from pytest_aisbench.model.trial import TrialRecord
from pytest_aisbench.model.verdict import (
    Background,
    ExpectedFailure,
    Finding,
    Outcome,
    Past,
    Ruling,
    ScalePoint,
    Threshold,
    Verdict,
    number,
    quantity,
)

ANCHOR_TRIALS = 30  # the oldest: where no threshold has a reference, a drift is measured from their first level
_HISTORY_POINTS = 60  # that go with a verdict
_RECENT = 10  # values: a change point further back is no news

_WORST_FIRST = (Outcome.UNMEASURED, Outcome.MISSED, Outcome.UNDECIDED, Outcome.WAIVED, Outcome.MET)

ThresholdFinding = tuple[Threshold, Finding]


@dataclass(frozen=True)
class Rules:
    """What the user decides about judging."""

    max_trials: int = 1
    drift_fails: bool = False
    assume_noise: bool = True  # where history does not know it; else the plain band decides


@dataclass(frozen=True)
class Evidence:
    """What is known beside the trial itself: earlier trials of its case, comparable history, other shapes."""

    earlier: tuple[CaseValues, ...] = ()  # complete trials of the case in this run, in their order
    history: tuple[TrialRecord, ...] = ()  # comparable trials of other runs, oldest first
    oldest: tuple[TrialRecord, ...] = ()  # of them, if `history` does not reach back that far
    base: Speed | None = None  # of the threshold on scaling
    scaling: tuple[ScalePoint, ...] = ()
    changed: tuple[str, ...] = ()  # traits that differ from the newest trial that is not comparable


@dataclass(frozen=True)
class Evaluation:
    """The verdict on a case after one trial, and what a report shows beside it."""

    verdict: Verdict
    background: Background
    another_trial: str = ""  # why another trial must decide; empty if none is due
    notes: tuple[str, ...] = ()  # warnings, and what became of expected failures

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.verdict.findings


_NO_EVIDENCE = Evidence()
_DEFAULT_RULES = Rules()


def evaluate(
    measured: CaseValues, evidence: Evidence = _NO_EVIDENCE, rules: Rules = _DEFAULT_RULES, today: str = ""
) -> Evaluation:
    """Judge one trial by the thresholds of its case.

    `today`, as `2027-01-31`, is compared with the dates of expected failures; without it none of them holds.
    """
    case = measured.case
    incomplete = {each.metric for each in measured.missing}
    decisions = [
        (threshold, _decide(threshold, measured, evidence, rules))
        for threshold in case.thresholds
        if threshold.metric not in incomplete
    ]
    drifts, warnings = _trends(measured, evidence)
    if not rules.drift_fails:
        warnings, drifts = [*(drift.text for drift in drifts), *warnings], []
    if scaling_base(case):  # a case that is its own base has nothing to be compared with
        warnings += [decision.text for _, decision in decisions if decision.outcome is Outcome.WAIVED]
    findings = [(threshold, decision.finding) for threshold, decision in decisions]
    verdict, notes = conclude(measured, findings, drifts, today)
    another = next((decision.text for _, decision in decisions if decision.needs_another_trial), "")
    another = without(another, CALCULATION)
    return Evaluation(
        verdict,
        _background(measured, evidence, decisions, warnings),
        another if verdict.ruling is Ruling.INCONCLUSIVE else "",
        (*warnings, *notes),
    )


def _decide(threshold: Threshold, measured: CaseValues, evidence: Evidence, rules: Rules) -> Decision:
    case, metric = measured.case, threshold.metric
    if threshold.base is not None:
        waived = waived_finding(threshold, case, evidence.base)
        decision = Decision(waived) if waived else _decide_scaling(threshold, measured, evidence, rules)
    elif not math.isfinite(measured.values.get(metric, math.nan)):
        return Decision(compare_with_band(threshold, None, case.judged_shape))
    else:
        decision = _decide_own_values(threshold, measured, evidence, rules)
        if decision.outcome is Outcome.MISSED:
            decision = replace(decision, finding=_annotated(decision.finding, _since_when(threshold, case, evidence)))
    if decision.needs_another_trial and measured.number >= rules.max_trials:  # lost jobs were trials, too
        lost = measured.number - len(evidence.earlier) - 1
        return decision.without_another_trial(message("lost trials", count=str(lost), most=str(rules.max_trials)))
    return decision


def _decide_own_values(threshold: Threshold, measured: CaseValues, evidence: Evidence, rules: Rules) -> Decision:
    """By the values of the trials; where several nodes train alone, every one of them must meet the threshold."""
    metric, shape, trials = threshold.metric, measured.case.judged_shape, (*evidence.earlier, measured)
    level = _newest_level(metric, evidence)
    numbered = [(each.number, each.values.get(metric, math.nan)) for each in trials]
    assumed = assumed_noise(metric, measured.case) if rules.assume_noise else 0.0
    of_mean = decide_trials(threshold, shape, numbered, level, rules.max_trials, assumed=assumed)
    nodes = range(len(measured.by_node.get(metric, ())))
    if not nodes:
        return of_mean
    level = _level_of_one(level, len(nodes))
    of_nodes = [
        decide_trials(
            threshold,
            shape,
            [(each.number, _of_node(each, metric, node)) for each in trials],
            level,
            rules.max_trials,
            assumed=assumed,
        )
        for node in nodes
    ]
    return _every_node(threshold, shape, of_mean, of_nodes)


def _since_when(threshold: Threshold, case: Case, evidence: Evidence) -> str:
    """The first run of those in a row up to now that missed the threshold, or the last that met it; empty if no run
    before is comparable."""
    past = comparable_values(threshold.metric, evidence.history)
    low, high = threshold.band(case.judged_shape)
    missed = [run for run, _ in itertools.takewhile(lambda each: not low <= each[1] <= high, reversed(past))]
    if missed:
        return message("missed since", run=missed[-1], count=str(len(set(missed))))
    return message("met until now", run=past[-1][0]) if past else ""


def _of_node(measured: CaseValues, metric: str, node: int) -> float:
    nodes = measured.by_node.get(metric, ())
    return nodes[node] if node < len(nodes) else math.nan


def _level_of_one(level: Level, nodes: int) -> Level:
    """History has the means over so many nodes; the noise of one node is √nodes times that of the mean."""
    middle = average(level.values) if level.values else 0.0
    times = math.sqrt(nodes)
    values = tuple(middle + (value - middle) * times for value in level.values)
    return replace(level, values=values, wander=level.wander * times)


def _every_node(threshold: Threshold, shape: Shape, of_mean: Decision, of_nodes: Sequence[Decision]) -> Decision:
    """The decision on the node that is worst off, beside the mean: a mean hides a node that is broken."""
    low, high = threshold.band(shape)

    def order(decision: Decision) -> tuple[int, float]:
        value = _measured(decision)
        margin = min(value - low, high - value)
        return _WORST_FIRST.index(decision.outcome), margin if math.isfinite(margin) else -math.inf

    node = min(range(len(of_nodes)), key=lambda each: order(of_nodes[each]))
    worst = of_nodes[node]
    if order(of_mean)[0] <= order(worst)[0]:
        worst_value = quantity(_measured(worst), threshold.unit)
        text = joined(
            (of_mean.text, message("worst node", node=str(node), count=str(len(of_nodes)), value=worst_value))
        )
        return replace(of_mean, finding=replace(of_mean.finding, text=text))
    facts = {"value": quantity(_measured(of_mean), threshold.unit), "count": str(len(of_nodes))}
    alike = sum(decision.outcome is worst.outcome for decision in of_nodes) - 1
    more = message("more nodes", count=str(alike)) if alike else ""
    text = message("mean of nodes", metric=threshold.metric, node=str(node), what=worst.text, **facts)
    return replace(
        worst,
        finding=replace(worst.finding, measured=of_mean.finding.measured, text=joined((text, more))),
        interval=of_mean.interval,
    )


def _measured(decision: Decision) -> float:
    return math.nan if decision.finding.measured is None else decision.finding.measured


def decide_trials(
    threshold: Threshold,
    shape: Shape,
    numbered: Sequence[tuple[int, float]],
    level: Level,
    max_trials: int,
    *,
    assumed: float,
) -> Decision:
    """Compare the values of a case's trials with a threshold that needs no other shape.

    `numbered` holds (number of the trial, value), and NaN for a trial that lacks the metric; `level` is the newest
    level of the comparable history, and `assumed` the noise until that knows better.
    """
    values = [value for _, value in numbered]
    if not threshold.sides(shape):
        return Decision(compare_with_band(threshold, values[-1], shape))
    if is_noise_tested(threshold):
        return decide(
            threshold,
            shape,
            level.values,
            values,
            max_trials,
            left_out=level.left_out,
            wander=level.wander,
            assumed=assumed,
        )
    if len(values) == 1:
        return Decision(compare_with_band(threshold, values[0], shape))
    return Decision(_compare_every_trial(threshold, numbered, shape))


def assumed_noise(metric: str, case: Case) -> float:
    """The noise of one trial, as a share of its value, until history knows: the workload's own, or else a default."""
    metrics = case.workload.metrics
    own = metrics.get(metric) or metrics.get(THROUGHPUT if metric in SPEEDS else "")
    if own and own.noise is not None:
        return own.noise
    return ASSUMED_NOISE_OF_ACCURACY if metric == ACCURACY else ASSUMED_NOISE


def is_noise_tested(threshold: Threshold) -> bool:
    """Whether noise is allowed for: in speeds, and in everything that has a reference."""
    return threshold.base is None and (threshold.reference is not None or threshold.metric in SPEEDS)


def compare_with_band(threshold: Threshold, value: float | None, shape: Shape) -> Finding:
    """The finding on one bare value; None, and what is not finite, was not measured."""
    name, wanted = threshold.metric, threshold.wanted(shape)
    if value is None or not math.isfinite(value):
        return Finding(name, Outcome.UNMEASURED, None, wanted, message("unmeasured", metric=name, wanted=wanted))
    if not threshold.sides(shape):
        return Finding(name, Outcome.UNMEASURED, value, wanted, message("bounds nothing", metric=name))
    low, high = threshold.band(shape)
    text = message("value", metric=name, value=quantity(value, threshold.unit)) + message("wanted", wanted=wanted)
    text += threshold.gap(shape, value)
    return Finding(name, Outcome.MET if low <= value <= high else Outcome.MISSED, value, wanted, text)


def _compare_every_trial(threshold: Threshold, numbered: Sequence[tuple[int, float]], shape: Shape) -> Finding:
    """A bare limit over several trials: the text names the trial that decides."""
    low, high = threshold.band(shape)
    margins = [(min(value - low, high - value), trial, value) for trial, value in numbered]
    margin, trial, value = min(margins, key=lambda each: (not math.isnan(each[0]), each[0], each[2]))
    name, wanted = threshold.metric, threshold.wanted(shape)
    facts = {"metric": name, "trial": str(trial), "wanted": wanted}
    if margin >= 0:
        mean = average([value for _, value in numbered])
        count = str(len(numbered))
        text = message("worst", value=quantity(mean, threshold.unit), worst=number(value), count=count, **facts)
        return Finding(name, Outcome.MET, mean, wanted, text)
    if math.isnan(margin):
        return Finding(name, Outcome.UNMEASURED, None, wanted, message("unmeasured in trial", **facts))
    text = message("in trial", value=quantity(value, threshold.unit), **facts) + threshold.gap(shape, value)
    return Finding(name, Outcome.MISSED, value, wanted, text)


def _decide_scaling(threshold: Threshold, measured: CaseValues, evidence: Evidence, rules: Rules) -> Decision:
    assert evidence.base  # or else it is waived
    speeds = _series(THROUGHPUT, measured, evidence)
    noise = pooled_noise(_newest_level(THROUGHPUT, evidence).values, speeds)
    speed = Speed(measured.case.judged_shape, average(speeds), count=len(speeds), noise=noise)
    unit, assumed = _unit(THROUGHPUT, measured.case), assumed_noise(THROUGHPUT, measured.case)
    return decide_scaling(threshold, speed, evidence.base, rules.max_trials, unit, assumed=assumed)


def conclude(
    measured: CaseValues, findings: Sequence[ThresholdFinding], drifts: Iterable[Finding] = (), today: str = ""
) -> tuple[Verdict, list[str]]:
    """The verdict that the findings make, and notes about expected failures for a report of a case that passed."""
    case = measured.case
    wanted = {threshold.metric: threshold.wanted(case.judged_shape) for threshold in case.thresholds}
    unmeasured = [_not_measured(each, wanted.get(each.metric, message("finite"))) for each in measured.missing]
    excused: set[str] = set()  # metrics that were measured, and missed as expected
    judged: list[ThresholdFinding] = []
    for threshold, finding in findings:
        final = _with_expected_failure(finding, threshold.expected_failure, today)
        if finding.outcome is Outcome.MISSED and final.outcome is Outcome.WAIVED:
            excused.add(finding.metric)
        judged.append((threshold, final))
    notes = measured.notes
    annotated = [
        _annotated(finding, notes.get(finding.metric, ""))
        for finding in (*unmeasured, *(finding for _, finding in judged))
    ]
    claimed = excused | {finding.metric for finding in annotated if finding.outcome is not Outcome.WAIVED}
    every = _speed_needs_accuracy([*annotated, *drifts], excused)
    every += [
        Finding(
            name, Outcome.UNMEASURED, measured.values.get(name), message("claim"), message("unclaimed", metric=name)
        )
        for name in (THROUGHPUT, ACCURACY)
        if name not in claimed
    ]
    failures = [finding for finding in every if finding.outcome not in {Outcome.MET, Outcome.WAIVED}]
    if not failures:
        order = sorted(every, key=lambda finding: finding.metric not in excused)  # what was excused comes first
        reason = joined(finding.text for finding in order)
        expected = [
            finding.text
            for (threshold, _), finding in zip(judged, annotated[len(unmeasured) :], strict=True)
            if threshold.expected_failure and finding.measured is not None
        ]
        return Verdict(Ruling.PASSED, without(reason, CALCULATION), tuple(every)), expected
    worst = next((finding for finding in failures if finding.outcome is not Outcome.UNDECIDED), None)
    ruling = Ruling.FAILED if worst else Ruling.INCONCLUSIVE
    return Verdict(ruling, without((worst or failures[0]).text, CALCULATION), tuple(every)), []


def _not_measured(missing: MissingResult, wanted: str) -> Finding:
    text = message("about", metric=missing.metric) + missing.text
    return Finding(missing.metric, Outcome.UNMEASURED, None, wanted, text)


def _annotated(finding: Finding, note: str) -> Finding:
    return replace(finding, text=joined((finding.text, note))) if note else finding


def _with_expected_failure(finding: Finding, expected: ExpectedFailure | None, today: str) -> Finding:
    """An expected failure that still holds excuses a measured value that misses its threshold, and nothing else."""
    if expected is None or finding.outcome not in {Outcome.MET, Outcome.MISSED}:
        return finding
    facts = {"until": expected.until, "reason": expected.reason}
    if finding.outcome is Outcome.MET:
        return _annotated(finding, message("met after all", **facts))
    if not expected.holds(today):
        return _annotated(finding, message("expired", **facts) if today else "")
    if finding.measured is None or not math.isfinite(finding.measured):
        return finding
    return _annotated(replace(finding, outcome=Outcome.WAIVED), message("as expected", **facts))


def _speed_needs_accuracy(findings: list[Finding], excused: set[str]) -> list[Finding]:
    """A speed counts only if the model learnt: met beside an accuracy that is not, it is undecided."""
    fine = {Outcome.MET, Outcome.WAIVED} if ACCURACY in excused else {Outcome.MET}
    outcomes = {finding.outcome for finding in findings if finding.metric == ACCURACY}
    if outcomes <= fine:
        return findings
    why = message("not yet learnt" if outcomes <= {*fine, Outcome.UNDECIDED} else "not learnt")
    return [
        replace(finding, outcome=Outcome.UNDECIDED, text=joined((finding.text, why)))
        if finding.metric in SPEEDS and finding.outcome is Outcome.MET
        else finding
        for finding in sorted(findings, key=lambda finding: finding.metric in SPEEDS)
    ]


def comparable_values(metric: str, records: Iterable[TrialRecord]) -> list[tuple[str, float]]:
    """(run, value) of each record that has the metric.

    A speed counts only if the accuracy held; an accuracy counts always, or bad ones would be forgotten.
    """
    counted = (each for each in records if each.counts or metric == ACCURACY)
    values = ((each.run, each.value(metric)) for each in counted)
    return [(run, value) for run, value in values if value is not None and abs(value) < LARGEST]


def _newest_level(metric: str, evidence: Evidence) -> Level:
    return newest_level([value for _, value in comparable_values(metric, evidence.history)])


def _series(metric: str, measured: CaseValues, evidence: Evidence) -> list[float]:
    """The value of every trial of the case in this run; NaN for one that lacks it, so that nothing is met."""
    return [each.values.get(metric, math.nan) for each in (*evidence.earlier, measured)]


def _unit(metric: str, case: Case) -> str:
    return case.workload.metrics[metric].unit if metric in case.workload.metrics else ""


def _trends(measured: CaseValues, evidence: Evidence) -> tuple[list[Finding], list[str]]:
    """The drifts, and warnings, of throughput and accuracy."""
    drifts: list[Finding] = []
    warnings: list[str] = []
    for metric in (THROUGHPUT, ACCURACY):
        trials = _series(metric, measured, evidence)
        if not all(abs(value) < LARGEST for value in trials):
            continue
        mean, unit = fmean(trials), _unit(metric, measured.case)
        past = comparable_values(metric, evidence.history)
        before = [value for _, value in past]
        series, runs = [*before, mean], [*(run for run, _ in past), measured.run]
        if drift := find_drift(series, drift_anchor(metric, measured.case, evidence.oldest)):
            drifts.append(drift.finding(metric, unit, runs[drift.since]))
        for point in change_points(series)[-1:]:
            if point.index >= len(series) - _RECENT:
                warnings.append(message("changed in", change=point.text(metric, unit), run=runs[point.index]))
        warnings += suspicions(metric, trials, before, unit)
        if _is_allowed(metric, mean, measured.case) and (loss := loss_within_margin(metric, mean, before, unit)):
            warnings.append(loss)
    return drifts, warnings


def _is_allowed(metric: str, value: float, case: Case) -> bool:
    bands = [threshold.band(case.judged_shape) for threshold in case.thresholds if threshold.metric == metric]
    return all(low <= value <= high for low, high in bands)


def drift_anchor(metric: str, case: Case, oldest: Sequence[TrialRecord]) -> float | None:
    """The fixed value that a drift is measured from: a threshold's reference, or else the mean of the first level."""
    references = (each.expected(case.judged_shape) for each in case.thresholds if each.metric == metric)
    if reference := next(filter(None, references), None):
        return reference
    values = [value for _, value in comparable_values(metric, oldest)]
    return fmean(first_level(values)) if len(values) >= ANCHOR_VALUES else None


def _background(
    measured: CaseValues, evidence: Evidence, decisions: Sequence[tuple[Threshold, Decision]], warnings: Sequence[str]
) -> Background:
    case = measured.case
    threshold = next((each for each in case.thresholds if each.metric == THROUGHPUT and each.base is None), None)
    low, high = threshold.band(case.judged_shape) if threshold else (-math.inf, math.inf)
    interval = next((decision.interval for each, decision in decisions if each.metric == THROUGHPUT), None)
    history = [
        *(each.past for each in evidence.history if each.counts),
        *(
            Past(each.run, each.done_at, each.values[THROUGHPUT], each.values.get(ACCURACY))
            for each in evidence.earlier
            if THROUGHPUT in each.values
        ),
    ]
    return Background(
        reference=threshold.expected(case.judged_shape) if threshold else None,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        interval=interval if interval and all(map(math.isfinite, interval)) else None,
        history=tuple(history[-_HISTORY_POINTS:]),
        scaling=evidence.scaling,
        warnings=tuple(warnings),
        changed=evidence.changed,
        time_to_accuracy_s=measured.values.get(TIME_TO_ACCURACY),
    )
