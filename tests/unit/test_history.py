"""What was measured is looked up by what makes it comparable, and fast."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_measurements

from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.errors import Blame
from pytest_aisbench.judge.comparison import family_key, traits_key
from pytest_aisbench.ledger.database import STEPS
from pytest_aisbench.ledger.history import History
from pytest_aisbench.ledger.ledger import Ledger, record
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case, Mode, Shape
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.metric import MissingResult
from pytest_aisbench.model.trial import Fault, Step, Trial
from pytest_aisbench.model.verdict import Ruling, Verdict

TRAITS = {"platform": "local", "nodes": "2", "devices": "2", "code": "c0de"}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for number in range(1, 10):
            ledger.begin(f"run-{number}", {}, float(number))
        yield ledger


def done(case: Case, run: int, speed: float = 12.5, learnt: float = 0.95, number: int = 1, **other: Any) -> Trial:
    """A trial that ended in its run's second."""
    found = make_measurements(case, speed, learnt)
    trial = replace(new_trial(f"run-{run}", case, 0.0, number), measurements=found, traits=TRAITS)
    told: dict[str, Any] = {
        "judged": Verdict(Ruling.PASSED, "all well"),
        "job": Job("j", Phase.SUCCEEDED, "", ran_s=7.5),
    }
    return trial.moved(Step.DONE, float(run), **{**told, **other})


def test_what_a_trial_measured_is_history_once_it_is_judged(ledger: Ledger, case: Case) -> None:
    history = History(ledger.database)
    trial = done(case, 1)
    ledger.save_trial(replace(trial, step=Step.JUDGE, judged=None), 1.0)
    assert history.cases() == ()
    ledger.save_trial(trial, 1.0)
    (found,) = history.of(case.id, traits_key(TRAITS))
    assert (found.run, found.trial, found.at) == ("run-1", "run-1/toy-2x2/1", 1.0)
    assert (found.workload, found.shape, found.mode) == ("toy", "2x2", "cluster")
    assert (found.throughput, found.accuracy, found.ran_s) == (50.0, 0.95, 7.5)
    assert (found.ruling, found.counts, found.metrics) == (Ruling.PASSED, True, {})
    assert [found.value(metric) for metric in ("throughput", "accuracy", "loss")] == [50.0, 0.95, None]
    assert history.traits(found.key) == TRAITS
    assert history.cases() == ("toy-2x2",)


def test_only_what_is_whole_and_comparable_and_accurate_counts(ledger: Ledger, case: Case) -> None:
    history = History(ledger.database)
    for trial in (
        done(case, 1),
        done(case, 2, learnt=0.1),  # fast, and learnt nothing
        done(case, 3, traits={**TRAITS, "code": "other"}),
        done(case, 4, missing_results=(MissingResult("throughput", "is missing"),)),
        done(case, 5, fault=Fault(Blame.PLATFORM, "lost")),
        done(case, 6, measurements=()),
        done(case, 7),
        done(case, 7, number=2),
    ):
        ledger.save_trial(trial, 1.0)
    same = traits_key(TRAITS)
    assert [found.run for found in history.of(case.id, same)] == ["run-1", "run-7", "run-7"]
    assert [found.run for found in history.of(case.id, same, without="run-7")] == ["run-1"]
    assert [found.run for found in history.of(case.id, same, limit=2)] == ["run-7", "run-7"]
    assert [found.run for found in history.first(case.id, same, 2)] == ["run-1", "run-7"]
    assert [found.run for found in history.of(case.id, same, counted=False)] == ["run-1", "run-2", "run-7", "run-7"]
    assert [found.run for found in history.all(case.id)] == ["run-1", "run-2", "run-3", "run-7", "run-7"]
    assert history.of(case.id, "") == history.of("another-1x1", same) == ()
    other = history.newest(case.id, key=same)
    assert other is not None
    assert other.run == "run-3"


def test_another_shape_is_found_by_what_it_shares(ledger: Ledger, case: Case) -> None:
    history = History(ledger.database)
    ledger.save_trial(done(replace(case, shape=Shape(1, 2)), 1, traits={**TRAITS, "nodes": "1"}), 1.0)
    ledger.save_trial(done(case, 2), 1.0)
    assert [found.shape for found in history.base("toy", "1x2", family_key(TRAITS), 10)] == ["1x2"]
    assert sorted(history.shapes("toy", family_key(TRAITS))) == ["1x2", "2x2"]
    assert history.base("another", "1x2", family_key(TRAITS), 10) == ()
    assert history.base("toy", "1x2", family_key({"platform": "modelarts"}), 10) == ()


def test_a_trial_that_is_taken_over_is_no_history_until_it_is_judged_again(ledger: Ledger, case: Case) -> None:
    history, trial = History(ledger.database), done(case, 1)
    ledger.save_trial(trial, 1.0)
    taken = replace(trial, run="run-2", step=Step.HARVEST, judged=None)
    assert not ledger.swap_trial(taken, 2.0, "something else")
    assert len(history.all(case.id)) == 1
    assert ledger.swap_trial(taken, 2.0, record(trial))
    assert history.all(case.id) == ()
    assert not ledger.save_trial(trial, 3.0)  # it is not run-1's any more
    assert history.all(case.id) == ()
    ledger.save_trial(replace(trial, run="run-2", fence=1), 3.0)
    assert [found.run for found in history.all(case.id)] == ["run-2"]


@pytest.mark.parametrize("mode", Mode)
def test_an_older_ledger_keeps_what_it_measured(tmp_path: Path, case: Case, mode: Mode) -> None:
    file, case = tmp_path / "old.db", replace(case, mode=mode)
    trials = [done(case, 1), done(case, 2, judged=Verdict(Ruling.FAILED, "slow")), done(case, 3, measurements=())]
    with closing(sqlite3.connect(file)) as db, db:
        db.executescript("".join(STEPS[:4]) + "PRAGMA user_version = 4;")
        for trial in trials:
            row = (trial.id, trial.run, case.id, 1, trial.name, "DONE", None, 9.0, record(trial), "", "", 7.5)
            db.execute(f"INSERT INTO trials VALUES ({', '.join('?' * len(row))})", row)
    with closing(Ledger(file)) as ledger:
        history = History(ledger.database)
        (found,) = history.all(case.id)
        assert (found.run, found.at, found.throughput) == ("run-1", 1.0, 25.0 if case.single_server else 50.0)
        assert (found.accuracy, found.ran_s, found.shape, found.mode) == (0.95, 7.5, "2x2", mode.value)
        assert history.of(case.id, found.key) == ()  # nobody knows what it could be compared to
        assert history.newest(case.id) is None
        assert codec.load(Trial, codec.dump(trials[0])) == trials[0]


def test_a_hundred_among_ten_thousand_are_found_without_a_look_at_the_others(ledger: Ledger, case: Case) -> None:
    ledger.save_trial(done(case, 1), 1.0)
    asked = (
        ("SELECT * FROM measures WHERE case_id = ? AND key = ? AND counts >= ? AND run != ? ORDER BY at DESC", 4),
        ("SELECT * FROM measures WHERE family = ? AND workload = ? AND shape = ? AND counts = 1 ORDER BY at DESC", 3),
        ("SELECT * FROM measures WHERE case_id = ? AND run != ? AND key NOT IN ('', ?) ORDER BY at DESC", 3),
    )
    for statement, values in asked:
        plan = " ".join(row[3] for row in ledger.database.read(f"EXPLAIN QUERY PLAN {statement}", *[""] * values))
        assert "USING INDEX" in plan
        assert "TEMP B-TREE" not in plan
