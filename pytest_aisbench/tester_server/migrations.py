"""How the tables came to be, step by step, and how a database of an older version gets them."""

from __future__ import annotations

import json
from typing import NamedTuple

from sqlalchemy import Connection, Engine, delete, inspect, select, text

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.tester_server.database import is_sqlite, writing
from pytest_aisbench.tester_server.derived import Stored, derive
from pytest_aisbench.tester_server.tables import PARCELS, RESULTS, RUNS, SERIES, STRAGGLERS

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


class Step(NamedTuple):
    tables: str
    refills: bool = False  # what is shown is made anew of what was sent


# The step at n makes version n + 1 out of version n. A step that was released is never changed.
STEPS = (Step(_SENT), Step(_SHOWN, refills=True), Step(_ENDS_AND_TARGETS))
VERSION = len(STEPS)


def upgrade(engine: Engine, to: int = VERSION) -> None:
    """Whole or not at all; nothing is written if there is nothing to do."""
    with engine.connect() as connection:
        if version_of(connection) == to:
            return
    with writing(engine).begin() as connection:
        if not is_sqlite(connection):
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        version = version_of(connection)  # another process may have taken the steps meanwhile
        if version > VERSION:
            message = f"the database is of version {version}, this program knows {VERSION}"
            raise UsageFault(message, advice="upgrade pytest-aisbench")
        if version == 0:
            connection.execute(text("CREATE TABLE schema_version (version BIGINT NOT NULL)"))
            connection.execute(text("INSERT INTO schema_version VALUES (0)"))
        for step in STEPS[version:to]:
            _take(connection, step.tables)
        if any(step.refills for step in STEPS[version:to]):
            refill(connection)
        connection.execute(text("UPDATE schema_version SET version = :version"), {"version": to})


def refill(connection: Connection) -> None:
    """Only once all tables are those of today: what derives knows no others."""
    for table in (STRAGGLERS, RESULTS, SERIES, RUNS):
        connection.execute(delete(table))
    last, page = 0, select(PARCELS).order_by(PARCELS.c.id).limit(500)
    while rows := connection.execute(page.where(PARCELS.c.id > last)).all():
        for row in rows:
            derive(connection, Stored(row.id, row.kind, row.project, json.loads(row.body), row.received))
        last = rows[-1].id


def version_of(connection: Connection) -> int:
    if not inspect(connection).has_table("schema_version"):
        return 0
    return int(connection.execute(text("SELECT version FROM schema_version")).scalar_one())


def _take(connection: Connection, statements: str) -> None:
    serial = "INTEGER PRIMARY KEY AUTOINCREMENT" if is_sqlite(connection) else "BIGSERIAL PRIMARY KEY"
    for statement in statements.split(";\n"):
        connection.execute(text(statement.replace("{id}", serial)))
