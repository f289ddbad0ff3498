"""Where a history changed its level: between which two trials, from what to what.

The rule. The noise s is the median step from one value to the next, divided by 0.954: changes of level hardly touch it.
A value that is further than 3 s from the median of the five around it is drawn in to there, so that one or two slow
trials are no new level. The best place to cut a stretch of history in two is where the means on both sides differ most,
(difference / s)² · n₁ · n₂ / (n₁ + n₂). The cut stands if that is above t², at a level of α shared by all places where
it could have been: the best of many looks significant even in noise. Both parts are searched again. At last the cuts
that change the level, the median of a part, by less than a magnitude that matters are taken out, smallest first.

A decline so slow that no run is much worse than the one before: seen against an anchor that does not move.

CUSUM. Every value adds (anchor - value) / s - 1/2 to a sum that never falls below 0; above 5 there is a drift. A value
counts for at most 3 s, so that one slow run is none: it takes three. s is the median step from one value to the next,
divided by 0.954, which a decline hardly touches while a standard deviation would grow with it. And the newest values
must be below the anchor by a magnitude that matters, whatever the statistics say.

Which part of a history tells the noise: its newest level, without the few values that are no noise.

The rule. A step that once was is no noise: values before the last change are passed over. Neither is a fault that once
was, such as a node that was slow and has been replaced: a value that is further from the median than 6 s is left out,
where s is the median distance from it, times 1.4826. It must be 2 % away at least, and of ten values at most one
is left out: what happens more often is how the machine is.

Results that are too good, too alike, or worse than noise makes them: warnings, never verdicts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.metric import ACCURACY, MAD_TO_SIGMA
from pytest_aisbench.domain.threshold import number, quantity
from pytest_aisbench.domain.verdict import Finding, Outcome
from pytest_aisbench.judge.noise_test import t_quantile

MAGNITUDE = 0.02
ALPHA = 0.01
_SHORTEST = 3
_AROUND = 2  # neighbours on each side
_FURTHEST = 3.0  # standard deviations from the median of the neighbours
_STEP = 0.9539  # the median step of normal noise, in standard deviations: √2 × 0.6745


@dataclass(frozen=True)
class Change:
    """`index` is the first value at the new level."""

    index: int
    before: float
    after: float

    @property
    def share(self) -> float:
        """Of the level before; infinite where that was nothing."""
        return (self.after - self.before) / abs(self.before) if self.before else math.copysign(math.inf, self.after)

    def text(self, metric: str, unit: str = "") -> str:
        before, after = number(self.before), quantity(self.after, unit)
        where = {"change": f"{self.share:+.1%}", "at": str(self.index + 1)}
        return message("changed", metric=metric, before=before, after=after, **where)


def changes(values: Sequence[float]) -> list[Change]:
    """In the order of the history, oldest first; values that are no numbers are passed over."""
    places = [index for index, value in enumerate(values) if math.isfinite(value)]
    found = [values[index] for index in places]
    if len(found) < 2 * _SHORTEST:
        return []
    # Of values that hardly ever differ every small step would be a change.
    deviation = max(step_deviation(found), abs(median(found)) * MAGNITUDE / 100)
    cuts = sorted(_cuts(_drawn_in(found, _FURTHEST * deviation), deviation)) if deviation else []
    while True:
        levels = [median(found[start:end]) for start, end in itertools.pairwise([0, *cuts, len(found)])]
        told = [Change(places[cut], *pair) for cut, pair in zip(cuts, itertools.pairwise(levels), strict=True)]
        least = min(told, key=lambda change: abs(change.share), default=None)
        if least is None or abs(least.share) >= MAGNITUDE:
            return told
        cuts.pop(told.index(least))


def step_deviation(values: Sequence[float]) -> float:
    """The standard deviation of the noise around a level that may change: by the median step between neighbours."""
    return median(abs(after - before) for before, after in itertools.pairwise(values)) / _STEP


def _drawn_in(values: Sequence[float], reach: float) -> list[float]:
    middles = (median(values[max(at - _AROUND, 0) : at + _AROUND + 1]) for at in range(len(values)))
    return [min(max(value, middle - reach), middle + reach) for value, middle in zip(values, middles, strict=True)]


def _cuts(values: Sequence[float], deviation: float) -> Iterator[int]:
    stretches = [(0, len(values))]
    while stretches:
        start, end = stretches.pop()
        looks = end - start - 2 * _SHORTEST + 1
        if looks < 1:
            continue
        middle = fmean(values[start:end])
        sums = list(itertools.accumulate(value - middle for value in values[start:end]))
        count = end - start
        # (m₁ - m₂)² · n₁ · n₂ / n is the same with one sum alone, since both are 0 together.
        weight, cut = max(
            (sums[size - 1] ** 2 * count / (size * (count - size)), size)
            for size in range(_SHORTEST, _SHORTEST + looks)
        )
        # A median of steps knows about half as much as so many values.
        limit = deviation * t_quantile(1 - ALPHA / 2 / looks, len(values) // 2)
        if weight > limit * limit:
            yield start + cut
            stretches += [(start, start + cut), (start + cut, end)]


WANTED = message("steady")
_ALARM = 5.0
_SLACK = 0.5
_MOST_DEVIATIONS = 3.0  # standard deviations that one value counts for
_FEWEST_VALUES = 8
_FIRST = 10  # values that an anchor is made of, where nobody gave one
_NEWEST = 5


@dataclass(frozen=True)
class Drift:
    """What the newest values are below the anchor, and since which value."""

    anchor: float
    level: float  # the median of the newest
    since: int  # index of the first value of the decline
    score: float  # of the sum, in standard deviations
    deviation: float
    count: int

    @property
    def change(self) -> float:
        """As a share of the anchor: below 0 where values fall."""
        return (self.level - self.anchor) / abs(self.anchor)

    def text(self, metric: str, unit: str = "") -> str:
        return message(
            "drifted",
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
        """For those who want a drift to fail a case; `run` is that of the first value."""
        text = message("drifted in", drift=self.text(metric, unit), run=run)
        return Finding(metric, Outcome.MISSED, self.level, WANTED, text)


def drift(values: Sequence[float], anchor: float | None = None) -> Drift | None:
    """Whether the history, oldest first, stands below its anchor now; a decline that was made good is none.

    Without an anchor it is the mean of the first values, and the others are held against it.
    """
    finite = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    start = 0 if anchor is not None else _FIRST
    if len(finite) - start < _FEWEST_VALUES:
        return None
    anchor = fmean(value for _, value in finite[:_FIRST]) if anchor is None else anchor
    # Of values that hardly ever differ every small step would be an alarm at once.
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
    return Drift(anchor, level, finite[first][0], score, deviation, len(values))


_OUTLIER = 6.0  # standard deviations; of normal noise one in five hundred million is further
_ONE_OF = 10


@dataclass(frozen=True)
class Level:
    """In their order, oldest first."""

    values: tuple[float, ...]
    left_out: tuple[float, ...] = ()


def newest_level(history: Sequence[float]) -> Level:
    """Of finite values, oldest first."""
    found = changes(history)
    values = tuple(history[found[-1].index :] if found else history)
    if len(values) < _ONE_OF:
        return Level(values)
    middle = median(values)
    deviation = MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    reach = max(_OUTLIER * deviation, MAGNITUDE * abs(middle))
    far = tuple(value for value in values if abs(value - middle) > reach)
    if len(far) * _ONE_OF > len(values):
        return Level(values)
    return Level(tuple(value for value in values if abs(value - middle) <= reach), far)


_ALIKE = 3  # two trainings may well classify the same number of images
_KNOWN = 3
_LEVEL = 0.999
_ACCURATE = 0.01  # the share above history that is suspicious in an accuracy
_FAST = 0.05  # and in everything else
_SLOW = 0.02  # the share below history that is worth a word


def identical(metric: str, trials: Sequence[float], history: Sequence[float] = ()) -> str:
    """Empty unless three trials or more agree to all digits.

    Together with those of earlier runs it is told once, by the third: whoever trains with a fixed seed knows it then.
    """
    if not trials or len(set(trials)) > 1 or not math.isfinite(trials[0]):
        return ""
    before = sum(1 for _ in itertools.takewhile(lambda value: value == trials[0], reversed(history)))
    count = len(trials) + before
    if count < _ALIKE or (len(trials) < _ALIKE < count):
        return ""
    told = {"metric": metric, "value": repr(trials[0])}
    if len(trials) >= _ALIKE:
        return message("identical", count=str(len(trials)), **told)
    return message("identical past", count=str(count), **told)


def too_good(metric: str, value: float, history: Sequence[float], unit: str = "") -> str:
    """Empty unless the value is above all that comparable history lets expect of one more trial."""
    off = _off(value, history, _ACCURATE if metric == ACCURACY else _FAST)
    return message("too good", metric=metric, **off.told(unit)) if off and off.share > 0 else ""


def lost(metric: str, value: float, history: Sequence[float], unit: str = "") -> str:
    """Empty unless the value is below all that comparable history lets expect of one more trial.

    On a quiet system that is a small loss, and a wide margin would let it pass without a word.
    """
    off = _off(value, history, _ACCURATE if metric == ACCURACY else _SLOW)
    return message("lost within margin", metric=metric, **off.told(unit)) if off and off.share < 0 else ""


@dataclass(frozen=True)
class _Off:
    value: float
    mean: float
    count: int

    @property
    def share(self) -> float:
        return (self.value - self.mean) / abs(self.mean)

    def told(self, unit: str) -> dict[str, str]:
        shown = {"value": quantity(self.value, unit), "mean": quantity(self.mean, unit)}
        return {**shown, "share": f"{abs(self.share):.1%}", "count": str(self.count)}


def _off(value: float, history: Sequence[float], least: float) -> _Off | None:
    """Beyond mean ± t · s · √(1 + 1/n) at 0.999 of the newest level, and by a share of the mean that matters."""
    past = newest_level([each for each in history if math.isfinite(each)]).values
    mean = fmean(past) if len(past) >= _KNOWN else 0.0
    if not mean or not math.isfinite(value):
        return None
    reach = t_quantile(_LEVEL, len(past) - 1) * stdev(past) * math.sqrt(1 + 1 / len(past))
    return _Off(value, mean, len(past)) if abs(value - mean) > max(reach, abs(mean) * least) else None


def suspicions(metric: str, trials: Sequence[float], history: Sequence[float], unit: str = "") -> list[str]:
    """All that is to be said of the trials of a case; none of it changes the verdict."""
    told = [identical(metric, trials, history), *(too_good(metric, value, history, unit) for value in trials)]
    return list(dict.fromkeys(filter(None, told)))
