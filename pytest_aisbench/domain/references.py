"""What history lets one claim, and how a claim would have judged that history.

The rule. Only the newest level counts: the values since the last change. The reference is their mean, and the bound
below it leaves room for one more trial of the same machine: t · s · √(1 + 1/n) at 0.999, as a share of the mean,
rounded up to half a percent and never below one. Where that is more than a tenth of the mean, nothing is proposed: the
noise would hide what a claim is for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from pytest_aisbench.domain import gate, student
from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.changes import changes
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.verdict import Outcome

FEWEST = 5  # values; with fewer, t makes a bound of anything
_LEVEL = 0.999
_LEAST = 0.01
_MOST = 0.10
_GRAIN = 0.005
_DIGITS = 5


@dataclass(frozen=True)
class Evidence:
    """What a proposal rests on: `values[since:]` of the history."""

    since: int
    count: int
    mean: float
    deviation: float

    @property
    def cv(self) -> float:
        """The spread as a share of the mean."""
        return self.deviation / abs(self.mean) if self.mean else math.inf


@dataclass(frozen=True)
class Proposal:
    """A claim and its evidence, or the reason why there is none."""

    claim: Threshold | None
    evidence: Evidence | None
    why_not: str = ""


def propose(claim: Threshold, shape: Shape, values: Sequence[float]) -> Proposal:
    """In place of `claim`, whose form is kept: a bare `at_least` of a ratio stays one, `per` stays as it is."""
    finite = [value for value in values if math.isfinite(value)]
    found = changes(finite)
    since = found[-1].index if found else 0
    level = finite[since:]
    if len(level) < FEWEST:
        told = f" since {found[-1].text(claim.metric, claim.unit)}" if found else ""
        return Proposal(None, None, f"{len(level)} comparable trials{told}, and {FEWEST} are needed")
    evidence = Evidence(since, len(level), fmean(level), stdev(level))
    if evidence.mean <= 0:
        return Proposal(None, evidence, f"a mean of {number(evidence.mean)} is no reference")
    reach = student.quantile(_LEVEL, evidence.count - 1) * evidence.deviation * math.sqrt(1 + 1 / evidence.count)
    margin = max(math.ceil(round(reach / evidence.mean / _GRAIN, 9)) * _GRAIN, _LEAST)
    if margin > _MOST:
        why = f"one trial in a thousand would be {margin:.1%} below the mean by noise alone (CV {evidence.cv:.2%})"
        return Proposal(None, evidence, f"{why}: find its source, or collect more")
    return Proposal(_claim(claim, shape, evidence.mean, margin), evidence)


def _claim(old: Threshold, shape: Shape, mean: float, margin: float) -> Threshold:
    times = {"node": shape.nodes, "device": shape.world}.get(old.per or "", 1)
    bare = replace(old, reference=None, lower=None, upper=None, at_least=None, at_most=None)
    if old.reference is None and not old.unit:
        return replace(bare, at_least=_down(mean * (1 - margin) / times), at_most=old.at_most)
    return replace(bare, reference=_round(mean / times), lower=round(-margin, 4), upper=old.upper)


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _down(value: float) -> float:
    """To four digits: what was measured must stay above."""
    grain = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.floor(value / grain) * grain:.4g}")


@dataclass(frozen=True)
class Replay:
    """How a claim would have judged each past trial by those before it."""

    met: int
    missed: int
    undecided: int
    first_missed: int | None  # index of the value
    worst: float | None

    @property
    def count(self) -> int:
        return self.met + self.missed + self.undecided


def replay(claim: Threshold, shape: Shape, values: Sequence[float], max_trials: int, *, gated: bool) -> Replay:
    """`gated` as its verdicts are: in spite of noise; or else value by value against the plain band."""
    found: dict[Outcome, list[int]] = {}
    for at, value in enumerate(values):
        finding = gate.decide(claim, shape, values[:at] if gated else (), [value], max_trials).finding
        found.setdefault(finding.outcome, []).append(at)
    missed = [*found.get(Outcome.MISSED, ()), *found.get(Outcome.UNMEASURED, ())]
    above = claim.band(shape)[0] == -math.inf
    finite = [value for value in values if math.isfinite(value)]
    return Replay(
        len(found.get(Outcome.MET, ())),
        len(missed),
        len(found.get(Outcome.UNDECIDED, ())),
        min(missed, default=None),
        (max if above else min)(finite, default=None),
    )
