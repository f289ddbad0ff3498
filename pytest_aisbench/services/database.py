"""One SQLite file that several processes write at once, on whatever file system it lies."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.logs import get_logger
from pytest_aisbench.services import schema
from pytest_aisbench.services.mounts import Mount, mount_of, why_no_locks

_LOG = get_logger("session")
_WAIT_S = 30.0  # for others to let go of the file
_GLANCE_S = 0.2  # the same, while it is opened
_ELSEWHERE = "name another file with --aisbench-ledger"
_ADVICE = {  # by what SQLite says; its error codes reach Python only from 3.11 on
    "is full": "free some space",
    "readonly": "make the file and its folder writable",
    "locked": "end the process that keeps it locked",
    "not a database": "move that file away",
    "malformed": "it is damaged: move it away and keep it, it may name jobs that still run",
    "I/O error": "check the disk, its free space and its quota",
    "unable to open": "see that its folder exists and can be written",
}


class Database:
    """Every call is on disk when it returns. Whatever SQLite cannot do is one LedgerError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()  # the Fleet's thread and pytest's own both write
        self._alien: Mount | None = None  # the file system, if a write-ahead log is not safe there
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = path.resolve().parent  # SQLite follows a link, and writes its journal there
            mount = mount_of(folder)
            self._check_locks(folder, mount)
            self._alien = mount if mount and not mount.shares_memory else None
            self._db = self._opened()

    def _check_locks(self, folder: Path, mount: Mount | None) -> None:
        """SQLite would wait in vain, or speak of a disk error."""
        why = why_no_locks(folder)
        if why:
            where = f"{mount.kind} at {mount.point}" if mount else "its file system"
            message = f"the ledger {self.path} cannot be used: {where} has no working file locks ({why})"
            raise LedgerError(message, advice="name a file on a local disk with --aisbench-ledger")

    def _opened(self) -> sqlite3.Connection:
        """Ready for use. A file that is locked is closed before it is tried again: of two that convert it at once, each
        may hold what the other waits for."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            db = sqlite3.connect(self.path, timeout=_GLANCE_S, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
                return db
            except BaseException as error:
                db.close()
                locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
                if not locked or time.monotonic() > deadline:
                    raise
                _LOG.debug("%s is locked, and opened again: %s", self.path, error)
            time.sleep(random.uniform(0.01, 0.05))  # noqa: S311 - so that two fall out of step

    def _prepare(self, db: sqlite3.Connection) -> None:
        if self._alien:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # so a write-ahead log is read without shared memory
        version = int(_first(db, "PRAGMA user_version"))
        if version > schema.VERSION:
            message = f"{self.path} was written by a newer version ({version} > {schema.VERSION})"
            raise LedgerError(message, advice=f"update pytest-aisbench, or {_ELSEWHERE}")
        if _first(db, "SELECT count(*) > 0 AND sum(name = 'trials') = 0 FROM sqlite_master"):
            raise LedgerError(f"{self.path} is a database of something else, and no ledger", advice=_ELSEWHERE)
        if self._alien:
            journal = _first(db, "PRAGMA journal_mode = DELETE")
            db.execute("PRAGMA locking_mode = NORMAL")
            db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # lets go of the lock
        else:
            # Only a new file gets a write-ahead log: one without is perhaps used from where that is not safe.
            journal = _first(db, "PRAGMA journal_mode" if version else "PRAGMA journal_mode = WAL")
        # Without a log, a commit is the removal of the journal; EXTRA has that on disk too.
        db.execute(f"PRAGMA synchronous = {'FULL' if journal == 'wal' else 'EXTRA'}")
        schema.upgrade(db)
        db.execute(f"PRAGMA busy_timeout = {int(_WAIT_S * 1000)}")

    def read(self, statement: str, *values: Any) -> list[Any]:
        with self._told(), self._lock:
            return self._db.execute(statement, values).fetchall()

    def write(self, statement: str, *values: Any) -> int:
        """How many rows it changed."""
        with self._told(), self._lock:
            return self._db.execute(statement, values).rowcount

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is read inside stays true until the end, and either all of it is written or nothing."""
        with self._told(), self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> LedgerError:
        """What SQLite or the disk said, with the advice that fits."""
        said = str(error)
        if self._alien and "locked" in said and Path(f"{self.path}-wal").exists():
            unsafe = f"a write-ahead log, which is not safe on {self._alien.kind} at {self._alien.point}"
            message = f"the ledger {self.path} has {unsafe}, and a process that has it open keeps it"
            return LedgerError(message, advice=f"end that run, or {_ELSEWHERE}")
        advice = next((f"{advice}, or {_ELSEWHERE}" for word, advice in _ADVICE.items() if word in said), _ELSEWHERE)
        kind = getattr(error, "sqlite_errorname", "") if "I/O error" in said else ""  # there are thirty
        return LedgerError(f"the ledger {self.path} cannot be used: {said}", advice=advice, trail=kind)


def _first(db: sqlite3.Connection, question: str) -> Any:
    return db.execute(question).fetchone()[0]
