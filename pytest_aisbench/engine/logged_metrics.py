"""Measures what a training script prints but writes to no file: the metrics with a `pattern` in workload.toml.

`read_logged` reads the downloaded logs of an ended job. Where the platform keeps a log of each rank, that log tells who
printed a line; else the launcher's prefix does (`[rank3]:`), or the node's log if the node has one card.

A log may be cut: the platform stops writing at its limit, or copies the log before its end is there. Then the last
line is another, and the mean is of other steps. So a value counts only if something shows that the log is whole: as
many lines as `times` says; or else an end that the platform wrote, and as many such lines in a node's log as in those
of its ranks.
"""

from __future__ import annotations

import codecs
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.engine.staging import PIECE
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.messages import message, plain
from pytest_aisbench.model.metric import LogReading, Measurement, Metric, MissingResult
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.traininglog.patterns import TAKES, PrintedLog, read_pattern, read_printed
from pytest_aisbench.traininglog.readers import prefixed_rank

_LOG = get_logger("fleet")
RANKS = "ranks"
"""The factor of `times` and `samples` that stands for the number of ranks that train together."""
_NODE_LOG = re.compile(r"worker-(\d+)\.log\Z", re.ASCII)
_RANK_LOG = re.compile(r"proc-rank-(\d+)-device-\d+\.txt\Z", re.ASCII)
_LONGEST_LINE = 200  # characters that we quote


class _Unmeasured(Exception):
    """Why a metric has no value."""

    def __init__(self, key: str, **facts: str) -> None:
        super().__init__(key)
        self.text = message(key, **facts)


def read_logged(trial: Trial, folder: Path) -> tuple[list[Measurement], list[MissingResult]]:
    """Every metric that the logs below `folder` give, and for each that they do not the reason."""
    metrics = [metric for metric in trial.case.workload.metrics.values() if metric.log]
    measurements: list[Measurement] = []
    missing: list[MissingResult] = []
    if not metrics:
        return measurements, missing
    logs = _Logs.read(trial, folder, {metric.log.pattern for metric in metrics if metric.log and metric.log.pattern})
    for metric in metrics:
        try:
            measurements += _measured(metric, trial, logs)
        except _Unmeasured as why:
            missing.append(MissingResult(metric.name, why.text))
    return measurements, missing


def _measured(metric: Metric, trial: Trial, logs: _Logs) -> list[Measurement]:
    """The metric of each rank, of each node that trains alone, or of the job."""
    reading, case = metric.log, trial.case
    assert reading is not None
    if not reading.pattern:
        seconds = trial.job.ran_s if trial.job else None
        if not seconds:
            raise _Unmeasured("no running time")
        return [
            Measurement(metric.name, _converted(reading, case, seconds), metric.unit, "", None, node)
            for node in _nodes_alone(case)
        ]
    found: list[Measurement] = []
    for node in _nodes_alone(case):
        nodes = range(case.shape.nodes) if node is None else [node]
        printed = logs.printed(reading, nodes)
        _check_whole(reading, logs, nodes)
        numbers = {printer: _one_number(reading, case, printer, all_of_it) for printer, all_of_it in printed.items()}
        if metric.is_by_rank:
            found += _by_rank(metric, case, numbers, node)
        else:
            found.append(_of_job(metric, numbers, node))
    return found


def _nodes_alone(case: Case) -> list[int] | list[None]:
    """The nodes that have values of their own; [None] if all nodes train together."""
    return list(range(case.shape.nodes)) if case.single_server else [None]


@dataclass(frozen=True)
class _Printer:
    """A rank that printed lines, and the log that has them; no rank where nothing tells it."""

    rank: int | None
    log: str


def _by_rank(metric: Metric, case: Case, numbers: Mapping[_Printer, float], node: int | None) -> Iterator[Measurement]:
    assert metric.log is not None
    if unknown := next((each for each in numbers if each.rank is None), None):
        setting = 'printed_by = "job"'
        raise _Unmeasured("lines of no rank", log=unknown.log, pattern=metric.log.pattern, setting=setting)
    by_rank: dict[int, tuple[str, float]] = {}
    for each, value in numbers.items():
        assert each.rank is not None
        if each.rank in by_rank:
            raise _Unmeasured("rank in two logs", rank=str(each.rank), one=by_rank[each.rank][0], other=each.log)
        by_rank[each.rank] = each.log, value
    first, count = (0, case.shape.world) if node is None else (node * case.shape.devices, case.shape.devices)
    if strange := sorted(rank for rank in by_rank if rank not in range(first, first + count)):
        raise _Unmeasured(
            "line of strange rank", log=by_rank[strange[0]][0], rank=str(strange[0]), shape=str(case.shape)
        )
    for rank in range(first, first + count):
        if rank not in by_rank:
            raise _Unmeasured("no line of rank", rank=str(rank), pattern=metric.log.pattern)
        log, value = by_rank[rank]
        yield Measurement(metric.name, value, metric.unit, log, rank, node)


def _of_job(metric: Metric, numbers: Mapping[_Printer, float], node: int | None) -> Measurement:
    """One value of the job. Where several ranks print it, they must agree: else it is a value of each rank."""
    assert metric.log is not None
    printers = sorted(numbers, key=lambda each: (each.rank is None, each.rank or 0, each.log))
    first = printers[0]
    for other in printers[1:]:
        if numbers[other] != numbers[first]:
            values = {"value": f"{numbers[first]:g}", "different": f"{numbers[other]:g}"}
            setting = 'printed_by = "rank"'
            raise _Unmeasured("ranks differ", one=first.log, other=other.log, setting=setting, **values)
    return Measurement(metric.name, numbers[first], metric.unit, first.log, None, node)


def _one_number(reading: LogReading, case: Case, printer: _Printer, numbers: list[float]) -> float:
    """What the lines of one rank say, in the metric's unit."""
    facts = {"log": printer.log, "pattern": reading.pattern, "count": str(len(numbers))}
    if reading.times and len(numbers) != (times := _product(reading.times, case)):
        raise _Unmeasured("other count of lines", times=f"{times:g}", **facts)
    if not reading.take and not reading.times and len(numbers) > 1:
        raise _Unmeasured("several lines", setting='take = "last"', **facts)
    try:
        number = TAKES[reading.take or "last"](numbers)
    except OverflowError:  # a sum beyond every float
        raise _Unmeasured("too large") from None
    return _converted(reading, case, number)


def _converted(reading: LogReading, case: Case, number: float) -> float:
    value = number * reading.scale
    if reading.samples:
        if value <= 0:
            raise _Unmeasured("no time for samples", text=f"{value:g}")
        value = _product(reading.samples, case) / value
    if not math.isfinite(value):
        raise _Unmeasured("too large")
    return value


def _product(factors: Iterable[str], case: Case) -> float:
    """The product of numbers, of parameters of the job, and of the ranks that train together."""
    product = 1.0
    for factor in factors:
        text = str(case.judged_shape.world) if factor == RANKS else case.workload.parameters.get(factor, factor)
        product *= positive_number(text) or math.nan
    if not math.isfinite(product):
        raise _Unmeasured("no product", factors=" × ".join(factors))
    return product


def positive_number(text: str) -> float | None:
    """The number that a factor is; None if it is none, or not above 0."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


# The logs, and whether they are whole


@dataclass(frozen=True)
class _Logs:
    """The logs of a job: by node, and by rank if the platform keeps those. A missing or unreadable one is None."""

    case: Case
    nodes: Mapping[int, tuple[str, PrintedLog | None]]
    ranks: Mapping[int, tuple[str, PrintedLog | None]]

    @classmethod
    def read(cls, trial: Trial, folder: Path, patterns: Iterable[str]) -> _Logs:
        case, compiled = trial.case, [read_pattern(pattern) for pattern in sorted(patterns)]

        def read(name: str, rank_of: Callable[[str], int | None]) -> tuple[str, PrintedLog | None]:
            path = folder / name
            try:
                return path.name, read_printed(_pieces(path), compiled, rank_of)
            except OSError as error:
                log_ignored(_LOG, error, "what %s has of the metrics", path.name)
                return path.name, None

        if not compiled:
            return cls(case, {}, {})
        by_node = {int(match[1]): log for log in trial.logs if (match := _NODE_LOG.search(log))}
        by_rank = {int(match[1]): log for log in trial.logs if (match := _RANK_LOG.search(log))}
        nodes = {
            node: read(log, functools.partial(_rank_in_node_log, case=case, node=node)) for node, log in by_node.items()
        }
        ranks = {rank: read(log, functools.partial(_rank_of_log, rank=rank)) for rank, log in by_rank.items()}
        missing = (f"worker-{node}.log" for node in range(case.shape.nodes))
        nodes |= {node: (name, None) for node, name in enumerate(missing) if node not in nodes}
        if ranks:
            ranks |= {rank: (f"proc-rank-{rank}-…", None) for rank in range(case.shape.world) if rank not in ranks}
        return cls(case, nodes, ranks)

    def ranks_of(self, node: int) -> list[tuple[str, PrintedLog | None]]:
        """The logs of a node's ranks; empty where the platform keeps none."""
        return [log for rank, log in sorted(self.ranks.items()) if rank // self.case.shape.devices == node]

    def printed(self, reading: LogReading, nodes: Iterable[int]) -> dict[_Printer, list[float]]:
        """The numbers of each rank that printed some. Raises if there are none, or one that cannot be used."""
        shape = self.case.shape
        if strange := next((rank for rank in self.ranks if rank >= shape.world), None):
            raise _Unmeasured("line of strange rank", log=self.ranks[strange][0], rank=str(strange), shape=str(shape))
        logs = [log for node in nodes for log in self.ranks_of(node) or [self.nodes[node]]]
        printed: dict[_Printer, list[float]] = {}
        for name, log in logs:
            if log is None:
                if reading.times and reading.printed_by == "job":
                    continue  # a node that prints nothing may have no log; the number of lines shows what is lost
                raise _Unmeasured("no log", log=name)
            found = log.numbers[reading.pattern]
            if found.unusable:
                raise _Unmeasured("unusable line", log=name, line=plain(found.unusable[:_LONGEST_LINE]))
            printed |= {_Printer(rank, name): numbers for rank, numbers in found.by_rank.items()}
        if not printed:
            if lost := next((name for name, log in logs if log is None), ""):
                raise _Unmeasured("no log", log=lost)
            first, *others = [name for name, _ in logs]
            names = message("first and more", first=first, count=str(len(others))) if others else first
            raise _Unmeasured("no line", pattern=reading.pattern, logs=names)
        return printed


def _check_whole(reading: LogReading, logs: _Logs, nodes: Iterable[int]) -> None:
    """Raise for logs that are cut, unless the number of lines shows that nothing of the metric is lost."""
    for node in () if reading.times else nodes:
        (name, log), of_ranks = logs.nodes[node], logs.ranks_of(node)
        if log is None:
            raise _Unmeasured("no log", log=name)
        if log.is_cut:
            raise _Unmeasured("cut log", log=name)
        if reading.take and not log.is_closed:
            raise _Unmeasured("open log", log=name, setting="times")
        for rank_name, rank_log in of_ranks:
            if rank_log and (rank_log.is_overflown or (rank_log.ends_in_line and not log.is_closed)):
                raise _Unmeasured("cut log", log=rank_name)
        lines = sum(rank_log.numbers[reading.pattern].count for _, rank_log in of_ranks if rank_log)
        if of_ranks and lines != log.numbers[reading.pattern].count:  # the platform writes each line to both
            counts = {"count": str(log.numbers[reading.pattern].count), "others": str(lines)}
            raise _Unmeasured("other lines", log=name, pattern=reading.pattern, **counts)


def _rank_of_log(_: str, *, rank: int) -> int:
    return rank


def _rank_in_node_log(line: str, *, case: Case, node: int) -> int | None:
    """The rank that a line of a node's log names; the only rank of a node needs no name."""
    devices = case.shape.devices
    first = node * devices
    rank = prefixed_rank(line, 0 if case.single_server else first, case.judged_shape.world)
    if rank is not None:
        return rank + first if case.single_server else rank
    return first if devices == 1 else None


def _pieces(file: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with file.open("rb") as log:
        while piece := log.read(PIECE):
            yield decoder.decode(piece)
