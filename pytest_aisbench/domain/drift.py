"""A decline so slow that no run is much worse than the one before: seen against an anchor that does not move.

CUSUM. Every value adds (anchor - value) / s - 1/2 to a sum that never falls below 0; above 5 there is a drift. A value
counts for at most 3 s, so that one slow run is none: it takes three. s is the median step from one value to the next,
divided by 0.954, which a decline hardly touches while a standard deviation would grow with it. And the newest values
must be below the anchor by a magnitude that matters, whatever the statistics say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_aisbench.domain.changes import MAGNITUDE, step_deviation
from pytest_aisbench.domain.sentence import tell
from pytest_aisbench.domain.threshold import number, quantity
from pytest_aisbench.domain.verdict import Finding, Outcome

WANTED = tell("steady")
_ALARM = 5.0
_SLACK = 0.5
_MOST = 3.0  # standard deviations that one value counts for
_FEWEST = 8
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
        return tell(
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
        text = tell("drifted in", drift=self.text(metric, unit), run=run)
        return Finding(metric, Outcome.MISSED, self.level, WANTED, text)


def drift(values: Sequence[float], anchor: float | None = None) -> Drift | None:
    """Whether the history, oldest first, stands below its anchor now; a decline that was made good is none.

    Without an anchor it is the mean of the first values, and the others are held against it.
    """
    finite = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    start = 0 if anchor is not None else _FIRST
    if len(finite) - start < _FEWEST:
        return None
    anchor = fmean(value for _, value in finite[:_FIRST]) if anchor is None else anchor
    # Of values that hardly ever differ every small step would be an alarm at once.
    deviation = max(step_deviation([value for _, value in finite]), abs(anchor) * MAGNITUDE / 100)
    if not 0 < deviation < math.inf:
        return None
    score, first = 0.0, start
    for at, (_, value) in enumerate(finite[start:], start):
        score += min((anchor - value) / deviation, _MOST) - _SLACK
        if score <= 0:
            score, first = 0.0, at + 1
    level = median(value for _, value in finite[max(first, len(finite) - _NEWEST) :] or finite[-1:])
    if score <= _ALARM or anchor - level < MAGNITUDE * abs(anchor):
        return None
    return Drift(anchor, level, finite[first][0], score, deviation, len(values))
