"""Rows as every question answers with them: results with their run and their series, and lists page by page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, or_, select

from pytest_aisbench.tester_server.tables import RESULTS, RUNS, SERIES

PAGE = 50
Found = Sequence[Any]  # rows


class Mark(NamedTuple):
    """Where a page ends: the next one begins behind it, whatever came in meanwhile."""

    ended: float
    id: int

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        ended, _, number = text.partition("_")
        try:
            mark = cls(float(ended), int(number))
        except ValueError:
            return None
        return mark if math.isfinite(mark.ended) and 0 <= mark.id < 2**63 else None

    @classmethod
    def of(cls, row: Any) -> Mark:
        return cls(row.ended, row.id)

    def __str__(self) -> str:
        return f"{self.ended!r}_{self.id}"


def results() -> Select[Any]:
    """What is shown of each; a question says which."""
    columns = [column for column in RESULTS.c if column.name not in {"run", "series", "project"}]
    run_columns = RUNS.c.testid, RUNS.c.name.label("run_name"), RUNS.c.platform, RUNS.c.project
    series_columns = [SERIES.c[name] for name in ("workload", "nodes", "devices", "mode")]
    return (
        select(*columns, *run_columns, *series_columns)
        .join(RUNS, RUNS.c.id == RESULTS.c.run)
        .join(SERIES, SERIES.c.id == RESULTS.c.series)
    )


def behind(found: Select[Any], table: Any, before: Mark | None) -> Select[Any]:
    """The newest first, those behind the mark; told so that the index is entered there and not at its top."""
    if before is not None:
        same = and_(table.c.ended == before.ended, table.c.id < before.id)
        found = found.where(table.c.ended <= before.ended, or_(table.c.ended < before.ended, same))
    return found.order_by(table.c.ended.desc(), table.c.id.desc())


def dicts(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return map(as_dict, rows)


def as_dict(row: Any) -> dict[str, Any]:
    return dict(row._mapping)  # noqa: SLF001 - the documented name
