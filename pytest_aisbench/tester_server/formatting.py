"""How values, addresses, comparisons and exports of the Tester are written."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from pytest_aisbench.judge.noise_test import ASSUMED_NOISE, ASSUMED_NOISE_OF_ACCURACY, average, noise_of, t_quantile
from pytest_aisbench.judge.trend import newest_level
from pytest_aisbench.model.clock import stamp
from pytest_aisbench.tester_server.contract import number as finite


def format_number(value: Any, digits: int = 5) -> str:
    """Short, with at least `digits` significant digits: 14151.5, 0.7612, 1.2e-07."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= 10**digits and abs(value) < 1e15:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def format_share(value: Any) -> str:
    """A value of an uploaded body may be no number, or an absurd one."""
    number = finite(value)
    return "–" if number is None else f"{number:.1%}"


def relative_change(before: float | None, after: float | None) -> float | None:
    """By what share `after` is above `before`; None where that is no number that a person can read."""
    return finite((after - before) / abs(before)) if before and after is not None else None


def format_change(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}"


def format_time(value: float | None) -> str:
    if value is None:
        return "–"
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M")


def path(*parts: str) -> str:
    """An address on this server; each part may be any name."""
    return "/" + "/".join(_quoted(part) for part in parts)


@lru_cache(4096)  # a page repeats the same names
def _quoted(part: str) -> str:
    return quote(part, safe=":@!$,;")


def run_path(project: str, testid: str, name: str) -> str:
    return path("p", project, "t", testid, "r", name)


def result_path(row: Any) -> str:
    return run_path(row.project, row.testid, row.run_name) + path("c", row.name)


def series_path(project: str, platform: str, name: str) -> str:
    return path("p", project, "cases", platform, name)


# Two runs side by side


_SURE = 0.99  # of two results of one machine that did not change, so many differ by less
_FEWEST = 3  # different values that tell the noise; until then it is assumed, as by the gate


def noise_reach(values: Sequence[float | None], assumed: float) -> float:
    """By what share two results of a case differ by noise alone, given its earlier results, oldest first."""
    level = newest_level([value for value in values if value is not None]).values
    noise = noise_of(level) if len(set(level)) >= _FEWEST else None
    middle = abs(average(level)) if level else 0.0
    deviation, degrees = (noise.deviation / middle, noise.degrees) if noise and middle else (assumed, math.inf)
    return t_quantile((1 + _SURE) / 2, degrees) * math.sqrt(2) * deviation


@dataclass(frozen=True)
class Pair:
    """One case in both runs, or in one of them."""

    name: str
    a: Any
    b: Any
    throughput_noise: float = 0.0  # by what share two results differ by noise alone
    accuracy_noise: float = 0.0

    @property
    def throughput(self) -> float | None:
        """By what share B is above A; None if the units differ."""
        if not self.a or not self.b or self.a.unit != self.b.unit:
            return None
        return relative_change(self.a.throughput, self.b.throughput)

    @property
    def accuracy(self) -> float | None:
        return relative_change(self.a.accuracy, self.b.accuracy) if self.a and self.b else None

    @property
    def changes(self) -> list[Change]:
        """Of throughput, and of accuracy."""
        return [Change(self.throughput, self.throughput_noise), Change(self.accuracy, self.accuracy_noise)]

    @property
    def turned(self) -> bool:
        return bool(self.a and self.b and self.a.verdict != self.b.verdict)


@dataclass(frozen=True)
class Change:
    """From run A to run B, beside the noise of the case."""

    value: float | None
    noise: float

    @property
    def kind(self) -> str:
        """`better` or `worse` if the change is larger than the noise; else empty."""
        if self.value is None or abs(self.value) <= self.noise:
            return ""
        return "better" if self.value > 0 else "worse"


def compare_results(a: Sequence[Any], b: Sequence[Any], past: Callable[[Any], Sequence[Any]]) -> list[Pair]:
    """The cases of both runs: changed verdicts first, then by loss of throughput. `past` gives the results of a case
    up to one of them, oldest first."""
    left, right = {row.name: row for row in a}, {row.name: row for row in b}
    both = [_pair(name, left.get(name), right.get(name), past) for name in sorted({*left, *right})]
    return sorted(both, key=lambda pair: (not pair.turned, 0.0 if pair.throughput is None else pair.throughput))


def _pair(name: str, a: Any, b: Any, past: Callable[[Any], Sequence[Any]]) -> Pair:
    if not a or not b:
        return Pair(name, a, b)
    rows = past(min(a, b, key=lambda row: row.ended))
    throughput = noise_reach([row.throughput for row in rows], ASSUMED_NOISE)
    return Pair(name, a, b, throughput, noise_reach([row.accuracy for row in rows], ASSUMED_NOISE_OF_ACCURACY))


def comparison_rows(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "case": pair.name,
            **{
                f"{metric}_{side}": getattr(row, metric) if row else None
                for metric in ("verdict", "throughput", "accuracy", "unit")
                for side, row in (("a", pair.a), ("b", pair.b))
            },
            "throughput_change": pair.throughput,
            "throughput_noise": pair.throughput_noise,
            "accuracy_change": pair.accuracy,
            "accuracy_noise": pair.accuracy_noise,
        }
        for pair in pairs
    ]


# Exports: CSV for spreadsheets, JSON for programs; streamed, so that their length does not matter

SCHEMA = "aisbench-tester-export/1"
FORMATS = ("csv", "json")
_TIMES = frozenset({"started", "ended", "received", "at"})
_BLOCK = 1 << 16  # characters
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # full width, too


def export_response(kind: str, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
    """A download of the rows; times are UTC."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    if kind == "csv":
        return StreamingResponse(
            _blocks(csv_text(columns, rows)), media_type="text/csv; charset=utf-8", headers=headers
        )
    return StreamingResponse(_blocks(_json(_values(columns, rows))), media_type="application/json", headers=headers)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    line = io.StringIO()
    # Quoted: a program that separates columns by ';' would begin a cell in the middle of a text.
    writer = csv.writer(line, quoting=csv.QUOTE_NONNUMERIC)
    cells = ([_cell(value) for value in row.values()] for row in _values(columns, rows))
    for row in itertools.chain([columns], cells):
        writer.writerow(row)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _values(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        values = {column: row[column] for column in columns}
        yield {name: stamp(v) if name in _TIMES and isinstance(v, float) else v for name, v in values.items()}


def _blocks(texts: Iterable[str]) -> Iterator[str]:
    """Texts joined into large blocks: each block costs the server a change of threads."""
    block, size = list[str](), 0
    for each in texts:
        block.append(each)
        size += len(each)
        if size > _BLOCK:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets a quote before it."""
    return f"'{value}" if isinstance(value, str) and value.lstrip(" \u3000").startswith(_FORMULA) else value


def _json(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield f'{{"schema": "{SCHEMA}", "rows": ['
    separator = "\n"
    for row in rows:
        yield separator + json.dumps(row, ensure_ascii=False, allow_nan=False)
        separator = ",\n"
    yield "\n]}\n"
