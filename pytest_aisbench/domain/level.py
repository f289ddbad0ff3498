"""Which part of a history tells the noise: its newest level, without the few values that are no noise.

The rule. A step that once was is no noise: values before the last change are passed over. Neither is a fault that once
was, such as a node that was slow and has been replaced: a value that is further from the median than 6 s is left out,
where s is the median distance from it, times 1.4826. It must be 2 % away at least, and of ten values at most one
is left out: what happens more often is how the machine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pytest_aisbench.domain.changes import MAGNITUDE, changes

_FURTHEST = 6.0  # standard deviations; of normal noise one in five hundred million is further
SIGMA = 1.4826  # times the median distance from the median: the standard deviation of normal noise
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
    deviation = SIGMA * median(abs(value - middle) for value in values)
    reach = max(_FURTHEST * deviation, MAGNITUDE * abs(middle))
    far = tuple(value for value in values if abs(value - middle) > reach)
    if len(far) * _ONE_OF > len(values):
        return Level(values)
    return Level(tuple(value for value in values if abs(value - middle) <= reach), far)
