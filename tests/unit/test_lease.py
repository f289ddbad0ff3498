"""Whose a job is while clocks are wrong, processes share numbers, and owners wake up late."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.engine.cancel import CancelCommand, begin, cancel_unfinished
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.takeover import Fingerprints, Takeover
from pytest_aisbench.engine.trial import Tools, advance
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.errors import Blame
from pytest_aisbench.ledger import lease
from pytest_aisbench.ledger.lease import LEASE_S, Liveness, liveness, this_process
from pytest_aisbench.ledger.ledger import record
from pytest_aisbench.ledger.runs import JobLedger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.job import Job, Phase, Request
from pytest_aisbench.model.trial import Fault, Step, Trial

Make = Callable[..., Any]
ELSEWHERE = "another-machine:1 boot-2 pid:[1] 77"


class World:
    """A ledger with the job of a run, and a clock in whose time that run may show heartbeats."""

    def __init__(self, ledger: JobLedger, case: Case, clock: Any) -> None:
        self.ledger, self.case, self.clock = ledger, case, clock
        self.said: list[str] = []
        self.cancelled: list[str] = []
        self.behind_s: float | None = None  # how far the owner's clock is behind; None: the owner is dead

    def now(self) -> float:
        return float(self.clock.now())

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        if self.behind_s is not None:
            self.ledger.renew("first", self.now() - self.behind_s + LEASE_S)

    def leave(self, owner: str, lease: float, **changes: Any) -> Trial:
        self.ledger.begin("first", {}, self.now(), owner, lease)
        trial = replace(new_trial("first", self.case, self.now()), platform_id="scripted", job_id="job-1")
        trial = replace(trial, fingerprint=Fingerprints(None).of(self.case), **changes).moved(Step.WATCH, self.now())
        assert self.ledger.save_trial(trial, self.now())
        return trial

    def takeover(self) -> Trial | None:
        def running(job_id: str) -> Job:
            return Job(job_id, Phase.RUNNING, "Running")

        self.ledger.begin("second", {}, self.now())
        fingerprint = Fingerprints(None).of
        how = (self, fingerprint, running, self.cancelled.append, self.said.append)
        return Takeover("second", "scripted", self.ledger, *how).of(self.case)


@pytest.fixture
def world(tmp_path: Path, case: Case, clock: Any) -> Iterator[World]:
    ledger = JobLedger(tmp_path / "ledger.db", new=True)
    yield World(ledger, case, clock)
    ledger.close()


@pytest.mark.parametrize("behind_s", [-600.0, 0.0, 60.0, 7200.0])
def test_a_live_run_whose_clock_is_wrong_is_not_robbed(world: World, behind_s: float) -> None:
    world.behind_s = behind_s
    world.leave(ELSEWHERE, world.now() - behind_s + LEASE_S)
    assert world.takeover() is None
    assert "is alive and keeps its job" in world.said[-1]


@pytest.mark.parametrize("ahead_s", [-60.0, 600.0, 86400.0 * 365 * 70, float("inf")])
def test_a_dead_run_whose_clock_was_ahead_is_not_waited_for(world: World, ahead_s: float) -> None:
    world.leave(ELSEWHERE, world.now() + ahead_s)
    began = world.now()
    assert world.takeover() is not None
    assert world.now() - began <= LEASE_S + 1
    absurd = [line for line in world.said if "has an impossible lease" in line]
    assert len(absurd) == (ahead_s > 3600)


def test_what_this_machine_sees_of_a_process_decides_without_a_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *sight, start = this_process().split(" ")
    monkeypatch.setattr(lease, "this_process", lambda: "the run that comes next")
    owner = " ".join([name, *sight, start])
    world.leave(owner, world.now() - 3600)  # it stood still for an hour
    began = world.now()
    assert world.takeover() is None
    assert world.now() == began
    # The number of a dead process may be another process's now, and another container numbers its own.
    assert liveness(owner) is Liveness.ALIVE
    assert liveness(" ".join([name, *sight, f"{start}1"])) is Liveness.DEAD
    assert liveness(f"{name} {sight[0]} pid:[1] {start}") is Liveness.UNKNOWN
    assert liveness(f"{name} another-boot {sight[1]} {start}") is Liveness.UNKNOWN


def test_stop_all_mine_spares_a_live_run_whose_clock_is_behind(world: World, healthy: Make) -> None:
    world.behind_s = 60.0
    world.leave(ELSEWHERE, world.now() - 48)
    platform = healthy(Phase.RUNNING)
    (report,) = CancelCommand(world.ledger, platform, world).all_mine()
    assert report.text.startswith("left to run first")
    assert platform.cancelled == []


class Zombie:
    """A run whose trial another process took while it stood still."""

    def __init__(self, world: World, platform: Any, folder: Path) -> None:
        self.platform = platform
        self.tools = Tools(platform, world, Limits(60.0, 60.0), folder, holds=world.ledger.holds)


@pytest.fixture
def zombie(world: World, healthy: Make, tmp_path: Path) -> Zombie:
    return Zombie(world, healthy(Phase.RUNNING), tmp_path)


def taken_by_another(world: World, trial: Trial) -> None:
    assert world.ledger.swap_trial(replace(trial, run="second"), world.now(), record(trial))


def test_who_wakes_up_late_submits_nothing(world: World, zombie: Zombie) -> None:
    sent = Request("POST", "/jobs", {"name": "n", "outputs": "obs://bucket/out/", "world": 4})
    world.leave(ELSEWHERE, 0.0)
    trial = replace(new_trial("first", world.case, world.now(), 2), request=sent).moved(Step.SUBMIT, world.now())
    assert world.ledger.save_trial(trial, world.now())
    taken_by_another(world, trial)
    after = advance(trial, zombie.tools)
    assert "another run took the job over" in after.verdict.reason
    assert zombie.platform.jobs == {}


def test_who_wakes_up_late_stops_nothing(world: World, zombie: Zombie) -> None:
    trial = world.leave(ELSEWHERE, 0.0)
    taken_by_another(world, trial)
    cancel_unfinished([trial], zombie.tools, lambda _: None)
    overdue = begin(trial, Fault(Blame.WORKLOAD, "overdue"), world.now())
    assert "another run took the job over" in advance(overdue, zombie.tools).verdict.reason
    assert zombie.platform.cancelled == []


def test_who_wakes_up_late_writes_nothing_even_if_the_run_is_the_same(world: World) -> None:
    """`aisbench stop` takes the trial of a run that it thinks dead, and leaves it under that run's name."""
    trial = world.leave(ELSEWHERE, 0.0)
    (held,) = world.ledger.in_flight(world.now())
    assert world.ledger.amend(held, trial.moved(Step.HARVEST, world.now()), world.now())
    assert not world.ledger.save_trial(trial.noted("late"), world.now())


def test_setting_the_wall_clock_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 60
    before, wall = clock.now(), time.time()
    monkeypatch.setattr(time, "time", lambda: wall - 3600)
    assert 0 <= clock.now() - before < 60


def test_this_process_is_known_by_more_than_its_number() -> None:
    assert len(this_process().split(" ")) == (4 if sys.platform == "linux" else 1)
