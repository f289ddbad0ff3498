"""Listening to jobs: how far each is, which stands still, and how seldom a thousand of them are asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.watch import LogMonitor
from pytest_aisbench.errors import Blame, Unreachable
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.job import Job, LogPart, Phase
from pytest_aisbench.model.trial import Fault, Step, Trial
from pytest_aisbench.traininglog.activity import JobActivity, with_stall, with_usage

STALL_S = 900.0


class Speaking:
    """A platform whose jobs say what they are told to."""

    poll_s = 5.0

    def __init__(self) -> None:
        self.logs_: dict[tuple[str, int], str] = {}
        self.usage_: Mapping[str, Sequence[float]] = {}
        self.error: Exception | None = None
        self.read: list[tuple[str, int]] = []
        self.asked: list[int] = []

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        self.read.append((job_id, node))
        if self.error:
            raise self.error
        text = self.logs_.get((job_id, node), "")
        return LogPart(text[since:], max(since, len(text)))

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        self.asked.append(node)
        if isinstance(self.usage_, Exception):
            raise self.usage_
        return self.usage_


class Bench:
    """A follower whose time is held in hand."""

    def __init__(self, clock: Any, trials: list[Trial]) -> None:
        self.platform = Speaking()
        self.clock = clock
        self.trials = trials
        self.said: list[str] = []
        self.notes: list[tuple[str, str]] = []
        platform: Any = self.platform
        self.follower = LogMonitor(
            platform,
            clock,
            lambda: self.trials,
            STALL_S,
            say=self.said.append,
            note=lambda trial, text: self.notes.append((trial.id, text)),
        )

    def after(self, seconds: float) -> None:
        """Rounds all the while."""
        end = self.clock.time + seconds
        while self.clock.time < end:
            self.clock.time = min(end, self.clock.time + 5.0)
            self.follower.round()


def running(case: Case, number: int = 1, **changes: Any) -> Trial:
    name = f"job-{number}"
    job = Job(name, Phase.RUNNING, "Running")
    trial = new_trial("run-1", case, 0.0, number)
    return replace(trial, step=Step.WATCH, job_id=name, job=job, times={"running": 0.0}, **changes)


@pytest.fixture
def single(case: Case) -> Case:
    return replace(case, shape=Shape(1, 2))


@pytest.fixture
def bench(clock: Any, single: Case) -> Bench:
    return Bench(clock, [running(single)])


def test_it_reads_on_where_it_stopped(bench: Bench) -> None:
    bench.platform.logs_["job-1", 0] = "epoch: 1 step: 10, loss is 2.5\nTrain epoch time: 100.0 ms, per st"
    bench.follower.round()
    bench.platform.logs_["job-1", 0] += "ep time: 10.0 ms\nepoch: 2 step: 10, loss is 1.5\n\n"
    bench.after(5)
    heard = bench.follower.activity(bench.trials[0])
    assert heard
    assert (heard.progress.epoch, heard.progress.loss, heard.progress.ms_per_step) == (2, 1.5, 10.0)
    assert heard.progress.lines == 4
    assert heard.last_line == "epoch: 2 step: 10, loss is 1.5"
    assert heard.alive_at == heard.epoch_changed_at == bench.clock.time


def test_only_jobs_that_run_are_heard_and_those_that_ended_are_forgotten(bench: Bench, single: Case) -> None:
    trial = bench.trials[0]
    assert trial.job
    others = [
        replace(trial, id="pending", job=replace(trial.job, phase=Phase.PENDING)),
        replace(trial, id="ended", step=Step.HARVEST),
        replace(trial, id="stopping", fault=Fault(Blame.WORKLOAD, "too long")),
        new_trial("run-1", single, 0.0, 7),
    ]
    bench.trials += others
    bench.follower.round()
    assert bench.platform.read == [("job-1", 0)]
    assert bench.follower.activity(trial)
    assert not any(map(bench.follower.activity, others))
    bench.trials = others
    bench.after(5)
    assert bench.follower.activity(trial) is None


def test_a_job_that_says_and_does_nothing_is_reported_once_and_again_when_it_goes_on(bench: Bench) -> None:
    bench.platform.logs_["job-1", 0] = "epoch: 3 step: 195, loss is 2.5\n"
    bench.follower.round()
    since = time.strftime("%H:%M:%S", time.localtime(bench.clock.time))
    bench.after(STALL_S - 1)
    assert bench.said == []
    bench.after(3600)
    assert bench.said == [
        (
            f"toy-1x2 stalls: job job-1 has shown no sign of life since {since}, at epoch 3, step 195; "
            "see `aisbench logs job-1`"
        )
    ]
    assert bench.notes == [("run-1/toy-1x2/1", "no sign of life since 1970-01-12 13:46:40Z, at epoch 3, step 195")]
    bench.platform.logs_["job-1", 0] += "epoch: 4 step: 195, loss is 2.4\n"
    bench.after(30)
    assert bench.said[1:] == [f"toy-1x2 goes on: job job-1 had stood still since {since}"]
    assert [text for _, text in bench.notes[1:]] == ["continued at 1970-01-12 15:01:44Z"]
    bench.after(STALL_S)
    assert len(bench.said) == 3, "and it stalls anew"


def test_what_a_log_says_cannot_harm_a_terminal(bench: Bench) -> None:
    bench.platform.logs_["job-1", 0] = "\x1b[2Jloading\u202e data\r\n"
    bench.after(STALL_S + 10)
    assert "at \\x1b[2Jloading\\x202e data; see" in bench.said[0]


def test_a_silent_job_that_works_is_alive(bench: Bench) -> None:
    samples = [98.0]
    bench.platform.usage_ = {"cpu": [0.2], "npu": samples, "memory": [50.0]}
    for minute in range(60):
        samples.append(98.0 + minute % 3)
        bench.after(60)
    assert bench.said == []
    assert 0 < len(bench.platform.asked) < 60, "asked now and then"


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"npu": [98.0, 97.0, 0.0, 0.0], "cpu": [12.0, 0.4]},
        {"npu": [55.5, 55.5], "gpu memory": [1.0, 99.0]},
        {"memory": [20.0, 30.0]},
        Unreachable("no metrics"),
        AttributeError("a platform of yours without `usage`"),
    ],
)
def test_use_that_is_nothing_or_stands_still_is_no_sign_of_life(bench: Bench, usage: Any) -> None:
    bench.platform.usage_ = usage
    bench.after(STALL_S + 300)
    assert len(bench.said) == 1
    assert "toy-1x2 stalls" in bench.said[0]


def test_samples_that_come_no_more_are_no_sign_of_life(bench: Bench) -> None:
    bench.platform.usage_ = {"npu": [90.0, 98.0]}  # seen once, some minutes late, and never any others
    bench.after(2 * STALL_S)
    assert len(bench.said) == 1


def test_another_node_that_speaks_is_a_sign_of_life(clock: Any, case: Case) -> None:
    bench = Bench(clock, [running(replace(case, shape=Shape(4, 2)))])
    bench.platform.logs_["job-1", 3] = "step\n"
    for _ in range(60):
        bench.after(60)
        bench.platform.logs_["job-1", 3] += "step\n"
    assert bench.said == []
    assert {node for _, node in bench.platform.read} == {0, 1, 2, 3}
    bench.after(2 * STALL_S)
    assert len(bench.said) == 1
    assert set(bench.platform.asked) == {0, 1, 2, 3}


def test_an_outage_accuses_nobody(bench: Bench) -> None:
    bench.follower.round()
    bench.platform.error = Unreachable("cable cut")
    bench.after(3 * STALL_S)
    assert bench.said == []
    bench.platform.error = None
    bench.platform.logs_["job-1", 0] = "it went on all the while\n"
    bench.after(60)
    assert bench.said == []


def test_a_thousand_jobs_are_asked_in_turn_and_never_all_at_once(clock: Any, single: Case) -> None:
    bench = Bench(clock, [running(single, number) for number in range(1000)])
    bench.after(60)
    assert len(bench.platform.read) <= 12 * 6
    assert len(set(bench.platform.read)) == len(bench.platform.read), "nobody twice before all had their turn"
    bench.after(1000)
    assert len(set(bench.platform.read)) == 1000


def test_a_log_of_megabytes_is_not_fetched_every_few_seconds(bench: Bench) -> None:
    bench.platform.logs_["job-1", 0] = "x" * 5_000_000
    bench.after(300)
    assert len(bench.platform.read) <= 7


def test_the_thread_outlives_every_error_and_ends_when_told(clock: Any, single: Case) -> None:
    bench = Bench(clock, [])
    rounds = threading.Semaphore(0)

    def trials() -> list[Trial]:
        rounds.release()
        raise ValueError("a bug of ours")

    bench.follower._trials = trials
    bench.follower._rest = 0.01
    bench.follower.start()
    assert all(rounds.acquire(timeout=10) for _ in range(3))
    bench.follower.close()
    assert not bench.follower._thread.is_alive()


@pytest.mark.parametrize(("seconds", "stalled"), [(9.9, False), (10.0, True)])
def test_the_decision_is_pure(seconds: float, stalled: bool) -> None:
    heard = with_usage(JobActivity(100.0), 0, {"cpu": [50.0, 50.0]}, 105.0)
    assert with_stall(heard, 100.0 + seconds, 10.0).stalled is stalled
