"""What the history of a metric shows: its change points, a slow drift, its newest level, and suspicious values.

Change points. The noise s is the median step from one value to the next, divided by 0.954: changes of level hardly
touch it. A value further than 3 s from the median of the five around it is pulled in to that distance, so that one or
two slow trials are no new level. The best place to cut a stretch of history in two is where the means on both sides
differ most, (difference / s)² · n₁ · n₂ / (n₁ + n₂). The cut stands if that is above t², at a level of α shared by all
places where it could be: the best of many looks significant even in noise. Both parts are searched again. That finds
every cut which independent noise cannot explain. But the noise of machines is alike from one value to the next, and
has slow hours that pass. So a cut stands only if the 15 values before it and the 15 after it, whatever other cuts are
among them, differ by Student's t at a level of 0.0001. And the cuts that change the level, the median of a part, by
less than MAGNITUDE are removed. Whenever one is removed, weakest first, the others are looked at again.

Drift. A decline so slow that no run is much worse than the one before shows against an anchor that does not move: a
reference, or the first level of the history, ten values of it at most. Every value adds (anchor - value) / s - 1/2 to
a sum that never falls below 0 (CUSUM); above 5 there is a drift. A value counts for at most 3 s, so that one slow run
is no drift: it takes three. s is the median step again: a standard deviation would grow with the decline. And the
newest values must be below the anchor by MAGNITUDE.

Newest level. The noise test uses a part of the history only. Ignore values before the last change point. Ignore
outliers too, such as a trial on a slow node that has been replaced: values further from the median than 6 s, where s
is the median distance from it, times 1.4826. An outlier must be 2 % away at least, and at most one of ten values may
be one: what happens more often is how the machine is. Of three to nine values the farthest may be one: there s is the
standard deviation of the others, and at least 2 % of their median, since few values may be alike by chance.

Wandering. What drifts to and fro by 2 % and stays there for ten runs is cut into levels too, and the newest of them
hides how far it goes. A history wanders if the values within its levels are alike from one to the next (a correlation
above 0.4, corrected for the lengths of the levels), and if the last change of level was no jump, that is no step beyond
3 s. The noise then is the distance of all values since the last jump from the newest level, at most that of values
which correlate by 0.9 and take such steps: on a quiet machine that slid once the noise stays small.

Suspicions are values that are too good, too alike, or worse than noise makes them. They are warnings, never verdicts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from pytest_aisbench.judge.noise_test import WANDERING, correlation, prediction_reach, sum_of_squares, t_quantile
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.metric import ACCURACY, MAD_TO_SIGMA
from pytest_aisbench.model.verdict import Finding, Outcome, number, quantity

MAGNITUDE = 0.02  # the smallest relative change that matters
ALPHA = 0.01
_SHORTEST = 3  # values between two change points
_NEIGHBOURS = 2  # on each side of a value
_FURTHEST = 3.0  # standard deviations from the median of the neighbours
_SIDE = 15  # values before and after a cut that must differ
_SURE = 1e-4  # how often noise alone may let them differ so much
_STEP = 0.9539  # the median step of normal noise, in standard deviations: √2 × 0.6745


@dataclass(frozen=True)
class ChangePoint:
    """`index` is that of the first value at the new level."""

    index: int
    before: float
    after: float

    @property
    def share(self) -> float:
        """The change as a share of the level before; infinite if that was 0."""
        return (self.after - self.before) / abs(self.before) if self.before else math.copysign(math.inf, self.after)

    def text(self, metric: str, unit: str = "") -> str:
        before, after = number(self.before), quantity(self.after, unit)
        where = {"change": f"{self.share:+.1%}", "at": str(self.index + 1)}
        return message("changed", metric=metric, before=before, after=after, **where)


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """In the order of the history, oldest first. Values that are not finite are skipped."""
    places = [index for index, value in enumerate(values) if math.isfinite(value)]
    finite = [values[index] for index in places]
    if len(finite) < 2 * _SHORTEST:
        return []
    # If values hardly ever differ, every small step would be a change.
    deviation = max(step_deviation(finite), abs(median(finite)) * MAGNITUDE / 100)
    pulled_in = _pulled_in(finite, _FURTHEST * deviation)
    cuts = sorted(_cuts(pulled_in, deviation)) if deviation else []
    while cuts:
        weakest = max(cuts, key=lambda cut: _need(pulled_in, cut))
        if _need(pulled_in, weakest) <= 1:
            levels = [median(finite[start:end]) for start, end in itertools.pairwise([0, *cuts, len(finite)])]
            points = [
                ChangePoint(places[cut], *pair) for cut, pair in zip(cuts, itertools.pairwise(levels), strict=True)
            ]
            smallest = min(points, key=lambda point: abs(point.share))
            if abs(smallest.share) >= MAGNITUDE:
                return points
            weakest = cuts[points.index(smallest)]
        cuts.remove(weakest)
    return []


def _need(values: Sequence[float], cut: int) -> float:
    """The difference of means that the values around a cut need to be sure of, as a multiple of the one they have."""
    before, after = values[max(cut - _SIDE, 0) : cut], values[cut : cut + _SIDE]
    degrees = len(before) + len(after) - 2
    pooled = (sum_of_squares(before) + sum_of_squares(after)) / degrees
    needed = t_quantile(1 - _SURE / 2, degrees) * math.sqrt(pooled * (1 / len(before) + 1 / len(after)))
    difference = abs(fmean(before) - fmean(after))
    return needed / difference if difference else math.inf


def step_deviation(values: Sequence[float]) -> float:
    """The standard deviation of the noise around a level that may change: by the median step between neighbours."""
    return median(abs(after - before) for before, after in itertools.pairwise(values)) / _STEP


def _pulled_in(values: Sequence[float], reach: float) -> list[float]:
    middles = (median(values[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS + 1]) for at in range(len(values)))
    return [min(max(value, middle - reach), middle + reach) for value, middle in zip(values, middles, strict=True)]


def _cuts(values: Sequence[float], deviation: float) -> Iterator[int]:
    stretches = [(0, len(values))]
    while stretches:
        start, end = stretches.pop()
        places = end - start - 2 * _SHORTEST + 1
        if places < 1:
            continue
        middle = fmean(values[start:end])
        sums = list(itertools.accumulate(value - middle for value in values[start:end]))
        count = end - start
        # (m₁ - m₂)² · n₁ · n₂ / n follows from one sum alone, since both sums are 0 together.
        weight, cut = max(
            (sums[size - 1] ** 2 * count / (size * (count - size)), size)
            for size in range(_SHORTEST, _SHORTEST + places)
        )
        # A median of steps holds about half as much information as the values.
        limit = deviation * t_quantile(1 - ALPHA / 2 / places, len(values) // 2)
        if weight > limit * limit:
            yield start + cut
            stretches += [(start, start + cut), (start + cut, end)]


NO_DRIFT = message("steady")  # what a finding on a drift wants
_ALARM = 5.0
_SLACK = 0.5
_MOST_DEVIATIONS = 3.0  # that one value counts for
_FEWEST_VALUES = 8
ANCHOR_VALUES = 10  # of the first level, at most, whose mean is the anchor if the caller gives none
_NEWEST = 5


@dataclass(frozen=True)
class Drift:
    """How far the newest values are below the anchor, and since which value."""

    anchor: float
    level: float  # the median of the newest values
    since: int  # index of the first value of the decline
    score: float  # the CUSUM, in standard deviations
    deviation: float
    count: int
    always: bool = False  # every value is below the anchor

    @property
    def change(self) -> float:
        """As a share of the anchor: below 0 if values fall."""
        return (self.level - self.anchor) / abs(self.anchor)

    def text(self, metric: str, unit: str = "") -> str:
        """A drift has a beginning; values that were never near the anchor have none."""
        return message(
            "always below" if self.always else "drifted",
            metric=metric,
            level=quantity(self.level, unit),
            change=f"{self.change:+.1%}",
            anchor=quantity(self.anchor, unit),
            since=str(self.since + 1),
            count=str(self.count),
            score=f"{self.score:.1f}",
            alarm=f"{_ALARM:g}",
            deviation=number(self.deviation),
        )

    def finding(self, metric: str, unit: str, run: str) -> Finding:
        """The finding that fails a case, if the user wants a drift to; `run` is that of the first value."""
        text = message("drifted in", drift=self.text(metric, unit), run=run)
        return Finding(metric, Outcome.MISSED, self.level, NO_DRIFT, text)


def find_drift(values: Sequence[float], anchor: float | None = None) -> Drift | None:
    """The drift of a history, oldest first, that stands below its anchor now; None after a recovery.

    Without `anchor` the mean of the first level is the anchor, and the values after it are compared with it.
    """
    finite = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    first_values = first_level([value for _, value in finite]) if anchor is None else []
    start = len(first_values)
    if len(finite) - start < _FEWEST_VALUES:
        return None
    anchor = fmean(first_values) if anchor is None else anchor
    # If values hardly ever differ, every small step would be an alarm at once.
    deviation = max(step_deviation([value for _, value in finite]), abs(anchor) * MAGNITUDE / 100)
    if not 0 < deviation < math.inf:
        return None
    score, first = 0.0, start
    for at, (_, value) in enumerate(finite[start:], start):
        score += min((anchor - value) / deviation, _MOST_DEVIATIONS) - _SLACK
        if score <= 0:
            score, first = 0.0, at + 1
    level = median(value for _, value in finite[max(first, len(finite) - _NEWEST) :] or finite[-1:])
    if score <= _ALARM or anchor - level < MAGNITUDE * abs(anchor):
        return None
    always = all(value < anchor for _, value in finite)
    return Drift(anchor, level, finite[first][0], score, deviation, len(values), always)


def first_level(values: Sequence[float]) -> Sequence[float]:
    """The values before the first change point, ten at most. `values` are finite, oldest first."""
    points = change_points(values)
    return values[: min(points[0].index if points else len(values), ANCHOR_VALUES)]


_OUTLIER = 6.0  # standard deviations; one of five hundred million values of normal noise is further away
_VALUES_PER_OUTLIER = 10
_FEWEST_WITH_OUTLIER = 3  # of two values, either may be the fault
_ALIKE = 0.4  # the correlation within levels above which a history wanders


@dataclass(frozen=True)
class Level:
    """The values of the newest level, oldest first, and the outliers left out of them."""

    values: tuple[float, ...]
    left_out: tuple[float, ...] = ()
    wander: float = 0.0  # of a history that wanders: the deviation of its values from this level; else 0


def newest_level(history: Sequence[float]) -> Level:
    """Ignore values before the last change point, and outliers. `history` is finite, oldest first."""
    cuts = [point.index for point in change_points(history)]
    if not cuts:
        return _without_outliers(tuple(history))
    level = _without_outliers(tuple(history[cuts[-1] :]))
    return replace(level, wander=_wander(history, cuts, fmean(level.values)))


def _wander(history: Sequence[float], cuts: Sequence[int], level: float) -> float:
    """How far a history that wanders goes from its newest level, as a standard deviation; 0 if it does not wander."""
    deviation = step_deviation(history)
    jumps = [cut for cut in cuts if abs(history[cut] - history[cut - 1]) > _FURTHEST * math.sqrt(2) * deviation]
    parts = [history[start:end] for start, end in itertools.pairwise([0, *cuts, len(history)])]
    offsets = [value - middle for part in parts for middle in [fmean(part)] for value in part]
    length = len(history) / len(parts)
    # A correlation r of n values is estimated too low, by (1 + 3 r) / n.
    if cuts[-1] in jumps or length * correlation(offsets) + 1 <= _ALIKE * (length - 3):
        return 0.0
    since = history[jumps[-1] if jumps else 0 :]
    distance = math.hypot(*(value - level for value in since)) / math.sqrt(len(since))
    return min(distance, deviation / math.sqrt(1 - WANDERING))


def _without_outliers(values: tuple[float, ...]) -> Level:
    if len(values) < _FEWEST_WITH_OUTLIER:
        return Level(values)
    middle = median(values)
    if len(values) < _VALUES_PER_OUTLIER:
        return _without_farthest(values, middle)
    deviation = MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    reach = max(_OUTLIER * deviation, MAGNITUDE * abs(middle))
    outliers = tuple(value for value in values if abs(value - middle) > reach)
    if len(outliers) * _VALUES_PER_OUTLIER > len(values):
        return Level(values)
    return Level(tuple(value for value in values if abs(value - middle) <= reach), outliers)


def _without_farthest(values: tuple[float, ...], middle: float) -> Level:
    """The level of a history that is too short to have a median distance worth the name."""
    at = max(range(len(values)), key=lambda index: abs(values[index] - middle))
    others = (*values[:at], *values[at + 1 :])
    deviation = max(stdev(others), MAGNITUDE * abs(median(others)))
    if abs(values[at] - median(others)) <= _OUTLIER * deviation:
        return Level(values)
    return Level(others, (values[at],))


_FEWEST_ALIKE = 3  # two trainings may well classify the same number of images
_FEWEST_BEFORE = 3
_ACCURATE = 0.01  # the share above history that is suspicious in an accuracy
_FAST = 0.05  # and in every other metric
_SLOW = 0.02  # the share below history that deserves a warning


def suspicions(metric: str, trials: Sequence[float], history: Sequence[float], unit: str = "") -> list[str]:
    """The warnings about the trials of a case; none of them changes the verdict."""
    lines = [identical(metric, trials, history), *(too_good(metric, value, history, unit) for value in trials)]
    return list(dict.fromkeys(filter(None, lines)))


def identical(metric: str, trials: Sequence[float], history: Sequence[float] = ()) -> str:
    """A warning if three trials or more agree to all digits, else empty.

    Together with those of earlier runs only the third one warns: a user who trains with a fixed seed knows it then.
    """
    if not trials or len(set(trials)) > 1 or not math.isfinite(trials[0]):
        return ""
    before = sum(1 for _ in itertools.takewhile(lambda value: value == trials[0], reversed(history)))
    count = len(trials) + before
    if count < _FEWEST_ALIKE or (len(trials) < _FEWEST_ALIKE < count):
        return ""
    facts = {"metric": metric, "value": repr(trials[0])}
    if len(trials) >= _FEWEST_ALIKE:
        return message("identical", count=str(len(trials)), **facts)
    return message("identical past", count=str(count), **facts)


def too_good(metric: str, value: float, history: Sequence[float], unit: str = "") -> str:
    """A warning if the value is above all that the history lets expect of one more trial, else empty."""
    off = _deviation_from_history(value, history, _ACCURATE if metric == ACCURACY else _FAST)
    return message("too good", metric=metric, **off.facts(unit)) if off and off.share > 0 else ""


def loss_within_margin(metric: str, value: float, history: Sequence[float], unit: str = "") -> str:
    """A warning if the value is below all that the history lets expect of one more trial, else empty.

    On a quiet system that is a small loss, and a wide margin would let it pass without a word.
    """
    off = _deviation_from_history(value, history, _ACCURATE if metric == ACCURACY else _SLOW)
    return message("lost within margin", metric=metric, **off.facts(unit)) if off and off.share < 0 else ""


@dataclass(frozen=True)
class _Deviation:
    value: float
    mean: float
    count: int

    @property
    def share(self) -> float:
        return (self.value - self.mean) / abs(self.mean)

    def facts(self, unit: str) -> dict[str, str]:
        values = {"value": quantity(self.value, unit), "mean": quantity(self.mean, unit)}
        return {**values, "share": f"{abs(self.share):.1%}", "count": str(self.count)}


def _deviation_from_history(value: float, history: Sequence[float], least: float) -> _Deviation | None:
    """None within mean ± t · s · √(1 + 1/n) at 0.999 of the newest level, or within the share `least` of its mean."""
    past = newest_level([each for each in history if math.isfinite(each)]).values
    mean = fmean(past) if len(past) >= _FEWEST_BEFORE else 0.0
    if not mean or not math.isfinite(value):
        return None
    reach = prediction_reach(len(past), stdev(past))
    return _Deviation(value, mean, len(past)) if abs(value - mean) > max(reach, abs(mean) * least) else None
