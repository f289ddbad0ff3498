"""What the log of a training measures by itself: its speed in steady state, and how soon it was accurate.

Neither is ever put in the place of what the script wrote: `throughput` is of the whole run, `accuracy` of its end.
"""

from __future__ import annotations

import math
from typing import Protocol

from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.curve import Curve, points_of, reached
from pytest_aisbench.domain.metric import ACCURACY, STEADY_THROUGHPUT, THROUGHPUT, TIME_TO_ACCURACY, Flaw
from pytest_aisbench.domain.sentence import tell
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.trial import Trial


class Spread(Protocol):
    """Who trained together: a case, or what is told of one."""

    @property
    def shape(self) -> Shape: ...

    @property
    def single_server(self) -> bool: ...


def logged(trial: Trial) -> dict[str, float]:
    """By metric; what the log does not tell is left out."""
    return {name: value for name, value in _told(trial).items() if isinstance(value, float)}


def unlogged(trial: Trial) -> list[Flaw]:
    """A flaw for what is claimed and the log does not tell."""
    told = ((name, why) for name, why in _told(trial).items() if _claim(trial.case, name))
    return [Flaw(name, tell("unlogged", why=why)) for name, why in told if isinstance(why, str)]


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
    if STEADY_THROUGHPUT in found and (known := trial.curve.pace if trial.curve else None):
        points, ranks = points_of(known.warm_up_points), str(trial.case.shape.world)
        of_job, of_rank = tell("of steady job", points=points), tell("of steady rank", points=points, ranks=ranks)
        said[STEADY_THROUGHPUT] = of_job if known.of == "job" else of_rank
        said[THROUGHPUT] = tell("of the whole")
    if TIME_TO_ACCURACY in found and (target := target_accuracy(trial.case)) is not None:
        said[TIME_TO_ACCURACY] = tell("until accurate", target=number(target))
    return said


def steady(curve: Curve | None, case: Spread) -> float | str:
    """The whole job's samples/s without the warm-up, or why nobody knows it."""
    known = curve.pace if curve else None
    if case.single_server and case.shape.nodes > 1:
        return tell("alone in speed")
    if known is None:
        return tell("no speed")
    if known.unit != "samples/s":
        return tell("other speed", unit=known.unit)
    if known.steady is None:
        return tell("few speeds")
    value = known.steady * (1 if known.of == "job" else case.shape.world)
    return value if math.isfinite(value) else tell("infinite speed")


def time_to_accuracy(curve: Curve | None, case: Spread, target: float | None, unit: str) -> float | str:
    """Seconds from the start of training to the first evaluation at or above the target, or why nobody knows."""
    if target is None:
        return tell("no target")
    if case.single_server and case.shape.nodes > 1:
        return tell("alone in learning")
    if curve is None or not curve.evaluations:
        return tell("no evaluation")
    if not unit and any(not 0 <= each.accuracy <= 1 for each in curve.evaluations):
        return tell("no ratios")
    seconds = reached(curve, target)
    if seconds is not None:
        return seconds
    best = max(each.accuracy for each in curve.evaluations)
    if best < target:
        return tell("not reached", target=number(target), best=number(best))
    return tell("no time")


def target_accuracy(case: Case) -> float | None:
    """The lower bound of the claim on accuracy."""
    claim = _claim(case, ACCURACY)
    low = claim.band(case.judged_shape)[0] if claim else -math.inf
    return low if math.isfinite(low) else None


def _claim(case: Case, metric: str) -> Threshold | None:
    return next((claim for claim in case.thresholds if claim.metric == metric), None)
