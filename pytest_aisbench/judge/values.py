"""What one trial measured, as values of its case: the only place where results of ranks become one number.

`case_values` checks that every result is there, once, bears the right label and is possible: a rank that counts twice
makes a cluster look faster than it is, and so does a value beyond every machine. Then it sums over ranks, or takes the
mean over nodes where each trains alone, and keeps what each of them reached. To what the script wrote, or printed where
workload.toml has a pattern, it adds what the log shows by itself: the speed in steady state, and the time to accuracy.
Neither ever replaces what the script wrote: `throughput` is of the whole run, `accuracy` of its end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_aisbench.judge.comparison import family_key, traits_key
from pytest_aisbench.judge.stragglers import find_stragglers, middles_without, stragglers_message
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.messages import Message, joined, message
from pytest_aisbench.model.metric import (
    ACCURACY,
    LARGEST,
    LOSS,
    PHYSICAL_LIMIT,
    SCALING,
    STEADY_THROUGHPUT,
    STEPS_PER_S,
    THROUGHPUT,
    TIME_TO_ACCURACY,
    Curve,
    Measurement,
    Metric,
    MetricValues,
    MissingResult,
    counts_the_same,
    points_of,
)
from pytest_aisbench.model.trial import Step, Trial, TrialRecord
from pytest_aisbench.model.verdict import Threshold, Verdict, number
from pytest_aisbench.traininglog.curve import seconds_to_accuracy

_Label = tuple[int | None, int | None]  # rank, node
_FURTHEST = 100  # times the other ranks' median, or below it: more is a fault of the measurement, not a slow card


@dataclass(frozen=True)
class CaseValues:
    """What one trial measured: a value of the case per metric, and the results that are missing or wrong."""

    case: Case
    values: Mapping[str, float]  # finite
    missing: tuple[MissingResult, ...] = ()  # their metrics have no value, unless the log has one
    by_rank: tuple[float | None, ...] = ()  # the throughput; None if a rank wrote none
    by_node: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # where several nodes train alone, by metric
    curve: Curve | None = None  # of the training, by its log
    run: str = ""
    number: int = 1  # of the trial
    done_at: float = 0.0  # seconds since the epoch

    @property
    def is_comparable(self) -> bool:
        """Whether its speed may be compared: no result is missing, and every threshold on the accuracy is met."""
        if self.missing or not 0 < self.values.get(THROUGHPUT, 0.0) < LARGEST:
            return False
        thresholds = [threshold for threshold in self.case.thresholds if threshold.metric == ACCURACY]
        bands = [threshold.band(self.case.judged_shape) for threshold in thresholds]
        accuracies = (self.values.get(ACCURACY, math.nan), *self.by_node.get(ACCURACY, ()))
        return bool(bands) and all(low <= accuracy <= high for low, high in bands for accuracy in accuracies)

    @property
    def notes(self) -> dict[str, str]:
        """By metric: how it was measured, if a value of the log is judged too; and which cards and nodes are slow."""
        notes: dict[str, str] = {}
        judged = [name for name in self.values if _threshold(self.case, name)]
        if STEADY_THROUGHPUT in judged and (pace := self.curve.pace if self.curve else None):
            points, ranks = points_of(pace.warm_up_points), str(self.case.shape.world)
            of_job, of_rank = (
                message("of steady job", points=points),
                message("of steady rank", points=points, ranks=ranks),
            )
            notes[STEADY_THROUGHPUT] = of_job if pace.of == "job" else of_rank
            notes[THROUGHPUT] = message("of the whole")
        if TIME_TO_ACCURACY in judged and (target := target_accuracy(self.case)) is not None:
            notes[TIME_TO_ACCURACY] = message("until accurate", target=number(target))
        if slow := stragglers_message(find_stragglers(self.by_rank, self.case.shape)):
            notes[THROUGHPUT] = joined((notes.get(THROUGHPUT, ""), slow))
        return notes


def case_values(trial: Trial) -> CaseValues:
    """Throughput is the sum over ranks; where every node trains alone, each metric is the mean over the nodes."""
    case = trial.case
    from_log = _values_of_log(trial)
    missing = _missing_results(trial, from_log)
    incomplete = {each.metric for each in missing}
    by_metric: dict[str, list[Measurement]] = {}
    for measurement in trial.measurements:
        by_metric.setdefault(measurement.metric, []).append(measurement)
    values: dict[str, float] = {name: value for name, value in from_log.items() if isinstance(value, float)}
    by_node: dict[str, tuple[float, ...]] = {}
    for name, results in by_metric.items():
        if name in incomplete:
            continue
        if case.single_server:
            by_node[name] = values_of_nodes(name, results)
            values[name] = mean(by_node[name])
        else:
            values[name] = value_of_ranks(name, results)
    measured = CaseValues(
        case,
        {name: value for name, value in values.items() if math.isfinite(value)},
        missing,
        throughput_by_rank(trial),
        by_node if case.shape.nodes > 1 else {},
        trial.curve,
        trial.run,
        trial.number,
        trial.times.get("done", 0.0),
    )
    return without_impossible_values(measured)


def without_impossible_values(measured: CaseValues) -> CaseValues:
    """A value beyond the physical limit of its metric is no value: it becomes a missing result that says so."""
    limits = {name: physical_limit(measured.case, name) for name in measured.values}
    largest = {name: max((value, *measured.by_node.get(name, ())), key=abs) for name, value in measured.values.items()}
    beyond = {name for name, value in largest.items() if abs(value) > limits[name]}
    if not beyond:
        return measured
    impossible = (
        MissingResult(name, message("case beyond limit", text=f"{largest[name]:g}", limit=f"{limits[name]:g}"))
        for name in sorted(beyond)
    )
    possible = {name: value for name, value in measured.values.items() if name not in beyond}
    return replace(measured, values=possible, missing=(*measured.missing, *impossible))


def physical_limit(case: Case, metric: str) -> float:
    """By workload.toml; a metric with the unit of throughput that no script writes shares the limit of throughput."""
    metrics = case.workload.metrics
    shares_unit = metric in DERIVED and DERIVED[metric].unit is None
    written = metrics.get(THROUGHPUT if shares_unit else metric)
    return written.limit if written else PHYSICAL_LIMIT


def judged_values(trial: Trial, verdict: Verdict | None) -> MetricValues:
    """By metric the value of the case: that of this trial, or the mean that the verdict rests on after several."""
    values = MetricValues(case_values(trial).values)
    # A drift of the metric comes after its threshold.
    judged = {each.metric: each.measured for each in reversed(verdict.findings if verdict else ())}
    values.update({name: value for name, value in judged.items() if value is not None})
    return values


def with_metrics(trial: Trial) -> Trial:
    """The trial with its metrics, for a test: the judged ones, and the last loss that its log shows."""
    metrics = judged_values(trial, trial.judged)
    if trial.curve and trial.curve.loss.points:
        metrics.setdefault(LOSS, trial.curve.loss.points[-1].value)
    return replace(trial, metrics=metrics)


def throughput_by_rank(trial: Trial) -> tuple[float | None, ...]:
    """None for a rank that wrote none; empty if the job has one throughput, and its ranks none of their own."""
    throughput = trial.case.workload.metrics.get(THROUGHPUT)
    if throughput and not throughput.is_by_rank:
        return ()
    ranks: list[float | None] = [None] * trial.case.shape.world
    for each in trial.measurements:
        if each.metric == THROUGHPUT and each.rank is not None and 0 <= each.rank < len(ranks):
            ranks[each.rank] = each.value
    return tuple(ranks)


def accuracy_by_node(trial: Trial) -> tuple[float, ...]:
    """That of each node that trains alone, or else of the job; the mean of the ranks where each has its own."""
    by_node: dict[int | None, list[float]] = {}
    for each in trial.measurements:
        if each.metric == ACCURACY:
            by_node.setdefault(each.server, []).append(each.value)
    return tuple(map(mean, by_node.values()))


def throughput_by_node(by_rank: Sequence[float | None], shape: Shape) -> tuple[float | None, ...]:
    """The sum of each node's ranks; None if one of them is missing."""
    nodes: list[float | None] = []
    for node in range(shape.nodes):
        ranks = [rank for rank in by_rank[node * shape.devices : (node + 1) * shape.devices] if rank is not None]
        whole = sum(ranks) if len(ranks) == shape.devices else math.inf
        nodes.append(whole if math.isfinite(whole) else None)
    return tuple(nodes)


def throughput_by_server(trial: Trial) -> tuple[float | None, ...]:
    """That of each node: of its ranks, or its own where it trains alone and its log gives one value for all."""
    by_rank, shape = throughput_by_rank(trial), trial.case.shape
    if by_rank or not trial.case.single_server:
        return throughput_by_node(by_rank, shape)
    of_nodes = {each.server: each.value for each in trial.measurements if each.metric == THROUGHPUT}
    return tuple(of_nodes.get(node) for node in range(shape.nodes))


def throughput_of_ranks(by_rank: Sequence[float | None]) -> float | None:
    """The sum over all ranks; None if one is missing, or if no float is as large."""
    ranks = [rank for rank in by_rank if rank is not None]
    whole = exact_sum(ranks) if ranks and len(ranks) == len(by_rank) else math.inf
    return whole if math.isfinite(whole) else None


def value_of_ranks(metric: str, measurements: Sequence[Measurement]) -> float:
    """Speeds of ranks add up; of anything else that each rank has, the mean counts."""
    by_rank = metric != THROUGHPUT and len(measurements) > 1
    return mean([each.value for each in measurements]) if by_rank else total(measurements)


def values_of_nodes(metric: str, measurements: Iterable[Measurement]) -> tuple[float, ...]:
    """The value of each node's cards, in the order of the nodes; every measurement names its node."""
    nodes: dict[int, list[Measurement]] = {}
    for each in measurements:
        assert each.server is not None  # or the label is not one that the case owes
        nodes.setdefault(each.server, []).append(each)
    return tuple(value_of_ranks(metric, nodes[node]) for node in sorted(nodes))


def mean(values: Sequence[float]) -> float:
    """As the predecessor computes it, to the last digit."""
    return sum(values) / len(values)


def total(measurements: Iterable[Measurement]) -> float:
    """The sum over ranks."""
    return exact_sum(measurement.value for measurement in measurements)


def exact_sum(values: Iterable[float]) -> float:
    """Exact, so that the order in which ranks arrive does not matter; infinite if no float is as large."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


# Completeness: which results a trial owes, and what is wrong with those that it has.


def _missing_results(trial: Trial, from_log: Mapping[str, float | str]) -> tuple[MissingResult, ...]:
    """What the collect step reported, what is wrong with other metrics, and what a threshold misses in the log."""
    reported = {each.metric for each in trial.missing_results}
    wrong = objections(trial.case, trial.measurements) if trial.measurements or trial.missing_results else []
    wrong += [
        MissingResult(name, message("unlogged", why=why))
        for name, why in from_log.items()
        if isinstance(why, str) and _threshold(trial.case, name)
    ]
    return (*trial.missing_results, *(each for each in wrong if each.metric not in reported))


def objections(case: Case, measurements: Iterable[Measurement]) -> list[MissingResult]:
    """What is wrong with the measurements of a case: missing, twice, impossible, with another unit or label."""
    by_metric: dict[str, list[Measurement]] = {name: [] for name in case.workload.metrics}
    for each in measurements:
        by_metric.setdefault(each.metric, []).append(each)
    wrong = [(name, message("unwanted")) for name in by_metric.keys() - case.workload.metrics]
    for name, metric in case.workload.metrics.items():
        for each in by_metric[name]:
            if each.unit != metric.unit:
                unit = repr(metric.unit)
                wrong.append((name, message("other unit", what=each.source, text=repr(each.unit), unit=unit)))
            if not math.isfinite(each.value):
                wrong.append((name, message("not finite", what=each.source, text=str(each.value))))
            elif abs(each.value) > metric.limit:
                facts = {"text": f"{each.value:g}", "limit": f"{metric.limit:g}"}
                wrong.append((name, message("beyond limit", what=each.source, **facts)))
        counted, owed = Counter((each.rank, each.server) for each in by_metric[name]), _labels(case, metric)
        wrong += [(name, message("missing", what=_origin(label))) for label in owed if label not in counted]
        for label, count in counted.items():
            if count > 1:
                wrong.append((name, message("twice", what=_origin(label), count=str(count))))
            if label not in owed:
                wrong.append((name, message("of others", what=_origin(label), case=case.id)))
        if name == THROUGHPUT:
            possible = [each for each in by_metric[name] if 0 <= each.value <= metric.limit]
            wrong += [(name, text) for text in _ranks_far_apart(possible)]
    return [MissingResult(*each) for each in sorted(wrong)]


def _ranks_far_apart(measurements: Sequence[Measurement]) -> Iterable[Message]:
    """A line for each rank whose speed is not within a hundredth and a hundred times the median of the others."""
    speeds = [each.value for each in measurements]
    if len(speeds) < 2 or min(speeds) * _FURTHEST >= max(speeds):  # as of every healthy job
        return
    order = sorted(speeds)
    for each in measurements:
        low, high = middles_without(order, each.value)  # of two middle ones the nearer: the other may be the wrong one
        facts = {"what": each.source, "text": f"{each.value:g}"}
        if each.value * _FURTHEST < low:
            yield message("far below others", others=number(low), **facts)
        elif each.value > high * _FURTHEST:
            yield message("far above others", others=number(high), **facts)


def _labels(case: Case, metric: Metric) -> dict[_Label, None]:
    """The labels that the results of a metric must bear, each once."""
    shape = case.shape
    if metric.is_by_rank:
        return {(rank, rank // shape.devices if case.single_server else None): None for rank in range(shape.world)}
    return dict.fromkeys((None, node) for node in range(shape.nodes)) if case.single_server else {(None, None): None}


def _origin(label: _Label) -> str:
    rank, node = label
    if rank is None:
        return message("value of job") if node is None else message("value of node", node=str(node))
    if node is None:
        return message("value of rank", rank=str(rank))
    return message("value of rank there", node=str(node), rank=str(rank))


# What the log of a training shows.


@dataclass(frozen=True)
class LoggedTraining:
    """The curve of a training by its log, and what decides how to read it."""

    curve: Curve | None
    shape: Shape
    nodes_train_alone: bool
    target: float | None  # the lower bound that is claimed of the accuracy
    accuracy_unit: str
    throughput_unit: str

    @property
    def is_one_of_several(self) -> bool:
        """True if other nodes trained too, each alone, and their logs are not in the curve."""
        return self.nodes_train_alone and self.shape.nodes > 1


def steady_throughput(log: LoggedTraining) -> float | str:
    """The whole job's throughput without the warm-up, or the reason why it is unknown."""
    pace = log.curve.pace if log.curve else None
    if log.is_one_of_several:
        return message("alone in speed")
    if pace is None:
        return message("no speed")
    if pace.unit == STEPS_PER_S:
        return message("other speed", unit=pace.unit)
    if not counts_the_same(log.throughput_unit, pace.unit):
        return message("speed of another unit", unit=pace.unit, wanted=log.throughput_unit)
    if pace.steady is None:
        return message("few speeds")
    value = pace.steady * (1 if pace.of == "job" else log.shape.world)
    return value if math.isfinite(value) else message("infinite speed")


def time_to_accuracy(log: LoggedTraining) -> float | str:
    """Seconds from the start of training to the first evaluation that meets the target, or why they are unknown."""
    curve, target = log.curve, log.target
    if target is None:
        return message("no target")
    if log.is_one_of_several:
        return message("alone in learning")
    if curve is None or not curve.evaluations:
        return message("no evaluation")
    if not log.accuracy_unit and any(not 0 <= each.accuracy <= 1 for each in curve.evaluations):
        return message("no ratios")
    seconds = seconds_to_accuracy(curve, target)
    if seconds is not None:
        return seconds
    best = max(each.accuracy for each in curve.evaluations)
    if best < target:
        return message("not reached", target=number(target), best=number(best))
    return message("no time")


@dataclass(frozen=True)
class DerivedMetric:
    """A metric that no training script writes: we compute it from the training log, or from other shapes.

    To add one that the log shows, add a row to `DERIVED`, and its texts to each catalogue of `i18n`.
    """

    name: str
    unit: str | None  # None: the unit of throughput
    from_log: Callable[[LoggedTraining], float | str] | None = None  # the value, or the message why there is none
    remark: str = ""  # what `fields.json` adds to its source
    is_speed: bool = False  # it means nothing if the model learnt nothing
    is_additive: bool = True  # a claim on it may be per node or per device
    is_positive: bool = True  # every value is above 0, so that a bound at 0 claims nothing


DERIVED = {
    metric.name: metric
    for metric in (
        DerivedMetric(SCALING, unit="", is_speed=True),
        DerivedMetric(STEADY_THROUGHPUT, None, steady_throughput, "without its warm-up", is_speed=True),
        DerivedMetric(TIME_TO_ACCURACY, "s", time_to_accuracy, is_additive=False),
    )
}
SPEEDS = frozenset({THROUGHPUT, *(metric.name for metric in DERIVED.values() if metric.is_speed)})


def values_from_log(log: LoggedTraining) -> dict[str, float | str]:
    """By derived metric the value, or the reason why there is none."""
    return {name: metric.from_log(log) for name, metric in DERIVED.items() if metric.from_log}


def logged_training(case: Case, curve: Curve | None) -> LoggedTraining:
    units = {name: metric.unit for name, metric in case.workload.metrics.items()}
    accuracy, throughput = units.get(ACCURACY, ""), units.get(THROUGHPUT, "")
    return LoggedTraining(curve, case.shape, case.single_server, target_accuracy(case), accuracy, throughput)


def _values_of_log(trial: Trial) -> dict[str, float | str]:
    return values_from_log(logged_training(trial.case, trial.curve))


def target_accuracy(case: Case) -> float | None:
    """The lower bound of the threshold on accuracy."""
    threshold = _threshold(case, ACCURACY)
    low = threshold.band(case.judged_shape)[0] if threshold else -math.inf
    return low if math.isfinite(low) else None


def _threshold(case: Case, metric: str) -> Threshold | None:
    return next((threshold for threshold in case.thresholds if threshold.metric == metric), None)


# What history keeps of a trial.


def trial_record(trial: Trial) -> TrialRecord | None:
    """None if the trial was not judged, or measured nothing that could be compared."""
    if trial.step is not Step.DONE or trial.fault or not trial.judged:
        return None
    measured = case_values(trial)
    values = measured.values
    if measured.missing or THROUGHPUT not in values:
        return None
    case, pace = trial.case, trial.curve.pace if trial.curve else None
    return TrialRecord(
        trial=trial.id,
        run=trial.run,
        case_id=case.id,
        workload=case.workload.name,
        shape=str(case.shape),
        mode=case.mode.value,
        key=traits_key(trial.traits),
        family=family_key(trial.traits),
        at=measured.done_at,
        throughput=values[THROUGHPUT],
        accuracy=values.get(ACCURACY),
        steady=pace.steady if pace else None,
        ran_s=trial.job.ran_s if trial.job else None,
        ruling=trial.judged.ruling,
        counts=measured.is_comparable,
        metrics={name: value for name, value in values.items() if name not in {THROUGHPUT, ACCURACY}},
    )
