"""Whose a job is, and what becomes of those that nobody holds: each ends with one owner, or stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.engine import watch
from pytest_aisbench.engine.cancel import cancel_unfinished, lines_of_running_jobs
from pytest_aisbench.engine.fleet import Fleet
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.takeover import Fingerprints, Takeover
from pytest_aisbench.engine.trial import Tools, advance
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.errors import Crashed, Throttled, Unreachable
from pytest_aisbench.ledger.runs import JobLedger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.job import Job, Phase, Request
from pytest_aisbench.model.trial import Step, Trial

Make = Callable[..., Any]


def fingerprint(case: Case) -> str:
    return Fingerprints(None).of(case)  # a new one each time: it reads the code once


class Yardstick:
    """A ledger, and runs that find what others left in it."""

    def __init__(self, path: Path, case: Case, clock: Any) -> None:
        self.ledger = JobLedger(path, new=True)
        self.case, self.clock = case, clock
        self.cancelled: list[str] = []
        self.said: list[str] = []
        self.there = RUNNING  # what the platform says of every job

    def left(self, run: str, step: Step, *, ended: bool = False, **changes: Any) -> Trial:
        """What a run that is gone has left."""
        self.clock.sleep(1)
        self.ledger.begin(run, {}, self.clock.now())
        trial = replace(new_trial(run, self.case, self.clock.now()), platform_id="scripted")
        trial = replace(trial, fingerprint=fingerprint(self.case), job_id=f"job-of-{run}", **changes)
        trial = trial.moved(step, self.clock.now())
        self.ledger.save_trial(trial, self.clock.now())
        if ended:
            self.ledger.finish(run, 0, self.clock.now())
        return trial

    def takeover(self, run: str) -> Takeover:
        self.ledger.begin(run, {}, self.clock.now())
        tell = self.said.append
        return Takeover(
            run, "scripted", self.ledger, self.clock, fingerprint, lambda _: self.there, self.cancelled.append, tell
        )

    def taken(self, run: str = "next") -> str | None:
        trial = self.takeover(run).of(self.case)
        return trial.job_id if trial else None


@pytest.fixture
def yardstick(tmp_path: Path, case: Case, clock: Any) -> Any:
    yardstick = Yardstick(tmp_path / "ledger.db", case, clock)
    yield yardstick
    yardstick.ledger.close()


RUNNING = Job("j", Phase.RUNNING, "Running")
SUCCEEDED = Job("j", Phase.SUCCEEDED, "Completed")


def test_of_two_runs_that_come_at_once_one_takes_the_job(yardstick: Yardstick) -> None:
    yardstick.left("dead", Step.WATCH, job=RUNNING)
    one, two = yardstick.takeover("one"), yardstick.takeover("two")
    (seen,) = yardstick.ledger.left_trials(yardstick.case.id, "scripted", "two")
    assert one.of(yardstick.case) is not None
    assert two._taken(yardstick.case, seen) is None  # it had read the record before the other wrote
    assert "another run has it by now" in yardstick.said[-1]
    assert yardstick.cancelled == []


def test_a_run_that_was_thought_dead_neither_writes_nor_stops_what_was_taken(
    yardstick: Yardstick, healthy: Make, tmp_path: Path
) -> None:
    platform = healthy(Phase.RUNNING)
    tools = Tools(platform, SystemClock(), Limits(60.0, 60.0), tmp_path)
    yardstick.ledger.begin("slept", {}, yardstick.clock.now())

    def begin(case: Case, number: int) -> Trial:
        trial = new_trial("slept", case, yardstick.clock.now(), number)
        return replace(trial, platform_id="scripted", fingerprint=fingerprint(case))

    fleet = Fleet(tools, yardstick.ledger, begin, max_jobs=1, max_trials=1)
    fleet.start()
    fleet.reached(yardstick.case, Step.WATCH)
    assert yardstick.taken() == "job-1"
    platform.script = [Phase.SUCCEEDED]
    trial = fleet.reached(yardstick.case, Step.DONE)
    assert "another run took the job over" in trial.verdict.reason
    fleet.close()
    assert platform.cancelled == []
    assert [each.run for each in yardstick.ledger.trials("next")] == ["next"]


def test_a_job_that_runs_is_seen_behind_a_newer_trial_that_ended(yardstick: Yardstick) -> None:
    yardstick.left("killed", Step.WATCH, job=RUNNING)
    yardstick.left("well", Step.DONE, ended=True, job=SUCCEEDED)
    assert yardstick.taken() == "job-of-killed"


def test_what_nobody_needs_besides_is_stopped(yardstick: Yardstick) -> None:
    yardstick.left("older", Step.WATCH, job=RUNNING)
    yardstick.left("newer", Step.WATCH, job=RUNNING)
    assert yardstick.taken() == "job-of-newer"
    assert yardstick.cancelled == ["job-of-older"]
    assert [held.trial.job_id for held in yardstick.ledger.in_flight(yardstick.clock.now())] == ["job-of-newer"]


@pytest.mark.parametrize("phase", [Phase.CANCELLED, Phase.LOST])
def test_what_was_stopped_or_lost_has_nothing_to_be_judged(yardstick: Yardstick, phase: Phase) -> None:
    yardstick.left("killed", Step.DONE, job=Job("j", phase, "Gone"))
    assert yardstick.taken() is None


@pytest.mark.parametrize("step", [Step.HARVEST, Step.JUDGE])
def test_results_that_an_ended_run_did_not_judge_are_judged(yardstick: Yardstick, step: Step) -> None:
    yardstick.left("left", step, ended=True, job=SUCCEEDED)
    assert yardstick.taken() == "job-of-left"


def test_results_of_another_day_prove_nothing(yardstick: Yardstick) -> None:
    yardstick.left("killed", Step.HARVEST, job=SUCCEEDED)
    yardstick.clock.sleep(2 * 86400)
    assert yardstick.taken() is None


@pytest.mark.parametrize(
    ("now", "taken"),
    [
        (RUNNING, True),  # a job of three days
        (replace(SUCCEEDED, ran_s=600.0), False),
        (replace(SUCCEEDED, ran_s=600.0, queued_s=1.5 * 86400), True),  # it had waited long
        (replace(SUCCEEDED, ran_s=1.5 * 86400), True),  # it ended today
        (SUCCEEDED, False),
    ],
)
def test_a_job_that_ended_unseen_on_another_day_proves_nothing(yardstick: Yardstick, now: Job, taken: bool) -> None:
    yardstick.left("killed", Step.WATCH, job=Job("j", Phase.PENDING, "Pending"))
    yardstick.clock.sleep(2 * 86400)
    yardstick.there = now
    assert (yardstick.taken() is not None) is taken
    assert any("it ended on another day" in line for line in yardstick.said) is not taken
    if not taken:
        assert yardstick.ledger.in_flight(yardstick.clock.now()) == []
        assert yardstick.taken("another") is None
        assert len(yardstick.said) == 1  # told once


def test_data_that_changed_are_another_job(yardstick: Yardstick) -> None:
    folder = Path(yardstick.case.workload.folder)
    (folder / "data").mkdir()
    (folder / "data" / "set").write_text("old")
    case = replace(yardstick.case, workload=replace(yardstick.case.workload, data="data"))
    before = fingerprint(case)
    (folder / "data" / "set").write_text("new")
    assert fingerprint(case) != before


def test_a_submission_that_is_taken_over_has_all_its_time(
    yardstick: Yardstick, healthy: Make, tmp_path: Path, clock: Any
) -> None:
    sent = Request("POST", "/jobs", {"name": "n", "outputs": "obs://bucket/out/", "world": 4})
    yardstick.left("dead", Step.SUBMIT, request=sent)
    clock.sleep(3600)
    trial = yardstick.takeover("next").of(yardstick.case)
    assert trial is not None
    platform = healthy()
    platform.submit_errors = [Throttled("slow down")]
    trial = advance(replace(trial, job_id=None), Tools(platform, clock, Limits(60.0, 60.0), tmp_path))
    assert trial.step is Step.SUBMIT, trial.verdict


def test_a_job_that_could_not_be_stopped_stays_on_the_books(yardstick: Yardstick) -> None:
    trial = yardstick.left("run", Step.DONE, ended=True, job=RUNNING)
    assert [held.trial.id for held in yardstick.ledger.in_flight(yardstick.clock.now())] == [trial.id]
    assert "may still run: aisbench stop job-of-run" in lines_of_running_jobs([trial])[0]


def test_a_job_that_is_started_again_and_again_ends(healthy: Make, case: Case, clock: Any) -> None:
    trial = replace(new_trial("r", case, clock.now()), job_id="job-1").moved(Step.WATCH, clock.now())
    platform = healthy(*[Phase.PENDING, Phase.RUNNING] * 500)
    limits = Limits(queue_s=100.0, run_s=100.0)
    for _ in range(400):
        trial = watch.watch_job(trial, platform, clock, limits)
        if trial.fault:
            break
        clock.sleep(50)
    assert trial.fault is not None
    assert "again and again" in trial.fault.text


def test_an_outage_is_noted_once(healthy: Make, case: Case, clock: Any) -> None:
    trial = replace(new_trial("r", case, clock.now()), job_id="job-1").moved(Step.WATCH, clock.now())
    errors = [Unreachable("no answer", trail=f"request {number}") for number in range(50)]
    platform = healthy(*errors, Phase.RUNNING)
    for _ in range(50):
        trial = watch.watch_job(trial, platform, clock, Limits(100.0, 100.0))
        clock.sleep(5)
    assert len(trial.notes) == 1


def test_a_surprise_of_a_platform_is_sat_out(yardstick: Yardstick, healthy: Make, tmp_path: Path) -> None:
    platform = healthy(Phase.RUNNING, KeyError("phase"), Phase.RUNNING, Phase.SUCCEEDED)
    tools = Tools(platform, SystemClock(), Limits(60.0, 60.0), tmp_path)
    yardstick.ledger.begin("run", {}, yardstick.clock.now())

    def begin(case: Case, number: int) -> Trial:
        return new_trial("run", case, yardstick.clock.now(), number)

    fleet = Fleet(tools, yardstick.ledger, begin, max_jobs=1, max_trials=1)
    fleet.start()
    assert fleet.reached(yardstick.case, Step.DONE).verdict.passed
    fleet.close()


def test_a_crash_is_nobodys_verdict() -> None:
    assert isinstance(Crashed.of(KeyError("phase")), Crashed)
    lost = Unreachable("no answer")
    assert Crashed.of(lost) is lost


class Meanwhile:
    """A clock; while a run sleeps by it, something happens elsewhere."""

    def __init__(self, clock: Any, act: Callable[[], object]) -> None:
        self._clock, self._act = clock, act
        self.slept: list[float] = []

    def now(self) -> float:
        return float(self._clock.now())

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._clock.sleep(seconds)
        self._act()


def alive(yardstick: Yardstick, lease: float, step: Step = Step.WATCH, job: Job = RUNNING) -> Trial:
    """A trial of a run on another machine, whose clock says that its lease lasts until `lease` from now."""
    trial = yardstick.left("other", step, job=job)
    statement = "UPDATE runs SET owner = 'elsewhere:7', lease = ? WHERE run = 'other'"
    yardstick.ledger.database.write(statement, yardstick.clock.now() + lease)
    return trial


def taken_while(yardstick: Yardstick, act: Callable[[], object]) -> tuple[Trial | None, list[float]]:
    clock = Meanwhile(yardstick.clock, act)
    return replace(yardstick.takeover("next"), clock=clock).of(yardstick.case), clock.slept


def test_what_another_run_judged_while_we_waited_for_it_stays_its_own(yardstick: Yardstick) -> None:
    trial, ledger, clock = alive(yardstick, 10.0), yardstick.ledger, yardstick.clock

    def finish() -> None:
        ledger.save_trial(replace(trial, job=SUCCEEDED).moved(Step.DONE, clock.now()), clock.now())
        ledger.finish("other", 0, clock.now())

    assert taken_while(yardstick, finish)[0] is None
    assert [each.run for each in ledger.trials("other")] == ["other"]


@pytest.mark.parametrize("lease", [-60.0, 10.0, 600.0])
def test_a_run_that_renews_its_lease_lives_whatever_its_clock_shows(yardstick: Yardstick, lease: float) -> None:
    alive(yardstick, lease)
    renewed = yardstick.clock.now() + lease + 3.0
    taken, slept = taken_while(yardstick, lambda: yardstick.ledger.renew("other", renewed))
    assert taken is None
    assert sum(slept) < 1.0  # its first heartbeat suffices
    assert yardstick.cancelled == []


@pytest.mark.parametrize("lease", [-60.0, 10.0, 600.0])
def test_a_run_that_does_not_is_waited_for_as_long_as_a_lease_lasts(yardstick: Yardstick, lease: float) -> None:
    alive(yardstick, lease)
    taken, slept = taken_while(yardstick, lambda: None)
    assert taken is not None
    assert sum(slept) == pytest.approx(12.0)


def test_a_run_that_wakes_in_the_last_moment_keeps_its_job(yardstick: Yardstick) -> None:
    alive(yardstick, -60.0)
    yardstick.left("older", Step.WATCH, job=RUNNING, ended=True)
    (seen, _) = reversed(yardstick.ledger.left_trials(yardstick.case.id, "scripted", "next"))
    yardstick.ledger.renew("other", yardstick.clock.now() + 12.0)
    takeover = yardstick.takeover("next")
    assert seen.trial.run == "other"
    assert takeover._taken(yardstick.case, seen) is None
    takeover._stop(seen)
    assert yardstick.cancelled == []


def test_a_job_that_was_stopped_before_it_was_taken_over_is_tried_again(yardstick: Yardstick, healthy: Make) -> None:
    yardstick.left("killed", Step.WATCH, job=RUNNING, ended=False)
    trial = yardstick.takeover("next").of(yardstick.case)
    assert trial
    stopped = watch.watch_job(trial, healthy(Phase.CANCELLED), yardstick.clock, Limits(60.0, 60.0))
    assert stopped.fault
    assert stopped.fault.transient
    assert not stopped.stopped_by


def test_a_pause_that_another_clock_named_does_not_last(yardstick: Yardstick) -> None:
    now = yardstick.clock.now()
    times = {"watch": now, "running": now, "retry_after": now + 800.0}
    yardstick.left("killed", Step.WATCH, job=RUNNING, times=times)
    trial = yardstick.takeover("next").of(yardstick.case)
    assert trial
    assert watch.may_ask(trial, now)
    late = replace(trial, times={**trial.times, "retry_after": now + 30.0})
    assert not watch.may_ask(late, now)
    assert watch.pause_s(late, now, 5.0) == 30.0
    assert watch.may_ask(late, now - 3600.0)  # this machine's own clock was set back


def test_a_run_ends_with_no_verdict_from_a_job_that_another_took_over(yardstick: Yardstick) -> None:
    trial, ledger, now = yardstick.left("slept", Step.DONE, job=SUCCEEDED), yardstick.ledger, yardstick.clock.now()
    assert yardstick.taken() == "job-of-slept"
    assert ledger.finish("slept", 0, now, [trial.id]) == {trial.id}
    assert ledger.head("slept").exit_code is None
    assert ledger.finish("slept", 12, now) == set()
    assert ledger.head("slept").exit_code == 12


def test_the_end_of_a_run_stops_no_job_that_another_took_over(
    yardstick: Yardstick, healthy: Make, tmp_path: Path
) -> None:
    platform = healthy(Phase.CANCELLED)
    trial = yardstick.left("slept", Step.WATCH, job=RUNNING)
    tools = Tools(platform, yardstick.clock, Limits(60.0, 60.0), tmp_path)
    assert yardstick.taken() == "job-of-slept"
    cancel_unfinished([trial], tools, lambda each: not yardstick.ledger.save_trial(each, 0.0))
    assert platform.cancelled == []
