"""Judging: thresholds and measurements in, a verdict that can be checked by hand out."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.metric import ACCURACY, SPEEDS, THROUGHPUT, Flaw
from pytest_aisbench.domain.sentence import joined, tell
from pytest_aisbench.domain.text import plain
from pytest_aisbench.domain.threshold import ExpectedFailure, Threshold, quantity
from pytest_aisbench.errors import NotPassed


class Outcome(enum.Enum):
    """What became of one threshold."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"
    UNMEASURED = "unmeasured"
    WAIVED = "waived"


class Ruling(enum.Enum):
    """The word of a verdict."""

    PASSED = "PASSED"
    FAILED = "FAILED"  # the workload is to blame
    BROKEN = "BROKEN"  # the platform is
    INCONCLUSIVE = "INCONCLUSIVE"  # the noise is larger than the margin


@dataclass(frozen=True)
class Finding:
    """One threshold, or one measurement that is missing, in one line."""

    metric: str
    outcome: Outcome
    measured: float | None
    wanted: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """A ruling, the reason in one line, and the findings behind it."""

    ruling: Ruling
    reason: str
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        return self.ruling is Ruling.PASSED

    def require(self) -> None:
        """Fail the test unless the case passed."""
        __tracebackhide__ = True
        if not self.passed:
            raise NotPassed(str(self))

    def __str__(self) -> str:
        lines = [f"{self.ruling.value}: {plain(self.reason)}"]
        lines += [f"  {finding.outcome.value:<10} {plain(finding.text)}" for finding in self.findings]
        return "\n".join(lines)


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
    findings = [_flawed(flaw, wanted.get(flaw.metric, tell("finite"))) for flaw in flaws]
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
        Finding(name, Outcome.UNMEASURED, measured.get(name), tell("claim"), tell("unclaimed", metric=name))
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
    return Finding(flaw.metric, Outcome.UNMEASURED, None, wanted, tell("about", metric=flaw.metric) + flaw.text)


def _remarked(finding: Finding, remark: str) -> Finding:
    return replace(finding, text=joined((finding.text, remark))) if remark else finding


def _weigh(threshold: Threshold, value: float | None, shape: Shape) -> Finding:
    name, wanted = threshold.metric, threshold.wanted(shape)
    if threshold.base is not None:
        return Finding(name, Outcome.WAIVED, None, wanted, tell("unscaled", metric=name, base=threshold.base))
    if value is None or not math.isfinite(value):
        return Finding(name, Outcome.UNMEASURED, None, wanted, tell("unmeasured", metric=name, wanted=wanted))
    if not threshold.sides(shape):
        return Finding(name, Outcome.UNMEASURED, value, wanted, tell("bounds nothing", metric=name))
    low, high = threshold.band(shape)
    met = low <= value <= high
    told = tell("value", metric=name, value=quantity(value, threshold.unit)) + tell("wanted", wanted=wanted)
    text = told + threshold.gap(shape, value)
    return Finding(name, Outcome.MET if met else Outcome.MISSED, value, wanted, text)


def _as_expected(finding: Finding, expected: ExpectedFailure | None, today: str) -> Finding:
    if expected is None or finding.outcome not in {Outcome.MET, Outcome.MISSED}:
        return finding
    if finding.outcome is Outcome.MET:
        return _remarked(finding, tell("met after all", until=expected.until, reason=expected.reason))
    if not expected.holds(today):
        expired = tell("expired", until=expected.until, reason=expected.reason)
        return _remarked(finding, expired if today else "")
    if finding.measured is None or not math.isfinite(finding.measured):
        return finding
    waived = replace(finding, outcome=Outcome.WAIVED)
    return _remarked(waived, tell("as expected", until=expected.until, reason=expected.reason))


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
    why = tell("not yet learnt" if {*learnt} <= {*fine, Outcome.UNDECIDED} else "not learnt")
    return [
        replace(finding, outcome=Outcome.UNDECIDED, text=joined((finding.text, why)))
        if finding.metric in SPEEDS and finding.outcome is Outcome.MET
        else finding
        for finding in sorted(findings, key=lambda finding: finding.metric in SPEEDS)
    ]
