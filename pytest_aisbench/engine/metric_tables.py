"""Reads the tables `[metrics.<name>]` of workload.toml: the unit, and how a metric is read from the log.

Every wrong key is a usage error that names file and line, before anything is paid for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pytest_aisbench.engine.logged_metrics import RANKS, positive_number
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.values import DERIVED
from pytest_aisbench.model.case import NAME
from pytest_aisbench.model.metric import ACCURACY, LARGEST, PHYSICAL_LIMIT, THROUGHPUT, LogReading, Metric
from pytest_aisbench.traininglog.patterns import TAKES, PatternError, read_pattern

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
