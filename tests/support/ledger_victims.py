"""Processes that write a ledger and are killed, collide, or run out of room; what became of it is printed as JSON.

A program of its own: it has one thread, so that it can fork and need not load everything anew for each victim.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from factories import make_case, make_trial

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.ledger import database
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.trial import Trial

CASE = make_case("1x1", metrics={})


def trial(run: str, number: int, state: int) -> Trial:
    return make_trial(CASE, run=run, number=number, name=f"{run}-{number}", attempts=state, notes=("x" * 500,))


def fork(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        act()
        os._exit(0)
    except BaseException:  # noqa: BLE001  a child must never go on with what its parent does
        traceback.print_exc()
        os._exit(1)


def kill(folder: Path, rounds: int, seed: int) -> list[dict[str, Any]]:
    """A victim saves trials and says so after each that is on disk, others soon; it is killed a random while after a
    random number of words."""
    chance = random.Random(seed)
    return [_killed(folder / f"ledger-{at // 3}.db", f"run-{at}", chance) for at in range(rounds)]


def _killed(file: Path, run: str, chance: random.Random) -> dict[str, Any]:
    reading, writing = os.pipe()

    def victim() -> None:
        ledger = Ledger(file)
        ledger.begin(run, {}, 1.0)
        for state in range(1, 1_000_000):
            if state % 3 == 0:
                ledger.save_trial_soon(trial(run, state % 4, state), float(state), lambda _: os._exit(1))
                continue
            ledger.save_trial(trial(run, state % 4, state), float(state))
            os.write(writing, f"{state % 4} {state}\n".encode())

    pid = fork(victim)
    os.close(writing)
    wanted, lines = chance.randrange(-3, 25), b""
    with os.fdopen(reading, "rb") as words:
        for _ in range(wanted):
            lines += words.readline()
        time.sleep(chance.uniform(0, 0.004))  # the moment within the next step
        os.kill(pid, signal.SIGKILL)
        lines += words.read()
    os.waitpid(pid, 0)
    claimed = dict(line.split() for line in lines.decode().splitlines())
    integrity = _asked(file, "PRAGMA integrity_check")[0][0]
    ledger = Ledger(file)
    stored = {str(kept.number): kept.attempts for kept in ledger.trials(run)}
    ledger.close()
    return {"said": {number: int(state) for number, state in claimed.items()}, "found": stored, "integrity": integrity}


def collide(file: Path, victims: int, saves: int) -> dict[str, Any]:
    """All open a ledger that is not there yet, and write to it, from the same moment on."""
    waiting, go = os.pipe()

    def work(run: str) -> None:
        os.close(go)
        os.read(waiting, 1)
        ledger = Ledger(file)
        ledger.begin(run, {}, 1.0, f"host:{os.getpid()}", 1.0)
        for number in range(saves):
            ledger.save_trial(trial(run, number, 1), 1.0)
            ledger.renew(run, float(number))
            assert len(ledger.trials(run)) == number + 1
        ledger.finish(run, 0, 2.0)
        ledger.close()

    pids = [fork(lambda run=f"run-{at}": work(run)) for at in range(victims)]  # type: ignore[misc]
    os.close(go)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    os.close(waiting)
    rows = _asked(file, "SELECT r.run, r.exit_code, count(*) FROM runs r JOIN trials USING (run) GROUP BY r.run")
    (mode,) = _asked(file, "PRAGMA journal_mode")[0]
    return {"codes": codes, "rows": rows, "mode": mode}


def upgrade(old: Path) -> list[dict[str, Any]]:
    """The ledger is upgraded by victims, each of which is killed one statement later than the one before."""
    seen: list[dict[str, Any]] = []
    status, before = 1, 0
    while status:
        file = old.with_name(f"killed-{before}.db")
        shutil.copy(old, file)
        status = os.waitpid(fork(lambda file=file, before=before: _upgraded(file, before)), 0)[1]  # type: ignore[misc]
        (version,) = _asked(file, "PRAGMA user_version")[0]
        tables = _asked(file, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        seen.append({"file": file.name, "version": version, "tables": tables, "finished": status == 0})
        before += 1
    return seen


def _upgraded(file: Path, before: int) -> None:
    begun = 0

    def count(_statement: str) -> None:
        nonlocal begun
        begun += 1
        if begun > before:
            os.kill(os.getpid(), signal.SIGKILL)

    db = sqlite3.connect(file, isolation_level=None)
    db.set_trace_callback(count)
    database.upgrade(db)


def fill(folder: Path) -> dict[str, Any]:
    """On a small disk of its own, which the caller's namespace lets us mount."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=800k", "none", folder], check=True)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(300_000))
    file = folder / "ledger.db"
    ledger = Ledger(file)
    ledger.begin("run", {}, 1.0)
    saved, full = 0, ""
    while not full:
        try:
            ledger.save_trial(trial("run", saved + 1, 1), 1.0)
            saved += 1
        except LedgerError as error:
            full = str(error)
    kept = [each.number for each in ledger.trials("run")]
    ballast.unlink()
    ledger.save_trial(trial("run", saved + 1, 1), 1.0)
    ledger.close()
    integrity = _asked(file, "PRAGMA integrity_check")[0][0]
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    try:
        Ledger(file).begin("next", {}, 1.0)
    except LedgerError as error:
        readonly = str(error)
    record = {"saved": saved, "full": full, "kept": kept, "integrity": integrity, "readonly": readonly}
    return {**record, "mount": database.mount_of(folder)}


def _asked(file: Path, statement: str) -> list[Any]:
    db = sqlite3.connect(file)
    try:
        return db.execute(statement).fetchall()
    finally:
        db.close()


if __name__ == "__main__":
    act, table, folder, *numbers = sys.argv[1:]
    if table:
        database.TABLE = Path(table)
    acts: dict[str, Callable[..., Any]] = {"kill": kill, "collide": collide, "upgrade": upgrade, "fill": fill}
    print(json.dumps(acts[act](Path(folder), *map(int, numbers))))
