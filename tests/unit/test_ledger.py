"""What was said is on disk."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.errors import Blame, LedgerError
from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.ledger.database import VERSION, Database
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.trial import Fault, Step, Trial
from pytest_aisbench.model.verdict import Ruling, Verdict


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin("r", {}, 1.0)
        yield ledger


def test_a_run_is_read_back_as_it_was_told(tmp_path: Path, case: Case) -> None:
    ledger = Ledger(tmp_path / "deep" / "ledger.db")
    ledger.begin("r", {"platform": "local"}, 1_700_000_000.0)
    trial = new_trial("r", case, 1.0)
    ledger.save_trial(trial, 1.0)
    ledger.save_case("r", 0, case_entry(case, (trial,), None))
    ledger.save_case("r", 0, case_entry(case, (trial,), Verdict(Ruling.PASSED, "all well")))
    ledger.finish("r", 0, 1_700_000_001.5)
    ledger.close()
    again = Ledger(tmp_path / "deep" / "ledger.db")
    assert again.trials("r") == [trial]
    entry = again.entry("r")
    assert (entry.started, entry.finished, entry.exit_code) == (
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T22:13:21.500Z",
        0,
    )
    assert [(found.id, found.verdict, found.reason) for found in entry.cases] == [
        ("toy-2x2", Ruling.PASSED, "all well")
    ]
    again.close()


def test_a_newer_ledger_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LedgerError, match=rf"newer version \(99 > {VERSION}\); update"):
        Ledger(file)


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE runs (mine TEXT)")
    before = file.read_bytes()
    with pytest.raises(
        LedgerError, match=r"other\.db is a database of something else, and no ledger; name another file"
    ):
        Ledger(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "unable to open database file; see that"),
        (lambda file: file.write_bytes(b"not a database" * 100), "file is not a database; move that file away, or"),
    ],
)
def test_what_is_no_ledger_is_one_line(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    file = tmp_path / "ledger.db"
    make(file)
    with pytest.raises(LedgerError, match=rf"ledger\.db cannot be used: {said} .*name another .* --aisbench-ledger$"):
        Ledger(file)


def test_a_trial_does_not_push_another_of_its_name_out(ledger: Ledger, case: Case) -> None:
    first = new_trial("r", case, 1.0)
    ledger.save_trial(first, 1.0)
    with pytest.raises(LedgerError, match="UNIQUE"):
        ledger.save_trial(replace(first, id="another"), 2.0)
    assert ledger.trials("r") == [first]


def test_history_is_of_jobs_that_did_the_same_and_succeeded(ledger: Ledger, case: Case) -> None:
    def ran(number: int, phase: Phase, ran_s: float | None, **other: Any) -> None:
        trial = replace(new_trial("r", case, 1.0, number), platform_id="here", fingerprint="same")
        ledger.save_trial(replace(trial, job=Job("j", phase, "", ran_s=ran_s), **other), float(number))

    for number in range(1, 8):
        ran(number, Phase.SUCCEEDED, number * 10.0)
    ran(10, Phase.FAILED, 1.0)
    ran(11, Phase.RUNNING, 1.0)
    ran(12, Phase.SUCCEEDED, None)
    ran(13, Phase.SUCCEEDED, 1.0, fingerprint="changed")
    ran(14, Phase.SUCCEEDED, 1.0, platform_id="elsewhere")
    ran(15, Phase.SUCCEEDED, 1.0, case=replace(case, shape=Shape(1, 1)))
    ledger.save_trial(new_trial("r", case, 1.0, 16), 16.0)
    assert ledger.past_durations(case.id, "here", "same") == [70.0, 60.0, 50.0, 40.0, 30.0]
    assert ledger.past_durations(case.id, "here", "same", limit=2) == [70.0, 60.0]
    assert ledger.past_durations(case.id, "here", "unheard of") == []


def test_what_ran_on_the_private_cloud_of_a_dead_run_is_buried(ledger: Ledger, case: Case) -> None:
    now = 100.0
    for run, owner, lease in (("killed", "dead", 112.0), ("away", "?", 99.0), ("lives", "?", 112.0), ("old", "", 0.0)):
        ledger.begin(run, {}, 1.0, owner, lease)
    ledger.begin("ended", {}, 1.0, "dead", 112.0)
    ledger.finish("ended", 2, 50.0)

    def left(run: str, number: int, step: Step, **other: Any) -> Trial:
        trial = replace(new_trial(run, case, 1.0, number), step=step, **other)
        ledger.save_trial(trial, 1.0)
        return trial

    running = Job("job-1", Phase.RUNNING, "Running", ran_s=3.0)
    left("killed", 1, Step.WATCH, job_id="job-1", job=running)
    left("killed", 2, Step.SUBMIT)
    left("away", 1, Step.WATCH, job_id="job-2")
    kept = [
        left("killed", 3, Step.STAGE),
        left("killed", 4, Step.WATCH, platform_id="modelarts somewhere"),
        left("killed", 5, Step.DONE),
        *(left(run, 1, Step.WATCH) for run in ("lives", "old", "ended")),
    ]
    buried = ledger.end_orphans(now, lambda owner, lease, at: lease <= at or owner == "dead")
    assert [(trial.run, trial.number) for trial in buried] == [("away", 1), ("killed", 1), ("killed", 2)]
    assert {trial.step for trial in buried} == {Step.DONE}
    assert [trial.job for trial in buried] == [
        Job("job-2", Phase.LOST, ""),
        replace(running, phase=Phase.LOST),
        Job("", Phase.LOST, ""),
    ]
    assert buried[1].fault == Fault(Blame.PLATFORM, "the private local cloud ended with its run killed")
    assert buried[1].times["done"] == now
    found = {trial.id: trial for run in ("killed", "away", "lives", "old", "ended") for trial in ledger.trials(run)}
    assert found == {trial.id: trial for trial in [*buried, *kept]}
    assert ledger.end_orphans(now, lambda owner, lease, at: lease <= at or owner == "dead") == []


def test_a_new_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with closing(Database(file)) as database:
        database.write("UPDATE trials SET step = step")
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.glob("ledger.db*")}
    assert set(modes.values()) == {0o600}, modes
