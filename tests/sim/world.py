"""One simulation: a seed makes a scenario, the machine plays it, the checker looks at what the world outside saw.

A scenario is a platform, a few cases, several runs on one or two hosts that share a ledger, and what befalls them:
kills, pauses, clocks that are wrong or jump, a full disk, a person who presses Ctrl-C or types `aisbench stop`. After
that comes a calm end: one more run, `aisbench stop --all-mine` and `aisbench flush`, without faults. Then nothing may
be left over.
"""

from __future__ import annotations

import logging
import random
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from pytest_aisbench.engine import fleet as fleet_module
from pytest_aisbench.engine import run as run_module
from pytest_aisbench.engine import staging
from pytest_aisbench.ledger import database as database_module
from pytest_aisbench.ledger import lease as lease_module
from pytest_aisbench.model.case import Case, Shape, Workload
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Metric
from pytest_aisbench.model.results import Executor
from pytest_aisbench.model.verdict import Threshold
from pytest_aisbench.net import retry
from tests.sim.checker import Checker, Violation
from tests.sim.cloud import PLATFORMS, VERSION, WANTED, Cloud
from tests.sim.disk import Disk
from tests.sim.faults import Faults, Met
from tests.sim.machine import Host, Machine, Process, Stuck, clock, doing, threads
from tests.sim.session import PytestRun, flush_outbox, stop_all_mine

_UNIT = "images/s"
_SKEWED = "clock skewed"
_STEPS = {"aisbench-uploader": "UPLOAD", "aisbench-lease": "LEASE", "aisbench-results": "REPORT"}
_FULL = "disk full for a while"
_DAY_S = 25 * 3600.0
_RARELY = 0.04  # a run begins on another day
_DOOMED = 0.6  # of runs: something befalls them at a step
_DOOM_STEPS = ("OPEN", "TAKEOVER", "STAGE", "SUBMIT", "WATCH", "HARVEST", "JUDGE", "CANCEL", "UPLOAD", "END")
_LONGEST_S = 6 * 86400.0  # of virtual time, until every run must have ended
_MOST_SWITCHES = 60_000
_LONGEST_CPU_S = 10.0  # a simulation takes a twentieth of a second
ROOT = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())

_now: World | None = None  # the simulation that runs in this process


def _machine() -> Machine:
    assert _now
    return _now.machine


class Hung(BaseException):
    """A thread used the CPU for longer than a whole simulation takes."""


class _Chance:
    """Stands in for the random pauses of retries."""

    def uniform(self, low: float, high: float) -> float:
        return _now.faults.between("pause", low, high) if _now else low


class _Os:
    """Stands in for the module `os` where the ledger asks which processes live."""

    environ: ClassVar[dict[str, str]] = {}

    def getpid(self) -> int:
        current = _machine().current
        return current.process.pid if current else 1

    def kill(self, pid: int, _: int) -> None:
        if not self.lives(pid):
            raise ProcessLookupError

    def lives(self, pid: int) -> bool:
        process = _machine().processes.get((_machine().here.name, pid))
        return process is not None and process.alive and process.name not in (_now.ended if _now else ())


@contextmanager
def simulated_modules() -> Iterator[None]:
    """Give production code the machine's threads, clock, disk and chance, in place of the real ones."""
    changed: list[tuple[Any, str, Any]] = []

    def put(module: Any, name: str, value: Any) -> None:
        changed.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    fake_threads, fake_time = threads(_machine), clock(_machine)
    import threading
    import time

    for name, module in sorted(sys.modules.items()):
        if name.startswith("pytest_aisbench"):
            if getattr(module, "threading", None) is threading:
                put(module, "threading", fake_threads)
            if getattr(module, "time", None) is time:
                put(module, "time", fake_time)
    put(retry, "_CHANCE", _Chance())
    put(retry, "_LOADING", fake_threads.Lock())
    put(database_module, "sqlite3", _Sqlite())
    put(database_module, "random", SimpleNamespace(SystemRandom=_Chance))
    put(database_module, "why_no_locks", lambda _: "")
    put(database_module, "mount_of", lambda _: None)
    put(run_module, "origin", lambda *_: Executor())  # or git is started for each run
    put(staging, "read_tree", _read_once(staging.read_tree))
    put(lease_module, "os", _Os())
    put(lease_module, "_host", lambda: _machine().here.name)
    put(lease_module, "_sight", lambda: f"boot-of-{_machine().here.name} pid:[1]")
    put(lease_module, "_start", lambda pid: "0" if _Os().lives(pid) else "")
    put(secrets, "token_hex", lambda size: f"{random.getrandbits(8 * size):0{2 * size}x}")
    put(fleet_module.Fleet, "_do_step", _watched(fleet_module.Fleet._do_step, lambda trial: trial.step.name))
    put(fleet_module.Fleet, "_look", _watched(fleet_module.Fleet._look, lambda _: "WATCH"))
    put(fleet_module.Fleet, "_wind_up", _watched(fleet_module.Fleet._wind_up, lambda: "CANCEL"))
    soon = database_module.Database.write_soon

    def write_soon(database: Any, key: str, work: Callable[[], object]) -> None:
        """The committer works for the step that gave it something to write."""
        soon(database, key, work)
        current, committer = _machine().current, database._committer
        if current and committer and committer._thread:
            committer._thread.activity = current.activity

    put(database_module.Database, "write_soon", write_soon)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for module, name, value in reversed(changed):
            setattr(module, name, value)


def _watched(action: Callable[..., Any], step: Callable[..., str]) -> Callable[..., Any]:
    def watched(self: Any, *arguments: Any) -> Any:
        with doing(_machine(), step(*arguments)):
            return action(self, *arguments)

    return watched


def _read_once(read: Callable[..., Any]) -> Callable[..., Any]:
    """No simulation changes the code of its workloads: what was read of a tree holds until its end."""

    def read_once(name: str, parts: list[Path], added: Any = None) -> Any:
        assert _now
        key = name, tuple(map(str, parts)), str(sorted((added or {}).items()))
        if key not in _now.trees:
            _now.trees[key] = read(name, parts, added)
        return _now.trees[key]

    return read_once


class _Sqlite:
    """Stands in for the module `sqlite3`: the disk of the simulation that runs."""

    def __getattr__(self, name: str) -> Any:
        assert _now
        return getattr(_now.disk.module, name)


@dataclass
class Result:
    """How a simulation ended."""

    seed: int
    violations: list[Violation]
    met: list[Met]
    virtual_s: float
    switches: int
    platform: str
    story: list[str] = field(default_factory=list)


@dataclass
class Doom:
    """What befalls a process when it has begun a step so many times."""

    step: str
    times: int
    strike: Callable[[], None]


class World:
    """A seed's scenario, and the machine that plays it."""

    def __init__(self, seed: int, folder: Path, only: frozenset[str] | None = None) -> None:
        self.machine = Machine(longest=_MOST_SWITCHES)
        self.calm = False
        self.faults = Faults(seed, only, is_calm=lambda: self.calm)
        self.folder = folder
        self.story: list[str] = []
        draw = self.faults
        self._dooms: dict[str, Doom] = {}  # by process
        self.machine.begins = self._begins
        self.machine.processes["cloud", 0] = Process(self.machine, self.machine.home, 0, "cloud")
        self.disk = Disk(self.machine, draw, self.step, self._power_off)
        self.platform = draw.pick("platform", list(PLATFORMS))
        self.faults.intensity = draw.pick("intensity", [0.3, 1.0, 1.0, 3.0])
        self.reports = folder / "reports"
        self.suite = folder / "suite"
        self.runs: list[PytestRun] = []
        self.person_stopped = False
        self.trees: dict[object, Any] = {}

    @property
    def ended(self) -> set[str]:
        """The names of processes that have ended by themselves."""
        return {run.name for run in self.runs if run.over}

    def step(self) -> str:
        current = self.machine.current
        if current is None:
            return "CLOUD"
        return _STEPS.get(current.name) or current.activity or current.process.activity or "OPEN"

    def _power_off(self) -> None:
        for run in self.runs:
            if run.process.alive and not run.over:
                self.tell(f"{run.name} dies by the power cut")
                run.process.kill()

    def tell(self, what: str) -> None:
        self.story.append(f"{self.machine.now:9.2f}  {what}")

    # The scenario.

    def play(self) -> list[Violation]:
        self.cloud = Cloud(self.platform, self.machine, self.faults, self.folder, self.step)
        self.checker = Checker(self)
        self._make_suite()
        draw, hosts = self.faults, self._hosts()
        count = draw.pick("runs", [2, 2, 3, 4])
        start = 0.0
        for number in range(count):
            host = draw.pick("host", hosts)
            self._plan_run(f"run{chr(65 + number)}", host, start)
            start += draw.between("start", 0.5, 90.0) + (_DAY_S if draw.draw("another day") < _RARELY else 0.0)
        try:
            self._run_until(lambda: bool(self.runs) and len(self.runs) == count and all(run.over for run in self.runs))
            self._calm_end()
        except (Stuck, Hung) as stuck:
            self.checker.violate("every run ends", f"{stuck}; still there: {self._unfinished()}")
        self.checker.at_the_end()
        for process in list(self.machine.processes.values()):
            process.kill()
        for connection in list(self.disk.connections):
            connection.abandon()
        return self.checker.violations

    def _unfinished(self) -> str:
        return ", ".join(run.name for run in self.runs if not run.over) or "no run"

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        seen = 0
        self.machine.at(_LONGEST_S, self._give_up)

        def over() -> bool:
            nonlocal seen
            if len(self.cloud.seen) > seen:
                seen = len(self.cloud.seen)
                self.checker.after_a_request()
                self.cloud.plan_losses()
                self._add_stranger()
            return is_over()

        self.machine.run(over)

    @staticmethod
    def _give_up() -> None:
        raise Stuck(f"after {_LONGEST_S:g} s")

    def _add_stranger(self) -> None:
        created = [each for each in self.cloud.seen if each.operation in {"create", "PostJob"} and each.status < 400]
        if created and not self.cloud.strangers:
            self.cloud.add_stranger(created[0])

    def _make_suite(self) -> None:
        code = self.suite / "code"
        code.mkdir(parents=True)
        (code / "train.py").write_text("print('training')\n")
        options: dict[str, Any] = {"framework_version": VERSION, "flavor": "modelarts.kat1.2xlarge"}
        if self.platform == "apulis":
            options = {"image": "mindspore:1.3"}
        elif self.platform == "V1" and self.faults.draw("versions") < 0.5:
            options["job_name"] = "shared-name"
        claims = (Threshold(THROUGHPUT, _UNIT, at_least=2 * WANTED), Threshold(ACCURACY, at_least=0.5))
        metrics = {THROUGHPUT: Metric(THROUGHPUT, _UNIT), ACCURACY: Metric(ACCURACY, "")}
        self.cases = [
            Case(
                Workload(
                    f"toy{number}", folder=str(self.suite), code=("code",), entry="train.py", framework="mindspore",
                    devices=2, metrics=metrics, options=options,
                ),
                Shape(1, 2),
                claims,
            )
            for number in range(self.faults.pick("cases", [1, 1, 2, 3]))
        ]  # fmt: skip

    def _hosts(self) -> list[Host]:
        draw = self.faults
        skews = [draw.pick("skew", [0.0, 0.0, 0.0, -60.0, 60.0, 5.0, -5.0, 600.0]) for _ in range(2)]
        skewed = [skew if draw.may_strike(f"host{number}", _SKEWED) else 0.0 for number, skew in enumerate(skews)]
        return [Host(f"host{number}", skew) for number, skew in enumerate(skewed)]

    def _plan_run(self, name: str, host: Host, start: float) -> None:
        draw = self.faults
        options: dict[str, Any] = {
            "max_trials": draw.pick(f"{name}.trials", [1, 2, 3]),
            "fresh": draw.draw(f"{name}.fresh") < 0.1,
            "on_interrupt": draw.pick(f"{name}.leave", ["stop", "stop", "leave"]),
            "run_timeout": 3600.0,
        }
        process = self.machine.process(host, name)
        with_xdist = draw.draw(f"{name}.xdist") < 0.25
        run = PytestRun(self.machine, process, self.cloud, draw, self.reports, self.cases, options, with_xdist)

        def begin() -> None:
            self.tell(f"{name} begins on {host.name} (clock {host.skew:+g} s) with {options}")
            if host.skew:
                draw.count(host.name, _SKEWED, "OPEN")
            self.runs.append(run)
            self.machine.news = True
            run.start()

        self.machine.at(start, begin)
        self._plan_fate(run, start)

    def _plan_fate(self, run: PytestRun, start: float) -> None:
        """What befalls a run as a whole: at any time, and at a step, which may be a short one."""
        draw, name = self.faults, run.name
        fates: dict[str, tuple[float, Callable[[], None]]] = {
            "killed": (0.25, run.process.kill),
            "stopped for a while": (0.2, lambda: run.process.freeze(draw.between(f"{name}.frozen", 5.0, 90.0))),
            "interrupted": (0.15, run.ctrl_c),
            "clock stepped": (0.15, lambda: self._step_clock(run)),
            "stop typed by a person": (0.05, lambda: self._type_stop(run)),
        }
        drawn = draw.draw(f"{name}.fate")
        for kind, (chance, act) in fates.items():
            drawn -= chance
            if drawn < 0:
                moment = start + draw.between(f"{name}.fate.at", 0.0, 100.0)
                self.machine.at(moment, partial(self._befall, run, f"{name}.fate", kind, act))
                break
        if draw.draw(f"{name}.doom") < _DOOMED:
            acts = [*((kind, act) for kind, (_, act) in fates.items()), (_FULL, self._fill_disk)]
            kind, act = draw.pick(f"{name}.doom.kind", acts)
            step, again = (
                draw.pick(f"{name}.doom.step", list(_DOOM_STEPS)),
                draw.pick(f"{name}.doom.again", [1, 1, 1, 2]),
            )
            self._dooms[name] = Doom(step, again, partial(self._befall, run, f"{name}.doom", kind, act, step))

    def _begins(self, process: Process, step: str) -> None:
        """Let what is to befall a process at this step do so within it, at once or a little later."""
        doom = self._dooms.get(process.name)
        if doom and doom.step == step:
            doom.times -= 1
            if not doom.times:
                longest = self.faults.pick(f"{process.name}.doom.within", [0.0, 0.002, 0.02, 0.5, 5.0])
                self.machine.after(self.faults.between(f"{process.name}.doom.after", 0.0, longest), doom.strike)

    def _befall(self, run: PytestRun, fault: str, kind: str, act: Callable[[], None], planned: str = "") -> None:
        if run.over or self.calm or run not in self.runs:
            return
        if self.faults.count(fault, kind, self._step_of(run, planned)):
            self.tell(f"{run.name}: {kind}")
            act()

    @staticmethod
    def _step_of(run: PytestRun, planned: str) -> str:
        """What the run is doing: the planned step if one of its threads is at it."""
        if planned and any(thread.activity == planned for thread in run.process.threads):
            return planned
        main = run.main_thread.activity if run.main_thread else ""
        steps = sorted({trial.step.name for trial in run.run.fleet.trials()} - {"DONE"}) if run.run and not main else []
        return steps[0] if steps else main or "OPEN"

    def _step_clock(self, run: PytestRun) -> None:
        run.process.host.skew += self.faults.pick("step", [-3600.0, -60.0, -5.0, 5.0, 60.0, 3600.0])

    def _type_stop(self, run: PytestRun) -> None:
        self.person_stopped = True
        shell = self.machine.process(run.process.host, f"{run.name}.stop")
        self.machine.start(shell, partial(self._command, partial(stop_all_mine, self.cloud, self.reports, force=True)))

    def _command(self, act: Callable[[], object]) -> None:
        from pytest_aisbench.errors import AisbenchError

        try:
            act()
        except AisbenchError as error:
            self.tell(f"a command says: {error}")

    def _fill_disk(self) -> None:
        def free() -> None:
            self.disk.full = False

        self.disk.full = True
        self.machine.after(self.faults.between("full.for", 1.0, 60.0), free)

    def _calm_end(self) -> None:
        """One more run, and the commands that clean up: all without faults."""
        self.calm = True
        self.disk.full = False
        self.tell("from here on all is calm")
        self.checker.before_the_calm_end()
        self.machine.now += 60.0  # every lease has expired, and every late request has arrived
        host = Host("host9")
        last = PytestRun(
            self.machine,
            self.machine.process(host, "last"),
            self.cloud,
            self.faults,
            self.reports,
            self.cases,
            {"max_trials": 1},
        )
        self.runs.append(last)
        last.start()
        self._run_until(lambda: last.over)
        self.checker.after_the_last_run(last)
        done: list[str] = []
        shell = self.machine.process(host, "shell")

        def clean_up() -> None:
            self.checker.lines = stop_all_mine(self.cloud, self.reports)
            self.machine.sleep(7200.0)  # by a clock that is ahead, the lease of a dead run lasts longer
            self.checker.uploads = flush_outbox(self.cloud, self.reports, 60.0)
            done.append("")

        self.machine.start(shell, clean_up)
        self._run_until(lambda: bool(done))


def play(seed: int, only: frozenset[str] | None = None) -> Result:
    """Run one simulation; call it inside `simulated_modules()`."""
    global _now  # noqa: PLW0603
    random.seed(seed)
    folder = Path(tempfile.mkdtemp(prefix="aisbench-sim-", dir=ROOT))
    world = World(seed, folder, only)
    _now = world
    before = signal.signal(signal.SIGVTALRM, _hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_CPU_S)
    try:
        violations = world.play()
        return Result(
            seed, violations, world.faults.met, world.machine.now, world.machine.switches, world.platform, world.story
        )
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
        _now = None
        shutil.rmtree(folder, ignore_errors=True)


def _hung(*_: object) -> None:
    """A loop that never waits would hang the simulation as it would hang a run."""
    where = " < ".join(f"{frame.name}" for frame in reversed(traceback.extract_stack(limit=8)[:-1]))
    if _now:
        _now.checker.violate("every run ends", f"a loop without a wait: {where}")
    raise Hung
