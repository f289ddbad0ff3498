"""Which reference the history of a case supports, and how a threshold would have judged that history.

What a case did with a slow card or node, or when it failed its verdict, supports no reference: such a proposal would
make the fault the rule. A proposal that allows more than today's threshold is looser, and says so.

The rule. Only the newest level counts, as in the noise test: values since the last change point, without outliers. The
reference is their mean. The bound below it leaves room for one more trial of the same machine: t · s · √(1 + 1/n) at
0.999, as a share of the mean, rounded up to half a percent and never below one. If that is more than a tenth of the
mean, nothing is proposed: the noise would hide what a threshold is for. A threshold that is bounded from above only,
such as one on a time, stays so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from pytest_aisbench.judge.evaluate import assumed_noise, comparable_values, decide_trials
from pytest_aisbench.judge.noise_test import ASSUMED_NOISE, average, pooled_noise, prediction_reach
from pytest_aisbench.judge.scaling import Speed, base_speed, decide_scaling, waived_finding
from pytest_aisbench.judge.trend import change_points, newest_level
from pytest_aisbench.judge.values import SPEEDS
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.metric import THROUGHPUT
from pytest_aisbench.model.trial import TrialRecord, values_of
from pytest_aisbench.model.verdict import Outcome, Ruling, Threshold, number

FEWEST = 5  # values; with fewer, t makes every bound useless
_LEAST_MARGIN = 0.01
_MOST_MARGIN = 0.10
_GRAIN = 0.005
_DIGITS = 5


@dataclass(frozen=True)
class Basis:
    """What a proposal rests on: `values[since:]` of the history, without outliers."""

    since: int
    count: int
    mean: float
    deviation: float
    left_out: int = 0

    @property
    def cv(self) -> float:
        """The coefficient of variation: the standard deviation as a share of the mean."""
        return self.deviation / abs(self.mean) if self.mean else math.inf


@dataclass(frozen=True)
class Proposal:
    """A threshold and its basis, or the reason why there is none."""

    threshold: Threshold | None
    basis: Basis | None
    why_not: str = ""


def propose(threshold: Threshold, shape: Shape, values: Sequence[float]) -> Proposal:
    """A threshold of the same form: a bare `at_least` of a ratio stays one, `per` stays as it is."""
    finite = [value for value in values if math.isfinite(value)]
    points = change_points(finite)
    level = newest_level(finite)
    count = len(level.values)
    if count < FEWEST:
        since = f" since {points[-1].text(threshold.metric, threshold.unit)}" if points else ""
        trials = f"{count} comparable trial{'' if count == 1 else 's'}"
        return Proposal(None, None, f"{trials}{since}, and {FEWEST} are needed")
    first = points[-1].index if points else 0
    basis = Basis(first, count, fmean(level.values), stdev(level.values), len(level.left_out))
    if basis.mean <= 0:
        return Proposal(None, basis, f"a mean of {number(basis.mean)} is no reference")
    reach = prediction_reach(count, basis.deviation)
    margin = max(math.ceil(round(reach / basis.mean / _GRAIN, 9)) * _GRAIN, _LEAST_MARGIN)
    if margin > _MOST_MARGIN:
        side = "above" if is_upper_limit(threshold, shape) else "below"
        why = f"one trial in a thousand would be {margin:.1%} {side} the mean by noise alone (CV {basis.cv:.2%})"
        return Proposal(None, basis, f"{why}: find its source, or collect more")
    return Proposal(_with_reference(threshold, shape, basis.mean, margin), basis)


def is_baseline(record: TrialRecord, metric: str, slow: Collection[str]) -> bool:
    """Whether a trial supports a reference; `slow` are the ids of trials with a slow card or node."""
    if record.ruling is Ruling.FAILED or not record.counts or record.value(metric) is None:
        return False
    return metric not in SPEEDS or record.trial not in slow


def looser_by(old: Threshold, new: Threshold, shape: Shape) -> float:
    """How much further a bound of the new threshold is, as a share of the old bound; 0 if it allows no more."""
    (low, high), (new_low, new_high) = old.band(shape), new.band(shape)
    further = [(low, low - new_low), (high, new_high - high)]
    return max((gap / (abs(bound) or 1.0) for bound, gap in further if math.isfinite(bound) and gap > 0), default=0.0)


def is_upper_limit(threshold: Threshold, shape: Shape) -> bool:
    """Whether it has an upper bound only."""
    low, high = threshold.band(shape)
    return math.isinf(low) and not math.isinf(high)


def _with_reference(old: Threshold, shape: Shape, mean: float, margin: float) -> Threshold:
    times, high = old.times(shape), old.band(shape)[1]
    above, bare = is_upper_limit(old, shape), old.reference is None and not old.unit
    limit = mean * (1 + margin if above else 1 - margin) / times
    new = old.without_bounds()
    if bare and above:
        return replace(new, at_most=_four_digits(limit, math.ceil))
    if bare:
        return replace(new, at_least=_four_digits(limit), at_most=None if math.isinf(high) else high / times)
    upper = old.upper if old.upper is not None or math.isinf(high) else round(max(high / mean - 1, 0.0), 4)
    lower, upper = (None, round(margin, 4)) if above else (round(-margin, 4), upper)
    return replace(new, reference=float(f"{mean / times:.{_DIGITS}g}"), lower=lower, upper=upper)


def _four_digits(value: float, rounded: Callable[[float], int] = math.floor) -> float:
    """Rounded away from what was measured."""
    grain = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{rounded(value / grain) * grain:.4g}")


@dataclass(frozen=True)
class Replay:
    """How a threshold would have judged each past run by the runs before it."""

    met: int
    missed: int
    undecided: int
    first_missed: str | None  # a run
    worst: float | None  # of all values
    waived: int = 0  # a scaling without a base

    @property
    def count(self) -> int:
        return self.met + self.missed + self.undecided + self.waived


def _replay(runs: Mapping[str, Outcome], values: Iterable[float], *, largest: bool) -> Replay:
    counted = Counter(runs.values())
    missed = [run for run, outcome in runs.items() if outcome in {Outcome.MISSED, Outcome.UNMEASURED}]
    finite = [value for value in values if math.isfinite(value)]
    return Replay(
        met=counted[Outcome.MET],
        missed=len(missed),
        undecided=counted[Outcome.UNDECIDED],
        first_missed=missed[0] if missed else None,
        worst=(max if largest else min)(finite, default=None),
        waived=counted[Outcome.WAIVED],
    )


def replay(
    threshold: Threshold, shape: Shape, past: Sequence[TrialRecord], max_trials: int, *, assumed: float = ASSUMED_NOISE
) -> Replay:
    """Judge each run as `evaluate` does: all its trials together, and the comparable trials before it.

    Runs that did not measure the metric are left out.
    """
    metric = threshold.metric
    outcomes: dict[str, Outcome] = {}
    before: list[TrialRecord] = []
    for run, trials in _by_run(past, metric).items():
        level = newest_level([value for _, value in comparable_values(metric, before)])
        numbered = list(enumerate(values_of(trials, metric), start=1))
        outcomes[run] = decide_trials(threshold, shape, numbered, level, max_trials, assumed=assumed).outcome
        before += trials
    return _replay(outcomes, values_of(past, metric), largest=is_upper_limit(threshold, shape))


def replay_scaling(
    threshold: Threshold, case: Case, past: Sequence[TrialRecord], base: Sequence[TrialRecord], max_trials: int
) -> Replay:
    """The same for a threshold that compares with another shape: `base` are the trials of that shape.

    The base of a run is what the run itself measured of it, or else its newest trials before.
    """
    shape, base_shape = case.judged_shape, Shape.parse(threshold.base or "")
    counted = [each for each in past if each.counts]
    bases = _by_run([each for each in base if each.counts], THROUGHPUT)
    outcomes: dict[str, Outcome] = {}
    ratios: list[float] = []
    before: list[TrialRecord] = []
    for run, trials in _by_run(counted, THROUGHPUT).items():
        earlier = [each for each in base if each.counts and each.run != run and each.at < trials[0].at]
        base_there = base_speed(base_shape, values_of(bases.get(run, ()), THROUGHPUT), values_of(earlier, THROUGHPUT))
        speeds = values_of(trials, THROUGHPUT)
        noise = pooled_noise(newest_level(values_of(before, THROUGHPUT)).values, speeds)
        speed = Speed(shape, average(speeds), count=len(speeds), noise=noise)
        finding = waived_finding(threshold, case, base_there)
        if finding is None and base_there:
            assumed = assumed_noise(THROUGHPUT, case)
            finding = decide_scaling(threshold, speed, base_there, max_trials, assumed=assumed).finding
            ratios += [] if finding.measured is None else [finding.measured]
        outcomes[run] = finding.outcome if finding else Outcome.WAIVED
        before += trials
    return _replay(outcomes, ratios, largest=False)


def _by_run(past: Iterable[TrialRecord], metric: str) -> dict[str, list[TrialRecord]]:
    """The trials that have the metric, by their run, in the order of the runs."""
    runs: dict[str, list[TrialRecord]] = {}
    for each in past:
        if each.value(metric) is not None:
            runs.setdefault(each.run, []).append(each)
    return runs
