"""The database behind a Tester: SQLite in a file, or PostgreSQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from pytest_aisbench.errors import UsageFault

_SQLITE = "sqlite"
_POSTGRES = "postgresql"
_OLDEST = (3, 35)  # the first with RETURNING
_PATIENCE_S = 15
_IMMEDIATE = "aisbench_immediate"
_THREADS = 16  # that answer requests, each with a connection of its own


def address(text: str) -> URL:
    """A URL of SQLAlchemy's, or the path of a SQLite file."""
    try:
        url = make_url(text if "://" in text else f"{_SQLITE}:///{text}")
    except (ArgumentError, ValueError):
        raise UsageFault("--db is no URL of a database", advice=_advice()) from None
    kind = url.get_backend_name()
    if kind == "postgres":
        url, kind = url.set(drivername=_POSTGRES), _POSTGRES
    if kind not in {_SQLITE, _POSTGRES}:
        raise UsageFault(f"--db: {kind} is not a database of the Tester's", advice=_advice())
    if kind == _SQLITE and url.database in {None, "", ":memory:"}:
        raise UsageFault("--db: SQLite needs a file", advice=_advice())
    return url.set(drivername=f"{_POSTGRES}+psycopg") if kind == _POSTGRES else url


def _advice() -> str:
    return "sqlite:///tester.db, or postgresql://user@host/database"


def open_engine(url: URL) -> Engine:
    """Nothing is read yet. What was committed survives the end of this process and of the machine."""
    if url.get_backend_name() == _POSTGRES:
        return create_engine(url, pool_pre_ping=True, pool_size=_THREADS, max_overflow=4, pool_timeout=_PATIENCE_S)
    if sqlite3.sqlite_version_info < _OLDEST:
        raise UsageFault(f"SQLite {sqlite3.sqlite_version} is too old for the Tester", advice="3.35 or newer")
    file = Path(str(url.database))
    if not file.parent.is_dir():
        raise UsageFault(f"--db: there is no folder {file.parent}")
    engine = create_engine(
        url, pool_size=_THREADS, max_overflow=4, connect_args={"timeout": _PATIENCE_S, "check_same_thread": False}
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def writing(engine: Engine) -> Engine:
    """For transactions that write: SQLite then waits for its turn at the start, where it can, and not in the middle."""
    return engine.execution_options(**{_IMMEDIATE: True})


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == _SQLITE


def passing(error: DBAPIError) -> bool:
    """Whether the same request may succeed later: nobody there, locked, disk full, a deadlock."""
    return error.connection_invalidated or type(error).__name__ in {"OperationalError", "InternalError"}


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "cache_size = -65536"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get(_IMMEDIATE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
