"""Results that are too good, too alike, or worse than noise makes them: warnings, never verdicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pytest_aisbench.domain import student
from pytest_aisbench.domain.level import newest_level
from pytest_aisbench.domain.metric import ACCURACY
from pytest_aisbench.domain.sentence import tell
from pytest_aisbench.domain.threshold import quantity

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
        return tell("identical", count=str(len(trials)), **told)
    return tell("identical past", count=str(count), **told)


def too_good(metric: str, value: float, history: Sequence[float], unit: str = "") -> str:
    """Empty unless the value is above all that comparable history lets expect of one more trial."""
    off = _off(value, history, _ACCURATE if metric == ACCURACY else _FAST)
    return tell("too good", metric=metric, **off.told(unit)) if off and off.share > 0 else ""


def lost(metric: str, value: float, history: Sequence[float], unit: str = "") -> str:
    """Empty unless the value is below all that comparable history lets expect of one more trial.

    On a quiet system that is a small loss, and a wide margin would let it pass without a word.
    """
    off = _off(value, history, _ACCURATE if metric == ACCURACY else _SLOW)
    return tell("lost within margin", metric=metric, **off.told(unit)) if off and off.share < 0 else ""


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
    reach = student.quantile(_LEVEL, len(past) - 1) * stdev(past) * math.sqrt(1 + 1 / len(past))
    return _Off(value, mean, len(past)) if abs(value - mean) > max(reach, abs(mean) * least) else None


def suspicions(metric: str, trials: Sequence[float], history: Sequence[float], unit: str = "") -> list[str]:
    """All that is to be said of the trials of a case; none of it changes the verdict."""
    told = [identical(metric, trials, history), *(too_good(metric, value, history, unit) for value in trials)]
    return list(dict.fromkeys(filter(None, told)))
