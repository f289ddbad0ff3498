"""Runs that are killed on purpose, and then one that is not: no job may be lost or doubled, whatever died.

    scripts/chaos [--platform V2|V1|apulis]… [--kills 20] [--seed N]

A round is one run of pytest over sixteen jobs of a second. In a window of its life the run, a worker of xdist, the
local cloud or the open Tester is killed, or the network fails; a proxy on 127.0.0.1 stands between them all. After one
to three rounds comes a run to the end, undisturbed; then the ledger, the reports, the books of the cloud and the
Tester's rows must agree, and the results must be those of a run without trouble. The long form has 200 kills on each
platform: `scripts/chaos --kills 200`.
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chaos_audit
import chaos_suite
from chaos_audit import GREEN, ORPHANED, OTHER, Problem, Record
from chaos_proxy import Proxy
from chaos_rounds import BLACKOUT, DIALECTS, WEATHERS, WINDOWS, Round, Sight, campaigns, rounds
from cloud_client import CloudClient
from waiting import wait_until
from yard import Yard

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE = 120.0  # seconds, for a run that comes to its end
MAX_JOBS = 6
_LONGEST = 30.0  # seconds until a window is given up
OUTAGE = 1.5  # seconds; on loopback an adapter is patient for five
_POLL = 0.01
_SHOWN = 5  # problems of a round
_AISBENCH = (sys.executable, "-m", "pytest_aisbench")
_SERVICES = ("modelarts", "obs", "iam", "apulis")


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
    struck: Counter[str] = field(default_factory=Counter)  # faults of the network, by kind
    problems: list[Problem] = field(default_factory=list)

    def __str__(self) -> str:
        end = f"exit {self.code}" if self.code >= 0 else "killed"
        when = f"{self.killed_after:5.2f} s" if self.killed_after is not None else "      -"
        counts = f"in flight {self.in_flight:>2}  accepted {self.accepted:>2}  taken over {self.taken_over:>2}"
        faults = f"faults {self.struck.total():>3}"
        ok = "ok   " if not self.problems else "WRONG"
        return f"{self.round} {when}  {end:<8} {counts}  {faults}  {ok}  {self.steps}"


class Server:
    """A command that serves on a port of its choice, and says in one line of JSON where; it can be killed."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.told: dict[str, str] = json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)


class World:
    """The servers of a run, behind a proxy whose addresses stay when they die: a local cloud and an open Tester."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder = folder
        self.data = folder / "cloud"
        self.tester_file = folder / "tester.db"
        self.card = folder / "card.json"
        self.config = folder / "aisbench.toml"
        self.died: set[str] = set()  # names of jobs that may have run on a cloud that was killed
        self.past: list[dict[str, Any]] = []  # the books of killed clouds, as they were seen last
        self._running = ExitStack()
        self._engine = engine

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as starting:
            self.proxy = starting.enter_context(Proxy((*_SERVICES, "tester")))
            cloud = ("cloud", "--json", "--engine", self._engine, "--data", str(self.data))
            self._cloud = Server(*_AISBENCH, *cloud)
            starting.callback(self._cloud.stop)
            self.client = CloudClient(self._cloud.told)
            db = f"sqlite:///{self.tester_file}"
            self._tester = Server(*_AISBENCH, "tester", "--db", db, "--port", "0", "--json", "--rate", "0")
            starting.callback(self._tester.stop)
            added = subprocess.run(
                [*_AISBENCH, "tester", "token", "add", "chaos", "--db", db],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            self._point()
            starting.callback(self._close_client)
            url = self.proxy.address("tester")
            self.config.write_text(f'[tester]\nurl = "{url}"\ntoken = "{added.stdout.strip()}"\n')
            self.config.chmod(0o600)
            ours = {f"{name}_endpoint": self.proxy.address(name) for name in _SERVICES}
            self.card.write_text(json.dumps({**self._cloud.told, **ours}))
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def books(self) -> Any:
        """The jobs and requests of the cloud that runs now."""
        status, self._books = self.client.control("GET", "books")
        assert status == 200, self._books
        return self._books

    def faults(self, rules: list[dict[str, Any]]) -> Counter[str]:
        """Set the cloud's own faults; how often each kind of the former ones struck."""
        former = self.client.control("GET", "faults")[1]
        status, answer = self.client.control("PUT", "faults", rules)
        assert status == 200, answer
        return Counter({name: n for rule in former for name, n in [(_kind(rule), rule["struck"])] if n})

    def kill_cloud(self) -> None:
        self._cloud.kill()
        self.died |= self.proxy.created | {job["name"] for job in self._books["jobs"]}
        self.proxy.created.clear()
        self.past += self._books["jobs"]
        self.client.close()
        self._cloud.start()
        self.client = CloudClient(self._cloud.told)
        self._point()

    def kill_tester(self) -> None:
        self._tester.kill()
        self._tester.start()
        self._point()

    def flush(self) -> subprocess.CompletedProcess[str]:
        """Deliver what killed runs have left in their outbox."""
        command = [*_AISBENCH, "flush", "--ledger", "reports/ledger.db"]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)

    def _close_client(self) -> None:
        self.client.close()

    def _point(self) -> None:
        for name in _SERVICES:
            self.proxy.point(name, self._cloud.told[f"{name}_endpoint"])
        self.proxy.point("tester", self._tester.told["url"])


def _kind(rule: Mapping[str, Any]) -> str:
    """What a fault of the cloud does, in a word for the table."""
    if rule.get("drop"):
        return f"{rule['drop']} dropped"
    return next((f"cloud {word}" for word in ("truncate", "status", "delay") if rule.get(word)), "other")


def undisturbed(folder: Path, engine: str, platform: str = "V2", *, failing: bool = False) -> dict[str, Any]:
    """What the results are when nothing happens, on servers of their own."""
    with World(folder, engine) as world:
        arena = Arena(world, {}, platform, failing=failing)
        told = arena.end()
    assert not told.problems, told.problems
    results = chaos_audit.essence(arena.results())
    verdicts = Counter(case["verdict"] for case in results.values())
    assert verdicts["PASSED"] == chaos_suite.CASES - 2 * failing, results
    return results


class Arena:
    """A folder with the suite, its ledger and reports, in a world that outlives every run."""

    def __init__(self, world: World, wanted: dict[str, Any], platform: str = "V2", *, failing: bool = False) -> None:
        """`wanted` is what the results must be, as far as it goes."""
        self.world = world
        self.yard = Yard(world.folder, world.card)
        self.wanted = wanted
        self.failing = failing
        self.edition = 0
        self._dialect = DIALECTS[platform]
        self._reported: set[Problem] = set()  # what was wrong before is not wrong again
        self._trace = world.folder / "trace"
        chaos_suite.write(self.yard, self.edition, failing=failing)

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
        """One run, in which the victim dies. What must hold after any death is checked; more is `end`'s."""
        world = self.world
        told, mark, before = Told(round_), uuid.uuid4().hex, len(world.past) + len(world.books()["jobs"])
        runs = {row.run for row in self.record.rows}
        self._trace.write_text("")
        world.faults(round_.rules(self._dialect))
        world.proxy.counts.clear()
        world.proxy.disturb(WEATHERS[round_.weather].chances, round_.seed)
        with self._started(round_, mark) as process:
            if round_.victim != "nobody":
                self._kill(round_, process, told)
            told.code = process.wait(PATIENCE)
        world.proxy.disturb({})
        told.struck += world.proxy.counts + world.faults([])
        told.accepted = len(world.past) + len(world.books()["jobs"]) - before
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
        told.problems += chaos_audit.of_jobs(self.record, self.world.books()["jobs"], self.world.died)
        flushed = self.world.flush()
        if flushed.returncode:
            told.problems.append(Problem(OTHER, f"aisbench flush: exit {flushed.returncode}, {flushed.stdout}"))
        ledger = self.yard.folder / "reports" / "ledger.db"
        told.problems += chaos_audit.of_uploads(ledger, self.world.tester_file)
        work = f"{self.world.data}/work"
        told.problems += [Problem(ORPHANED, f"a node of a job runs on: {text}") for text in _alive(work)]
        told.problems = [problem for problem in told.problems if problem not in self._reported]
        self._reported.update(told.problems)
        return told

    def _of_the_end(self, told: Told) -> Iterator[Problem]:
        log = max(self.yard.folder.glob("run-*.log")).read_text(errors="replace")
        if told.code != int(self.failing):
            kind = GREEN if told.code == 0 else OTHER
            yield Problem(kind, f"exit code {told.code}, and at the end of its output\n{log[-3000:]}")
        cloud_died = told.round.victim == "cloud"
        yield from chaos_audit.of_results(self.results(), self.wanted, cloud_died=cloud_died)

    def _aftermath(self, mark: str) -> Iterator[Problem]:
        try:
            wait_until(lambda: _alive(mark), lambda processes: not processes, 60)
        except AssertionError as error:
            yield Problem(ORPHANED, f"left behind: {error}")
        record = self.record
        if record.integrity != "ok":
            yield Problem(OTHER, f"the ledger: {record.integrity}")
        yield from chaos_audit.of_reports(self.yard.folder / "reports")

    @contextmanager
    def _started(self, round_: Round, mark: str) -> Iterator[subprocess.Popen[bytes]]:
        folder = self.yard.folder
        workers = ["-n", "2"] if round_.victim in {"controller", "worker"} else []
        options = ("--aisbench-max-jobs", str(MAX_JOBS), "--aisbench-config", str(self.world.config))
        arguments = ["suites", "-p", "pacing", *options, *self._dialect.options, *workers]
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
        """In the window, if the run does not end before; a window that does not open keeps no run waiting."""
        began, window, start = time.monotonic(), WINDOWS[round_.window], self._sight()
        interrupted = not window.interrupted
        while process.poll() is None and window.opened(self._sight()) - window.opened(start) < round_.nth:
            if time.monotonic() - began > _LONGEST:
                break
            # As soon as jobs are in flight: they last a second, and there must be some left to stop.
            if not interrupted and self._sight().jobs >= start.jobs + MAX_JOBS:
                process.terminate()
                interrupted = True
            time.sleep(_POLL)
        time.sleep(round_.pause)
        if process.poll() is not None:
            return
        told.in_flight = sum(job["phase"] not in chaos_audit.FINAL for job in self.world.books()["jobs"])
        told.killed_after = time.monotonic() - began
        rules = round_.rules(self._dialect)
        if round_.victim == "network":
            told.struck += self.world.faults([*BLACKOUT, *rules])
            time.sleep(OUTAGE)
            told.struck += self.world.faults(rules)
        elif round_.victim == "cloud":
            told.struck += self.world.faults(rules)
            self.world.kill_cloud()
            self.world.faults(rules)
        elif round_.victim == "tester":
            self.world.kill_tester()
        else:
            os.kill(self._worker(round_, process) if round_.victim == "worker" else process.pid, signal.SIGKILL)

    def _worker(self, round_: Round, process: subprocess.Popen[bytes]) -> int:
        workers = wait_until(lambda: _children(process.pid))
        return workers[round_.nth % len(workers)]

    def _sight(self) -> Sight:
        books = self.world.books()
        obs, platform = books["requests"]["obs"], books["requests"][self._dialect.service]
        sums = {what: sum(platform.get(name, 0) for name in names) for what, names in self._dialect.requests.items()}
        return Sight(
            creates=sums["create"],
            jobs=len(books["jobs"]),
            looks=sums["look"],
            puts=obs.get("put-object", 0),
            gets=obs.get("get-object", 0),
            stops=sums["stop"],
            marks=self._trace.stat().st_size,
        )


def _alive(mark: str) -> list[str]:
    """Processes that carry the mark in their environment; the dead that no parent has waited for have none."""
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


@dataclass
class Count:
    """What a campaign met, and what went wrong in it."""

    rounds: int = 0
    runs: int = 0
    jobs: int = 0
    taken_over: int = 0
    kills: Counter[str] = field(default_factory=Counter)  # by victim; a network that fails is a fault
    faults: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)

    def add(self, told: Told) -> None:
        self.runs += 1
        self.jobs += told.accepted
        self.taken_over += told.taken_over
        self.kills[told.round.victim] += told.killed_after is not None and told.round.victim != "network"
        self.faults += told.struck
        self.problems.update(problem.kind for problem in told.problems)

    def __str__(self) -> str:
        def by_kind(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted((+counts).items())) or "none"

        wrong = ", ".join(f"{kind} {self.problems[kind]}" for kind in chaos_audit.COUNTED)
        return (
            f"{self.runs} runs, {self.jobs} jobs, {self.taken_over} taken over\n"
            f"{self.kills.total()} kills: {by_kind(self.kills)}\n"
            f"{self.faults.total()} faults: {by_kind(self.faults)}\n{wrong}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--platform", choices=tuple(DIALECTS), action="append", help="may be repeated; default: all")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="on each platform (default 20; long: 200)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), metavar="N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work here, and leave everything for a look")
    parser.add_argument("--count", type=Path, metavar="FILE", help="append what was met, as a line of JSON")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    wrong = 0
    for platform in options.platform or DIALECTS:
        with tempfile.TemporaryDirectory(prefix="aisbench-chaos-") as folder:
            count = _campaign((options.keep or Path(folder)) / platform, platform, options.kills, options.seed)
        print(f"{platform}: {count}", flush=True)
        if options.count:
            with options.count.open("a") as file:
                file.write(json.dumps({"platform": platform, "seed": options.seed, **vars(count)}) + "\n")
        wrong += count.problems.total()
    return 1 if wrong else 0


def _campaign(folder: Path, platform: str, kills: int, seed: int) -> Count:
    """Simulated jobs at first; the last fifth of the kills with real processes."""
    count, real = Count(), max(1, kills // 5)
    for engine, enough in (("simulated", kills - real), ("processes", kills)):
        if count.kills.total() < enough:
            _on(engine, folder / engine, platform, enough, random.Random(f"{seed} {engine}"), count)
    return count


def _on(engine: str, folder: Path, platform: str, enough: int, chance: random.Random, count: Count) -> None:
    wanted = undisturbed(folder / "undisturbed", engine, platform, failing=True)
    made = rounds(chance.randrange(10**6), 10 * enough, DIALECTS[platform])  # some end before their death
    with World(folder / "arena", engine) as world:
        arena = Arena(world, wanted, platform, failing=True)
        for number, campaign in enumerate(campaigns(made, chance)):
            if count.kills.total() >= enough:
                return
            if number:
                arena.renew()
            for round_ in [*campaign, None]:
                told = arena.play(round_) if round_ else arena.end()
                count.add(told)
                print(f"{platform:<6} {engine:<9} {told if round_ else _ending(told)}", flush=True)
                for problem in told.problems[:_SHOWN]:
                    print(f"    {problem}", flush=True)
                if len(told.problems) > _SHOWN:
                    print(f"    and {len(told.problems) - _SHOWN} more", flush=True)


def _ending(told: Told) -> str:
    return str(told).replace("nobody     -", "to the end  ", 1)


if __name__ == "__main__":
    sys.exit(main())
