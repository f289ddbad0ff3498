"""The curve of a trial, from its log into the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from factories import make_case, make_trial

from pytest_aisbench.engine.collect import MOST_BYTES, curve_of
from pytest_aisbench.judge.entries import trial_entry
from pytest_aisbench.model.codec import dump, load
from pytest_aisbench.model.metric import Metric
from pytest_aisbench.model.trial import Trial

CASE = make_case("2x1", workload="points", metrics={"throughput": Metric("throughput", "points/s")})
LOG = "".join(
    f"epoch: {epoch} step: 10, loss is {1 / epoch}\nTrain epoch time: 1 ms, per step time: {ms} ms\n"
    for epoch, ms in enumerate((200, 100, 100, 100, 100), start=1)
)


def trial(*logs: str) -> Trial:
    return make_trial(CASE, logs=logs)


def test_the_first_workers_log_makes_the_curve_that_the_ledger_keeps(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "worker-1.log").write_text("nothing", encoding="utf-8")
    begun = trial("worker-1.log", "worker-0.log", "events.txt")
    kept = load(Trial, json.loads(json.dumps(dump(replace(begun, curve=curve_of(begun, tmp_path))))))
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


def test_of_a_very_long_log_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    filler = f"{'a line of no interest, in 中文 too':<1023}\n".encode()
    end = "train done batchsize:16 single_throughput_rate:90\neval epoch: 5, accuracy: 0.9, elapsed: 4 s"
    with (tmp_path / "worker-0.log").open("wb") as log:
        log.write(LOG.encode())
        for _ in range(3 * MOST_BYTES // len(filler)):
            log.write(filler)
        log.write(end.encode())
    found = curve_of(trial("worker-0.log"), tmp_path)
    assert found
    assert found.loss.values == [1.0, 0.5, 1 / 3, 0.25, 0.2]
    assert (found.rank_speed, found.batch, len(found.evaluations)) == (90.0, 16, 1)


def test_a_case_may_be_called_worker(tmp_path: Path) -> None:
    for name, text in (("events.txt", "nothing"), ("worker-0.log", LOG)):
        (tmp_path / "logs" / "worker-1x1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "logs" / "worker-1x1" / name).write_text(text, encoding="utf-8")
    assert curve_of(trial("logs/worker-1x1/events.txt", "logs/worker-1x1/worker-0.log"), tmp_path)
