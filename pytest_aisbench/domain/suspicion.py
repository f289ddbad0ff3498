"""Results that are too good, or too alike, to be believed without a look: warnings, never verdicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean, stdev

from pytest_aisbench.domain import student
from pytest_aisbench.domain.metric import ACCURACY
from pytest_aisbench.domain.sentence import tell
from pytest_aisbench.domain.threshold import quantity

_ALIKE = 3  # two trainings may well classify the same number of images
_KNOWN = 3
_LEVEL = 0.999
_ACCURATE = 0.01  # the share above history that is suspicious in an accuracy
_FAST = 0.05  # and in everything else


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
    """Empty unless the value is above all that comparable history lets expect of one more trial.

    That is beyond mean + t · s · √(1 + 1/n) at 0.999, and above the mean by a share that matters.
    """
    past = [each for each in history if math.isfinite(each)]
    if len(past) < _KNOWN or not math.isfinite(value):
        return ""
    mean = fmean(past)
    reach = student.quantile(_LEVEL, len(past) - 1) * stdev(past) * math.sqrt(1 + 1 / len(past))
    floor = abs(mean) * (_ACCURATE if metric == ACCURACY else _FAST)
    if not mean or value <= mean + max(reach, floor):
        return ""
    share, shown = f"{(value - mean) / abs(mean):.1%}", {"value": quantity(value, unit), "mean": quantity(mean, unit)}
    return tell("too good", metric=metric, share=share, count=str(len(past)), **shown)


def suspicions(metric: str, trials: Sequence[float], history: Sequence[float], unit: str = "") -> list[str]:
    """All that is to be said of the trials of a case; none of it changes the verdict."""
    told = [identical(metric, trials, history), *(too_good(metric, value, history, unit) for value in trials)]
    return list(dict.fromkeys(filter(None, told)))
