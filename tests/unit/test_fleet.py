"""One process holds all jobs: no doubles, no more than allowed, none left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from pytest_aisbench.engine.fleet import Fleet
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import Tools
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.errors import AisbenchError, LedgerError, Unreachable
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.job import Phase
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Ruling

Make = Callable[..., Any]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.begin("run-1", {}, 0.0)
    yield ledger
    ledger.close()


@pytest.fixture
def fleet_on(ledger: Ledger, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    fleets: list[Fleet] = []

    def make(platform: Any, max_jobs: int = 8, max_trials: int = 3) -> Fleet:
        clock = SystemClock()
        tools = Tools(platform, clock, Limits(60.0, 60.0), tmp_path / "run")

        def begin(case: Case, number: int) -> Trial:
            return new_trial("run-1", case, clock.now(), number)

        fleet = Fleet(tools, ledger, begin, max_jobs=max_jobs, max_trials=max_trials)
        fleet.start()
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.close()


def test_asking_twice_submits_once(healthy: Make, fleet_on: Make, case: Case) -> None:
    platform = healthy()
    fleet = fleet_on(platform)
    first, second = fleet.reached(case, Step.DONE), fleet.reached(case, Step.DONE)
    assert first == second
    assert len(platform.jobs) == 1
    assert first.verdict.passed


def test_a_stage_submits_nothing_until_more_is_wanted(healthy: Make, fleet_on: Make, case: Case) -> None:
    platform = healthy()
    fleet = fleet_on(platform)
    staged = fleet.reached(case, Step.SUBMIT)
    assert staged.stage is not None
    assert platform.store.head(staged.stage.code / "train.py")
    assert not platform.jobs
    assert fleet.reached(case, Step.DONE).verdict.passed


def test_no_more_jobs_than_allowed_are_in_flight(healthy: Make, fleet_on: Make, case: Case) -> None:
    platform = healthy(Phase.RUNNING)
    cases = [replace(case, shape=Shape(nodes, 2)) for nodes in range(2, 7)]
    fleet = fleet_on(platform, max_jobs=2)
    for each in cases:
        fleet.want(each, Step.DONE)
    for each in cases[:2]:
        fleet.reached(each, Step.WATCH)
    assert len(platform.jobs) == 2
    platform.script = [Phase.SUCCEEDED]
    assert all(fleet.reached(each, Step.DONE).verdict.passed for each in cases)
    assert len(platform.jobs) == 5


def test_the_intent_is_on_record_before_the_request_leaves(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    platform = healthy()
    seen: list[Any] = []
    platform.on_submit = lambda request: seen.extend(ledger.trials("run-1"))
    fleet_on(platform).reached(case, Step.WATCH)
    assert [(trial.step, trial.name) for trial in seen] == [(Step.SUBMIT, platform.jobs["job-1"])]


def test_closing_stops_what_runs_and_the_ledger_knows(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    platform = healthy(Phase.RUNNING)
    fleet = fleet_on(platform)
    fleet.reached(case, Step.WATCH)
    fleet.close()
    assert platform.cancelled == ["job-1"]
    (trial,) = ledger.trials("run-1")
    assert trial.job is not None
    assert trial.job.phase is Phase.CANCELLED
    with pytest.raises(AisbenchError, match="the run is ending"):
        fleet.reached(case, Step.DONE)


def test_closing_stops_a_job_whose_answer_was_lost(healthy: Make, fleet_on: Make, case: Case) -> None:
    platform = healthy(Phase.RUNNING)
    platform.submit_errors, platform.arrives_anyway = [Unreachable("no answer")], True
    platform.poll_s = 60.0  # it will not be asked for again in time
    fleet = fleet_on(platform)
    fleet.want(case, Step.DONE)
    wait_until(lambda: any(trial.attempts for trial in fleet.trials()))
    fleet.close()
    assert platform.cancelled == ["job-1"]


def test_a_job_that_was_lost_is_tried_again_and_marked(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    platform = healthy(Phase.RUNNING, Phase.LOST)
    platform.after_loss = [Phase.RUNNING, Phase.SUCCEEDED]
    fleet = fleet_on(platform)
    second = fleet.reached(case, Step.DONE)
    assert (second.number, second.verdict.ruling) == (2, Ruling.PASSED)
    assert "tried again: the platform lost the job" in second.notes[0]
    first, _ = fleet.trials()
    assert (first.number, first.verdict.ruling) == (1, Ruling.BROKEN)
    assert len({first.name, second.name, *platform.jobs.values()}) == 2
    assert [trial.id for trial in ledger.trials("run-1")] == [first.id, second.id]
    assert platform.cancelled == ["job-1"]  # should it turn up again


def test_whoever_waits_for_a_job_gets_the_one_that_was_not_lost(healthy: Make, fleet_on: Make, case: Case) -> None:
    platform = healthy(Phase.LOST)
    platform.after_loss = [Phase.SUCCEEDED]
    trial = fleet_on(platform).reached(case, Step.HARVEST)
    assert trial.job is not None
    assert (trial.number, trial.job.phase) == (2, Phase.SUCCEEDED)


def test_no_more_trials_than_allowed_decide_a_case(healthy: Make, fleet_on: Make, case: Case) -> None:
    platform = healthy(Phase.LOST)
    trial = fleet_on(platform, max_trials=2).reached(case, Step.DONE)
    assert (trial.number, trial.verdict.ruling) == (2, Ruling.BROKEN)
    assert len(platform.jobs) == 2


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.CANCELLED])
def test_a_job_that_failed_or_was_stopped_is_not_tried_again(
    healthy: Make, fleet_on: Make, case: Case, phase: Phase
) -> None:
    platform = healthy(phase)
    assert not fleet_on(platform).reached(case, Step.DONE).verdict.passed
    assert len(platform.jobs) == 1


def test_a_job_that_is_missing_for_a_moment_is_not_lost(healthy: Make, fleet_on: Make, case: Case) -> None:
    platform = healthy(Phase.RUNNING, Phase.LOST, Phase.SUCCEEDED)
    trial = fleet_on(platform).reached(case, Step.DONE)
    assert (trial.number, trial.verdict.ruling) == (1, Ruling.PASSED)


def test_a_remark_survives_whatever_the_trial_does_meanwhile(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    platform = healthy(Phase.RUNNING)
    fleet = fleet_on(platform)
    fleet.want(case, Step.DONE)
    fleet.remark(fleet.reached(case, Step.WATCH), "its log stands still")
    platform.script = [Phase.SUCCEEDED]
    assert fleet.reached(case, Step.DONE).notes == ("its log stands still",)
    assert ledger.trials("run-1")[0].notes == ("its log stands still",)


def test_a_ledger_that_fails_stops_the_jobs_and_tells_who_waits(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    platform = healthy(Phase.RUNNING)
    platform.on_submit = lambda request: ledger.close()  # as a full disk would: the next write fails
    fleet = fleet_on(platform)
    with pytest.raises(LedgerError, match="name another file"):
        fleet.reached(case, Step.DONE)
    fleet.close()
    assert platform.cancelled == ["job-1"]
