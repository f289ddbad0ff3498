"""The story, step by step: every way it can go wrong ends in a verdict that says whose fault it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.engine.cancel import cancel_unfinished
from pytest_aisbench.engine.submit import job_name, new_trial
from pytest_aisbench.engine.trial import Tools, advance, why_another_trial
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.errors import BadAnswer, Refused, Rejected, Throttled, Unreachable
from pytest_aisbench.judge.entries import trial_entry
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Job, Phase, Request, StoreUrl
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Ruling

Make = Callable[..., Any]


@pytest.fixture
def drive(clock: Any, case: Case, tmp_path: Path) -> Callable[..., Trial]:
    def run(platform: Any, tick: float = 1.0, **limits: float) -> Trial:
        tools = Tools(platform, clock, Limits(**{"queue_s": 100.0, "run_s": 100.0, **limits}), tmp_path / "run")
        trial = new_trial("run-1", case, clock.now())
        for _ in range(1000):
            if trial.step is Step.DONE:
                return trial
            trial = codec.load(Trial, codec.dump(advance(trial, tools)))  # a step survives the ledger
            clock.sleep(tick)
        raise AssertionError(f"never ended: {trial}")

    return run


def test_a_healthy_trial_passes(healthy: Make, drive: Make) -> None:
    trial = drive(healthy())
    assert trial.verdict.ruling is Ruling.PASSED
    speed = "throughput 50 images/s, wanted >= 40 images/s: the interval 48.3551 .. 51.6449 is inside the limits"
    assumed = "s is assumed to be 2% of the mean: no comparable earlier trials"
    how = f"± 1.645 = t 1.645 × s 1; t at 1 - 0.05 of the normal distribution; {assumed}"
    assert trial.verdict.reason == f"{speed}; accuracy 0.95, wanted >= 0.9"
    assert trial.verdict.findings[0].text == f"{speed} ({how})"
    assert list(trial.times) == [
        "stage",
        "staging",
        "submit",
        "watch",
        "pending",
        "running",
        "succeeded",
        "harvest",
        "judge",
        "done",
    ]
    assert [measurement.rank for measurement in trial.measurements] == [0, 1, 2, 3, None]


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ({"without": ["throughput_3"]}, "throughput_3.json (rank 3: node 1, card 1) is missing"),
        ({"throughput_2": b"nan"}, "throughput_2.json (rank 2: node 1, card 0) says nan, which is not finite"),
        ({"throughput_2": b"-inf"}, "says -inf, which is not finite"),
        ({"throughput_2": b"1e999"}, "says 1e999, which is not finite"),
        ({"throughput_2": b"abc"}, "says 'abc', which is not a number"),
        ({"throughput_2": b'"12.5"'}, "which is not a number"),
        ({"throughput_2": b""}, "is empty"),
        ({"throughput_2": b"0"}, "says 0, but a throughput is above 0"),
        ({"throughput_2": b"9" * 1000}, "has 1000 bytes and is not a bare number"),
        ({"throughput_2": b"\xff\xff"}, "which is not a number"),
        ({"throughput_4": b"12.5"}, "throughput_4.json belongs to no rank of 2x2"),
        ({"ranksize": b"3"}, "ranksize.json says 3 ranks trained, but 2x2 has 4"),
        ({"without": ["ranksize"]}, "ranksize.json is missing"),
        ({"without": ["accuracy"]}, "accuracy.json is missing"),
        ({"accuracy": b"95.0"}, "says 95, but an accuracy without a unit is between 0 and 1"),
        ({"accuracy": b"None"}, "says 'None', which is not a number"),
    ],
)
def test_a_result_that_is_not_exactly_right_fails_and_is_named(
    healthy: Make, drive: Make, results: dict[str, Any], told: str
) -> None:
    trial = drive(healthy(**results))
    assert trial.verdict.ruling is Ruling.FAILED
    assert told in str(trial.verdict)


def test_a_slow_card_is_named_in_the_verdict_and_in_the_entry(healthy: Make, drive: Make) -> None:
    trial = drive(healthy(throughput_2=b"6.25"))
    assert trial.verdict.ruling is Ruling.PASSED
    told = "slow: node 1 card 0 (rank 2) runs at 50.0% of the median; total throughput -12.5%"
    assert "throughput 43.75 images/s, wanted >= 40 images/s: the interval 42.3" in trial.verdict.reason
    assert f"is inside the limits; {told}" in trial.verdict.reason
    assert [(each.node, each.card) for each in trial_entry(trial).stragglers] == [(1, 0)]


def test_a_job_that_fails_blames_the_workload_and_quotes_its_last_words(healthy: Make, drive: Make, case: Case) -> None:
    platform = healthy(Phase.RUNNING, Job("job-1", Phase.FAILED, "Failed", exit_code=3))
    logs = platform.root / f"trials/run-1/{case.id}/1/logs/"
    platform.store.write(logs / "cluster-job-1-worker-0.log", b"ValueError: no data\n[ModelArts Service Log] bye\n")
    trial = drive(platform)
    assert trial.verdict.ruling is Ruling.FAILED
    assert "exit code 3: ValueError: no data (logs/toy-2x2/1/worker-0.log)" in trial.verdict.reason


def test_a_job_that_is_lost_blames_the_platform(healthy: Make, drive: Make) -> None:
    trial = drive(healthy(Phase.RUNNING, Phase.LOST))
    assert trial.verdict.ruling is Ruling.BROKEN
    assert "the platform lost the job" in trial.verdict.reason


def test_a_job_that_a_person_stops_is_not_judged(healthy: Make, drive: Make) -> None:
    trial = drive(healthy(Phase.RUNNING, Job("job-1", Phase.CANCELLED, "Terminated", reason="by its user")))
    assert (trial.step, trial.judged) == (Step.DONE, None)
    assert trial.stopped_by == "stopped by another person or program: by its user"
    assert not why_another_trial(trial, 9)


def test_a_job_that_the_platform_stops_at_our_limit_has_run_too_long(healthy: Make, drive: Make) -> None:
    """`auto_stop`, while nobody watched: the platform says of it what it says of a job that a person stops."""
    trial = drive(healthy(Phase.RUNNING, Job("job-1", Phase.CANCELLED, "Terminated", ran_s=100.0)))
    assert trial.verdict.ruling is Ruling.FAILED
    assert "ran longer than 100 s" in trial.verdict.reason


def test_a_job_that_runs_too_long_is_stopped_and_failed(healthy: Make, drive: Make) -> None:
    platform = healthy(Phase.PENDING, Phase.RUNNING)
    trial = drive(platform, tick=40.0)
    assert platform.cancelled == ["job-1"]
    assert trial.verdict.ruling is Ruling.FAILED
    assert "ran longer than 100 s" in trial.verdict.reason
    assert trial.job is not None
    assert trial.job.phase is Phase.CANCELLED


def test_a_job_that_waits_too_long_is_stopped_and_broken(healthy: Make, drive: Make) -> None:
    platform = healthy(Phase.PENDING)
    trial = drive(platform, tick=40.0)
    assert platform.cancelled == ["job-1"]
    assert trial.verdict.ruling is Ruling.BROKEN
    assert "waited longer than 100 s" in trial.verdict.reason


def test_a_job_that_can_never_start_is_not_waited_for(healthy: Make, drive: Make) -> None:
    platform = healthy(Job("job-1", Phase.PENDING, "PENDING", stuck="PartitionTimeLimit"))
    trial = drive(platform, tick=1.0)
    assert platform.cancelled == ["job-1"]
    assert trial.verdict.ruling is Ruling.BROKEN
    assert "can never start: PartitionTimeLimit" in trial.verdict.reason


def test_waiting_does_not_count_as_running(healthy: Make, drive: Make) -> None:
    assert drive(healthy(Phase.PENDING, Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED), tick=40.0).verdict.passed


def test_an_unknown_word_counts_as_running_until_time_is_up(healthy: Make, drive: Make) -> None:
    strange = Job("job-1", Phase.RUNNING, "Hibernating", known=False)
    trial = drive(healthy(Phase.RUNNING, strange, Phase.RUNNING, Phase.SUCCEEDED))
    assert trial.verdict.passed
    assert any("'Hibernating'" in note for note in trial.notes)
    for_ever = drive(healthy(strange), tick=40.0)
    assert for_ever.verdict.ruling is Ruling.BROKEN
    assert "'Hibernating'" in for_ever.verdict.reason


def test_a_lost_answer_is_reconciled_by_name(healthy: Make, drive: Make) -> None:
    platform = healthy()
    platform.submit_errors, platform.arrives_anyway = [Unreachable("no answer")], True
    assert drive(platform).verdict.passed
    assert len(platform.jobs) == 1


def test_a_request_that_never_arrived_is_sent_again(healthy: Make, drive: Make) -> None:
    platform = healthy()
    platform.submit_errors = [Unreachable("no answer"), Unreachable("no answer")]
    trial = drive(platform)
    assert trial.verdict.passed
    assert trial.attempts == 2
    assert len(platform.jobs) == 1


def test_a_job_that_the_list_shows_late_is_not_made_twice(healthy: Make, drive: Make) -> None:
    platform = healthy()
    platform.submit_errors, platform.arrives_anyway = [Unreachable("no answer"), Rejected("name exists")], True
    shown = platform.find
    platform.find = lambda name: shown(name) if len(platform.jobs) > 1 else None
    trial = drive(platform)
    assert trial.job_id == "job-1"
    assert trial.verdict.passed


def test_a_job_is_looked_for_until_the_platform_answers(healthy: Make, drive: Make) -> None:
    """It turned the second request down because of the first: no answer to where that is, is no reason to forget it."""
    platform = healthy()
    platform.submit_errors, platform.arrives_anyway = [Unreachable("no answer"), Rejected("name exists")], True
    shown, answers = platform.find, [None, Unreachable("no answer")]

    def find(request: Request) -> str | None:
        answer = answers.pop(0) if answers else shown(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    platform.find = find
    trial = drive(platform)
    assert trial.job_id == "job-1"
    assert trial.verdict.passed


def test_a_page_that_cannot_be_told_loses_no_job(healthy: Make, drive: Make) -> None:
    platform = healthy()
    platform.console = "nothing that can be called"
    assert drive(platform).verdict.passed


def test_what_a_platform_says_in_half_a_character_or_no_number_is_recorded_all_the_same(
    healthy: Make, drive: Make, tmp_path: Path
) -> None:
    said = Job("job-1", Phase.FAILED, "Fail\ud800ed", reason="a\ud800\nb", ran_s=float("nan"), queued_s=-1.0)
    platform = healthy(Phase.RUNNING, said)
    platform.events = lambda _: ["half \ud800"]
    trial = drive(platform)
    assert trial.verdict.ruling is Ruling.FAILED
    assert (trial.job.ran_s, trial.job.queued_s) == (None, None)
    trial = trial.noted("by the way \ud800")
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.begin(trial.run, {"reports": "\udcff"}, 0.0)
    assert ledger.save_trial(trial, 1.0)
    (kept,) = ledger.trials(trial.run)
    assert kept.events == ("half \\xd800",)
    assert kept.notes[-1] == "by the way ?"
    ledger.close()


@pytest.mark.parametrize("broken", ["cancel", "inspect", "find"])
def test_a_platform_that_breaks_at_every_job_does_not_keep_a_run_from_its_end(
    healthy: Make, clock: Any, case: Case, tmp_path: Path, broken: str
) -> None:
    """Far more of them than hands: whoever breaks at one must not be missed by the others."""
    platform, asked = healthy(Phase.CANCELLED), []

    def cancel(job_id: str) -> None:
        asked.append(job_id)
        if broken == "cancel" and len(asked) <= 20:
            raise KeyError(job_id)

    def fail(_: Any) -> Any:
        raise KeyError("nobody foresaw it")

    platform.cancel = cancel
    if broken != "cancel":
        setattr(platform, broken, fail)
    step, request = (Step.SUBMIT, Request("POST", "/", {})) if broken == "find" else (Step.WATCH, None)
    fresh = replace(new_trial("run-1", case, clock.now()), step=step, request=request, attempts=1)
    trials = [replace(fresh, id=str(number), job_id=f"job-{number}") for number in range(20)]
    trials += [replace(fresh, id="last", step=Step.WATCH, job_id="job-last")]
    kept: dict[str, Trial] = {}
    tools = Tools(platform, clock, Limits(60.0, 60.0, stop_s=1.0), tmp_path)
    cancel_unfinished(trials, tools, lambda trial: kept.update({trial.id: trial}))
    assert "job-last" in asked
    assert kept["last"].step is (Step.WATCH if broken == "inspect" else Step.HARVEST)


def test_a_throttled_submission_is_tried_again(healthy: Make, drive: Make) -> None:
    platform = healthy()
    platform.submit_errors = [Throttled("slow down")]
    assert drive(platform).verdict.passed
    assert len(platform.jobs) == 1


def test_a_platform_that_never_answers_is_given_up(healthy: Make, drive: Make) -> None:
    platform = healthy()
    platform.submit_errors = [Unreachable("no answer")] * 99
    trial = drive(platform, tick=60.0)
    assert trial.verdict.ruling is Ruling.BROKEN
    assert f"unknown whether job {trial.name} was created" in trial.verdict.reason


def test_a_rejected_request_is_not_sent_again_and_is_not_the_platforms_fault(healthy: Make, drive: Make) -> None:
    platform = healthy()
    platform.submit_errors = [Rejected("no such flavor")]
    trial = drive(platform)
    assert trial.verdict == replace(trial.verdict, ruling=Ruling.FAILED, reason="no such flavor")
    assert platform.submit_errors == []


def test_an_outage_while_watching_is_sat_out(healthy: Make, drive: Make) -> None:
    trial = drive(healthy(Phase.RUNNING, Unreachable("reset"), Throttled("slow down"), Phase.SUCCEEDED))
    assert trial.verdict.passed
    assert any("did not answer for a while" in note for note in trial.notes)


def test_an_endless_outage_is_broken_and_the_job_is_asked_to_stop(healthy: Make, drive: Make) -> None:
    platform = healthy(Phase.RUNNING, Unreachable("reset"))
    trial = drive(platform, tick=60.0, run_s=1e6)
    assert trial.verdict.ruling is Ruling.BROKEN
    assert platform.cancelled == ["job-1"]


def test_one_answer_that_nobody_understands_does_not_stop_a_job(healthy: Make, drive: Make) -> None:
    trial = drive(healthy(Phase.RUNNING, BadAnswer("<html>"), Phase.RUNNING, Phase.SUCCEEDED))
    assert trial.verdict.passed


def test_a_surprise_is_this_trials_own(healthy: Make, drive: Make) -> None:
    platform = healthy(Phase.RUNNING, OSError(28, "No space left on device"), Phase.RUNNING)
    trial = drive(platform)
    assert trial.verdict.ruling is Ruling.BROKEN
    assert "OSError on this machine: [Errno 28]" in trial.verdict.reason
    assert platform.cancelled == ["job-1"]


@pytest.mark.parametrize("error", [Unreachable("still no answer"), BadAnswer("<html>"), Refused("who are you?")])
def test_a_job_that_cannot_be_asked_for_is_asked_for_again(healthy: Make, drive: Make, error: Exception) -> None:
    """It may have been created, and cost: no error but a lasting one ends the asking."""
    platform = healthy()
    platform.submit_errors, platform.arrives_anyway = [Unreachable("no answer")], True
    known, deaf = platform.find, [error]

    def find(request: Request) -> str | None:
        if deaf:
            raise deaf.pop()
        found: str | None = known(request)
        return found

    platform.find = find
    assert drive(platform).verdict.passed
    assert len(platform.jobs) == 1


def test_an_outage_of_the_store_does_not_cost_a_job_its_results(healthy: Make, drive: Make) -> None:
    platform = healthy()
    known, outages = platform.store.download, [Unreachable("no route")] * 5

    def download(url: StoreUrl, folder: str) -> list[str]:
        if outages:
            raise outages.pop()
        names: list[str] = known(url, folder)
        return names

    platform.store.download = download
    trial = drive(platform, tick=100.0, queue_s=1e6, run_s=1e6)
    assert trial.verdict.passed
    assert "silent" not in trial.times


def test_an_outage_of_the_store_that_lasts_is_the_platforms_fault(healthy: Make, drive: Make) -> None:
    platform = healthy()

    def download(url: StoreUrl, folder: str) -> list[str]:
        raise Unreachable(f"no route to {url} for {folder}")

    platform.store.download = download
    trial = drive(platform, tick=100.0, queue_s=1e6, run_s=1e6)
    assert trial.verdict.ruling is Ruling.BROKEN
    assert "no route" in trial.verdict.reason


def test_code_that_cannot_be_staged_is_the_users_fault(healthy: Make, drive: Make, case: Case) -> None:
    (Path(case.workload.folder) / "code" / "link").symlink_to("/nowhere")
    platform = healthy()
    trial = drive(platform)
    assert trial.verdict.ruling is Ruling.FAILED
    assert "link" in trial.verdict.reason
    assert not platform.jobs


def test_job_names_are_unique_and_fit_every_platform(case: Case) -> None:
    run = "20261116-024512-3f9c2a"
    long = replace(case, workload=replace(case.workload, name="a.very.long_workload-name.of.40.characters"))
    names = {job_name(f"{run}/{each.id}/{number}", run, each) for each in (case, long) for number in (1, 2)}
    assert len(names) == 4
    assert all(len(name) <= 64 and name.replace("-", "").replace("_", "").isalnum() for name in names)


# Why a job failed

LOGS = Path(__file__).parents[1] / "data" / "failures"


def verdict_of(drive: Make, healthy: Make, case: Case, reason: str = "", **logs: str) -> str:
    platform = healthy(Phase.RUNNING, Job("job-1", Phase.FAILED, "Failed", exit_code=1, reason=reason))
    folder = platform.root / f"trials/run-1/{case.id}/1/logs/"
    for name, text in logs.items():
        file = name.replace("_", "-") + (".txt" if name.startswith("proc") else ".log")
        platform.store.write(folder / f"cluster-job-1-{file}", text.encode())
    return str(drive(platform).verdict.reason)


def test_the_verdict_quotes_the_error_and_not_the_last_line(healthy: Make, drive: Make, case: Case) -> None:
    told = verdict_of(drive, healthy, case, worker_0=(LOGS / "mindspore_data.log").read_text())
    assert "Invalid cifar10 file, failed to read data from: cifar/data_batch_1.bin" in told
    assert "cifar_op.cc" not in told


def test_the_rank_that_the_launcher_blames_is_quoted_though_it_ends_without_an_exception(
    healthy: Make, drive: Make, case: Case
) -> None:
    """`sys.exit("…")` prints a line that looks like any other."""
    log = "rank 1: a port is taken\nrank 0 of 2\n[ModelArts Service Log]2026-11-18 10:00:00,000 - ERROR - "
    log += "proc-rank-1-device-1 (pid: 125) has exited with non-zero code: 1\nrank 0 was stopped\n"
    own = {"proc_rank_0_device_0": "rank 0 of 2\n", "proc_rank_1_device_1": "a port is taken\n"}
    told = verdict_of(drive, healthy, case, worker_0=log, **own)
    assert "a port is taken (logs/toy-2x2/1/proc-rank-1-device-1.txt)" in told


def test_without_an_error_the_last_line_is_the_reason(healthy: Make, drive: Make, case: Case) -> None:
    told = verdict_of(drive, healthy, case, "worker-1 ended", worker_0="begin\n", worker_1="begin\nno more room\n")
    assert "no more room (logs/toy-2x2/1/worker-1.log)" in told
