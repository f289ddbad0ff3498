"""A curve as lines of text: for whoever looks at a job from a shell, while it runs or after."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_aisbench.domain.curve import Curve, Series
from pytest_aisbench.domain.threshold import number

_LEVELS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def lines(curve: Curve) -> list[str]:
    """Loss, speed, and the pace in words; nothing where the log told nothing."""
    found = []
    if curve.loss.points:
        found.append(f"loss   {_row(curve.loss)}")
    if curve.speed.points:
        found.append(f"speed  {_row(curve.speed)} {curve.unit}")
    if told := curve.pace:
        found.append(f"pace   {told}")
    return found


def _row(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    where = f"epoch {last.epoch} step {last.step}" if last.epoch else f"step {last.step}"
    return f"{drawn(series.values)}  {number(first.value)} → {number(last.value)} at {where}"


def drawn(values: Sequence[float], width: int = _WIDTH) -> str:
    """One sign per value, or per the mean of several where there are more than fit."""
    size = math.ceil(len(values) / width)
    means = [sum(part) / len(part) for at in range(0, len(values), size) if (part := values[at : at + size])]
    low, high = min(means), max(means)
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return _LEVELS[0] * len(means)
    return "".join(_LEVELS[min(7, int(8 * (mean - low) / span))] for mean in means)
