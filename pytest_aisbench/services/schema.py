"""The tables of a ledger, and how a ledger of an older version gets them."""

from __future__ import annotations

import sqlite3

_RUNS_TRIALS_CASES = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, started REAL NOT NULL, finished REAL, exit_code INTEGER, settings TEXT NOT NULL);
CREATE TABLE trials (
    trial TEXT PRIMARY KEY, run TEXT NOT NULL REFERENCES runs, case_id TEXT NOT NULL, number INTEGER NOT NULL,
    name TEXT NOT NULL UNIQUE, step TEXT NOT NULL, job_id TEXT, updated REAL NOT NULL, record TEXT NOT NULL);
CREATE TABLE cases (
    run TEXT NOT NULL REFERENCES runs, case_id TEXT NOT NULL, ordinal INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (run, case_id));
CREATE INDEX trials_of_a_run ON trials (run);
"""
_WHOSE_AND_WHERE = """
ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN lease REAL NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN place TEXT NOT NULL DEFAULT '';
CREATE INDEX trials_of_a_case ON trials (case_id, updated);
"""
_HOW_LONG_IT_RAN = """
ALTER TABLE trials ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
ALTER TABLE trials ADD COLUMN ran_s REAL;
UPDATE trials SET fingerprint = coalesce(json_extract(record, '$.fingerprint'), ''),
    ran_s = CASE json_extract(record, '$.job.phase') WHEN 'SUCCEEDED' THEN json_extract(record, '$.job.ran_s') END;
CREATE INDEX trials_that_ran ON trials (case_id, place, fingerprint, updated) WHERE ran_s IS NOT NULL;
"""
_WHAT_IS_UPLOADED = """
CREATE TABLE testers (run TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE uploads (
    key TEXT PRIMARY KEY, run TEXT NOT NULL, case_id TEXT NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL,
    testid TEXT NOT NULL, tester TEXT NOT NULL, label TEXT NOT NULL, body TEXT NOT NULL, state TEXT NOT NULL,
    why TEXT NOT NULL, record TEXT NOT NULL, updated REAL NOT NULL, UNIQUE (run, kind, case_id, attempt));
CREATE INDEX uploads_in_the_spool ON uploads (run) WHERE state = 'spooled';
"""
# What was measured, apart from the records, which are long: a verdict looks at a hundred of them. Trials of older
# ledgers have no traits, so they are shown and compared to nothing; only what passed is known to be whole.
_WHAT_WAS_MEASURED = """
CREATE TABLE fingerprints (key TEXT PRIMARY KEY, traits TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE measures (
    trial TEXT PRIMARY KEY, run TEXT NOT NULL, case_id TEXT NOT NULL, workload TEXT NOT NULL, shape TEXT NOT NULL,
    mode TEXT NOT NULL, key TEXT NOT NULL, family TEXT NOT NULL, at REAL NOT NULL, throughput REAL NOT NULL,
    accuracy REAL, steady REAL, ran_s REAL, ruling TEXT NOT NULL, counts INTEGER NOT NULL, metrics TEXT NOT NULL);
CREATE INDEX measures_of_a_case ON measures (case_id, at, key, run);
CREATE INDEX measures_alike ON measures (case_id, key, at);
CREATE INDEX measures_of_a_family ON measures (family, workload, shape, at);
INSERT INTO measures
    SELECT trial, run, case_id, json_extract(record, '$.case.workload.name'),
        json_extract(record, '$.case.shape.nodes') || 'x' || json_extract(record, '$.case.shape.devices'),
        json_extract(record, '$.case.mode'), '', '', coalesce(json_extract(record, '$.times.done'), updated),
        sum(CASE json_extract(m.value, '$.metric') WHEN 'throughput' THEN json_extract(m.value, '$.value') END)
            / max(count(DISTINCT json_extract(m.value, '$.server')), 1),
        avg(CASE json_extract(m.value, '$.metric') WHEN 'accuracy' THEN json_extract(m.value, '$.value') END),
        NULL, json_extract(record, '$.job.ran_s'), json_extract(record, '$.judged.ruling'), 1, '{}'
    FROM trials, json_each(record, '$.measurements') m
    WHERE step = 'DONE' AND json_extract(record, '$.judged.ruling') = 'PASSED' GROUP BY trial
    HAVING sum(json_extract(m.value, '$.metric') = 'throughput') > 0;
"""
# The index has the verdicts without the records, which are long: the list of runs counts them.
_WHAT_ITS_TESTS_SAID = """
CREATE TABLE tests (
    run TEXT NOT NULL REFERENCES runs, nodeid TEXT NOT NULL, ordinal INTEGER NOT NULL, case_id TEXT NOT NULL,
    status TEXT NOT NULL, started REAL NOT NULL, stopped REAL NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (run, nodeid));
CREATE INDEX tests_in_brief ON tests (run, case_id, nodeid, status, started, stopped);
CREATE INDEX verdicts_of_a_run ON cases (run, json_extract(record, '$.verdict'));
"""
_WHO_RAN_IT = """
ALTER TABLE runs ADD COLUMN executor TEXT NOT NULL DEFAULT '{}';
"""

# The step at n makes version n + 1 out of version n. A step that was released is never changed.
STEPS = (
    _RUNS_TRIALS_CASES,
    _WHOSE_AND_WHERE,
    _HOW_LONG_IT_RAN,
    _WHAT_IS_UPLOADED,
    _WHAT_WAS_MEASURED,
    _WHAT_ITS_TESTS_SAID,
    _WHO_RAN_IT,
)
VERSION = len(STEPS)


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def upgrade(db: sqlite3.Connection) -> None:
    """Step by step to our version, each step whole or not at all; nothing is locked if there is nothing to do."""
    while version_of(db) < VERSION:
        db.execute("BEGIN IMMEDIATE")
        try:
            version = version_of(db)  # another run may have taken the step meanwhile
            if version < VERSION:
                for statement in STEPS[version].split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
