"""One SQLite file that several processes write at once, on whatever file system it lies."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.services import schema
from pytest_aisbench.services.mounts import Mount, mount_of, why_no_locks

_WAIT_S = 30.0  # for others to let go of the file
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
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = path.resolve().parent  # SQLite follows a link, and writes its journal there
            mount = mount_of(folder)
            self._check_locks(folder, mount)
            self._db = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            with self._told():
                self._prepare(mount)
        except LedgerError:
            self._db.close()
            raise

    def _check_locks(self, folder: Path, mount: Mount | None) -> None:
        """SQLite would wait in vain, or speak of a disk error."""
        why = why_no_locks(folder)
        if why:
            where = f"{mount.kind} at {mount.point}" if mount else "its file system"
            message = f"the ledger {self.path} cannot be used: {where} has no working file locks ({why})"
            raise LedgerError(message, advice="name a file on a local disk with --aisbench-ledger")

    def _prepare(self, mount: Mount | None) -> None:
        alien = mount if mount and not mount.shares_memory else None
        if alien:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # a write-ahead log is read without shared memory then
        version = int(self._patiently("PRAGMA user_version"))
        if version > schema.VERSION:
            message = f"{self.path} was written by a newer version ({version} > {schema.VERSION})"
            raise LedgerError(message, advice=f"update pytest-aisbench, or {_ELSEWHERE}")
        if alien:
            journal = self._without_log(alien)
        else:
            # Only a new file gets a write-ahead log: one without is perhaps used from where that is not safe.
            journal = self._patiently("PRAGMA journal_mode" if version else "PRAGMA journal_mode = WAL")
        # Without a log, a commit is the removal of the journal; EXTRA has that on disk too.
        self._db.execute(f"PRAGMA synchronous = {'FULL' if journal == 'wal' else 'EXTRA'}")
        schema.upgrade(self._db)

    def _without_log(self, mount: Mount) -> str:
        try:
            journal = str(self._patiently("PRAGMA journal_mode = DELETE"))
        except sqlite3.OperationalError as error:
            raise self._kept_log(mount) from error
        if journal == "wal":
            raise self._kept_log(mount)
        self._db.execute("PRAGMA locking_mode = NORMAL")
        self._db.execute(
            "SELECT 1 FROM sqlite_master LIMIT 1"
        ).fetchall()  # the lock ends with the next look, not before
        return journal

    def _kept_log(self, mount: Mount) -> LedgerError:
        message = f"the ledger {self.path} has a write-ahead log, which is not safe on {mount.kind} at {mount.point}"
        return LedgerError(
            f"{message}, and a process that has it open keeps it", advice=f"end that run, or {_ELSEWHERE}"
        )

    def _patiently(self, pragma: str) -> Any:
        """The answer, asked again while the file is locked: SQLite itself does not wait for every kind of lock."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                return self._db.execute(pragma).fetchone()[0]
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

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
            raise fault(self.path, error) from error


def fault(path: Path, error: Exception) -> LedgerError:
    """What SQLite or the disk said, with the advice that fits."""
    advice = next((advice for word, advice in _ADVICE.items() if word in str(error)), "")
    trail = getattr(error, "sqlite_errorname", "") if "I/O error" in str(error) else ""  # which kind of input or output
    message = f"the ledger {path} cannot be used: {error}"
    return LedgerError(message, advice=f"{advice}, or {_ELSEWHERE}" if advice else _ELSEWHERE, trail=trail)
