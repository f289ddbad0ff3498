"""The Tester's database: its tables, how it is opened and upgraded, and how lists of rows are read page by page.

`STEPS` creates the tables in the database; the `Table` objects name their columns in queries. A test compares the two.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    create_engine,
    delete,
    event,
    inspect,
    or_,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.tester_server.contract import StoredUpload, derive_rows

META = MetaData()


def _id() -> Column[int]:
    return Column("id", BigInteger, primary_key=True)


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text) for name in names]


def _whole(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger) for name in names]


def _numbers(*names: str) -> list[Column[float]]:
    return [Column(name, Double) for name in names]


# Who may send to a project, or read it. Of a token only its digest is kept.
TOKENS = Table("tokens", META, _id(), *_texts("digest", "project", "kind", "label"), *_numbers("created", "revoked"))
# Every upload as it was sent; all tables below but the audit can be made from it again.
PARCELS = Table(
    "parcels",
    META,
    _id(),
    *_texts("project", "key", "kind", "testid", "run_id", "digest", "body"),
    *_whole("attempt", "token"),
    *_numbers("received"),
)
# Who sent what, and the answer.
AUDIT = Table(
    "audit",
    META,
    _id(),
    *_numbers("at"),
    *_texts("project", "label", "address", "act", "testid", "run_id", "key", "why"),
    *_whole("token", "status", "size"),
)
RUNS = Table(
    "runs",
    META,
    _id(),
    *_texts("project", "testid", "name", "platform", "commit_id", "branch"),
    *_numbers("started", "ended", "card_hours"),  # card_hours: of its cases, with and without a verdict
    *_whole("cases", "passed", "failed", "broken", "inconclusive"),
    # How it ended: `told` is the last attempt that said so, 0 for none; a killed run has no exit code.
    *_whole("told", "exit_code", "unjudged"),
    *_numbers("unjudged_hours"),
)
# A case on a platform, across runs.
SERIES = Table(
    "series",
    META,
    _id(),
    *_texts("project", "platform", "name", "workload", "mode", "unit"),
    *_whole("nodes", "devices", "results", "last"),
    *_numbers("last_ended"),
)
# A case in a run, by its last attempt. Reference, low and high are of throughput, the target is of accuracy.
RESULTS = Table(
    "results",
    META,
    _id(),
    *_whole("run", "series", "parcel", "attempt"),
    *_texts("project", "name", "verdict", "status", "reason", "job_id", "unit"),
    *_numbers("throughput", "accuracy", "reference", "low", "high", "target", "card_hours", "started", "ended"),
)
# Browsers that a read token has signed in; a session ends with its time, its token, or by its reader.
SESSIONS = Table("sessions", META, _id(), *_texts("digest"), *_whole("token"), *_numbers("expires"))
# Who accepted or rejected a run. It names the run, since the rows of `runs` can be made again.
SIGNATURES = Table(
    "signatures",
    META,
    _id(),
    *_texts("project", "testid", "run", "label", "name", "decision", "remark", "digest"),
    *_whole("token"),
    *_numbers("at"),
)
STRAGGLERS = Table(
    "stragglers",
    META,
    _id(),
    *_whole("result", "series", "node", "card"),
    *_texts("project", "platform"),
    *_numbers("ended", "ratio", "cost"),
)


# Opening the database: SQLite in a file, or PostgreSQL

_SQLITE = "sqlite"
_POSTGRES = "postgresql"
_OLDEST = (3, 35)  # the first with RETURNING
_PATIENCE_S = 15
_IMMEDIATE = "aisbench_immediate"
_THREADS = 16  # answer requests, each with a connection of its own


def address(text: str) -> URL:
    """The database that `--db` names: by a URL of SQLAlchemy, or by the path of a SQLite file."""
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
    """An engine that has read nothing yet. What it commits survives a crash of the process and of the machine."""
    if url.get_backend_name() == _POSTGRES:
        return create_engine(url, pool_pre_ping=True, pool_size=_THREADS, max_overflow=4, pool_timeout=_PATIENCE_S)
    if sqlite3.sqlite_version_info < _OLDEST:
        raise UsageFault(f"SQLite {sqlite3.sqlite_version} is too old for the Tester", advice="3.35 or newer")
    file = Path(str(url.database))
    if not file.parent.is_dir():
        raise UsageFault(f"--db: there is no folder {file.parent}")
    try:  # for its owner alone; SQLite gives the files beside it the same mode
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise UsageFault(f"--db: {file}: {error.strerror}") from None
    engine = create_engine(
        url, pool_size=_THREADS, max_overflow=4, connect_args={"timeout": _PATIENCE_S, "check_same_thread": False}
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def writing(engine: Engine) -> Engine:
    """The engine for transactions that write: SQLite then waits for the lock at the start, where it can wait."""
    return engine.execution_options(**{_IMMEDIATE: True})


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == _SQLITE


def is_transient(error: DBAPIError) -> bool:
    """True if the same request may succeed later: no connection, a lock, a full disk, a deadlock."""
    return error.connection_invalidated or type(error).__name__ in {"OperationalError", "InternalError"}


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "cache_size = -65536"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get(_IMMEDIATE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


# Creating the tables, and upgrading a database of an older version

_LOCK = 0x61697362  # PostgreSQL: one process migrates at a time

_SENT = """
CREATE TABLE tokens (
    id {id}, digest TEXT NOT NULL UNIQUE, project TEXT NOT NULL, kind TEXT NOT NULL, label TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL, revoked DOUBLE PRECISION);
CREATE TABLE parcels (
    id {id}, project TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, testid TEXT NOT NULL,
    run_id TEXT NOT NULL, attempt BIGINT NOT NULL, digest TEXT NOT NULL, received DOUBLE PRECISION NOT NULL,
    token BIGINT NOT NULL REFERENCES tokens (id), body TEXT NOT NULL, UNIQUE (project, key));
CREATE INDEX parcels_of_a_test ON parcels (project, testid, kind, run_id, attempt);
CREATE TABLE audit (
    id {id}, at DOUBLE PRECISION NOT NULL, project TEXT NOT NULL, token BIGINT, label TEXT NOT NULL,
    address TEXT NOT NULL, act TEXT NOT NULL, testid TEXT NOT NULL, run_id TEXT NOT NULL, key TEXT NOT NULL,
    status BIGINT NOT NULL, size BIGINT NOT NULL, why TEXT NOT NULL);
CREATE INDEX audit_of_a_project ON audit (project, id);
CREATE INDEX audit_of_a_token ON audit (token, id);
CREATE INDEX audit_of_a_result ON audit (project, testid, run_id)
"""
_SHOWN = """
CREATE TABLE runs (
    id {id}, project TEXT NOT NULL, testid TEXT NOT NULL, name TEXT NOT NULL, platform TEXT NOT NULL,
    started DOUBLE PRECISION NOT NULL, ended DOUBLE PRECISION NOT NULL, card_hours DOUBLE PRECISION NOT NULL,
    cases BIGINT NOT NULL, passed BIGINT NOT NULL, failed BIGINT NOT NULL, broken BIGINT NOT NULL,
    inconclusive BIGINT NOT NULL, UNIQUE (project, testid, name));
CREATE INDEX runs_by_time ON runs (project, ended, id);
CREATE TABLE series (
    id {id}, project TEXT NOT NULL, platform TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL,
    mode TEXT NOT NULL, unit TEXT NOT NULL, nodes BIGINT, devices BIGINT, results BIGINT NOT NULL, last BIGINT,
    last_ended DOUBLE PRECISION, UNIQUE (project, platform, name));
CREATE TABLE results (
    id {id}, project TEXT NOT NULL, run BIGINT NOT NULL REFERENCES runs (id),
    series BIGINT NOT NULL REFERENCES series (id), parcel BIGINT NOT NULL REFERENCES parcels (id),
    attempt BIGINT NOT NULL, name TEXT NOT NULL, verdict TEXT, status TEXT NOT NULL, reason TEXT NOT NULL,
    job_id TEXT, unit TEXT NOT NULL, throughput DOUBLE PRECISION, accuracy DOUBLE PRECISION,
    reference DOUBLE PRECISION, low DOUBLE PRECISION, high DOUBLE PRECISION, card_hours DOUBLE PRECISION NOT NULL,
    started DOUBLE PRECISION NOT NULL, ended DOUBLE PRECISION NOT NULL, UNIQUE (run, name));
CREATE INDEX results_of_a_series ON results (series, ended, id);
CREATE INDEX results_by_time ON results (project, id);
CREATE INDEX results_of_a_job ON results (project, job_id);
CREATE TABLE stragglers (
    id {id}, result BIGINT NOT NULL REFERENCES results (id), series BIGINT NOT NULL, project TEXT NOT NULL,
    platform TEXT NOT NULL, ended DOUBLE PRECISION NOT NULL, node BIGINT NOT NULL, card BIGINT,
    ratio DOUBLE PRECISION NOT NULL, cost DOUBLE PRECISION NOT NULL);
CREATE INDEX stragglers_of_a_result ON stragglers (result);
CREATE INDEX stragglers_by_time ON stragglers (project, platform, ended)
"""
_ENDS_AND_TARGETS = """
ALTER TABLE runs ADD COLUMN told BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN exit_code BIGINT;
ALTER TABLE runs ADD COLUMN unjudged BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN unjudged_hours DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE results ADD COLUMN target DOUBLE PRECISION
"""


_SESSIONS = """
CREATE TABLE sessions (
    id {id}, digest TEXT NOT NULL UNIQUE, token BIGINT NOT NULL REFERENCES tokens (id),
    expires DOUBLE PRECISION NOT NULL);
CREATE INDEX sessions_by_end ON sessions (expires)
"""


_SIGNATURES_AND_COMMITS = """
ALTER TABLE runs ADD COLUMN commit_id TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN branch TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_by_commit ON runs (project, commit_id);
CREATE TABLE signatures (
    id {id}, project TEXT NOT NULL, testid TEXT NOT NULL, run TEXT NOT NULL, at DOUBLE PRECISION NOT NULL,
    token BIGINT NOT NULL REFERENCES tokens (id), label TEXT NOT NULL, name TEXT NOT NULL, decision TEXT NOT NULL,
    remark TEXT NOT NULL, digest TEXT NOT NULL);
CREATE INDEX signatures_of_a_run ON signatures (project, testid, run)
"""


class Step(NamedTuple):
    tables: str
    refills: bool = False  # make the rows that pages show again from the uploads


# STEPS[n] makes version n + 1 from version n. A step that was released is never changed.
STEPS = (
    Step(_SENT),
    Step(_SHOWN, refills=True),
    Step(_ENDS_AND_TARGETS),
    Step(_SESSIONS),
    Step(_SIGNATURES_AND_COMMITS),
)
VERSION = len(STEPS)


def upgrade(engine: Engine, to: int = VERSION) -> None:
    """Bring the database to version `to`, in one transaction; write nothing if it has that version."""
    with engine.connect() as connection:
        if version_of(connection) == to:
            return
    with writing(engine).begin() as connection:
        if not is_sqlite(connection):
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        version = version_of(connection)  # another process may have upgraded it meanwhile
        if version > VERSION:
            message = f"the database is of version {version}, this program knows {VERSION}"
            raise UsageFault(message, advice="upgrade pytest-aisbench")
        if version == 0:
            connection.execute(text("CREATE TABLE schema_version (version BIGINT NOT NULL)"))
            connection.execute(text("INSERT INTO schema_version VALUES (0)"))
        for step in STEPS[version:to]:
            _execute(connection, step.tables)
        if any(step.refills for step in STEPS[version:to]):
            refill(connection)
        connection.execute(text("UPDATE schema_version SET version = :version"), {"version": to})


def refill(connection: Connection) -> None:
    """Make the rows that pages show again from all uploads. `derive_rows` needs the tables of the current version."""
    for table in (STRAGGLERS, RESULTS, SERIES, RUNS):
        connection.execute(delete(table))
    last, page = 0, select(PARCELS).order_by(PARCELS.c.id).limit(500)
    while rows := connection.execute(page.where(PARCELS.c.id > last)).all():
        for row in rows:
            derive_rows(connection, StoredUpload(row.id, row.kind, row.project, json.loads(row.body), row.received))
        last = rows[-1].id


def version_of(connection: Connection) -> int:
    if not inspect(connection).has_table("schema_version"):
        return 0
    return int(connection.execute(text("SELECT version FROM schema_version")).scalar_one())


def _execute(connection: Connection, statements: str) -> None:
    serial = "INTEGER PRIMARY KEY AUTOINCREMENT" if is_sqlite(connection) else "BIGSERIAL PRIMARY KEY"
    for statement in statements.split(";\n"):
        connection.execute(text(statement.replace("{id}", serial)))


# Reading rows: results with their run and their series, and lists page by page

PAGE = 50
CHUNK = 1000  # rows read at once where all are read
Rows = Sequence[Any]


class Mark(NamedTuple):
    """The last row of a page: the next page begins behind it, even if new rows came in meanwhile."""

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


def result_rows() -> Select[Any]:
    """A query for results with what pages show of them; the caller adds its conditions."""
    columns = [column for column in RESULTS.c if column.name not in {"run", "series", "project"}]
    run_columns = RUNS.c.testid, RUNS.c.name.label("run_name"), RUNS.c.project
    series_columns = [SERIES.c[name] for name in ("workload", "nodes", "devices", "mode", "platform")]
    return (
        select(*columns, *run_columns, *series_columns)
        .join(RUNS, RUNS.c.id == RESULTS.c.run)
        .join(SERIES, SERIES.c.id == RESULTS.c.series)
    )


def behind(query: Select[Any], table: Any, before: Mark | None) -> Select[Any]:
    """The newest first, from behind the mark on; the condition lets the database enter its index at the mark."""
    if before is not None:
        same = and_(table.c.ended == before.ended, table.c.id < before.id)
        query = query.where(table.c.ended <= before.ended, or_(table.c.ended < before.ended, same))
    return query.order_by(table.c.ended.desc(), table.c.id.desc())


def dicts(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return map(as_dict, rows)


def as_dict(row: Any) -> dict[str, Any]:
    return dict(row._mapping)  # noqa: SLF001 - the documented name
