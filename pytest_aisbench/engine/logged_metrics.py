"""The tables `[metrics.<name>]` of workload.toml, and measuring what a training script prints but writes to no file.

`read_metrics` reads the tables. Every wrong key is a usage error that names file and line, before anything is paid for.

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
from typing import Any

from pytest_aisbench.engine.staging import PIECE
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.values import DERIVED
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.case import NAME, Case
from pytest_aisbench.model.messages import message, plain
from pytest_aisbench.model.metric import (
    ACCURACY,
    LARGEST,
    PHYSICAL_LIMIT,
    THROUGHPUT,
    LogReading,
    Measurement,
    Metric,
    MissingResult,
)
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.traininglog.patterns import TAKES, PatternError, PrintedLog, read_pattern, read_printed
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
    measurements: list[Measurement] = []
    for node in _nodes_alone(case):
        nodes = range(case.shape.nodes) if node is None else [node]
        printed = logs.printed(reading, nodes)
        _check_whole(reading, logs, nodes)
        numbers = {printer: _one_number(reading, case, printer, all_of_it) for printer, all_of_it in printed.items()}
        if metric.is_by_rank:
            measurements += _by_rank(metric, case, numbers, node)
        else:
            measurements.append(_of_job(metric, numbers, node))
    return measurements


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
            matched = log.numbers[reading.pattern]
            if matched.unusable:
                raise _Unmeasured("unusable line", log=name, line=plain(matched.unusable[:_LONGEST_LINE]))
            printed |= {_Printer(rank, name): numbers for rank, numbers in matched.by_rank.items()}
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


# The tables `[metrics.<name>]` of workload.toml: the unit, and how a metric is read from the log.

_UNIT = "unit"
_PRINTERS = ("rank", "job")
_LIMIT = "limit"
_NOISE = "noise"
_KEYS = (_UNIT, _LIMIT, _NOISE, "pattern", "take", "printed_by", "times", "scale", "samples")
_WITH_PATTERN = ("take", "printed_by", "times", "scale")  # mean nothing without one
_RESULT_FILE = re.compile(r"throughput_\d+|ranksize")
_PLACE = "metrics"
_Fault = Callable[..., UsageFault]  # (message, *keys, advice=…)


def read_metrics(tables: Mapping[str, Any], parameters: Mapping[str, str], fault: _Fault) -> dict[str, Metric]:
    """The metrics of a workload by name. `parameters` are those of its job; `fault` makes the error about a key."""
    metrics = {THROUGHPUT: Metric(THROUGHPUT, ""), ACCURACY: Metric(ACCURACY, "")}
    for name, table in tables.items():
        if _RESULT_FILE.fullmatch(name):
            raise fault(f"metrics.{name} is the name of a result file of its own", _PLACE, name)
        if name in DERIVED:
            raise fault(f"metrics.{name} is reckoned, and written by no script", _PLACE, name)
        if not NAME.match(name) or not isinstance(table, dict) or not isinstance(table.get(_UNIT), str):
            advice = f'write [metrics.{name}] with unit = "…"'
            raise fault(f"metrics.{name} is not a metric", _PLACE, name, advice=advice)
        row = _Table(name, table, parameters, fault)
        row.check_keys()
        metrics[name] = Metric(name, table[_UNIT], row.limit(), row.noise(), row.reading())
    if not metrics[THROUGHPUT].unit:
        advice = 'write [metrics.throughput] with unit = "images/s"'
        raise fault("throughput has no unit", _PLACE, THROUGHPUT, advice=advice)
    return metrics


class _Table:
    """One table, whose keys are checked as they are read."""

    def __init__(self, name: str, table: Mapping[str, Any], parameters: Mapping[str, str], fault: _Fault) -> None:
        self._name, self._table, self._parameters, self._make_fault = name, table, parameters, fault

    def check_keys(self) -> None:
        for key in self._table:
            if key not in _KEYS:
                advice = f"known: {', '.join(_KEYS)}"
                wrong = f"metrics.{self._name}: unknown key {key!r}"
                raise self._make_fault(wrong, _PLACE, self._name, key, advice=advice)

    def limit(self) -> float:
        """The physical bound of the metric."""
        limit = self._table.get(_LIMIT, PHYSICAL_LIMIT)
        if not _is_number(limit) or not 0 < limit < LARGEST:
            advice = "give the largest value that can be right, such as 1e6"
            raise self._fault(f"{limit!r} is not a number above 0", _LIMIT, advice=advice)
        return float(limit)

    def noise(self) -> float | None:
        """The noise of one trial that is assumed until history knows it; None: the default."""
        noise = self._table.get(_NOISE)
        if noise is None:
            return None
        if not _is_number(noise) or not 0 <= noise < 1:
            advice = "give the standard deviation of one trial as a share of its value, such as 0.02"
            raise self._fault(f"{noise!r} is not a number from 0 to below 1", _NOISE, advice=advice)
        return float(noise)

    def reading(self) -> LogReading | None:
        """How the metric is read from the log; None if the script writes it to a file."""
        if set(self._table) <= {_UNIT, _LIMIT, _NOISE}:
            return None
        if "pattern" not in self._table:
            for key in _WITH_PATTERN:
                if key in self._table:
                    raise self._fault("there is no pattern that it could apply to", key)
            return LogReading(samples=self._factors("samples"))
        reading = LogReading(
            pattern=self._pattern(),
            take=self._one_of("take", TAKES) if "take" in self._table else "",
            printed_by=self._one_of("printed_by", _PRINTERS),
            times=self._factors("times"),
            scale=self._scale(),
            samples=self._factors("samples"),
        )
        if reading.times and not reading.take:
            advice = f"write take, one of {', '.join(TAKES)}"
            raise self._fault("it says how many lines there are, but not which counts", "times", advice=advice)
        return reading

    def _fault(self, message: str, key: str, advice: str = "") -> UsageFault:
        return self._make_fault(f"metrics.{self._name}.{key}: {message}", _PLACE, self._name, key, advice=advice)

    def _pattern(self) -> str:
        pattern = self._table["pattern"]
        if not isinstance(pattern, str):
            raise self._fault("it is not text", "pattern", advice="put it in single quotes, so that \\ stays as it is")
        try:
            read_pattern(pattern)
        except PatternError as error:
            raise self._fault(f"{pattern!r}: {error}", "pattern") from None
        return pattern

    def _one_of(self, key: str, words: Mapping[str, Any] | tuple[str, ...]) -> str:
        word = self._table.get(key)
        if word not in tuple(words):
            wrong = f"{str(word)[:40]!r} is none of {', '.join(words)}" if key in self._table else "is missing"
            raise self._fault(
                wrong, key, advice=f'write {key} = "{next(iter(words))}", or another of {", ".join(words)}'
            )
        return str(word)

    def _scale(self) -> float:
        scale = self._table.get("scale", 1.0)
        if not _is_number(scale) or scale <= 0:
            raise self._fault(f"{str(scale)[:40]} is not a number above 0", "scale")
        return float(scale)

    def _factors(self, key: str) -> tuple[str, ...]:
        """A number, the name of a parameter, `ranks`, or a list of these."""
        value = self._table.get(key, [])
        factors = value if isinstance(value, list) else [value]
        if key in self._table and not factors:
            raise self._fault("it is an empty list", key)
        for factor in factors:
            self._check_factor(factor, key)
        return tuple(map(str, factors))

    def _check_factor(self, factor: Any, key: str) -> None:
        advice = f"write a number, the name of a parameter, {RANKS}, or a list of these, which are multiplied"
        if factor == RANKS and RANKS in self._parameters:
            raise self._fault(f"{RANKS} is the number of ranks, and a parameter of that name exists too", key)
        if isinstance(factor, str) and factor != RANKS:
            if factor not in self._parameters:
                raise self._fault(f"[parameters] has no {factor[:40]!r}", key, advice=advice)
            if positive_number(self._parameters[factor]) is None:
                raise self._fault(f"the parameter {factor} is not a number above 0", key, advice=advice)
        elif factor != RANKS and (isinstance(factor, bool) or positive_number(str(factor)) is None):
            raise self._fault(f"{str(factor)[:40]} is not a number above 0", key, advice=advice)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
