"""What a trial measured, as values of its case: the one place where results of ranks and nodes become one number.

First it checks that every result is there, once, and bears the right label: a rank that counts twice makes a cluster
look faster than it is. Then it sums over ranks, or takes the mean over nodes where each trains alone. Beside what the
script wrote stands what its log measures by itself: the speed in steady state, and the time to accuracy. Neither ever
replaces what the script wrote: `throughput` is of the whole run, `accuracy` of its end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.curve import Curve, points_of, reached
from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.metric import (
    ACCURACY,
    LARGEST,
    STEADY_THROUGHPUT,
    THROUGHPUT,
    TIME_TO_ACCURACY,
    Flaw,
    Measurement,
)
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.trial import Step, Trial, TrialRecord
from pytest_aisbench.judge import comparison

_Label = tuple[int | None, int | None]  # rank, server


def values(trial: Trial) -> dict[str, float]:
    """The case's metrics: throughput is the sum over ranks; where every node trains alone, each is the mean over the
    nodes. One that is flawed or not finite has no value. Beside them stands what the log measures by itself."""
    flawed = {flaw.metric for flaw in flaws_of(trial)}
    by_metric: dict[str, list[Measurement]] = {}
    for measurement in trial.measurements:
        by_metric.setdefault(measurement.metric, []).append(measurement)
    whole = by_node if trial.case.single_server else total
    found = {name: whole(measured) for name, measured in by_metric.items() if name not in flawed}
    return {name: value for name, value in {**logged(trial), **found}.items() if math.isfinite(value)}


def by_node(measured: Sequence[Measurement]) -> float:
    """The mean over the nodes of the sum over each one's cards."""
    nodes = sorted({each.server for each in measured if each.server is not None})
    return mean([total(each for each in measured if each.server == node) for node in nodes]) if nodes else math.nan


def by_rank(trial: Trial) -> list[float | None]:
    """The throughput of each rank; None where it was not measured."""
    ranks: list[float | None] = [None] * trial.case.shape.world
    for each in trial.measurements:
        if each.metric == THROUGHPUT and each.rank is not None and 0 <= each.rank < len(ranks):
            ranks[each.rank] = each.value
    return ranks


def by_server(ranks: list[float | None], shape: Shape) -> tuple[float | None, ...]:
    """The sum of each node's ranks; None where one of them is missing."""
    servers: list[float | None] = []
    for node in range(shape.nodes):
        found = [rank for rank in ranks[node * shape.devices : (node + 1) * shape.devices] if rank is not None]
        whole = sum(found) if len(found) == shape.devices else math.inf
        servers.append(whole if math.isfinite(whole) else None)
    return tuple(servers)


def mean(values: Sequence[float]) -> float:
    """As the predecessor computes it, to the last digit."""
    return sum(values) / len(values)


def total(measurements: Iterable[Measurement]) -> float:
    """The sum over ranks."""
    return summed(measurement.value for measurement in measurements)


def summed(values: Iterable[float]) -> float:
    """Exact, so that the order in which ranks arrive does not matter; infinite where no float is as large."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def flaws_of(trial: Trial) -> tuple[Flaw, ...]:
    """Those that harvesting found, what is wrong with the metrics that it did not object to, and what is claimed of
    the log and not in it."""
    known = {flaw.metric for flaw in trial.flaws}
    found = objections(trial.case, trial.measurements) if trial.measurements or trial.flaws else []
    found += unlogged(trial)
    return (*trial.flaws, *(flaw for flaw in found if flaw.metric not in known))


def objections(case: Case, measurements: Iterable[Measurement]) -> list[Flaw]:
    by_metric: dict[str, list[Measurement]] = {name: [] for name in case.workload.metrics}
    for each in measurements:
        by_metric.setdefault(each.metric, []).append(each)
    flaws = [Flaw(name, message("unwanted")) for name in by_metric.keys() - case.workload.metrics]
    for name, metric in case.workload.metrics.items():
        found = by_metric[name]
        flaws += [
            Flaw(name, message("other unit", what=each.source, text=repr(each.unit), unit=repr(metric.unit)))
            for each in found
            if each.unit != metric.unit
        ]
        flaws += [
            Flaw(name, message("not finite", what=each.source, text=str(each.value)))
            for each in found
            if not math.isfinite(each.value)
        ]
        counted, wanted = Counter((each.rank, each.server) for each in found), _labels(case, name)
        flaws += [Flaw(name, message("missing", what=_who(label))) for label in wanted if label not in counted]
        flaws += [
            Flaw(name, message("twice", what=_who(label), count=str(count)))
            for label, count in counted.items()
            if count > 1
        ]
        flaws += [
            Flaw(name, message("of others", what=_who(label), case=case.id)) for label in counted if label not in wanted
        ]
    return sorted(flaws, key=lambda flaw: (flaw.metric, flaw.text))


def _labels(case: Case, metric: str) -> dict[_Label, None]:
    shape = case.shape
    if metric == THROUGHPUT:
        return {(rank, rank // shape.devices if case.single_server else None): None for rank in range(shape.world)}
    return dict.fromkeys((None, node) for node in range(shape.nodes)) if case.single_server else {(None, None): None}


def _who(label: _Label) -> str:
    rank, server = label
    if rank is None:
        return message("value of job") if server is None else message("value of node", node=str(server))
    return (
        message("value of rank", rank=str(rank))
        if server is None
        else message("value of rank there", node=str(server), rank=str(rank))
    )


class Spread(Protocol):
    """Who trained together: a case, or what is told of one."""

    @property
    def shape(self) -> Shape: ...

    @property
    def single_server(self) -> bool: ...


def logged(trial: Trial) -> dict[str, float]:
    """By metric; what the log does not tell is left out."""
    return {name: value for name, value in _from_log(trial).items() if isinstance(value, float)}


def unlogged(trial: Trial) -> list[Flaw]:
    """A flaw for what is claimed and the log does not tell."""
    told = ((name, why) for name, why in _from_log(trial).items() if _claim(trial.case, name))
    return [Flaw(name, message("unlogged", why=why)) for name, why in told if isinstance(why, str)]


def _from_log(trial: Trial) -> dict[str, float | str]:
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
        of_job, of_rank = message("of steady job", points=points), message("of steady rank", points=points, ranks=ranks)
        said[STEADY_THROUGHPUT] = of_job if known.of == "job" else of_rank
        said[THROUGHPUT] = message("of the whole")
    if TIME_TO_ACCURACY in found and (target := target_accuracy(trial.case)) is not None:
        said[TIME_TO_ACCURACY] = message("until accurate", target=number(target))
    return said


def steady(curve: Curve | None, case: Spread) -> float | str:
    """The whole job's samples/s without the warm-up, or why nobody knows it."""
    known = curve.pace if curve else None
    if case.single_server and case.shape.nodes > 1:
        return message("alone in speed")
    if known is None:
        return message("no speed")
    if known.unit != "samples/s":
        return message("other speed", unit=known.unit)
    if known.steady is None:
        return message("few speeds")
    value = known.steady * (1 if known.of == "job" else case.shape.world)
    return value if math.isfinite(value) else message("infinite speed")


def time_to_accuracy(curve: Curve | None, case: Spread, target: float | None, unit: str) -> float | str:
    """Seconds from the start of training to the first evaluation at or above the target, or why nobody knows."""
    if target is None:
        return message("no target")
    if case.single_server and case.shape.nodes > 1:
        return message("alone in learning")
    if curve is None or not curve.evaluations:
        return message("no evaluation")
    if not unit and any(not 0 <= each.accuracy <= 1 for each in curve.evaluations):
        return message("no ratios")
    seconds = reached(curve, target)
    if seconds is not None:
        return seconds
    best = max(each.accuracy for each in curve.evaluations)
    if best < target:
        return message("not reached", target=number(target), best=number(best))
    return message("no time")


def target_accuracy(case: Case) -> float | None:
    """The lower bound of the claim on accuracy."""
    claim = _claim(case, ACCURACY)
    low = claim.band(case.judged_shape)[0] if claim else -math.inf
    return low if math.isfinite(low) else None


def _claim(case: Case, metric: str) -> Threshold | None:
    return next((claim for claim in case.thresholds if claim.metric == metric), None)


def counts(trial: Trial) -> bool:
    """Whether its speed may be compared: no result is missing or wrong, and every claim on the accuracy holds."""
    found = values(trial)
    if trial.fault or flaws_of(trial) or THROUGHPUT not in found:
        return False
    if not 0 < found[THROUGHPUT] < LARGEST:
        return False
    claims = [claim for claim in trial.case.thresholds if claim.metric == ACCURACY]
    bands = [claim.band(trial.case.judged_shape) for claim in claims]
    learnt = found.get(ACCURACY, math.nan)
    return bool(bands) and all(low <= learnt <= high for low, high in bands)


def measure_of(trial: Trial) -> TrialRecord | None:
    """None where nothing was measured that could be compared to anything, or where it is not judged."""
    found = values(trial)
    if trial.step is not Step.DONE or trial.fault or not trial.judged or flaws_of(trial) or THROUGHPUT not in found:
        return None
    case, speed = trial.case, trial.curve.pace if trial.curve else None
    return TrialRecord(
        trial=trial.id,
        run=trial.run,
        case_id=case.id,
        workload=case.workload.name,
        shape=str(case.shape),
        mode=case.mode.value,
        key=comparison.key(trial.traits),
        family=comparison.family(trial.traits),
        at=trial.times.get("done", 0.0),
        throughput=found[THROUGHPUT],
        accuracy=found.get(ACCURACY),
        steady=speed.steady if speed else None,
        ran_s=trial.job.ran_s if trial.job else None,
        ruling=trial.judged.ruling,
        counts=counts(trial),
        metrics={name: value for name, value in found.items() if name not in {THROUGHPUT, ACCURACY}},
    )
