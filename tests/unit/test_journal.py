"""What is recorded once the ledger takes no more, and what the next run makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.engine.fleet import Fleet
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import Tools
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.ledger.journal import NAME, Journal, read_journals
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.runs import JobLedger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.job import Phase
from pytest_aisbench.model.trial import Step, Trial

Make = Callable[..., Any]
HEAD = {"run": "full", "started": 1.0, "settings": {}, "owner": "elsewhere:1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "reports" / "full"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[JobLedger]:
    ledger = JobLedger(tmp_path / "ledger.db", new=True)
    yield ledger
    ledger.close()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_full_disk_leaves_the_end_of_the_jobs_in_the_journal(
    ledger: JobLedger, folder: Path, healthy: Make, case: Case, noticed: bool
) -> None:
    platform = healthy(Phase.RUNNING)
    journal = Journal(folder, HEAD, 1)
    ledger.begin("full", {}, 1.0)

    def begin(case: Case, number: int) -> Trial:
        return replace(new_trial("full", case, 1.0, number), platform_id="scripted")

    tools = Tools(platform, SystemClock(), Limits(60.0, 60.0), folder)
    fleet = Fleet(tools, ledger, begin, max_jobs=1, max_trials=1, journal=journal)
    fleet.start()
    fleet.reached(case, Step.WATCH)
    ledger.sync()
    ledger.database.read("PRAGMA query_only = 1")  # from here on, every write fails
    if noticed:
        fleet.fail(LedgerError("the disk is full"))
    else:
        fleet.remark(fleet.trials()[0], "a change that is still to be written")
        ledger.save_trial_soon(fleet.trials()[0], 2.0, lambda _: None)
    fleet.close()
    journal.close(9.0)
    assert platform.cancelled == ["job-1"]
    ledger.close()
    with closing(JobLedger(ledger.path)) as after:
        (known,) = after.in_flight(2.0)
        assert known.trial.step is Step.WATCH  # as the ledger has it, the job may run
        assert read_journals(folder.parent, after) == ["full"]
        (trial,) = after.trials("full")
        assert trial.job
        assert trial.job.phase is Phase.CANCELLED
        assert trial.fault
        assert "the run ended before the job did" in trial.fault.text
        assert after.in_flight(2.0) == []
        assert (after.head("full").exit_code, after.head("full").finished) == (3, "1970-01-01T00:00:09.000Z")
        assert read_journals(folder.parent, after) == []  # once


def test_a_ledger_that_is_gone_gets_the_run_and_its_trials(ledger: Ledger, folder: Path, case: Case) -> None:
    journal = Journal(folder, HEAD, 1)
    trial = replace(new_trial("full", case, 1.0), platform_id="scripted", job_id="j").moved(Step.WATCH, 2.0)
    journal.add(trial, 2.0)
    with (folder / NAME).open("r+b") as file:  # the run was killed, in the middle of a line
        text = file.read().rstrip(b"\0")
        file.seek(len(text))
        file.write(b'{"trial": {"id": "hal')
    assert read_journals(folder.parent, ledger) == ["full"]
    assert ledger.trials("full") == [trial]
    assert ledger.head("full").finished is None


def test_a_trial_that_another_run_has_taken_stays_its_own(ledger: JobLedger, folder: Path, case: Case) -> None:
    ledger.begin("full", {}, 1.0)
    trial = replace(new_trial("full", case, 1.0), platform_id="scripted", job_id="j").moved(Step.WATCH, 2.0)
    ledger.save_trial(trial, 2.0)
    (held,) = ledger.in_flight(2.0)
    Journal(folder, HEAD, 1).add(trial.moved(Step.DONE, 3.0), 3.0)
    taken = ledger.amend(held, replace(trial, run="next"), 4.0)
    assert taken
    read_journals(folder.parent, ledger)
    assert ledger.trials("next") == [taken.trial]


def test_a_journal_that_was_not_needed_leaves_nothing(folder: Path) -> None:
    journal = Journal(folder, HEAD, 8)
    (reserved,) = folder.iterdir()
    assert reserved.stat().st_size >= 8 * 4096
    journal.close(1.0)
    assert list(folder.iterdir()) == []


def test_a_folder_that_was_removed_is_made_anew(folder: Path, case: Case) -> None:
    journal = Journal(folder, HEAD, 1)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    journal.add(new_trial("full", case, 1.0), 1.0)
    journal.close(2.0)
    kinds = [next(iter(json.loads(line))) for line in (folder / NAME).read_text().splitlines()]
    assert kinds == ["run", "trial", "ended"]


def test_a_record_that_cannot_be_read_is_one_line(ledger: JobLedger, case: Case) -> None:
    ledger.begin("full", {}, 1.0)
    ledger.save_trial(replace(new_trial("full", case, 1.0), platform_id="p").moved(Step.WATCH, 1.0), 1.0)
    for harm in ("{}", "[1]", "not JSON"):
        ledger.database.write("UPDATE trials SET record = ?", harm)
        with pytest.raises(LedgerError, match=r"a trial's record in the ledger cannot be read .*move the ledger away"):
            ledger.latest(5, 1.0)
