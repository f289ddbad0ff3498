"""The curve of a trial, from its log into the report."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_aisbench.domain.case import Case, Shape, Workload
from pytest_aisbench.domain.codec import dump, load
from pytest_aisbench.domain.entry import trial_entry
from pytest_aisbench.domain.metric import Metric
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.services.pacing import curve_of

CASE = Case(
    Workload("points", "/s", ("code",), "train.py", "python", 1, {"throughput": Metric("throughput", "points/s")}),
    Shape(2, 1),
    (),
)
LOG = "".join(
    f"epoch: {epoch} step: 10, loss is {1 / epoch}\nTrain epoch time: 1 ms, per step time: {ms} ms\n"
    for epoch, ms in enumerate((200, 100, 100, 100, 100), start=1)
)


def trial(*logs: str) -> Trial:
    return Trial("run/points-2x1/1", "run", CASE, 1, "name", logs=logs)


def test_the_first_workers_log_makes_the_curve_that_the_ledger_keeps(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "worker-1.log").write_text("nothing", encoding="utf-8")
    begun = trial("worker-1.log", "worker-0.log", "events.txt")
    kept = load(Trial, json.loads(json.dumps(dump(Trial(**{**vars(begun), "curve": curve_of(begun, tmp_path)})))))
    assert kept.curve
    assert kept.curve.loss.values == [1.0, 0.5, 1 / 3, 0.25, 0.2]
    told = trial_entry(kept).pace
    assert told
    assert (told.steady, told.warm_up, told.warm_up_points) == (10.0, 5.0, 1)


def test_a_log_that_says_nothing_or_is_not_there_is_no_curve(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").write_bytes(b"\xff\x00\n" * 100)
    assert curve_of(trial("worker-0.log"), tmp_path) is None
    assert curve_of(trial("worker-9.log"), tmp_path) is None
    assert curve_of(trial(), tmp_path) is None
    assert trial_entry(trial()).pace is None
