"""What the log of a training measures by itself: its speed in steady state, and how soon it was accurate.

Neither is ever put in the place of what the script wrote: `throughput` is of the whole run, `accuracy` of its end.
"""

from __future__ import annotations

import math
from typing import Protocol

from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.curve import Curve, pace, reached
from pytest_aisbench.domain.metric import ACCURACY, STEADY_THROUGHPUT, THROUGHPUT, TIME_TO_ACCURACY, Flaw
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.trial import Trial


class Spread(Protocol):
    """Who trained together: a case, or what is told of one."""

    @property
    def shape(self) -> Shape: ...

    @property
    def alone(self) -> bool: ...


def logged(trial: Trial) -> dict[str, float]:
    """By metric; what the log does not tell is left out."""
    return {name: value for name, value in _told(trial).items() if isinstance(value, float)}


def unlogged(trial: Trial) -> list[Flaw]:
    """A flaw for what is claimed and the log does not tell."""
    told = ((name, why) for name, why in _told(trial).items() if _claim(trial.case, name))
    return [Flaw(name, f"not measured: {why}") for name, why in told if isinstance(why, str)]


def _told(trial: Trial) -> dict[str, float | str]:
    case = trial.case
    unit = case.workload.metrics[ACCURACY].unit if ACCURACY in case.workload.metrics else ""
    return {
        STEADY_THROUGHPUT: steady(trial.curve, case),
        TIME_TO_ACCURACY: time_to_accuracy(trial.curve, case, target_accuracy(case), unit),
    }


def remarks(trial: Trial) -> dict[str, str]:
    """How each was measured, for whoever reads both; nothing where only the whole run is judged."""
    said: dict[str, str] = {}
    found = {name: value for name, value in logged(trial).items() if _claim(trial.case, name)}
    if STEADY_THROUGHPUT in found and (known := pace(trial.curve) if trial.curve else None):
        who = "the whole job" if known.of == "job" else f"one rank × {trial.case.shape.world}"
        points = f"{known.warm_up_points} point{'s' if known.warm_up_points != 1 else ''}"
        said[STEADY_THROUGHPUT] = f"in steady state by the log of {who}, without a warm-up of {points}"
        said[THROUGHPUT] = "over the whole run"
    if TIME_TO_ACCURACY in found and (target := target_accuracy(trial.case)) is not None:
        said[TIME_TO_ACCURACY] = f"until the first evaluation of {number(target)} or more"
    return said


def steady(curve: Curve | None, case: Spread) -> float | str:
    """The whole job's samples/s without the warm-up, or why nobody knows it."""
    known = pace(curve) if curve else None
    if case.alone and case.shape.nodes > 1:
        return "every node trains alone, and only the first one's log is read for its speed"
    if known is None:
        return "the log tells no speed"
    if known.unit != "samples/s":
        return f"the log tells {known.unit}, and not how many samples a step has"
    if known.steady is None:
        return "the log tells too few speeds to tell the steady state from the warm-up"
    value = known.steady * (1 if known.of == "job" else case.shape.world)
    return value if math.isfinite(value) else "the log tells no finite speed"


def time_to_accuracy(curve: Curve | None, case: Spread, target: float | None, unit: str) -> float | str:
    """Seconds from the start of training to the first evaluation at or above the target, or why nobody knows."""
    if target is None:
        return "the claim on accuracy has no lower bound to reach"
    if case.alone and case.shape.nodes > 1:
        return "every node trains alone, and only the first one's log is read for its evaluations"
    if curve is None or not curve.evaluations:
        return "the log tells of no evaluation"
    if not unit and any(not 0 <= each.accuracy <= 1 for each in curve.evaluations):
        return "the log's evaluations are not ratios between 0 and 1, as the accuracy is"
    seconds = reached(curve, target)
    if seconds is not None:
        return seconds
    best = max(each.accuracy for each in curve.evaluations)
    if best < target:
        return f"no evaluation of the log reached {number(target)}, the best is {number(best)}"
    return "the log does not tell when its evaluations were"


def target_accuracy(case: Case) -> float | None:
    """The lower bound of the claim on accuracy."""
    claim = _claim(case, ACCURACY)
    low = claim.band(case.judged_shape)[0] if claim else -math.inf
    return low if math.isfinite(low) else None


def _claim(case: Case, metric: str) -> Threshold | None:
    return next((claim for claim in case.thresholds if claim.metric == metric), None)
