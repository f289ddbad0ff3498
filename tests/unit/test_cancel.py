"""Cancelling jobs until the platform confirms: the common way, the end of a run, and `aisbench stop`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.cli.jobs import cancel_line, table
from pytest_aisbench.engine.cancel import (
    CONFIRM_S,
    CancelCommand,
    Cancellation,
    CancelReport,
    cancel_unfinished,
    confirm,
    forget,
    lines_of_running_jobs,
)
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import Tools
from pytest_aisbench.engine.watch import OUTAGE_S, Limits, stream_log
from pytest_aisbench.errors import Blame, LedgerError, Unreachable, UsageFault
from pytest_aisbench.ledger.lease import LEASE_S
from pytest_aisbench.ledger.ledger import Ledger, record
from pytest_aisbench.ledger.runs import Holder, JobLedger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Job, LogPart, Phase, Request
from pytest_aisbench.model.trial import Fault, Step, Trial

Make = Callable[..., Any]
ELSEWHERE = "another-machine:1"


@pytest.fixture
def ledger(tmp_path: Path, clock: Any) -> Iterator[JobLedger]:
    """One run, on a machine of which nothing is known, whose lease has expired."""
    made = Ledger(tmp_path / "ledger.db")
    made.begin("run-1", {}, clock.now(), ELSEWHERE, clock.now() - 1)
    made.close()
    ledger = JobLedger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


@pytest.fixture
def trial(ledger: JobLedger, case: Case, clock: Any) -> Trial:
    trial = replace(new_trial("run-1", case, clock.now()), platform_id="scripted")
    trial = trial.moved(Step.SUBMIT, clock.now()).moved(Step.WATCH, clock.now(), job_id="job-1")
    ledger.save_trial(trial, clock.now())
    return trial


def stop(ledger: JobLedger, platform: Any, clock: Any, *jobs: str, force: bool = False) -> CancelReport:
    platform.poll_s = 5.0
    act = CancelCommand(ledger, platform, clock, force)
    (report,) = act.named(jobs) if jobs else act.all_mine()
    return report


def kept(ledger: JobLedger) -> Trial:
    (trial,) = ledger.trials("run-1")
    return replace(trial, fence=0)  # how often the command took it is tested elsewhere


# The common way.


class Slow:
    """A platform on which a job ends some looks after it took the request, and which takes none at first."""

    poll_s = 5.0

    def __init__(self, looks: dict[str, int], refusals: int = 0, error: Exception | None = None) -> None:
        self.looks, self.refusals, self.error = looks, refusals, error or Unreachable("no route")
        self.asked: list[str] = []

    def cancel(self, job_id: str) -> None:
        self.asked.append(job_id)
        if self.asked.count(job_id) <= self.refusals:
            raise self.error

    def inspect(self, job_ids: Iterable[str]) -> dict[str, Job]:
        jobs = {}
        for job_id in job_ids:
            if self.asked.count(job_id) > self.refusals:
                self.looks[job_id] -= 1
            phase = Phase.RUNNING if self.looks[job_id] > 0 else Phase.CANCELLED
            jobs[job_id] = Job(job_id, phase, phase.value.title())
        return jobs


def confirmed(platform: Any, clock: Any, *cancellations: Cancellation) -> list[list[tuple[str, bool]]]:
    lists = confirm(platform, clock, cancellations, CONFIRM_S)
    return [[(each.job_id, each.is_over) for each in some] for some in lists]


def test_each_job_is_reported_as_soon_as_it_ends_and_asked_for_once(clock: Any) -> None:
    platform, began = Slow({"a": 1, "b": 3, "c": 1}), clock.now()
    lists = confirmed(platform, clock, Cancellation("a"), Cancellation("b"), Cancellation("c"))
    assert lists == [[("a", True), ("c", True)], [], [("b", True)]]
    assert sorted(platform.asked) == ["a", "b", "c"]
    assert clock.now() - began == 2.0  # a person waits: looks are a second apart, whatever the platform's interval is


@pytest.mark.parametrize("error", [Unreachable("no route"), KeyError("a bug of the platform's")])
def test_a_platform_that_does_not_take_the_request_is_asked_again(clock: Any, error: Exception) -> None:
    platform = Slow({"a": 1}, refusals=3, error=error)
    assert confirmed(platform, clock, Cancellation("a"))[-1] == [("a", True)]
    assert platform.asked == ["a"] * 4


def test_a_request_that_was_taken_before_is_not_repeated(clock: Any) -> None:
    platform = Slow({"a": 1, "b": 1})
    confirmed(platform, clock, Cancellation("a", requested_at=1.0), Cancellation("b"))
    assert platform.asked == ["b"]


def test_what_does_not_end_is_reported_when_the_time_is_up(clock: Any) -> None:
    platform, began = Slow({"a": 1, "b": 999}), clock.now()
    (first, *_, last) = confirm(platform, clock, [Cancellation("a"), Cancellation("b")], 30.0)  # type: ignore[arg-type]
    assert [each.job_id for each in first] == ["a"]
    (left,) = last
    assert (left.job_id, left.is_over, left.job and left.job.phase) == ("b", False, Phase.RUNNING)
    assert 30.0 <= clock.now() - began <= 31.0


def test_nothing_to_cancel_asks_nothing(clock: Any) -> None:
    assert list(confirm(Slow({}), clock, [], CONFIRM_S)) == []  # type: ignore[arg-type]


# The end of a run.


def ended(trials: list[Trial], platform: Any, clock: Any, folder: Path, keep: Any = None) -> dict[str, list[Trial]]:
    """Every version of each trial that was saved."""
    saved: dict[str, list[Trial]] = {trial.id: [] for trial in trials}
    tools = Tools(platform, clock, Limits(60.0, 60.0), folder)
    cancel_unfinished(trials, tools, keep or (lambda trial: saved[trial.id].append(trial)))
    return saved


def test_the_ledger_knows_before_the_platform_is_asked_and_when_it_confirms(
    clock: Any, case: Case, tmp_path: Path, healthy: Make
) -> None:
    platform = healthy(Phase.RUNNING)
    running = new_trial("run-1", case, clock.now()).moved(Step.WATCH, clock.now(), job_id="job-1")
    judged = replace(new_trial("run-1", case, clock.now()), id="judged", job_id="job-2", step=Step.DONE)
    log: list[Any] = []
    cancel = platform.cancel

    def logged(job_id: str) -> None:
        log.append(job_id)
        cancel(job_id)

    platform.cancel = logged
    ended([running, judged], platform, clock, tmp_path, log.append)
    before, asked, after = log
    assert (before.step, before.fault.text, asked) == (Step.WATCH, "the run ended before the job did", "job-1")
    assert "asked" in after.times
    assert (after.step, after.job.phase) == (Step.HARVEST, Phase.CANCELLED)


def test_a_job_that_does_not_end_stays_in_flight_and_is_named(
    clock: Any, case: Case, tmp_path: Path, healthy: Make
) -> None:
    trial = new_trial("run-1", case, clock.now()).moved(Step.WATCH, clock.now(), job_id="job-1")
    platform, began = healthy(Job("job-1", Phase.RUNNING, "Terminating")), clock.now()
    platform.poll_s = 5.0
    (_, last) = ended([trial], platform, clock, tmp_path)[trial.id]
    assert (last.step, platform.cancelled) == (Step.WATCH, ["job-1"])
    assert last.notes == ("job job-1 was asked to stop and may still run (Terminating)",)
    assert clock.now() - began <= CONFIRM_S + 1
    assert "aisbench stop job-1" in lines_of_running_jobs([last])[0]


def test_a_platform_that_is_silent_at_the_end_is_noted(clock: Any, case: Case, tmp_path: Path, healthy: Make) -> None:
    trial = new_trial("run-1", case, clock.now()).moved(Step.WATCH, clock.now(), job_id="job-1")
    platform = healthy(Unreachable("no route"))
    platform.poll_s = 5.0
    (_, last) = ended([trial], platform, clock, tmp_path)[trial.id]
    assert last.notes == (
        "the platform did not confirm that the job stopped: no route",
        "job job-1 was asked to stop and may still run (unseen)",
    )


def test_a_ledger_that_fails_leaves_no_job_running(clock: Any, case: Case, tmp_path: Path, healthy: Make) -> None:
    def fail(trial: Trial) -> None:
        raise LedgerError("disk full")

    fresh = new_trial("run-1", case, clock.now()).moved(Step.WATCH, clock.now())
    trials = [replace(fresh, id=name, job_id=name) for name in "abc"]
    platform = healthy(Phase.RUNNING)
    ended(trials, platform, clock, tmp_path, fail)
    assert sorted(platform.cancelled) == ["a", "b", "c"]


# `aisbench stop`.


def test_a_job_that_confirms_is_recorded_and_not_in_flight_any_more(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    platform = healthy(Phase.RUNNING)
    assert stop(ledger, platform, clock).text == "stopped (Cancelled)"
    assert platform.cancelled == ["job-1"]
    after = kept(ledger)
    assert after.step is Step.HARVEST
    assert after.job
    assert after.job.phase is Phase.CANCELLED
    assert after.fault
    assert after.fault.blame is Blame.PERSON
    assert ledger.in_flight(clock.now()) == []
    (left,) = ledger.left_trials(trial.case.id, "scripted", "run-2")
    assert left.trial.fault  # whoever takes over leaves such a trial alone


def test_a_job_that_does_not_confirm_is_not_said_to_be_stopped(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    began = clock.now()
    report = stop(ledger, healthy(Job("job-1", Phase.RUNNING, "Terminating")), clock)
    assert not report.settled
    assert report.text == "was asked to stop and is still Terminating"
    assert clock.now() - began <= LEASE_S + CONFIRM_S + 1
    assert [held.trial.step for held in ledger.in_flight(clock.now())] == [Step.WATCH]
    assert stop(ledger, healthy(Phase.RUNNING), clock).settled  # asked again


def test_a_platform_that_falls_silent_after_it_was_asked(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    report = stop(ledger, healthy(Phase.RUNNING, Unreachable("no route")), clock)
    assert not report.settled
    assert report.text == "unknown whether it stopped: no route"


def test_what_the_platform_would_not_stop_is_left_as_it_was(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = healthy(Phase.RUNNING)

    def deaf(job_id: str) -> None:
        assert kept(ledger).fault  # before the platform is asked: nobody takes it over now
        raise Unreachable("no route")

    monkeypatch.setattr(platform, "cancel", deaf)
    report = stop(ledger, platform, clock)
    assert not report.settled
    assert report.text == "could not be stopped: no route"
    assert kept(ledger) == trial


@pytest.mark.parametrize("script", [[Phase.SUCCEEDED], [Phase.RUNNING, Phase.SUCCEEDED]], ids=["before", "meanwhile"])
def test_a_job_that_ends_by_itself_is_left_for_the_next_run_to_judge(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make, script: list[Phase]
) -> None:
    report = stop(ledger, healthy(*script), clock)
    assert report.settled
    assert "Succeeded" in report.text
    assert kept(ledger) == trial


def test_a_job_whose_submission_had_no_answer_is_looked_for_by_name(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    sent = Request("POST", "/jobs", {"name": trial.name})
    ledger.save_trial(replace(trial, step=Step.SUBMIT, job_id=None, request=sent), clock.now())
    platform = healthy(Phase.RUNNING)
    platform.jobs["job-7"] = trial.name
    assert stop(ledger, platform, clock, trial.name) == CancelReport(
        "job-7", "stopped (Cancelled)", settled=True, before="Running", after="Cancelled"
    )
    assert kept(ledger).job_id == "job-7"


def test_a_job_that_was_never_created_is_taken_off_the_list(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    ledger.save_trial(replace(trial, step=Step.SUBMIT, job_id=None), clock.now())
    assert stop(ledger, healthy(), clock) == CancelReport(trial.name, "was never created", settled=True)
    assert ledger.in_flight(clock.now()) == []


def test_a_job_of_another_platform_is_not_taken_for_a_lost_one(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    ledger.save_trial(replace(trial, platform_id="modelarts elsewhere"), clock.now())
    platform = healthy(Phase.LOST)
    for report in (stop(ledger, platform, clock), stop(ledger, platform, clock, "job-1", force=True)):
        assert not report.settled
        assert "modelarts elsewhere" in report.text
    assert platform.cancelled == []
    assert kept(ledger).fault is None


def test_what_no_platform_can_be_asked_about_is_forgotten(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    gone = "local http://127.0.0.1:1/ obs://bucket/"
    ledger.save_trial(replace(trial, platform_id=gone), clock.now())
    stopped = stop(ledger, healthy(Phase.RUNNING), clock)
    assert not stopped.settled
    assert stopped.text.endswith("if that is gone for good: aisbench jobs forget job-1")
    (unknown,) = forget(ledger, clock, ["job-9"], "another platform", "me@here")
    assert (unknown.job, unknown.settled) == ("job-9", False)
    (report,) = forget(ledger, clock, [], gone, "me@here")
    assert report.settled
    assert ledger.in_flight(clock.now()) == []
    assert list(CancelCommand(ledger, healthy(Phase.RUNNING), clock).all_mine()) == []  # exit 0 from now on
    over = kept(ledger)
    assert over.job
    assert (over.step, over.job.phase) == (Step.DONE, Phase.LOST)
    assert "forgotten by me@here" in over.stopped_by


def test_a_job_of_a_live_run_is_not_forgotten(ledger: JobLedger, trial: Trial, clock: Any) -> None:
    ledger.database.write("UPDATE runs SET owner = ?", ELSEWHERE)

    def sleep(seconds: float) -> None:
        clock.time += seconds
        ledger.renew("run-1", 0.0)

    clock.sleep = sleep
    (report,) = forget(ledger, clock, ["job-1"], "", "me@here")
    assert not report.settled
    assert "which is alive" in report.text
    assert kept(ledger) == trial


def test_a_live_run_keeps_its_job_and_a_stranger_his_unless_forced(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    def sleep_while_the_run_shows_its_heartbeat(seconds: float) -> None:
        clock.time += seconds
        ledger.renew("run-1", clock.now() - 3600)  # its clock is an hour behind

    clock.sleep = sleep_while_the_run_shows_its_heartbeat
    platform = healthy(Phase.RUNNING)
    assert "which is alive" in stop(ledger, platform, clock, "job-1").text
    assert stop(ledger, platform, clock).text.startswith("left to run run-1")
    assert "not a job of" in stop(ledger, platform, clock, "job-9").text
    assert platform.cancelled == []
    assert stop(ledger, platform, clock, "job-1", force=True).settled
    assert kept(ledger) == trial  # its run writes what becomes of it
    assert platform.cancelled == ["job-1"]
    strange = healthy(Phase.RUNNING)
    assert stop(ledger, strange, clock, "job-9", force=True).settled
    assert strange.cancelled == ["job-9"]
    assert not stop(ledger, healthy(Phase.LOST), clock, "job-9", force=True).settled


def test_a_trial_that_somebody_wrote_meanwhile_stays_theirs(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    (held,) = ledger.in_flight(clock.now())
    ledger.save_trial(trial.noted("taken over"), clock.now())
    assert ledger.amend(held, replace(trial, fault=Fault(Blame.USER, "late")), clock.now()) is None
    assert kept(ledger).notes == ("taken over",)


def test_whose_a_job_is(ledger: JobLedger, trial: Trial, clock: Any, tmp_path: Path) -> None:
    def holder() -> Holder:
        (held,) = ledger.in_flight(clock.now())
        return held.holder

    assert holder() is Holder.UNKNOWN
    ledger.renew("run-1", clock.now() + 12)
    assert holder() is Holder.ALIVE
    ledger.finish("run-1", 2, clock.now())
    assert holder() is Holder.ENDED
    ledger.begin("run-2", {}, clock.now(), f"{socket.gethostname()}:{2**22 + 1}", clock.now() + 12)
    assert not ledger.save_trial(replace(trial, run="run-2"), clock.now())  # it is run-1's
    taken = ledger.swap_trial(replace(trial, run="run-2"), clock.now(), record(trial))
    assert taken is not None
    assert holder() is Holder.DEAD
    assert ledger.save_trial(replace(taken, platform_id=""), clock.now())
    assert ledger.in_flight(clock.now()) == []  # its private cloud is gone
    assert [held.trial.id for held in ledger.latest(50, clock.now())] == [trial.id]
    with pytest.raises(UsageFault, match="there is no ledger"):
        JobLedger(tmp_path / "none.db")


def test_the_table_fits_80_columns(ledger: JobLedger, trial: Trial, clock: Any) -> None:
    long = replace(trial.case.workload, name="n" * 40)
    job = Job("job-1", Phase.CANCELLED, "Terminated")
    ledger.save_trial(replace(trial, case=replace(trial.case, workload=long), job=job, job_id="0" * 36), clock.now())
    assert all(len(line) <= 80 for line in table(ledger.latest(50, clock.now())))


def test_a_log_is_followed_through_an_outage_and_past_the_end(
    clock: Any, healthy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the job said last is shown only after the platform called it final."""
    platform = healthy(Phase.RUNNING, Unreachable("no route"), Phase.RUNNING, Phase.SUCCEEDED)
    shown = iter(["one\n", "one\ntw", "one\ntwo\n", "one\ntwo\nthree\n"])
    log = [""]

    def logs(job_id: str, node: int, since: int) -> LogPart:
        log[0] = next(shown, log[0])
        return LogPart(log[0][since:], len(log[0]))

    monkeypatch.setattr(platform, "logs", logs)
    assert "".join(stream_log(platform, clock, "job-1")) == "one\ntwo\nthree\n"
    began = clock.now()
    gone = healthy(Unreachable("no route"))
    monkeypatch.setattr(gone, "poll_s", 5.0)
    with pytest.raises(Unreachable):
        list(stream_log(gone, clock, "job-1"))
    assert OUTAGE_S < clock.now() - began < OUTAGE_S + 10


def test_a_job_is_known_by_the_name_that_the_platform_has_for_it(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    platform = healthy(Phase.RUNNING)
    platform.jobs["job-1"] = "shared-name"  # of which the ledger knows the id only
    assert stop(ledger, platform, clock, "shared-name").text == "stopped (Cancelled)"
    assert kept(ledger).step is Step.HARVEST


def test_a_strangers_name_is_looked_up_and_stopped_by_force_only(ledger: JobLedger, clock: Any, healthy: Make) -> None:
    platform = healthy(Phase.RUNNING)
    platform.jobs["job-9"] = "theirs"
    assert "--force stops it" in stop(ledger, platform, clock, "theirs").text
    assert platform.cancelled == []
    (report,) = CancelCommand(ledger, platform, clock, force=True).named(["theirs", "job-9"])
    assert (report.job, report.settled, platform.cancelled) == ("job-9", True, ["job-9"])


def test_a_platform_that_cannot_be_asked_for_a_name(ledger: JobLedger, clock: Any, healthy: Make) -> None:
    def deaf(name: str) -> str:
        raise Unreachable("no route")

    platform = healthy(Phase.RUNNING)
    platform.named = deaf
    assert stop(ledger, platform, clock, "theirs", force=True) == CancelReport(
        "theirs", "could not be looked up: no route"
    )


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            CancelReport("7", "stopped (K)", name="n", before="R", ran_s=72.0),
            "7 (n): stopped (K); it was R, and ran for 1 min 12 s",
        ),
        (CancelReport("7", "was over before (K)", ran_s=3.0), "7: was over before (K); it ran for 3.0 s"),
        (CancelReport("7", "was never created"), "7: was never created"),
    ],
)
def test_what_is_said_of_a_job_that_was_stopped(report: CancelReport, line: str) -> None:
    assert cancel_line(report) == line
