"""Runs that are killed on purpose, and then one that is not: no job may be lost or doubled, whatever died.

    scripts/chaos [--rounds 20] [--seed N]

A round is one run of pytest over sixteen jobs of a second, on a local cloud of its own. Somebody dies in a window of
its life, or the network does what networks do. After one to three rounds comes a run to the end, undisturbed; then the
ledger, the reports and the books of the cloud must agree, and the results must be those of a run without trouble.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chaos_audit
import chaos_suite
from chaos_audit import Record
from chaos_rounds import BLACKOUT, WINDOWS, Round, Sight, campaigns, rounds
from cloud_client import CloudClient
from waiting import wait_until
from yard import Yard

PATIENCE = 120.0  # seconds, for a run that comes to its end
MAX_JOBS = 6
OUTAGE = 1.5  # seconds; on loopback an adapter is patient for five
_POLL = 0.01
_SHOWN = 5  # problems of a round


@dataclass
class Told:
    """How a round went."""

    round: Round
    code: int = 0
    killed_after: float | None = None
    in_flight: int = 0
    accepted: int = 0
    taken_over: int = 0
    steps: str = ""  # where the trials of the run were at its end
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        end = f"exit {self.code}" if self.code >= 0 else "killed"
        when = f"{self.killed_after:5.2f} s" if self.killed_after is not None else "      -"
        counts = f"in flight {self.in_flight:>2}  accepted {self.accepted:>2}  taken over {self.taken_over:>2}"
        return f"{self.round} {when}  {end:<8} {counts}  {'ok   ' if not self.problems else 'WRONG'}  {self.steps}"


@contextmanager
def cloud(folder: Path, engine: str) -> Iterator[Path]:
    """The card of a local cloud that ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest_aisbench", "cloud", "--json", "--engine", engine]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        card = folder / "card.json"
        card.write_text(process.stdout.readline())
        try:
            yield card
        finally:
            process.terminate()
            process.wait(30)


def undisturbed(folder: Path, engine: str, *, failing: bool = False) -> dict[str, Any]:
    """What the results are when nothing happens, on a cloud of their own."""
    with cloud(folder, engine) as card:
        arena = Arena(Yard(folder, card), {}, failing=failing)
        told = arena.end()
    assert not told.problems, told.problems
    return chaos_audit.essence(arena.results())


class Arena:
    """A folder with the suite, its ledger and reports, on a cloud that outlives every run."""

    def __init__(self, yard: Yard, wanted: dict[str, Any], *, failing: bool = False) -> None:
        """`wanted` is what the results must be, as far as it goes."""
        self.yard = yard
        self.wanted = wanted
        self.failing = failing
        self.edition = 0
        self._known: set[str] = set()  # what was wrong before is not wrong again
        self.client = CloudClient(json.loads(yard.card.read_text()))
        self._trace = yard.folder / "trace"
        chaos_suite.write(yard, self.edition, failing=failing)

    @property
    def record(self) -> Record:
        return Record.read(self.yard.folder / "reports" / "ledger.db")

    def results(self) -> Any:
        return json.loads((self.yard.folder / "reports" / "latest" / "results.json").read_text(encoding="utf-8"))

    def renew(self) -> None:
        """What comes next has nothing to do with what was."""
        self.edition += 1
        chaos_suite.write(self.yard, self.edition, failing=self.failing)

    def play(self, round_: Round) -> Told:
        """One run, and who is to die in it does. What must hold after any death is checked; more is `end`'s."""
        told, mark, before = Told(round_), uuid.uuid4().hex, self._books()["jobs"]
        runs = {row.run for row in self.record.rows}
        self._trace.write_text("")
        self._faults(round_.rules)
        with self._started(round_, mark) as process:
            if round_.victim != "nobody":
                self._kill(round_, process, told)
            told.code = process.wait(PATIENCE)
        self._faults([])
        told.accepted = len(self._books()["jobs"]) - len(before)
        rows = [row for row in self.record.rows if row.run not in runs]
        told.taken_over = sum(row.taken_over for row in rows)
        told.steps = " ".join(f"{step.lower()} {count}" for step, count in Counter(row.step for row in rows).items())
        told.problems += self._aftermath(mark)
        if told.code >= 0 and not WINDOWS[round_.window].interrupted:
            told.problems += self._of_the_end(told)
        return told

    def end(self) -> Told:
        """A run to the end, undisturbed, and all that must be true then."""
        told = self.play(Round("nobody"))
        jobs = self._books()["jobs"]
        told.problems += chaos_audit.of_jobs(self.record, jobs)
        listed = self.client.search(offset=0, limit=1)["total"]
        if listed != len(jobs):
            told.problems.append(f"{len(jobs)} jobs on the books, {listed} listed")
        told.problems = [problem for problem in told.problems if problem not in self._known]
        self._known.update(told.problems)
        return told

    def _of_the_end(self, told: Told) -> Iterator[str]:
        log = max(self.yard.folder.glob("run-*.log")).read_text(errors="replace")
        if told.code != int(self.failing):
            yield f"exit code {told.code}, and at the end of its output\n{log[-3000:]}"
        yield from chaos_audit.of_results(self.results(), self.wanted)

    def _aftermath(self, mark: str) -> Iterator[str]:
        try:
            wait_until(lambda: _alive(mark), lambda processes: not processes)
        except AssertionError as error:
            yield f"left behind: {error}"
        record = self.record
        if record.integrity != "ok":
            yield f"the ledger: {record.integrity}"
        yield from chaos_audit.of_reports(self.yard.folder / "reports")

    @contextmanager
    def _started(self, round_: Round, mark: str) -> Iterator[subprocess.Popen[bytes]]:
        folder = self.yard.folder
        workers = ["-n", "2"] if round_.victim in {"controller", "worker"} else []
        arguments = ["suites", "-p", "pacing", "--aisbench-max-jobs", str(MAX_JOBS), *workers]
        paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        told = {"CHAOS_MARK": mark, "CHAOS_WINDOW": round_.window, "CHAOS_TRACE": str(self._trace)}
        number = len(list(folder.glob("run-*.log")))
        with (folder / f"run-{number:03}.log").open("wb") as log:
            process = subprocess.Popen(
                self.yard.command(*arguments),
                cwd=folder,
                env=self.yard.environment(PYTHONPATH=paths, **told),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def _kill(self, round_: Round, process: subprocess.Popen[bytes], told: Told) -> None:
        """In the window, if the run does not end before."""
        began, window, start = time.monotonic(), WINDOWS[round_.window], self._sight()
        interrupted = not window.interrupted
        while process.poll() is None and window.opened(self._sight()) - window.opened(start) < round_.nth:
            # As soon as jobs are in flight: they last a second, and there must be some left to stop.
            if not interrupted and self._sight().jobs >= start.jobs + MAX_JOBS:
                process.terminate()
                interrupted = True
            time.sleep(_POLL)
        time.sleep(round_.pause)
        if process.poll() is not None:
            return
        told.in_flight = sum(job["phase"] not in chaos_audit.FINAL for job in self._books()["jobs"])
        told.killed_after = time.monotonic() - began
        if round_.victim == "network":
            self._faults([*BLACKOUT, *round_.rules])
            time.sleep(OUTAGE)
            self._faults(round_.rules)
        else:
            os.kill(self._worker(round_, process) if round_.victim == "worker" else process.pid, signal.SIGKILL)

    def _worker(self, round_: Round, process: subprocess.Popen[bytes]) -> int:
        workers = wait_until(lambda: _children(process.pid))
        return workers[round_.nth % len(workers)]

    def _sight(self) -> Sight:
        books = self._books()
        modelarts, obs = books["requests"]["modelarts"], books["requests"]["obs"]
        return Sight(
            creates=modelarts.get("create", 0),
            jobs=len(books["jobs"]),
            looks=modelarts.get("show", 0) + modelarts.get("search", 0),
            puts=obs.get("put-object", 0),
            gets=obs.get("get-object", 0),
            stops=modelarts.get("stop", 0),
            marks=self._trace.stat().st_size,
        )

    def _books(self) -> Any:
        status, books = self.client.control("GET", "books")
        assert status == 200, books
        return books

    def _faults(self, rules: list[dict[str, Any]]) -> None:
        status, answer = self.client.control("PUT", "faults", rules)
        assert status == 200, answer


def _alive(mark: str) -> list[str]:
    """Processes that carry the mark in their environment; the dead that nobody has buried have none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(f"{folder.name} {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    return found


def _children(parent: int) -> list[int]:
    lists = [file.read_text().split() for file in Path(f"/proc/{parent}/task").glob("*/children")]
    return sorted(int(pid) for pids in lists for pid in pids)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), metavar="N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work here, and leave everything for a look")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aisbench-chaos-") as folder:
        return _campaign(options.keep or Path(folder), options.rounds, options.seed)


def _campaign(folder: Path, count: int, seed: int) -> int:
    made = rounds(seed, count)
    real = max(1, count // 5)  # the last ones with real processes
    told: list[Told] = []
    for engine, part in (("simulated", made[:-real]), ("processes", made[-real:])):
        told += _on(engine, folder / engine, part, random.Random(seed))
    kills = sum(one.killed_after is not None for one in told)
    jobs, over = sum(one.accepted for one in told), sum(one.taken_over for one in told)
    wrong = sum(bool(one.problems) for one in told)
    ends = len(told) - count
    print(f"{count} rounds, {kills} kills, {ends} runs to the end, {jobs} jobs, {over} taken over: {wrong} wrong")
    return 1 if wrong else 0


def _on(engine: str, folder: Path, part: Sequence[Round], chance: random.Random) -> list[Told]:
    told: list[Told] = []
    if not part:
        return told
    wanted = undisturbed(folder / "undisturbed", engine, failing=True)
    with cloud(folder / "arena", engine) as card:
        arena = Arena(Yard(folder / "arena", card), wanted, failing=True)
        for number, campaign in enumerate(campaigns(part, chance)):
            if number:
                arena.renew()
            for round_ in [*campaign, None]:
                one = arena.play(round_) if round_ else arena.end()
                told.append(one)
                print(f"{engine:<9} {one if round_ else _ending(one)}", flush=True)
                for problem in one.problems[:_SHOWN]:
                    print(f"    {problem}", flush=True)
                if len(one.problems) > _SHOWN:
                    print(f"    and {len(one.problems) - _SHOWN} more", flush=True)
    return told


def _ending(told: Told) -> str:
    return str(told).replace("nobody     -", "to the end  ", 1)


if __name__ == "__main__":
    sys.exit(main())
