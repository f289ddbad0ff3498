"""Weighing a trial with all that is known beside it: earlier trials of its case, comparable history, other shapes.

Claims on speed, and those that have a reference, are decided by the gate over all trials of the case. Bare limits on
anything else are met by every trial, or missed. What is only worth a look is a warning.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_aisbench.domain.background import Background, Past, ScalePoint
from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.messages import joined, message
from pytest_aisbench.domain.metric import (
    ACCURACY,
    LARGEST,
    SPEEDS,
    STEADY_THROUGHPUT,
    THROUGHPUT,
    TIME_TO_ACCURACY,
    Flaw,
)
from pytest_aisbench.domain.threshold import ExpectedFailure, Threshold, number, quantity
from pytest_aisbench.domain.trial import Trial, TrialRecord
from pytest_aisbench.domain.verdict import Finding, Outcome, Ruling, Verdict
from pytest_aisbench.judge.noise_test import Decision, average, decide, pooled
from pytest_aisbench.judge.scaling import Speed, base_of, scaled, waived
from pytest_aisbench.judge.trend import Level, changes, drift, lost, newest_level, suspicions
from pytest_aisbench.judge.values import values

ANCHOR = 10  # oldest values that a drift is held against where no claim has a reference
_SHOWN = 60  # points of history that go with a verdict
_NEWS = 10  # a change of level further back than so many values is no news


@dataclass(frozen=True)
class Rules:
    """What the user decides."""

    max_trials: int = 1
    drift_fails: bool = False


@dataclass(frozen=True)
class Known:
    """What there is beside the trial itself."""

    earlier: tuple[Trial, ...] = ()  # of the case in this run: those that were measured, in their order
    past: tuple[TrialRecord, ...] = ()  # comparable trials of other runs that are whole, oldest first
    first: tuple[TrialRecord, ...] = ()  # the oldest of them, where `past` does not reach back to them
    base: Speed | None = None  # of its claim on scaling
    scaling: tuple[ScalePoint, ...] = ()
    changed: tuple[str, ...] = ()  # what differs from the newest trial that is not comparable


@dataclass(frozen=True)
class Weighed:
    """What `judge` is told, and what a report shows beside it."""

    settled: tuple[Finding, ...]
    background: Background
    due: str  # why another trial must decide; empty where none is due


def weigh(trial: Trial, known: Known, rules: Rules) -> Weighed:
    told = [each for claim in trial.case.thresholds if (each := _told(claim, trial, known, rules))]
    decisions = [each for each in told if isinstance(each, Decision)]
    settled = [each.finding if isinstance(each, Decision) else each for each in told]
    drifts, warnings = _trends(trial, known)
    if rules.drift_fails:
        settled += drifts
    else:
        warnings = [*(finding.text for finding in drifts), *warnings]
    if base_of(trial.case):  # what is its own base has nothing to be missed
        warnings += [each.text for each in settled if each.outcome is Outcome.WAIVED]
    due = next((decision.text for decision in decisions if decision.again), "")
    return Weighed(tuple(settled), _background(trial, known, decisions, warnings), due)


def _told(claim: Threshold, trial: Trial, known: Known, rules: Rules) -> Decision | Finding | None:
    """None where `judge` knows as much: of a value that is missing, and of a bare limit on one trial."""
    if claim.base is not None:
        return _waived(claim, trial.case, known.base) or _scaled(claim, trial, known, rules)
    if claim.metric not in values(trial):
        return None
    if is_gated(claim):
        return _decided(claim, trial, known, rules)
    return _limited(claim, trial, known) if known.earlier else None


def is_gated(claim: Threshold) -> bool:
    return claim.base is None and (claim.reference is not None or claim.metric in {THROUGHPUT, STEADY_THROUGHPUT})


def _decided(claim: Threshold, trial: Trial, known: Known, rules: Rules) -> Decision:
    level = _level(claim.metric, known)
    series = _series(claim.metric, trial, known)
    shape = trial.case.judged_shape
    decision = decide(claim, shape, level.values, series, rules.max_trials, left_out=level.left_out)
    return _last_of(trial, decision, known, rules)


def _last_of(trial: Trial, decision: Decision, known: Known, rules: Rules) -> Decision:
    """Lost jobs are trials that were allowed, and tell nothing."""
    if decision.again and trial.number >= rules.max_trials:
        gone = trial.number - len(known.earlier) - 1
        return decision.closed(message("lost trials", count=str(gone), most=str(rules.max_trials)))
    return decision


def _series(metric: str, trial: Trial, known: Known) -> list[float]:
    """Of every trial of the case in this run; one that lacks it is no number, and so nothing is met."""
    return [values(each).get(metric, math.nan) for each in (*known.earlier, trial)]


def comparable(metric: str, measures: Sequence[TrialRecord]) -> list[tuple[str, float]]:
    """By run. A speed counts where the accuracy held; an accuracy always, or bad ones would be forgotten."""
    counted = [each for each in measures if each.counts or metric == ACCURACY]
    told = ((each.run, each.value(metric)) for each in counted)
    return [(run, value) for run, value in told if value is not None and abs(value) < LARGEST]


def _level(metric: str, known: Known) -> Level:
    return newest_level([value for _, value in comparable(metric, known.past)])


def _mean(metric: str, trial: Trial, known: Known) -> float | None:
    found = _series(metric, trial, known)
    return fmean(found) if all(abs(value) < LARGEST for value in found) else None


def _limited(claim: Threshold, trial: Trial, known: Known) -> Finding:
    """A bare limit over several trials: the text names the one that decides."""
    shape = trial.case.judged_shape
    low, high = claim.band(shape)
    numbered = [
        (min(value - low, high - value), each.number, value)
        for each, value in zip((*known.earlier, trial), _series(claim.metric, trial, known), strict=True)
    ]
    room, at, value = min(numbered, key=lambda found: (not math.isnan(found[0]), found[0], found[2]))
    name, wanted = claim.metric, claim.wanted(shape)
    facts = {"metric": name, "trial": str(at), "wanted": wanted}
    if room >= 0:
        mean = math.fsum(value / len(numbered) for _, _, value in numbered)
        shown, count = quantity(mean, claim.unit), str(len(numbered))
        text = message("worst", value=shown, worst=number(value), count=count, **facts)
        return Finding(name, Outcome.MET, mean, wanted, text)
    if math.isnan(room):
        return Finding(name, Outcome.UNMEASURED, None, wanted, message("unmeasured in trial", **facts))
    text = message("in trial", value=quantity(value, claim.unit), **facts) + claim.gap(shape, value)
    return Finding(name, Outcome.MISSED, value, wanted, text)


def _waived(claim: Threshold, case: Case, base: Speed | None) -> Finding | None:
    shape = Shape.parse(claim.base or str(case.shape))
    if case.single_server and case.shape != shape and (shape.nodes > 1 or shape == case.judged_shape):
        text = message("all alone", metric=claim.metric, base=str(shape), shape=str(case.shape))
        return Finding(claim.metric, Outcome.WAIVED, None, claim.wanted(case.judged_shape), text)
    return waived(claim, case.judged_shape, base)


def _scaled(claim: Threshold, trial: Trial, known: Known, rules: Rules) -> Decision:
    assert known.base  # or else it is waived
    case, series = trial.case, _series(THROUGHPUT, trial, known)
    unit = case.workload.metrics[THROUGHPUT].unit if THROUGHPUT in case.workload.metrics else ""
    noise = pooled(_level(THROUGHPUT, known).values, series)
    speed = Speed(case.judged_shape, average(series), count=len(series), noise=noise)
    decision = scaled(claim, speed, known.base, rules.max_trials, unit)
    return _last_of(trial, decision, known, rules)


def _trends(trial: Trial, known: Known) -> tuple[list[Finding], list[str]]:
    """Drifts, and warnings, of the speed and of what was learnt."""
    drifts: list[Finding] = []
    warnings: list[str] = []
    for metric in (THROUGHPUT, ACCURACY):
        mean = _mean(metric, trial, known)
        if mean is None:
            continue
        past = comparable(metric, known.past)
        series, runs = [*(value for _, value in past), mean], [*(run for run, _ in past), trial.run]
        unit = trial.case.workload.metrics[metric].unit if metric in trial.case.workload.metrics else ""
        if found := drift(series, anchor(metric, trial.case, known.first)):
            drifts.append(found.finding(metric, unit, runs[found.since]))
        for change in changes(series)[-1:]:
            if change.index >= len(series) - _NEWS:
                warnings.append(message("changed in", change=change.text(metric, unit), run=runs[change.index]))
        before = [value for _, value in past]
        warnings += suspicions(metric, _series(metric, trial, known), before, unit)
        if _allowed(metric, mean, trial.case) and (loss := lost(metric, mean, before, unit)):
            warnings.append(loss)
    return drifts, warnings


def _allowed(metric: str, value: float, case: Case) -> bool:
    bands = [claim.band(case.judged_shape) for claim in case.thresholds if claim.metric == metric]
    return all(low <= value <= high for low, high in bands)


def anchor(metric: str, case: Case, first: Sequence[TrialRecord]) -> float | None:
    """It does not move: a claim's reference, or else what was measured `first`."""
    claimed = (claim.expected(case.judged_shape) for claim in case.thresholds if claim.metric == metric)
    if found := next((reference for reference in claimed if reference), None):
        return found
    told = [value for _, value in comparable(metric, first)]
    return fmean(told) if len(told) >= ANCHOR else None


def _background(trial: Trial, known: Known, decisions: Sequence[Decision], warnings: Sequence[str]) -> Background:
    case = trial.case
    claim = next((each for each in case.thresholds if each.metric == THROUGHPUT and each.base is None), None)
    low, high = claim.band(case.judged_shape) if claim else (-math.inf, math.inf)
    interval = next((decision.interval for decision in decisions if decision.metric == THROUGHPUT), None)
    earlier = ((each, values(each)) for each in known.earlier)
    history = [
        *(each.past for each in known.past if each.counts),
        *(
            Past(each.run, each.times.get("done", 0.0), found[THROUGHPUT], found.get(ACCURACY))
            for each, found in earlier
            if THROUGHPUT in found
        ),
    ]
    return Background(
        reference=claim.expected(case.judged_shape) if claim else None,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        interval=interval if interval and all(map(math.isfinite, interval)) else None,
        history=tuple(history[-_SHOWN:]),
        scaling=known.scaling,
        warnings=tuple(warnings),
        changed=known.changed,
        time_to_accuracy_s=values(trial).get(TIME_TO_ACCURACY),
    )


def judge(
    thresholds: Iterable[Threshold],
    measured: Mapping[str, float],
    flaws: Sequence[Flaw],
    shape: Shape,
    *,
    settled: Iterable[Finding] = (),
    remarks: Mapping[str, str] | None = None,
    today: str = "",
) -> Verdict:
    """Fail closed: PASSED needs a met claim on throughput and on accuracy, and no flaw anywhere.

    `settled` are findings of those who know more than one value: each takes the place of the plain weighing of the
    claim that it names by metric and words; one on no claim, such as a drift, counts as well.
    `remarks` by metric are said with its findings and change none of them.
    `today`, as `2027-01-31`, is held against expected failures: one that holds excuses a measured value that misses
    its claim, and nothing else.
    """
    thresholds = tuple(thresholds)
    known: dict[tuple[str, str], list[Finding]] = {}
    for finding in settled:
        known.setdefault((finding.metric, finding.wanted), []).append(finding)
    wanted = {threshold.metric: threshold.wanted(shape) for threshold in thresholds}
    findings = [_flawed(flaw, wanted.get(flaw.metric, message("finite"))) for flaw in flaws]
    spoiled = {flaw.metric for flaw in flaws}
    excused: set[str] = set()  # metrics that were measured, and missed as expected
    for threshold in thresholds:
        finding = _weigh(threshold, measured.get(threshold.metric), shape)
        better = known.pop((finding.metric, finding.wanted), [finding])
        if threshold.metric in spoiled:
            continue
        for told in [finding] if finding.outcome is Outcome.UNMEASURED else better:
            findings.append(_as_expected(told, threshold.expected_failure, today))
            if told.outcome is Outcome.MISSED and findings[-1].outcome is Outcome.WAIVED:
                excused.add(told.metric)
    findings = [_remarked(finding, (remarks or {}).get(finding.metric, "")) for finding in findings]
    claimed = excused | {finding.metric for finding in findings if finding.outcome is not Outcome.WAIVED}
    findings = _speed_needs_accuracy([*findings, *itertools.chain.from_iterable(known.values())], excused)
    findings += [
        Finding(name, Outcome.UNMEASURED, measured.get(name), message("claim"), message("unclaimed", metric=name))
        for name in (THROUGHPUT, ACCURACY)
        if name not in claimed
    ]
    bad = [finding for finding in findings if finding.outcome not in {Outcome.MET, Outcome.WAIVED}]
    if not bad:
        said = sorted(findings, key=lambda finding: finding.metric not in excused)  # what was excused is said first
        return Verdict(Ruling.PASSED, joined(finding.text for finding in said), tuple(findings))
    worst = next((finding for finding in bad if finding.outcome is not Outcome.UNDECIDED), None)
    ruling = Ruling.FAILED if worst else Ruling.INCONCLUSIVE
    return Verdict(ruling, (worst or bad[0]).text, tuple(findings))


def _flawed(flaw: Flaw, wanted: str) -> Finding:
    return Finding(flaw.metric, Outcome.UNMEASURED, None, wanted, message("about", metric=flaw.metric) + flaw.text)


def _remarked(finding: Finding, remark: str) -> Finding:
    return replace(finding, text=joined((finding.text, remark))) if remark else finding


def _weigh(threshold: Threshold, value: float | None, shape: Shape) -> Finding:
    name, wanted = threshold.metric, threshold.wanted(shape)
    if threshold.base is not None:
        return Finding(name, Outcome.WAIVED, None, wanted, message("unscaled", metric=name, base=threshold.base))
    if value is None or not math.isfinite(value):
        return Finding(name, Outcome.UNMEASURED, None, wanted, message("unmeasured", metric=name, wanted=wanted))
    if not threshold.sides(shape):
        return Finding(name, Outcome.UNMEASURED, value, wanted, message("bounds nothing", metric=name))
    low, high = threshold.band(shape)
    met = low <= value <= high
    told = message("value", metric=name, value=quantity(value, threshold.unit)) + message("wanted", wanted=wanted)
    text = told + threshold.gap(shape, value)
    return Finding(name, Outcome.MET if met else Outcome.MISSED, value, wanted, text)


def _as_expected(finding: Finding, expected: ExpectedFailure | None, today: str) -> Finding:
    if expected is None or finding.outcome not in {Outcome.MET, Outcome.MISSED}:
        return finding
    if finding.outcome is Outcome.MET:
        return _remarked(finding, message("met after all", until=expected.until, reason=expected.reason))
    if not expected.holds(today):
        expired = message("expired", until=expected.until, reason=expected.reason)
        return _remarked(finding, expired if today else "")
    if finding.measured is None or not math.isfinite(finding.measured):
        return finding
    waived = replace(finding, outcome=Outcome.WAIVED)
    return _remarked(waived, message("as expected", until=expected.until, reason=expected.reason))


def expectations(thresholds: Iterable[Threshold], verdict: Verdict) -> list[str]:
    """Worth a line beside a verdict that passed: what was missed as expected, and what was expected to miss."""
    expected = {threshold.metric for threshold in thresholds if threshold.expected_failure}
    told = [finding for finding in verdict.findings if finding.metric in expected and finding.measured is not None]
    return [finding.text for finding in told] if verdict.passed else []


def _speed_needs_accuracy(findings: list[Finding], excused: set[str]) -> list[Finding]:
    """Speed counts only where the model learnt: met beside an accuracy that is not, it decides nothing."""
    fine = {Outcome.MET, Outcome.WAIVED} if ACCURACY in excused else {Outcome.MET}
    learnt = [finding.outcome for finding in findings if finding.metric == ACCURACY]
    if fine.issuperset(learnt):
        return findings
    why = message("not yet learnt" if {*learnt} <= {*fine, Outcome.UNDECIDED} else "not learnt")
    return [
        replace(finding, outcome=Outcome.UNDECIDED, text=joined((finding.text, why)))
        if finding.metric in SPEEDS and finding.outcome is Outcome.MET
        else finding
        for finding in sorted(findings, key=lambda finding: finding.metric in SPEEDS)
    ]
