"""The SQLite file: opened safely on any file system, upgraded to our schema, written by several processes at once.

A commit waits for the disk, so writes share commits: those that wait for theirs at the same moment, and those that may
come a few milliseconds later (`write_soon`).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.logs import get_logger, log_ignored

_LOG = get_logger("session")
TABLE = Path("/proc/self/mountinfo")
# File systems on which processes share memory through a file, as a write-ahead log needs. On others (NFS, SMB, FUSE,
# 9p, Lustre and future ones) two machines may have the file open.
_SHARES_MEMORY = frozenset({
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "reiserfs", "nilfs2"),
    *("tmpfs", "ramfs", "overlay", "aufs", "vfat", "exfat", "ntfs3"),
})  # fmt: skip
_WAIT_S = 30.0  # for other processes to release their lock
_OPEN_WAIT_S = 0.2  # the same for one attempt to open the file
_SOON_S = 0.005  # after that, what `write_soon` was given is committed
_OTHER_FILE = "name another file with --aisbench-ledger"
_ADVICE = {  # by what SQLite says; its error codes reach Python only from 3.11 on
    "is full": "free some space",
    "readonly": "make the file and its folder writable",
    "locked": "end the process that keeps it locked",
    "not a database": "move that file away",
    "malformed": "it is damaged: move it away and keep it, it may name jobs that still run",
    "I/O error": "check the disk, its free space and its quota",
    "unable to open": "see that its folder exists and can be written",
}


class _Write:
    """One write that waits for the next commit, and what became of it."""

    __slots__ = ("done", "error", "key", "result", "soon", "work")

    def __init__(self, work: Callable[[], Any], key: str, *, soon: bool) -> None:
        self.work = work
        self.key = key
        self.soon = soon
        self.done = False
        self.error: BaseException | None = None
        self.result: Any = None


class Database:
    """One connection for all threads; every error is a LedgerError.

    What `write` and `transaction` wrote is on disk when they return. What `write_soon` was given follows within
    milliseconds. If the disk fails, `write_soon`, `sync` and `raise_failure` say so until a later commit has made up
    for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()  # the Fleet's thread and pytest's own both write
        self._inside = 0  # the thread whose transaction is open
        self._queue: list[_Write] = []
        self._keyed: dict[str, _Write] = {}  # of the queue: those that a newer one of the same key replaces
        self._queue_lock = threading.Lock()
        self._failure: BaseException | None = None  # of a write that was to be made soon, and never will be
        self._unwritten: BaseException | None = None  # why what was to be written soon waits for another commit
        self._soon = threading.Event()
        self._closed = False
        self._committer: threading.Thread | None = None
        self._alien: Mount | None = None  # the file system, if a write-ahead log is not safe there
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = path.resolve().parent  # SQLite follows a link, and writes its journal there
            mount = mount_of(folder)
            self._check_locks(folder, mount)
            self._alien = mount if mount and not mount.shares_memory else None
            # A new one is its owner's alone: it has the names of machines, buckets and jobs, and parts of logs.
            if not path.exists():
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = self._opened()
            self._file = path.stat()
            self._log_file = Path(f"{path.resolve()}-wal")
            self._log: os.stat_result | None = None  # the write-ahead log, once it was seen
            self._pages = 0

    def _check_locks(self, folder: Path, mount: Mount | None) -> None:
        """Raise for a file system without locks, where SQLite would hang or report a disk error."""
        why = why_no_locks(folder)
        if why:
            where = f"{mount.kind} at {mount.point}" if mount else "its file system"
            message = f"the ledger {self.path} cannot be used: {where} has no working file locks ({why})"
            raise LedgerError(message, advice="name a file on a local disk with --aisbench-ledger")

    def _opened(self) -> sqlite3.Connection:
        """A connection that is ready for use. It closes a locked file before the next attempt: of two processes that
        upgrade it at once, each may hold a lock that the other waits for."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            db = sqlite3.connect(self.path, timeout=_OPEN_WAIT_S, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
                return db
            except BaseException as error:
                db.close()
                locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
                if not locked or time.monotonic() > deadline:
                    raise
                _LOG.debug("%s is locked, and opened again: %s", self.path, error)
            # So that two processes do not retry in step; a test's own seed stays as it is.
            time.sleep(random.SystemRandom().uniform(0.01, 0.05))

    def _prepare(self, db: sqlite3.Connection) -> None:
        if self._alien:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # reads a write-ahead log without shared memory
        version = int(_first(db, "PRAGMA user_version"))
        if version > VERSION:
            message = f"{self.path} was written by a newer version ({version} > {VERSION})"
            raise LedgerError(message, advice=f"update pytest-aisbench, or {_OTHER_FILE}")
        if _first(db, "SELECT count(*) > 0 AND sum(name = 'trials') = 0 FROM sqlite_master"):
            raise LedgerError(f"{self.path} is a database of something else, and no ledger", advice=_OTHER_FILE)
        if self._alien:
            journal = _first(db, "PRAGMA journal_mode = DELETE")
            db.execute("PRAGMA locking_mode = NORMAL")
            db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # releases the lock
        else:
            # Only a new file gets a write-ahead log: another machine may use an old one where that is not safe.
            journal = _first(db, "PRAGMA journal_mode" if version else "PRAGMA journal_mode = WAL")
        # Without a write-ahead log, removing the journal commits; EXTRA syncs that to disk too.
        db.execute(f"PRAGMA synchronous = {'FULL' if journal == 'wal' else 'EXTRA'}")
        upgrade(db)
        db.execute(f"PRAGMA busy_timeout = {int(_WAIT_S * 1000)}")

    def read(self, statement: str, *values: Any) -> list[Any]:
        """The rows, with everything that was written before, also soon."""
        with self._translated(), self._lock:
            if self._inside != threading.get_ident():
                self._commit()
            return self._db.execute(statement, values).fetchall()

    def read_committed(self, statement: str, *values: Any) -> list[Any]:
        """The rows without what is still to be written soon: for questions about other runs, which cost no commit."""
        with self._translated(), self._lock:
            return self._db.execute(statement, values).fetchall()

    def check_file(self) -> None:
        """Raise if the file is not the one that we opened, or was cut: SQLite would go on writing where no one reads.

        Only by its status: to open the file again, and to close it, would drop SQLite's locks.
        """
        with self._translated():
            pages = int(self.read_committed("PRAGMA page_count")[0][0])
            try:
                now, log = self.path.stat(), self._status_of_log()
            except FileNotFoundError:
                raise self._lost("was deleted") from None
            if not os.path.samestat(now, self._file):
                raise self._lost("was replaced by another file")
            if now.st_size < self._file.st_size and pages >= self._pages:  # a VACUUM makes both smaller
                raise self._lost("was cut")
            self._file, self._log, self._pages = now, log, pages

    def _status_of_log(self) -> os.stat_result | None:
        if self._log is None:
            return self._log_file.stat() if self._log_file.exists() else None
        if not os.path.samestat(self._log, now := self._log_file.stat()):
            raise self._lost("lost its write-ahead log")
        return now

    def _lost(self, how: str) -> LedgerError:
        advice = "its jobs are stopped, and on record in the run's folder; run again"
        return LedgerError(f"the ledger {self.path} {how} while this run used it", advice=advice)

    def write(self, statement: str, *values: Any) -> int:
        """Execute a statement; returns how many rows it changed."""
        return int(self.perform(lambda: self._db.execute(statement, values).rowcount))

    def perform(self, work: Callable[[], Any], key: str = "") -> Any:
        """Make the writes of `work` in one commit, perhaps with those of other threads; returns its result.

        It replaces what waits under the same key to be written soon.
        """
        if self._inside == threading.get_ident():
            return work()
        write = _Write(work, key, soon=False)
        with self._queue_lock:
            if older := self._keyed.pop(key, None):
                self._queue.remove(older)
            self._queue.append(write)
        with self._translated():
            with self._lock:
                if not write.done:
                    self._commit()
            if write.error:
                raise write.error
        return write.result

    def write_soon(self, key: str, work: Callable[[], object]) -> None:
        """Make the writes of `work` within milliseconds; a newer one of the same key replaces one that still waits."""
        self.raise_failure()
        if self._closed:
            raise LedgerError(f"the ledger {self.path} is closed", advice=_OTHER_FILE)
        with self._queue_lock:
            if waiting := self._keyed.get(key):
                waiting.work = work
                return
            self._keyed[key] = write = _Write(work, key, soon=True)
            self._queue.append(write)
            if self._committer is None:
                self._committer = threading.Thread(target=self._commit_soon, name="aisbench-ledger", daemon=True)
                self._committer.start()
        self._soon.set()

    def sync(self) -> None:
        """Return once everything that was written before is on disk."""
        with self._translated(), self._lock:
            self._commit()
        self.raise_failure()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction: no other process writes meanwhile, and either all is written or nothing."""
        with self._translated(), self._lock:
            if self._inside == threading.get_ident():
                yield
                return
            self._commit()
            self._db.execute("BEGIN IMMEDIATE")
            self._inside = threading.get_ident()
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                self._inside = 0
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def close(self) -> None:
        with self._lock:
            try:
                self.sync()
            except LedgerError as error:
                log_ignored(_LOG, error, "the last writes to %s", self.path)
            self._closed = True
            self._soon.set()
            self._db.close()

    def _commit(self) -> None:
        """Make all waiting writes in one transaction; the caller has the lock."""
        with self._queue_lock:
            batch, self._queue, self._keyed = self._queue, [], {}
        if not batch:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._inside = threading.get_ident()
            for write in batch:
                self._make(write)
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            for write in batch:
                write.error = error
            self._keep_for_later(batch, error)
        except BaseException:
            # Ctrl-C in this thread: the writes of other threads must not be lost with it.
            with self._queue_lock:
                self._queue[:0] = batch
            raise
        else:
            self._unwritten = None
            self._failure = self._failure or next((write.error for write in batch if write.soon and write.error), None)
        finally:
            self._inside = 0
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        for write in batch:
            write.done = True

    def _keep_for_later(self, batch: list[_Write], error: BaseException) -> None:
        """Put writes that were to be made soon back: a disk that was full may have room a moment later, and what the
        reports show then must be in the ledger too."""
        with self._queue_lock:
            again = [write for write in batch if write.soon and write.key not in self._keyed]
            self._keyed |= {write.key: write for write in again}
            self._queue[:0] = again
            if again:
                self._unwritten = error

    def _make(self, write: _Write) -> None:
        try:
            write.result, write.error = write.work(), None
        except Exception as error:
            if not self._db.in_transaction:
                raise  # a full disk ends the whole transaction
            write.error = error

    def _commit_soon(self) -> None:
        while True:
            self._soon.wait()
            time.sleep(_SOON_S)
            self._soon.clear()
            with self._lock:
                if self._closed:
                    return
                try:
                    self._commit()
                except sqlite3.Error as error:  # of the ROLLBACK
                    self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise the error of what was to be written soon: once if it is lost, else until it is written."""
        failure, self._failure = self._failure or self._unwritten, None
        if failure:
            with self._translated():
                raise failure

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> LedgerError:
        """The error of SQLite or the disk, with advice."""
        text = str(error)
        if self._alien and "locked" in text and Path(f"{self.path}-wal").exists():
            unsafe = f"a write-ahead log, which is not safe on {self._alien.kind} at {self._alien.point}"
            message = f"the ledger {self.path} has {unsafe}, and a process that has it open keeps it"
            return LedgerError(message, advice=f"end that run, or {_OTHER_FILE}")
        advice = next((f"{advice}, or {_OTHER_FILE}" for word, advice in _ADVICE.items() if word in text), _OTHER_FILE)
        kind = getattr(error, "sqlite_errorname", "") if "I/O error" in text else ""  # there are thirty
        return LedgerError(f"the ledger {self.path} cannot be used: {text}", advice=advice, trail=kind)


def _first(db: sqlite3.Connection, question: str) -> Any:
    return db.execute(question).fetchone()[0]


# The file system below.


class Mount(NamedTuple):
    point: str
    kind: str  # the file system's own name, such as ext4 or nfs4

    @property
    def shares_memory(self) -> bool:
        return self.kind in _SHARES_MEMORY


def mount_of(folder: Path) -> Mount | None:
    """The mount that a folder lies on; None if the machine does not say."""
    try:
        table = TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        log_ignored(_LOG, error, "how %s is mounted", folder)
        return None
    return find_mount(table, PurePosixPath(folder.resolve()))


def find_mount(table: str, folder: PurePosixPath) -> Mount | None:
    """The nearest mount point above the folder; of several at one point, the last hides the others."""
    nearest: Mount | None = None
    for line in table.splitlines():
        fields, dash, rest = line.partition(" - ")
        parts = fields.split(" ")
        if not dash or len(parts) < 5:
            continue
        mount = Mount(_decoded(parts[4]), rest.split(" ")[0])
        if folder.is_relative_to(mount.point) and (nearest is None or len(mount.point) >= len(nearest.point)):
            nearest = mount
    return nearest


def _decoded(field: str) -> str:
    """The kernel writes blanks and backslashes in names as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), field)


def why_no_locks(folder: Path) -> str:
    """Why the file system cannot lock a file; empty if it can, or if no file can be created there."""
    if sys.platform == "win32":
        return ""
    import fcntl
    import tempfile

    try:
        # A separate file: closing any descriptor of a file drops all locks that the process has on it.
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return error.strerror or str(error)
    except OSError as error:
        log_ignored(_LOG, error, "whether %s has file locks", folder)
        return ""
    return ""


# The schema, one step per version.


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
# Measurements apart from the records, which are long: a verdict reads a hundred. Trials of older ledgers have no
# traits, so they are shown and compared with nothing; only passed ones are known to be complete.
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
# The index holds the verdicts without the long records: the list of runs counts them.
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
_WHO_STOPPED_IT = """
CREATE TABLE stops (job_id TEXT PRIMARY KEY, who TEXT NOT NULL, at REAL NOT NULL);
"""
_WHO_HOLDS_IT = """
ALTER TABLE runs ADD COLUMN beat INTEGER NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;
"""
# Step n upgrades version n to version n + 1. A released step is never changed.
STEPS = (
    _RUNS_TRIALS_CASES,
    _WHOSE_AND_WHERE,
    _HOW_LONG_IT_RAN,
    _WHAT_IS_UPLOADED,
    _WHAT_WAS_MEASURED,
    _WHAT_ITS_TESTS_SAID,
    _WHO_RAN_IT,
    _WHO_STOPPED_IT,
    _WHO_HOLDS_IT,
)
VERSION = len(STEPS)


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def upgrade(db: sqlite3.Connection) -> None:
    """Upgrade the file to our version, one transaction per step; takes no lock if there is nothing to do."""
    while version_of(db) < VERSION:
        db.execute("BEGIN IMMEDIATE")
        try:
            version = version_of(db)  # another run may have done the step meanwhile
            if version < VERSION:
                for statement in STEPS[version].split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
