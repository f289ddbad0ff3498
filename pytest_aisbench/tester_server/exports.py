"""Tables for other programs: CSV for spreadsheets, JSON for all else; written as they are read, of any length."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from pytest_aisbench.services.clock import stamp

SCHEMA = "aisbench-tester-export/1"
FORMATS = ("csv", "json")
_TIMES = frozenset({"started", "ended", "received", "at"})
_BLOCK = 1 << 16  # characters
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def answer(kind: str, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
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
