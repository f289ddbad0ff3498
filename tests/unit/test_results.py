"""`results.json` against the design, field by field; and the pairs that a report carries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_case, make_measurements, make_run_entry, make_trial, verdict_of
from waiting import wait_until

from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import Job, Phase, Stage, StoreUrl
from pytest_aisbench.model.metric import MissingResult
from pytest_aisbench.model.results import RunEntry
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Threshold
from pytest_aisbench.report.host_plugins import case_id_of_report, trial_properties
from pytest_aisbench.report.results import Results, ResultsWriter, results_document, write_results

LIMITS = "the interval 38.6841 .. 41.3159 is inside the limits"  # a reason goes without the arithmetic
INSIDE = (
    "the interval 38.6841 .. 41.3159 is inside the limits (± 1.316 = t 1.645 × s 0.8; t at 1 - 0.05 of the normal"
    " distribution; s is assumed to be 2% of the mean: no comparable earlier trials)"
)
SHAPE = Shape(2, 2)
CLAIMS = (Threshold("throughput", unit="images/s", at_least=35.0), Threshold("accuracy", at_least=0.7))
CASE = make_case("2x2", *CLAIMS, workload="resnet50")


def trial(speeds: list[float | None], note: str = "") -> Trial:
    healthy = make_measurements(CASE, [speed or 0.0 for speed in speeds], 0.75)
    found = [each for each in healthy if each.rank is None or speeds[each.rank] is not None]
    missing = tuple(
        MissingResult("throughput", f"rank {rank} is missing") for rank, speed in enumerate(speeds) if speed is None
    )
    measured = {"throughput": sum(speed or 0.0 for speed in speeds), "accuracy": 0.75}
    root = StoreUrl("bucket", "aisbench/run-1/")
    begun = make_trial(CASE, run="run-1", stage=Stage(root, root / "code/"))
    return begun.noted(note).moved(
        Step.DONE,
        17.5,
        job_id="42",
        job=Job("42", Phase.SUCCEEDED, "Completed", queued_s=0.1, ran_s=3.6),
        logs=("logs/resnet50-2x2/1/worker-0.log",),
        measurements=tuple(found),
        missing_results=missing,
        judged=verdict_of(CLAIMS, measured, missing, SHAPE),
    )


def run(*trials: Trial, finished: str | None = "2024-01-01T00:01:00Z", exit_code: int | None = 0) -> RunEntry:
    cases = tuple(case_entry(CASE, (one,), one.verdict) for one in trials)
    settings = {"platform": "local", "nodes": [2]}
    return make_run_entry(*cases, finished=finished, exit_code=exit_code, settings=settings)


def written(entry: RunEntry, folder: Path) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(write_results(entry, folder).read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_passed_case_is_written_as_the_design_says(tmp_path: Path) -> None:
    found = written(run(trial([10.0, 10.0, 10.0, 10.0])), tmp_path)

    (case,) = found.pop("cases")
    assert found == {
        "schema": "aisbench-results/1",
        "run": "run-1",
        "started": "2024-01-01T00:00:00Z",
        "finished": "2024-01-01T00:01:00Z",
        "exit_code": 0,
        "settings": {"platform": "local", "nodes": [2]},
        "uploads": [],
        "origin": dict.fromkeys(("server", "build", "number", "url", "commit", "branch", "modified")),
    }
    (told,) = case.pop("trials")
    assert case == {
        "id": "resnet50-2x2",
        "workload": "resnet50",
        "nodes": 2,
        "devices_per_node": 2,
        "mode": "cluster",
        "parameters": {},
        "trained_with": None,
        "verdict": "PASSED",
        "reason": f"throughput 40 images/s, wanted >= 35 images/s: {LIMITS}; accuracy 0.75, wanted >= 0.7",
        "card_hours": 0.004,
        "metrics": {"throughput": {"value": 40.0, "unit": "images/s"}, "accuracy": {"value": 0.75, "unit": ""}},
        "findings": [
            {
                "metric": "throughput",
                "outcome": "met",
                "measured": 40.0,
                "wanted": ">= 35 images/s",
                "text": f"throughput 40 images/s, wanted >= 35 images/s: {INSIDE}",
            },
            {
                "metric": "accuracy",
                "outcome": "met",
                "measured": 0.75,
                "wanted": ">= 0.7",
                "text": "accuracy 0.75, wanted >= 0.7",
            },
        ],
    }
    assert told == {
        "trial": 1,
        "job_id": "42",
        "platform_phase": "Completed",
        "phase": "SUCCEEDED",
        "queued_s": 0.1,
        "ran_s": 3.6,
        "throughput_by_rank": [10.0, 10.0, 10.0, 10.0],
        "throughput_by_server": [20.0, 20.0],
        "accuracy_by_server": [0.75],
        "stragglers": [],
        "logs": ["logs/resnet50-2x2/1/worker-0.log"],
        "stage": "obs://bucket/aisbench/run-1/",
        "endpoints": {},
        "usage": {},
        "hosts": [],
    }


def test_a_slow_card_is_written_with_these_keys_in_this_order(tmp_path: Path) -> None:
    (case,) = written(run(trial([10.0, 10.0, 10.0, 5.0])), tmp_path)["cases"]

    (straggler, *_) = case["trials"][0]["stragglers"]
    assert list(straggler) == ["node", "card", "rank", "ratio", "cost", "host"]


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    (case,) = written(run(trial([10.0, None, 10.0, 10.0])), tmp_path)["cases"]

    assert case["verdict"] == "FAILED"
    assert case["metrics"]["throughput"] == {"value": None, "unit": "images/s"}
    assert case["trials"][0]["throughput_by_rank"] == [10.0, None, 10.0, 10.0]
    assert case["trials"][0]["throughput_by_server"] == [None, 20.0]


def test_a_run_under_way_has_no_end_and_its_cases_no_verdict(tmp_path: Path) -> None:
    waiting = make_run_entry(case_entry(CASE, (), None), settings={})

    found = written(waiting, tmp_path)

    assert (found["finished"], found["exit_code"]) == (None, None)
    assert (found["cases"][0]["verdict"], found["cases"][0]["reason"]) == (None, "not judged")


def test_it_can_be_read_back(tmp_path: Path) -> None:
    entry = run(trial([10.0, None, 10.0, 10.0], note="<script> ]]> \x00 结果"))

    found = written(entry, tmp_path)

    assert found == results_document(entry)
    assert not {"notes", "times"} & set(found["cases"][0]["trials"][0])  # the published shape has neither


def test_a_file_that_is_written_again_and_again_has_the_last_word_on_every_case(tmp_path: Path) -> None:
    results = Results(tmp_path)
    begun, ended = run(trial([10.0, 10.0, None, None])), run(trial([10.0, 10.0, 10.0, 10.0]))
    for entry in (begun, begun, ended, replace(ended, exit_code=1)):
        text = results.write(entry).read_text(encoding="utf-8")
        assert json.loads(text) == json.loads(json.dumps(results_document(entry)))
        assert len(text.splitlines()) == len(results_document(entry)) + 2 + len(entry.cases) + 1  # a line each


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_results(run(trial([10.0] * 4), exit_code=None), tmp_path)
    before = (tmp_path / "results.json").read_bytes()

    with pytest.raises(ValueError, match="nan"):
        write_results(run(trial([float("nan")] * 4)), tmp_path)

    assert (tmp_path / "results.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_mangled_log_does_not_spoil_the_file(tmp_path: Path) -> None:
    case = replace(case_entry(CASE, (), None), reason="half a pair: \ud800")
    (found,) = written(replace(run(trial([10.0] * 4)), cases=(case,)), tmp_path)["cases"]

    assert found["reason"] == "half a pair: ?"


def test_a_report_carries_flat_pairs() -> None:
    pairs = trial_properties(trial([10.0, 10.0, 10.0, 10.0]), "local")

    assert pairs == [
        ("aisbench.case", "resnet50-2x2"),
        ("aisbench.workload", "resnet50"),
        ("aisbench.nodes", "2"),
        ("aisbench.devices_per_node", "2"),
        ("aisbench.platform", "local"),
        ("aisbench.job_id", "42"),
        ("aisbench.verdict", "PASSED"),
        ("aisbench.reason", f"throughput 40 images/s, wanted >= 35 images/s: {LIMITS}; accuracy 0.75, wanted >= 0.7"),
        ("aisbench.throughput", 40.0),
        ("aisbench.throughput.unit", "images/s"),
        ("aisbench.accuracy", 0.75),
        ("aisbench.throughput.wanted", ">= 35 images/s"),
        ("aisbench.accuracy.wanted", ">= 0.7"),
    ]


def test_a_flawed_metric_is_not_carried() -> None:
    assert "aisbench.throughput" not in dict(trial_properties(trial([10.0, None, 10.0, 10.0])))


def test_only_reports_of_cases_have_one() -> None:
    class Report:
        user_properties = (("mine", 1), ("aisbench.case", "resnet50-2x2"))

    assert case_id_of_report(Report()) == "resnet50-2x2"
    assert case_id_of_report(object()) is None  # a report of collection


def test_a_run_in_progress_is_written_again_soon_but_not_for_each_case(tmp_path: Path) -> None:
    begun, taken = run(trial([10.0] * 4), exit_code=None), []
    ended, code = 0, None

    def entry() -> RunEntry:
        taken.append(ended)
        return replace(begun, settings={"ended": ended}, exit_code=code)

    writer = ResultsWriter(tmp_path, entry)
    for ended in range(1, 301):  # noqa: B007 - cases that end at once
        writer.write_soon()
    wait_until(lambda: taken, lambda taken: taken and taken[-1] == 300)
    assert len(taken) < 10
    writer.close()
    assert json.loads((tmp_path / "results.json").read_bytes())["settings"] == {"ended": 300}
    code = 1
    writer.write()
    assert json.loads((tmp_path / "results.json").read_bytes())["exit_code"] == 1


def test_a_disk_that_is_full_is_told_to_the_next_case(tmp_path: Path) -> None:
    writer = ResultsWriter(tmp_path / "gone", lambda: run(trial([10.0] * 4)))
    writer.write_soon()

    def next_case() -> str:
        try:
            writer.write_soon()
        except OSError as error:
            return str(error)
        return ""

    assert "was removed" in wait_until(next_case)
    writer.close()
