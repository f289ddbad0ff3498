"""What history lets one claim, and how a claim would have judged that history.

The rule. Only the newest level counts, as where the noise is told: the values since the last change, without the few
that are too far off to be noise. The reference is their mean, and the bound
below it leaves room for one more trial of the same machine: t · s · √(1 + 1/n) at 0.999, as a share of the mean,
rounded up to half a percent and never below one. Where that is more than a tenth of the mean, nothing is proposed: the
noise would hide what a claim is for. A claim that is bounded from above only, such as a time, stays one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.trial import TrialRecord, values_of
from pytest_aisbench.domain.verdict import Outcome
from pytest_aisbench.judge.evaluate import comparable, is_gated
from pytest_aisbench.judge.noise_test import decide, t_quantile
from pytest_aisbench.judge.trend import changes, newest_level

FEWEST = 5  # values; with fewer, t makes a bound of anything
_LEVEL = 0.999
_LEAST = 0.01
_MOST = 0.10
_GRAIN = 0.005
_DIGITS = 5


@dataclass(frozen=True)
class Evidence:
    """What a proposal rests on: `values[since:]` of the history, without those that were left out."""

    since: int
    count: int
    mean: float
    deviation: float
    left_out: int = 0

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
    newest = newest_level(finite)
    level = newest.values
    if len(level) < FEWEST:
        told = f" since {found[-1].text(claim.metric, claim.unit)}" if found else ""
        trials = f"{len(level)} comparable trial{'' if len(level) == 1 else 's'}"
        return Proposal(None, None, f"{trials}{told}, and {FEWEST} are needed")
    evidence = Evidence(since, len(level), fmean(level), stdev(level), len(newest.left_out))
    if evidence.mean <= 0:
        return Proposal(None, evidence, f"a mean of {number(evidence.mean)} is no reference")
    reach = t_quantile(_LEVEL, evidence.count - 1) * evidence.deviation * math.sqrt(1 + 1 / evidence.count)
    margin = max(math.ceil(round(reach / evidence.mean / _GRAIN, 9)) * _GRAIN, _LEAST)
    if margin > _MOST:
        side = "above" if from_above(claim, shape) else "below"
        why = f"one trial in a thousand would be {margin:.1%} {side} the mean by noise alone (CV {evidence.cv:.2%})"
        return Proposal(None, evidence, f"{why}: find its source, or collect more")
    return Proposal(_claim(claim, shape, evidence.mean, margin), evidence)


def from_above(claim: Threshold, shape: Shape) -> bool:
    """Whether nothing but an upper bound is claimed."""
    low, high = claim.band(shape)
    return math.isinf(low) and not math.isinf(high)


def _claim(old: Threshold, shape: Shape, mean: float, margin: float) -> Threshold:
    times = old.times(shape)
    above, bare = from_above(old, shape), old.reference is None and not old.unit
    limit = mean * (1 + margin if above else 1 - margin) / times
    new = replace(old, reference=None, lower=None, upper=None, at_least=None, at_most=None)
    if bare:
        at_least, at_most = (None, _four_digits(limit, math.ceil)) if above else (_four_digits(limit), old.at_most)
        return replace(new, at_least=at_least, at_most=at_most)
    lower, upper = (None, round(margin, 4)) if above else (round(-margin, 4), old.upper)
    return replace(new, reference=float(f"{mean / times:.{_DIGITS}g}"), lower=lower, upper=upper)


def _four_digits(value: float, rounded: Callable[[float], int] = math.floor) -> float:
    """Away from what was measured."""
    grain = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{rounded(value / grain) * grain:.4g}")


@dataclass(frozen=True)
class Replay:
    """How a claim would have judged each past run by those before it."""

    met: int
    missed: int
    undecided: int
    first_missed: str | None  # a run
    worst: float | None  # of all values

    @property
    def count(self) -> int:
        return self.met + self.missed + self.undecided


def replay(claim: Threshold, shape: Shape, past: Sequence[TrialRecord], max_trials: int) -> Replay:
    """As verdicts are made: by all trials of a run together, and those before it that count. Runs that did not measure
    it say nothing."""
    runs: dict[str, list[TrialRecord]] = {}
    for each in past:
        if each.value(claim.metric) is not None:
            runs.setdefault(each.run, []).append(each)
    found: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
    before: list[TrialRecord] = []
    for run, trials in runs.items():
        known = [value for _, value in comparable(claim.metric, before)]
        found[_outcome(claim, shape, known, values_of(trials, claim.metric), max_trials)].append(run)
        before += trials
    told = [value for value in values_of(past, claim.metric) if math.isfinite(value)]
    missed = found[Outcome.MISSED] + found[Outcome.UNMEASURED]
    return Replay(
        met=len(found[Outcome.MET]),
        missed=len(missed),
        undecided=len(found[Outcome.UNDECIDED]),
        first_missed=next((run for run in runs if run in missed), None),
        worst=(max if from_above(claim, shape) else min)(told, default=None),
    )


def _outcome(
    claim: Threshold, shape: Shape, before: Sequence[float], trials: Sequence[float], max_trials: int
) -> Outcome:
    if is_gated(claim):
        return decide(claim, shape, newest_level(before).values, trials, max_trials).finding.outcome
    low, high = claim.band(shape)
    return Outcome.MET if all(low <= value <= high for value in trials) else Outcome.MISSED
