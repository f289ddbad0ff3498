"""Writes to the ledger share commits, and none of them is lost or torn."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.ledger.database import Database

RENEW = "UPDATE runs SET lease = ? WHERE run = ?"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "ledger.db")
    for run in "abcdefgh":
        database.write("INSERT INTO runs (run, started, settings) VALUES (?, 0, '{}')", run)
    yield database
    database.close()


@pytest.fixture
def commits(database: Database) -> list[str]:
    """Every commit from now on."""
    seen: list[str] = []
    database._db.set_trace_callback(lambda statement: seen.append(statement) if statement == "COMMIT" else None)
    return seen


def leases(file: Path) -> dict[str, float]:
    """As another process sees them."""
    with sqlite3.connect(file, timeout=30) as other:
        return dict(other.execute("SELECT run, lease FROM runs WHERE lease"))


def test_threads_that_write_at_once_share_a_commit(database: Database, commits: list[str]) -> None:
    with sqlite3.connect(database.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")  # while another process writes, ours pile up
        threads = [threading.Thread(target=database.write, args=(RENEW, 7.0, run)) for run in "abcdefgh"]
        threads[0].start()
        wait_until(lambda: not database._queue)  # the first has begun its commit
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(database._queue) == 7)
        other.execute("COMMIT")
        for thread in threads:
            thread.join()
    assert leases(database.path) == dict.fromkeys("abcdefgh", 7.0)
    assert len(commits) == 2


def test_what_is_written_soon_is_on_disk_soon_and_the_newest_counts(database: Database, commits: list[str]) -> None:
    made: list[float] = []

    def renew(lease: float) -> None:
        made.append(lease)
        database.write(RENEW, lease, "a")

    with database.transaction():  # what is given meanwhile must wait
        for lease in (1.0, 2.0, 3.0):
            database.write_soon("lease of a", lambda lease=lease: renew(lease))  # type: ignore[misc]
        database.write_soon("lease of b", lambda: database.write(RENEW, 4.0, "b"))
    wait_until(lambda: leases(database.path) == {"a": 3.0, "b": 4.0})
    assert made == [3.0]
    assert len(commits) == 2  # of the transaction, and of both


def test_a_read_has_what_is_written_soon(database: Database) -> None:
    with database._lock:  # so that the thread which commits cannot
        database.write_soon("lease of a", lambda: database.write(RENEW, 1.0, "a"))
        assert database.read_committed("SELECT lease FROM runs WHERE run = 'a'") == [(0.0,)]
        assert database.read("SELECT lease FROM runs WHERE run = 'a'") == [(1.0,)]


def test_what_is_written_at_once_comes_after_what_was_to_be_written_soon(database: Database) -> None:
    with database._lock:
        database.write_soon("lease of a", lambda: database.write(RENEW, 1.0, "a"))
        database.perform(lambda: database.write(RENEW, 2.0, "a"), "lease of a")
    database.sync()
    assert leases(database.path) == {"a": 2.0}


def test_an_error_of_a_late_write_is_raised_to_those_who_write_late(database: Database) -> None:
    database.write_soon("lease of a", lambda: database.write("INSERT INTO runs (run) VALUES ('a')"))
    with pytest.raises(LedgerError, match="constraint failed"):
        database.sync()
    assert database.write(RENEW, 1.0, "b") == 1  # it concerned one write, and is raised once
    database.sync()
    assert leases(database.path) == {"b": 1.0}


def test_the_late_write_that_fails_takes_no_other_with_it(database: Database) -> None:
    with database._lock:
        database.write_soon("lease of a", lambda: database.write(RENEW, 1.0, "a"))
        database.write_soon("nonsense", lambda: database.write("INSERT INTO runs (run) VALUES ('a')"))
        database.write_soon("lease of b", lambda: database.write(RENEW, 2.0, "b"))
        with pytest.raises(LedgerError, match="constraint failed"):
            database.sync()
    assert leases(database.path) == {"a": 1.0, "b": 2.0}


def test_an_interrupt_loses_nothing_of_other_threads(database: Database) -> None:
    pressed = [KeyboardInterrupt()]

    def interrupted() -> int:
        if pressed:
            raise pressed.pop()
        return database.write(RENEW, 2.0, "b")

    with database._lock:
        database.write_soon("lease of a", lambda: database.write(RENEW, 1.0, "a"))
        with pytest.raises(KeyboardInterrupt):
            database.perform(interrupted)
    database.sync()
    assert leases(database.path) == {"a": 1.0, "b": 2.0}


def test_an_error_of_a_late_write_is_there_for_those_who_write_nothing_more(database: Database) -> None:
    database.write_soon("lease of a", lambda: database.write("INSERT INTO runs (run) VALUES ('a')"))
    database.read("SELECT 1")  # by now it was tried
    with pytest.raises(LedgerError, match="constraint failed"):
        database.raise_failure()
    database.raise_failure()


def test_closing_writes_the_rest(tmp_path: Path) -> None:
    database = Database(tmp_path / "ledger.db")
    database.write("INSERT INTO runs (run, started, settings) VALUES ('a', 0, '{}')")
    database.write_soon("lease of a", lambda: database.write(RENEW, 1.0, "a"))
    database.close()
    assert leases(database.path) == {"a": 1.0}
    with pytest.raises(LedgerError, match="closed"):
        database.write_soon("lease of a", lambda: None)


def test_what_a_full_disk_refused_is_written_once_there_is_room(database: Database) -> None:
    pages = database.read("PRAGMA page_count")[0][0]
    database._db.execute(f"PRAGMA max_page_count = {pages}")
    large = "x" * 100_000
    database.write_soon("run a", lambda: database.write("UPDATE runs SET settings = ? WHERE run = 'a'", large))
    for _ in range(2):  # as long as it is not on disk, nothing may be published
        with pytest.raises(LedgerError, match="is full"):
            database.sync()
    database._db.execute("PRAGMA max_page_count = 1000000")
    database.sync()
    assert database.read_committed("SELECT settings FROM runs WHERE run = 'a'") == [(large,)]
