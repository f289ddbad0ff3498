"""Where a history changed its level: between which two trials, from what to what.

The rule. The noise s is the median step from one value to the next, divided by 0.954: changes of level hardly touch it.
A value that is further than 3 s from the median of the five around it is drawn in to there, so that one or two slow
trials are no new level. The best place to cut a stretch of history in two is where the means on both sides differ most,
(difference / s)² · n₁ · n₂ / (n₁ + n₂). The cut stands if that is above t², at a level of α shared by all places where
it could have been: the best of many looks significant even in noise. Both parts are searched again. At last the cuts
that change the level, the median of a part, by less than a magnitude that matters are taken out, smallest first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_aisbench.domain import student
from pytest_aisbench.domain.sentence import tell
from pytest_aisbench.domain.threshold import number, quantity

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
        return tell("changed", metric=metric, before=before, after=after, **where)


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
        limit = deviation * student.quantile(1 - ALPHA / 2 / looks, len(values) // 2)
        if weight > limit * limit:
            yield start + cut
            stretches += [(start, start + cut), (start + cut, end)]
