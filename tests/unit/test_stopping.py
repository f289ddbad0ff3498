"""Stopping and following jobs from another shell, on a platform that misbehaves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.job import Job, LogPart, Phase, Request
from pytest_aisbench.domain.trial import Fault, Step, Trial
from pytest_aisbench.errors import Blame, Unreachable, UsageFault
from pytest_aisbench.reporters.jobs import stopped, table
from pytest_aisbench.services import stopping
from pytest_aisbench.services.jobs import Holder, JobLedger
from pytest_aisbench.services.ledger import Ledger, record
from pytest_aisbench.services.stopping import Answer, Stopping
from pytest_aisbench.services.submission import new_trial
from pytest_aisbench.services.tail import OUTAGE_S, follow

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
    trial = replace(new_trial("run-1", case, clock.now()), place="scripted")
    trial = trial.moved(Step.SUBMIT, clock.now()).moved(Step.WATCH, clock.now(), job_id="job-1")
    ledger.save_trial(trial, clock.now())
    return trial


def stop(ledger: JobLedger, platform: Any, clock: Any, *jobs: str, force: bool = False) -> Answer:
    act = Stopping(ledger, platform, clock, force)
    (answer,) = act.named(jobs) if jobs else act.all_mine()
    return answer


def kept(ledger: JobLedger) -> Trial:
    (trial,) = ledger.trials("run-1")
    return trial


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
    assert after.fault.blame is Blame.USER
    assert ledger.in_flight(clock.now()) == []
    (left,) = ledger.left(trial.case.id, "scripted", "run-2")
    assert left.trial.fault  # whoever takes over leaves such a trial alone


def test_a_job_that_does_not_confirm_is_not_said_to_be_stopped(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    began = clock.now()
    answer = stop(ledger, healthy(Job("job-1", Phase.RUNNING, "Terminating")), clock)
    assert not answer.settled
    assert answer.text == "was asked to stop and is still Terminating"
    assert clock.now() - began <= stopping.STOP_S + 1
    assert [held.trial.step for held in ledger.in_flight(clock.now())] == [Step.WATCH]
    assert stop(ledger, healthy(Phase.RUNNING), clock).settled  # asked again


def test_a_platform_that_falls_silent_after_it_was_asked(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    answer = stop(ledger, healthy(Phase.RUNNING, Unreachable("no route")), clock)
    assert not answer.settled
    assert answer.text == "nobody knows whether it stopped: no route"


def test_what_the_platform_would_not_stop_is_left_as_it_was(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = healthy(Phase.RUNNING)

    def deaf(job_id: str) -> None:
        assert kept(ledger).fault  # before the platform is asked: nobody takes it over now
        raise Unreachable("no route")

    monkeypatch.setattr(platform, "cancel", deaf)
    answer = stop(ledger, platform, clock)
    assert not answer.settled
    assert answer.text == "could not be stopped: no route"
    assert kept(ledger) == trial


@pytest.mark.parametrize("script", [[Phase.SUCCEEDED], [Phase.RUNNING, Phase.SUCCEEDED]], ids=["before", "meanwhile"])
def test_a_job_that_ends_by_itself_is_left_for_the_next_run_to_judge(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make, script: list[Phase]
) -> None:
    answer = stop(ledger, healthy(*script), clock)
    assert answer.settled
    assert "Succeeded" in answer.text
    assert kept(ledger) == trial


def test_a_job_whose_submission_had_no_answer_is_looked_for_by_name(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    sent = Request("POST", "/jobs", {"name": trial.name})
    ledger.save_trial(replace(trial, step=Step.SUBMIT, job_id=None, request=sent), clock.now())
    platform = healthy(Phase.RUNNING)
    platform.jobs["job-7"] = trial.name
    assert stop(ledger, platform, clock, trial.name) == Answer(
        "job-7", "stopped (Cancelled)", settled=True, before="Running"
    )
    assert kept(ledger).job_id == "job-7"


def test_a_job_that_was_never_created_is_taken_off_the_list(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    ledger.save_trial(replace(trial, step=Step.SUBMIT, job_id=None), clock.now())
    assert stop(ledger, healthy(), clock) == Answer(trial.name, "was never created", settled=True)
    assert ledger.in_flight(clock.now()) == []


def test_a_job_of_another_platform_is_not_taken_for_a_lost_one(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    ledger.save_trial(replace(trial, place="modelarts elsewhere"), clock.now())
    platform = healthy(Phase.LOST)
    for answer in (stop(ledger, platform, clock), stop(ledger, platform, clock, "job-1", force=True)):
        assert not answer.settled
        assert "modelarts elsewhere" in answer.text
    assert platform.cancelled == []
    assert kept(ledger).fault is None


def test_a_live_run_keeps_its_job_and_a_stranger_his_unless_forced(
    ledger: JobLedger, trial: Trial, clock: Any, healthy: Make
) -> None:
    ledger.renew("run-1", clock.now() + 3600)
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
    assert ledger.swap_trial(replace(trial, run="run-2"), clock.now(), record(trial))
    assert holder() is Holder.DEAD
    ledger.save_trial(replace(trial, run="run-2", place=""), clock.now())
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
    assert "".join(follow(platform, clock, "job-1")) == "one\ntwo\nthree\n"
    began = clock.now()
    gone = healthy(Unreachable("no route"))
    monkeypatch.setattr(gone, "poll_s", 5.0)
    with pytest.raises(Unreachable):
        list(follow(gone, clock, "job-1"))
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
    (answer,) = Stopping(ledger, platform, clock, force=True).named(["theirs", "job-9"])
    assert (answer.job, answer.settled, platform.cancelled) == ("job-9", True, ["job-9"])


def test_a_platform_that_cannot_be_asked_for_a_name(ledger: JobLedger, clock: Any, healthy: Make) -> None:
    def deaf(name: str) -> str:
        raise Unreachable("no route")

    platform = healthy(Phase.RUNNING)
    platform.named = deaf
    assert stop(ledger, platform, clock, "theirs", force=True) == Answer("theirs", "could not be looked up: no route")


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            Answer("7", "stopped (K)", name="n", before="R", ran_s=72.0),
            "7 (n): stopped (K); it was R, and ran for 1 min 12 s",
        ),
        (Answer("7", "was over before (K)", ran_s=3.0), "7: was over before (K); it ran for 3.0 s"),
        (Answer("7", "was never created"), "7: was never created"),
    ],
)
def test_what_is_said_of_a_job_that_was_stopped(answer: Answer, line: str) -> None:
    assert stopped(answer) == line
