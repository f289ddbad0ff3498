"""Who did what, and when: one row for everything that a known token sent, in the transaction that stored it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, select, text

from pytest_aisbench.tester_server.rows import dicts
from pytest_aisbench.tester_server.tables import AUDIT

COLUMNS = tuple(column.name for column in AUDIT.c)
_CHUNK = 1000
_INSERT = text("""
INSERT INTO audit (at, project, token, label, address, act, testid, run_id, key, status, size, why)
VALUES (:at, :project, :token, :label, :address, :act, :testid, :run_id, :key, :status, :size, :why)
""")


def write(connection: Connection, **told: Any) -> None:
    """`address` is empty for what was done on the machine itself."""
    blank = {"address": "", "testid": "", "run_id": "", "key": "", "why": "", "status": 0, "size": 0}
    connection.execute(_INSERT, {**blank, **told})


def newest(connection: Connection, project: str, before: int | None, limit: int) -> list[dict[str, Any]]:
    found = select(AUDIT).where(AUDIT.c.project == project).order_by(AUDIT.c.id.desc()).limit(limit)
    if before is not None:
        found = found.where(AUDIT.c.id < before)
    return list(dicts(connection.execute(found)))


def every(connection: Connection, project: str | None = None) -> Iterator[dict[str, Any]]:
    """Oldest first, a chunk at a time."""
    last = 0
    while True:
        found = select(AUDIT).where(AUDIT.c.id > last).order_by(AUDIT.c.id).limit(_CHUNK)
        if project is not None:
            found = found.where(AUDIT.c.project == project)
        rows = list(dicts(connection.execute(found)))
        yield from rows
        if len(rows) < _CHUNK:
            return
        last = rows[-1]["id"]
