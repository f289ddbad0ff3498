"""The disk below the ledger: SQLite on a real file, with waits in virtual time, and with faults.

`connect` stands in for that of `sqlite3`. A transaction that another process has open is waited for by the machine's
clock. A commit may find the disk full or broken, or the power may fail in the middle of it: then the end of the
write-ahead log, as far as no commit before had synced it, is cut off at any byte.

SQLite's own calls are the real ones, so a ledger that SQLite cannot recover would show. `apsw` could put a file system
of ours below SQLite, but only below its own copy of the library, which production code does not use.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.sim.faults import Faults
from tests.sim.machine import Killed, Machine, Thread

_BUSY_S = 30.0
_COMMIT_S = (0.0005, 0.02)
_CHANCES = {"disk full": 0.004, "disk error": 0.004, "killed in a commit": 0.003, "power cut in a commit": 0.003}
# How often the steps commit differs much.
_MORE = {
    "LEASE": 1.0,
    "OPEN": 1.0,
    "UPLOAD": 2.0,
    "REPORT": 4.0,
    "HARVEST": 8.0,
    "JUDGE": 8.0,
    "CANCEL": 8.0,
    "END": 6.0,
}
_TEXTS = {"disk full": "database or disk is full", "disk error": "disk I/O error"}


def connect(path: Path, **options: Any) -> sqlite3.Connection:
    made: sqlite3.Connection = sqlite3.connect(f"file:{path}?vfs=unix-excl", uri=True, **options)
    return made


class Disk:
    """All files of the ledger's machine. `power_off` kills every process there."""

    def __init__(
        self, machine: Machine, faults: Faults, step: Callable[[], str], power_off: Callable[[], None]
    ) -> None:
        self.machine = machine
        self.faults = faults
        self.step = step
        self._power_off = power_off
        self.full = False
        self._writer: Connection | None = None
        self._waiters: list[Thread] = []
        self.connections: list[Connection] = []
        self.module = SimpleNamespace(
            connect=self.connect,
            Error=sqlite3.Error,
            OperationalError=sqlite3.OperationalError,
            Connection=sqlite3.Connection,
        )

    def connect(self, path: Path, **_: Any) -> Connection:
        connection = Connection(self, path)
        self.connections.append(connection)
        if self.machine.current:
            self.machine.current.process.files.append(connection)
        return connection

    def begin(self, connection: Connection) -> None:
        """Wait until no other connection has a transaction open."""
        deadline = self.machine.now + _BUSY_S
        while self._writer is not None:
            if self.machine.current is None or self.machine.now >= deadline:
                raise sqlite3.OperationalError("database is locked")
            self._waiters.append(self.machine.current)
            self.machine.wait(deadline - self.machine.now)
        self._writer = connection

    def end(self, connection: Connection) -> None:
        if self._writer is connection:
            self._writer = None
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                self.machine.wake(waiter)

    def cut_power(self, path: Path, synced: int, torn: str) -> None:
        """Kill all processes; of the write-ahead log keep what was synced and a part of what was not."""
        log = Path(f"{path}-wal")
        contents = {file: file.read_bytes() for file in (path, log) if file.exists()}
        self._power_off()
        for connection in list(self.connections):
            connection.abandon()
        for file, content in contents.items():
            lost = max(0, len(content) - synced) if file == log else 0
            file.write_bytes(content[: len(content) - int(lost * self.faults.draw(torn))])
        Path(f"{path}-shm").unlink(missing_ok=True)


class Connection:
    """What Database uses of `sqlite3.Connection`."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        # One process has all connections: the index of the write-ahead log may be in its memory.
        self._real = connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        self._closed = False

    @property
    def in_transaction(self) -> bool:
        return not self._closed and self._real.in_transaction

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        if self._closed:
            self._raise_if_dead()
        if statement == "BEGIN IMMEDIATE":
            self._disk.begin(self)
            try:
                return self._real.execute(statement)
            except BaseException:
                self._disk.end(self)
                raise
        if statement == "COMMIT":
            return self._commit()
        if statement == "ROLLBACK":
            try:
                return self._real.execute(statement)
            finally:
                self._disk.end(self)
        if statement.startswith("PRAGMA busy_timeout"):
            statement = "PRAGMA busy_timeout = 0"
        return self._real.execute(statement, values)

    def _commit(self) -> sqlite3.Cursor:
        disk, machine = self._disk, self._disk.machine
        thread = machine.current
        kind = ""
        if thread:
            name = thread.process.name
            step = disk.step()
            kind = disk.faults.strike(f"{name}.commit", _CHANCES, step, _MORE.get(step, 4.0))
            if disk.full and not kind:
                kind = "disk full"
            machine.sleep(disk.faults.between(f"{name}.commit.s", *_COMMIT_S))
        if kind in _TEXTS:
            self._real.execute("ROLLBACK")
            disk.end(self)
            raise sqlite3.OperationalError(_TEXTS[kind])
        if kind and thread:
            synced = _size(self.path)
            after = disk.faults.draw(f"{thread.process.name}.commit.after") < 0.5
            torn = kind.startswith("power")
            if after or torn:
                self._real.execute("COMMIT")
            self._die(thread, synced, torn=torn)
        try:
            return self._real.execute("COMMIT")
        finally:
            disk.end(self)

    def _die(self, thread: Thread, synced: int, *, torn: bool) -> None:
        """End the process here, in the middle of its commit."""
        disk = self._disk
        if torn:
            disk.machine.after(0.0, lambda: disk.cut_power(self.path, synced, f"{thread.process.name}.torn"))
        else:
            disk.machine.after(0.0, thread.process.kill)
        disk.machine.wait()

    def abandon(self) -> None:
        """Close it as the kernel does for a dead process: an open transaction is rolled back by the next who reads."""
        if not self._closed:
            self._closed = True
            self._real.close()
            self._disk.end(self)
            if self in self._disk.connections:
                self._disk.connections.remove(self)

    def close(self) -> None:
        self.abandon()

    def _raise_if_dead(self) -> None:
        current = self._disk.machine.current
        if current and not current.process.alive:
            raise Killed
        raise sqlite3.ProgrammingError("Cannot operate on a closed database.")


def _size(path: Path) -> int:
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0
