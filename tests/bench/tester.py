"""The open Tester with 100,000 results: uploads per second over HTTP, and how long each page takes.

    python tests/bench/tester.py [--results 100000] [--uploads 1000] [--senders 8]

On SQLite, and on a private PostgreSQL with `fsync` on where there is one. Beside each figure stands, of the same run,
what bounds it: the same bodies inserted into the same database by its plain driver, one commit each and without HTTP;
and for a page the time of a page that asks the database nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import postgres
from open_tester import LONG_AGO, Serving, fill, history, serving

from pytest_aisbench.model.results import UploadItem
from pytest_aisbench.tester_server.app import open_database
from pytest_aisbench.tester_server.schema import META, writing

EACH = 8  # results of a run
SEED = 125  # runs that are uploaded; the others are made of them
MULTIPLIED = {
    "parcels": {"id": "id + {turn} * {parcels}", "key": "key || '-{turn}'", "testid": "testid || '-{turn}'"},
    "runs": {
        "id": "id + {turn} * {runs}",
        "testid": "testid || '-{turn}'",
        "name": "name || '-{turn}'",
        "started": "started + {later}",
        "ended": "ended + {later}",
    },
    "results": {
        "id": "id + {turn} * {results}",
        "run": "run + {turn} * {runs}",
        "parcel": "parcel + {turn} * {parcels}",
        "started": "started + {later}",
        "ended": "ended + {later}",
    },
    "stragglers": {
        "id": "id + {turn} * {stragglers}",
        "result": "result + {turn} * {results}",
        "ended": "ended + {later}",
    },
    "audit": {"id": "id + {turn} * {audit}"},
}
ROUNDS = 25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--uploads", type=int, default=1000)
    parser.add_argument("--senders", type=int, default=8)
    options = parser.parse_args()
    with databases() as found:
        for name, db, raw in found:
            print(f"\n## {name}, load average {os.getloadavg()[0]:.1f}\n", flush=True)
            measure(db, raw, options)


@contextlib.contextmanager
def databases() -> Iterator[list[tuple[str, str, Callable[[list[UploadItem]], float]]]]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="aisbench-bench-"))
        found = [("SQLite", f"sqlite:///{folder}/tester.db", raw_sqlite(f"{folder}/raw.db"))]
        if postgres.programs() is None:
            print(postgres.ABSENT)
        else:
            url = stack.enter_context(postgres.private(durable=True))
            found.append(("PostgreSQL", url, raw_postgres(url)))
        yield found


def measure(db: str, raw: Callable[[list[UploadItem]], float], options: argparse.Namespace) -> None:
    fresh = [_renamed(each) for each in history(options.uploads // EACH, seed=2)]
    start = time.perf_counter()
    load(db, options.results // (SEED * EACH))
    print(f"loaded {options.results} results in {time.perf_counter() - start:.0f} s\n", flush=True)
    alone, rest = fresh[: len(fresh) // 4], fresh[len(fresh) // 4 :]
    with serving(db, "--rate", "0") as tester:
        token = tester.token("centre")
        one = pace(tester, lambda: tester.send(token, *alone), len(alone))
        many = pace(tester, lambda: send_at_once(tester, token, rest, options.senders), len(rest))
        before = time.process_time()
        bound = len(fresh) / raw(fresh)
        bound_cpu = (time.process_time() - before) * 1000 / len(fresh)
        print("| uploads | per second | of the bound | CPU ms each |\n|---|---|---|---|")
        for name, (rate, cpu) in {"one sender": one, f"{options.senders} senders at once": many}.items():
            print(f"| {name} | {rate:.0f} | {rate / bound:.2f} | {cpu:.2f} |")
        print(f"| the bound: the driver alone, one commit each | {bound:.0f} | 1 | {bound_cpu:.2f} |\n", flush=True)
        pages(tester, options.results // (SEED * EACH))


def _renamed(each: UploadItem) -> UploadItem:
    """Of runs that are not there yet."""
    testid = each.testid.replace("run", "new")
    return replace(each, key=f"new-{each.key}", testid=testid, body=each.body.replace(each.testid, testid))


def pace(tester: Serving, act: Callable[[], None], count: int) -> tuple[float, float]:
    """So many a second, and what each cost the server: milliseconds of CPU, which a busy machine changes little."""
    before, start = cpu_s(tester), time.perf_counter()
    act()
    taken = time.perf_counter() - start
    return count / taken, (cpu_s(tester) - before) * 1000 / count


def cpu_s(tester: Serving) -> float:
    """Of the server's process, all threads."""
    fields = Path(f"/proc/{tester.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(db: str, times: int) -> None:
    """Some runs by the code that takes uploads; then the same runs again and again, later, by the database itself."""
    fill(db, "centre", history(SEED))
    with open_database(db) as engine:
        with writing(engine).begin() as connection:
            multiply(connection, times)
        with engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
            connection.commit()


def multiply(connection: Any, times: int) -> None:
    strides = {table: _scalar(connection, f"SELECT max(id) FROM {table}") for table in MULTIPLIED}
    for turn in range(1, times):
        for table, changed in MULTIPLIED.items():
            names = [column.name for column in META.tables[table].c]
            facts = {"turn": turn, "later": turn * SEED * 3600.0, **strides}
            told = ", ".join(changed.get(name, name).format(**facts) for name in names)
            found = f"SELECT {told} FROM {table} WHERE id <= {strides[table]}"
            connection.exec_driver_sql(f"INSERT INTO {table} ({', '.join(names)}) {found}")
    connection.exec_driver_sql(f"UPDATE series SET results = results * {times}")
    mine = "FROM results WHERE results.series = series.id"
    connection.exec_driver_sql(
        f"UPDATE series SET last = (SELECT id {mine} ORDER BY ended DESC, id DESC LIMIT 1),"
        f" last_ended = (SELECT max(ended) {mine})"
    )
    if connection.dialect.name == "postgresql":
        for table in MULTIPLIED:
            connection.exec_driver_sql(f"SELECT setval('{table}_id_seq', (SELECT max(id) FROM {table}))")


def _scalar(connection: Any, statement: str) -> int:
    return int(connection.exec_driver_sql(statement).scalar_one())


def send_at_once(tester: Serving, token: str, parcels: list[UploadItem], senders: int) -> None:
    threads = [threading.Thread(target=tester.send, args=(token, *parcels[at::senders])) for at in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def raw_sqlite(file: str) -> Callable[[list[UploadItem]], float]:
    def run(parcels: list[UploadItem]) -> float:
        db = sqlite3.connect(file, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE parcels (key TEXT PRIMARY KEY, run_id TEXT, body TEXT)")
        start = time.perf_counter()
        for each in parcels:
            db.execute("INSERT INTO parcels VALUES (?, ?, ?)", (each.key, each.case, each.body))
        taken = time.perf_counter() - start
        db.close()
        return taken

    return run


def raw_postgres(url: str) -> Callable[[list[UploadItem]], float]:
    def run(parcels: list[UploadItem]) -> float:
        import psycopg

        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE raw_parcels (key TEXT PRIMARY KEY, run_id TEXT, body TEXT)")
            start = time.perf_counter()
            for each in parcels:
                db.execute("INSERT INTO raw_parcels VALUES (%s, %s, %s)", (each.key, each.case, each.body))
            return time.perf_counter() - start

    return run


def pages(tester: Serving, copies: int) -> None:
    middle, last = f"run-00000-{copies // 2}", f"run-00000-{copies - 1}"
    mark = f"{LONG_AGO + copies // 2 * SEED * 3600.0!r}_1"
    asked = {
        "a page that asks nothing (404)": "/nothing",
        "runs, the newest 50": "/p/centre",
        "runs, from the middle": f"/p/centre?before={mark}",
        "a run": f"/p/centre/t/{middle}/r/{middle}",
        "a result with its trend": f"/p/centre/t/{middle}/r/{middle}/c/bert-8x8",
        "cases": "/p/centre/cases",
        "a trend of 120 results": "/p/centre/cases/modelarts/bert-8x8",
        "a trend, from the middle": f"/p/centre/cases/modelarts/bert-8x8?before={mark}",
        "scaling": "/p/centre/scaling",
        "stragglers": "/p/centre/stragglers",
        "two runs compared": f"/p/centre/compare?a={middle}/{middle}&b={last}/{last}",
        "search for a run": f"/p/centre/search?q={last}",
        "search for words": "/p/centre/search?q=did+not+answer",
        "audit": "/p/centre/audit",
    }
    print("| page | median ms | CPU ms | kB |\n|---|---|---|---|")
    for name, path in asked.items():
        spans, size, before = [], 0, cpu_s(tester)
        for _ in range(ROUNDS):
            start = time.perf_counter()
            answer = tester.get(path)
            spans.append((time.perf_counter() - start) * 1000)
            size = len(answer.text)
        cpu = (cpu_s(tester) - before) * 1000 / ROUNDS
        print(f"| {name} | {statistics.median(spans):.1f} | {cpu:.1f} | {size / 1000:.0f} |", flush=True)


if __name__ == "__main__":
    main()
