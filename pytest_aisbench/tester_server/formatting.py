""""""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from pytest_aisbench.model.clock import stamp
from pytest_aisbench.tester_server.contract import number as finite

# -- How values look on a page.


def format_number(value: Any, digits: int = 5) -> str:
    """Short enough to be read, and never rounded to another story: 14151.5, 0.7612, 1.2e-07."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= 10**digits and abs(value) < 1e15:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def format_share(value: Any) -> str:
    """Of what somebody sent too, which may be no number, or an absurd one."""
    found = finite(value)
    return "–" if found is None else f"{found:.1%}"


def relative_change(before: float | None, after: float | None) -> float | None:
    """By what share `after` is above `before`."""
    return (after - before) / abs(before) if before and after is not None else None


def format_change(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}"


def format_time(value: float | None) -> str:
    if value is None:
        return "–"
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M")


def path(*parts: str) -> str:
    """An address on this server; each part may be any name."""
    return "/" + "/".join(_quoted(part) for part in parts)


@lru_cache(4096)  # a page says the same names again and again
def _quoted(part: str) -> str:
    return quote(part, safe=":@!$,;")


def run_path(project: str, testid: str, name: str) -> str:
    return path("p", project, "t", testid, "r", name)


def result_path(row: Any) -> str:
    return run_path(row.project, row.testid, row.run_name) + path("c", row.name)


def series_path(project: str, platform: str, name: str) -> str:
    return path("p", project, "cases", platform, name)


# -- Two runs side by side.


@dataclass(frozen=True)
class Pair:
    """One case in both runs, or in one of them."""

    name: str
    a: Any
    b: Any

    @property
    def throughput(self) -> float | None:
        """By what share B is above A; where the units differ there is none."""
        if not self.a or not self.b or self.a.unit != self.b.unit:
            return None
        return relative_change(self.a.throughput, self.b.throughput)

    @property
    def accuracy(self) -> float | None:
        return relative_change(self.a.accuracy, self.b.accuracy) if self.a and self.b else None

    @property
    def turned(self) -> bool:
        return bool(self.a and self.b and self.a.verdict != self.b.verdict)


def compare_results(a: Sequence[Any], b: Sequence[Any]) -> list[Pair]:
    """What turned first, then by how much was lost."""
    left, right = {row.name: row for row in a}, {row.name: row for row in b}
    found = [Pair(name, left.get(name), right.get(name)) for name in sorted({*left, *right})]
    return sorted(found, key=lambda pair: (not pair.turned, 0.0 if pair.throughput is None else pair.throughput))


def comparison_rows(found: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "case": pair.name,
            **{
                f"{metric}_{side}": getattr(row, metric) if row else None
                for metric in ("verdict", "throughput", "accuracy", "unit")
                for side, row in (("a", pair.a), ("b", pair.b))
            },
            "throughput_change": pair.throughput,
            "accuracy_change": pair.accuracy,
        }
        for pair in found
    ]


# -- Tables for other programs: CSV for spreadsheets, JSON for all else; written as they are read, of any length.

SCHEMA = "aisbench-tester-export/1"
FORMATS = ("csv", "json")
_TIMES = frozenset({"started", "ended", "received", "at"})
_BLOCK = 1 << 16  # characters
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export_response(kind: str, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
    """Times are UTC."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    plain = ({column: _value(column, row[column]) for column in columns} for row in rows)
    if kind == "csv":
        return StreamingResponse(_blocks(_csv(columns, plain)), media_type="text/csv; charset=utf-8", headers=headers)
    return StreamingResponse(_blocks(_json(plain)), media_type="application/json", headers=headers)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return _csv(columns, ({column: _value(column, row[column]) for column in columns} for row in rows))


def _value(column: str, value: Any) -> Any:
    if column in _TIMES and isinstance(value, float):
        return stamp(value)
    return value


def _blocks(texts: Iterable[str]) -> Iterator[str]:
    """Many at once: each costs the server a change of threads."""
    block, size = list[str](), 0
    for each in texts:
        block.append(each)
        size += len(each)
        if size > _BLOCK:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    line = io.StringIO()
    writer = csv.writer(line)
    for cells in itertools.chain([columns], ([_cell(row[column]) for column in columns] for row in rows)):
        writer.writerow(cells)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is made one that it does not."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _json(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield f'{{"schema": "{SCHEMA}", "rows": ['
    separator = "\n"
    for row in rows:
        yield separator + json.dumps(row, ensure_ascii=False, allow_nan=False)
        separator = ",\n"
    yield "\n]}\n"
