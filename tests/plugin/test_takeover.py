"""After a run was killed, the next goes on with its jobs: nothing is lost, nothing is paid for twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from waiting import wait_until
from yard import SCRIPT, TEST, WORKERS, Ended, Gate, Yard, submitted

pytestmark = pytest.mark.slow


def killed_while_watching(yard: Yard, *arguments: str) -> Gate:
    """A suite whose job waits at the gate that is returned, and a run of it that was killed meanwhile."""
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    run = yard.start(*arguments)
    yard.wait_for_job()
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    return gate


def judged(ended: Ended) -> None:
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"toy-1x2": "PASSED"}


@WORKERS
def test_a_job_that_runs_on_is_taken_over(yard: Yard, card: Path, workers: list[str]) -> None:
    before = submitted(card)
    gate = killed_while_watching(yard, *workers)
    gate.open()
    ended = yard.pytest("suites", "--nodes", "1", *workers)
    judged(ended)
    assert submitted(card) == before + 1
    assert "taken over from run" in ended.out
    assert "note: toy-1x2: taken over from run" in ended.out


def test_fresh_does_not_take_over(yard: Yard, card: Path) -> None:
    before = submitted(card)
    killed_while_watching(yard).open()
    judged(yard.pytest("suites", "--nodes", "1", "--aisbench-fresh"))
    assert submitted(card) == before + 2


def test_a_workload_that_changed_is_not_taken_over_and_says_why(yard: Yard, card: Path) -> None:
    before = submitted(card)
    killed_while_watching(yard).open()
    yard.suite(script=SCRIPT + "\n# another line\n")
    ended = yard.pytest("suites", "--nodes", "1")
    judged(ended)
    assert "is not taken over: the workload has changed" in ended.out
    assert submitted(card) == before + 2


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 2), ("SIGTERM", 143)])
def test_interrupted_with_leave_the_job_runs_on_and_the_next_run_judges_it(
    yard: Yard, card: Path, name: str, code: int
) -> None:
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    before = submitted(card)
    run = yard.start("--aisbench-on-interrupt", "leave")
    yard.wait_for_job()
    run.send_signal(getattr(signal, name))
    out, _ = run.communicate()
    assert run.returncode == code, out
    assert "left running; the next run takes it over" in out
    (case,) = json.loads((yard.folder / "reports/latest/results.json").read_text())["cases"]
    assert case["verdict"] is None
    gate.open()
    judged(yard.pytest("suites", "--nodes", "1"))
    assert submitted(card) == before + 1


def test_what_was_judged_before_the_kill_is_judged_again_from_the_store(yard: Yard, card: Path) -> None:
    kill = "def test_then_dies(trial):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    yard.suite(test=TEST.split("def test_trains")[0] + kill)
    before = submitted(card)
    yard.start().communicate()
    yard.suite()
    judged(yard.pytest("suites", "--nodes", "1"))
    assert submitted(card) == before + 1


def test_a_live_owner_keeps_its_job(yard: Yard, card: Path) -> None:
    """Two runs at once on one ledger: the second sees that the first one's process lives, and submits its own."""
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    before = submitted(card)
    first = yard.start()
    yard.wait_for_job()
    second = yard.start()
    wait_until(lambda: submitted(card), lambda jobs: jobs == before + 2)
    gate.open()
    for run in (first, second):
        out, _ = run.communicate()
        assert run.returncode == 0, out
    assert "is alive and keeps its job" in out
    assert submitted(card) == before + 2


def test_a_private_cloud_takes_its_jobs_with_it(yard: Yard) -> None:
    yard.suite()
    first, second = (yard.pytest("suites", "--nodes", "1", cloud=False) for _ in range(2))
    judged(first)
    judged(second)
    assert "taken over" not in second.out


def test_what_was_under_way_on_a_private_cloud_is_lost_and_submitted_again(yard: Yard) -> None:
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    run = yard.start(cloud=False)
    yard.wait_for_job()
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    gate.open()
    ended = yard.pytest("suites", "--nodes", "1", cloud=False)
    judged(ended)
    assert "died with its private local cloud; another is submitted" in ended.out
    trials = [(trial["step"], trial["job"]["phase"]) for trial in yard.trials()]
    assert trials == [("DONE", "LOST"), ("DONE", "SUCCEEDED")]


def test_a_ledger_of_an_older_version_is_brought_up_to_date(yard: Yard) -> None:
    from pytest_aisbench.ledger.database import STEPS
    from pytest_aisbench.ledger.ledger import Ledger

    file = yard.folder / "reports" / "ledger.db"
    file.parent.mkdir()
    with sqlite3.connect(file) as db:
        db.executescript(STEPS[0] + "PRAGMA user_version = 1;")
        db.execute("INSERT INTO runs VALUES ('old', 1.0, 2.0, 0, '{}')")
    db.close()
    yard.suite()
    judged(yard.pytest("suites", "--nodes", "1"))
    kept = Ledger(file)
    assert kept.entry("old").exit_code == 0
    kept.close()


if sys.platform != "linux":
    pytestmark = pytest.mark.skip(reason="kills process groups")
