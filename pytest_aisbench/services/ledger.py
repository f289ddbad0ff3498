"""The crash-safe record of every run, trial and case: one SQLite file, written by the controller alone."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aisbench.domain import codec
from pytest_aisbench.domain.entry import SCHEMA, CaseEntry, RunEntry
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.errors import LedgerError

VERSION = 2
_TABLES = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, started REAL NOT NULL, finished REAL, exit_code INTEGER, settings TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '', lease REAL NOT NULL DEFAULT 0);
CREATE TABLE trials (
    trial TEXT PRIMARY KEY, run TEXT NOT NULL REFERENCES runs, case_id TEXT NOT NULL, number INTEGER NOT NULL,
    name TEXT NOT NULL UNIQUE, step TEXT NOT NULL, job_id TEXT, updated REAL NOT NULL, record TEXT NOT NULL,
    place TEXT NOT NULL DEFAULT '');
CREATE TABLE cases (
    run TEXT NOT NULL REFERENCES runs, case_id TEXT NOT NULL, ordinal INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (run, case_id));
CREATE INDEX trials_of_a_run ON trials (run);
CREATE INDEX trials_of_a_case ON trials (case_id, updated);
"""
_FROM_1 = """
ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN lease REAL NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN place TEXT NOT NULL DEFAULT '';
CREATE INDEX trials_of_a_case ON trials (case_id, updated);
"""


class Left(NamedTuple):
    """A trial that its run did not bring to an end, and who may still hold it."""

    trial: Trial
    owner: str
    lease: float
    killed: bool  # its run never ended


class Ledger:
    """Every call is on disk when it returns, so that a kill at any point loses nothing that was said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()  # the Fleet's thread and pytest's own both write
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            raise self._fault(error) from error

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")  # two runs may start at once: only one makes the tables
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version < VERSION:
            for statement in (_TABLES if version == 0 else _FROM_1).split(";\n"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._db.execute("COMMIT")
        if version > VERSION:
            self._db.close()
            advice = "update pytest-aisbench, or name another file with --aisbench-ledger"
            raise LedgerError(f"{self.path} was written by a newer version ({version} > {VERSION})", advice=advice)

    def begin(self, run: str, settings: Mapping[str, Any], now: float, owner: str = "", lease: float = 0.0) -> None:
        statement = "INSERT INTO runs (run, started, settings, owner, lease) VALUES (?, ?, ?, ?, ?)"
        self._write(statement, run, now, _text(settings), owner, lease)

    def renew(self, run: str, lease: float) -> None:
        """The run lives, and keeps its jobs until `lease`."""
        self._write("UPDATE runs SET lease = ? WHERE run = ?", lease, run)

    def finish(self, run: str, exit_code: int, now: float) -> None:
        self._write("UPDATE runs SET finished = ?, exit_code = ?, lease = 0 WHERE run = ?", now, exit_code, run)

    def left(self, case_id: str, place: str, run: str) -> Left | None:
        """The newest trial of the case that another run began on this platform, if that run did not end it."""
        rows = self._read(
            "SELECT t.record, r.owner, r.lease, r.finished IS NULL FROM trials t JOIN runs r USING (run)"
            " WHERE t.case_id = ? AND t.place = ? AND t.run != ? ORDER BY t.updated DESC LIMIT 1",
            *(case_id, place, run),
        )
        if not rows:
            return None
        record, owner, lease, killed = rows[0]
        return Left(codec.load(Trial, json.loads(record)), owner, lease, bool(killed))

    def save_trial(self, trial: Trial, now: float) -> None:
        self._write(
            "INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(trial.id, trial.run, trial.case.id, trial.number, trial.name, trial.step.name),
            *(trial.job_id, now, _text(codec.dump(trial)), trial.place),
        )

    def save_case(self, run: str, ordinal: int, entry: CaseEntry) -> None:
        """What the run says of a case; said again, the last word counts."""
        self._write(
            "INSERT OR REPLACE INTO cases VALUES (?, ?, ?, ?)", run, entry.id, ordinal, _text(codec.dump(entry))
        )

    def trials(self, run: str) -> list[Trial]:
        rows = self._read("SELECT record FROM trials WHERE run = ? ORDER BY case_id, number", run)
        return [codec.load(Trial, json.loads(row[0])) for row in rows]

    def entry(self, run: str) -> RunEntry:
        """All that a reporter reads."""
        rows = self._read("SELECT started, finished, exit_code, settings FROM runs WHERE run = ?", run)
        if not rows:
            raise LedgerError(f"{self.path} has no run {run}")
        started, finished, exit_code, settings = rows[0]
        cases = self._read("SELECT record FROM cases WHERE run = ? ORDER BY ordinal, case_id", run)
        return RunEntry(
            schema=SCHEMA,
            run=run,
            started=_stamp(started),
            finished=None if finished is None else _stamp(finished),
            exit_code=exit_code,
            settings=json.loads(settings),
            cases=tuple(codec.load(CaseEntry, json.loads(row[0])) for row in cases),
        )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _write(self, statement: str, *values: Any) -> None:
        try:
            with self._lock:
                self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def _read(self, statement: str, *values: Any) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> LedgerError:
        advice = "free some space, or name another file with --aisbench-ledger"
        return LedgerError(f"the ledger {self.path} cannot be used: {error}", advice=advice)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
