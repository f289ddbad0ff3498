"""The Fleet plans by a scheduler: threads and the monotonic clock, or one thread and a seed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from seeded import Seeded
from waiting import wait_until

from pytest_aisbench.engine.fleet import Fleet
from pytest_aisbench.engine.scheduler import Pace, Threads
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import Tools
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.job import Phase, Request
from pytest_aisbench.model.trial import Step

Make = Callable[..., Any]


def test_work_runs_on_so_many_threads_at_once_and_in_its_order() -> None:
    threads, begun, go = Threads(2), [], threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        go.wait()

    for number in range(4):
        threads.soon(lambda number=number: work(number))  # type: ignore[misc]
    wait_until(lambda: len(begun) == 2)
    go.set()
    wait_until(lambda: len(begun) == 4)
    assert sorted(begun[:2]) == [0, 1]
    threads.close()


def test_workers_that_wait_for_answers_are_joined_by_all_others() -> None:
    threads, together = Threads(8), threading.Barrier(9)

    def work() -> None:
        together.wait(60.0)

    for _ in range(8):
        threads.soon(work)
    together.wait(60.0)
    threads.close()


def test_workers_that_use_the_cpu_are_joined_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = 100.0, 5.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("time.process_time", lambda: used)
    pace, counts = Pace(4), []
    for share in (0.1, 0.2, 0.3, 0.95, 1.0, 1.1, 0.1):
        now, used = now + 0.05, used + 0.05 * share
        pace.look()
        counts.append(pace.workers)
    assert counts == [3, 4, 4, 3, 2, 2, 3]
    now += 60.0  # without work: that the CPU was idle says nothing
    pace.look()
    assert pace.workers == 3


def test_what_has_a_time_runs_in_the_order_of_times() -> None:
    threads, ran = Threads(1), []
    now = threads.now()
    for name, delay in (("late", 0.06), ("early", 0.02), ("first", -1.0)):
        threads.at(now + delay, lambda name=name: ran.append(name))  # type: ignore[misc]
    wait_until(lambda: len(ran) == 3)
    assert ran == ["first", "early", "late"]
    threads.close()


def test_who_waits_is_woken_and_nothing_runs_after_the_end() -> None:
    threads, ran = Threads(1), []

    def wake() -> None:
        with threads:
            ran.append("woken")
            threads.notify()

    with threads:
        threads.soon(wake)
        while not ran:
            threads.wait(60.0)
    threads.close()
    threads.soon(lambda: ran.append("too late"))
    assert ran == ["woken"]


def flight(seed: int, healthy: Make, case: Case, folder: Path) -> tuple[list[str], int]:
    """Twelve cases in one thread: the order in which their jobs were submitted, and how many actions it took."""
    scheduler, in_flight = Seeded(seed), []
    platform = healthy(Phase.PENDING, Phase.RUNNING, Phase.RUNNING, Phase.SUCCEEDED)
    cases = [replace(case, shape=Shape(nodes, 2)) for nodes in range(2, 14)]
    tools = Tools(platform, scheduler, Limits(600.0, 600.0), folder / "run")
    with closing(Ledger(folder / "ledger.db")) as ledger:
        ledger.begin("run-1", {}, 0.0)
        fleet = Fleet(
            tools,
            ledger,
            lambda case, number: new_trial("run-1", case, scheduler.now(), number),
            max_jobs=3,
            max_trials=1,
            scheduler=scheduler,
        )

        write_results = platform.on_submit

        def count(request: Request) -> None:
            write_results(request)
            in_flight.append(sum(Step.SUBMIT <= trial.step < Step.HARVEST for trial in fleet.trials()))

        platform.on_submit = count
        fleet.start()
        fleet.want_all([(each, Step.DONE) for each in cases])
        assert all(fleet.reached(each, Step.DONE).verdict.passed for each in cases)
        fleet.close()
        assert max(in_flight) == 3
        assert {trial.step for trial in ledger.trials("run-1")} == {Step.DONE}
    return list(platform.jobs.values()), scheduler.actions


@pytest.mark.parametrize("seed", range(5))
def test_one_thread_and_a_seed_drive_the_same_fleet(seed: int, healthy: Make, case: Case, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, again = flight(seed, healthy, case, tmp_path), flight(seed, healthy, case, tmp_path / "again")
    assert first == again
    assert len(first[0]) == 12
