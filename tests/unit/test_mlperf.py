"""Results of MLPerf's judged by our claims, and a run of ours in its words."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_case, make_measurements, make_trial, results_json
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.cli import main
from pytest_aisbench.cli.judge import judge_file, judge_set
from pytest_aisbench.engine.trial import VerdictStep
from pytest_aisbench.judge.evaluate import Rules
from pytest_aisbench.judge.values import DERIVED, DerivedMetric
from pytest_aisbench.model.trial import Step
from pytest_aisbench.model.verdict import ExpectedFailure, Ruling, Threshold
from pytest_aisbench.traininglog.mlperf import Result, benchmark_name, mlperf_log, parse_result

CLAIMS = (Threshold("throughput", unit="images/s", at_least=13_000), Threshold("accuracy", at_least=0.759))
CASE = make_case("1x8", *CLAIMS, workload="resnet50")


def event(key: str, ms: Any, value: Any = None, **metadata: Any) -> str:
    return ":::MLLOG " + json.dumps({"time_ms": ms, "key": key, "value": value, "metadata": metadata})


def ran(
    *, samples: Any = 1_280_000, epochs: int = 2, seconds: int = 180, accuracy: Any = 0.76, status: str = "success"
) -> list[str]:
    """14222 images/s unless told otherwise."""
    lines = ["NVIDIA banner", event("run_start", 0), event("train_samples", 1, samples)]
    for epoch in range(1, epochs + 1):
        lines += [event("epoch_start", epoch, epoch_num=epoch), event("epoch_stop", epoch + 1, epoch_num=epoch)]
        lines.append(event("eval_accuracy", 1000 * epoch, accuracy if epoch == epochs else 0.5, epoch_num=epoch))
    return [*lines, event("run_stop", 1000 * seconds, status=status)]


def without(key: str) -> list[str]:
    return [line for line in ran() if f'"{key}"' not in line]


def test_what_a_file_says() -> None:
    result = parse_result("a", ran())
    assert result.measured == {"throughput": pytest.approx(1_280_000 * 2 / 180), "accuracy": 0.76}
    assert (result.status, result.seconds, result.missing) == ("success", 180.0, ())
    assert result.throughput_from == "train_samples × epochs / (run_stop − run_start)"
    assert judge_file(CASE, result).passed


def test_the_time_to_accuracy_is_in_its_evaluations_and_a_set_has_the_mean() -> None:
    soon = replace(CASE, thresholds=(*CLAIMS, Threshold("time_to_accuracy", "s", at_most=2.4)))
    fast, slow = parse_result("a", ran()), parse_result("b", ran(epochs=3))  # after 2 s and after 3 s
    assert judge_file(soon, fast).passed
    assert judge_file(soon, slow).reason.startswith("time_to_accuracy 3 s, wanted <= 2.4 s")
    later = replace(soon, thresholds=(*CLAIMS, Threshold("time_to_accuracy", "s", at_most=3.0)))
    both = [(each, judge_file(later, each)) for each in (fast, slow)]
    assert judge_set(later, both).findings[-1].measured == 2.5
    never = judge_file(soon, parse_result("c", ran(accuracy=0.7)))
    assert [finding.outcome.value for finding in never.findings] == ["missed", "unmeasured", "undecided"]


def test_a_claim_on_any_derived_metric_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    row = DerivedMetric("evaluations", "times", lambda log: float(len(log.curve.evaluations)) if log.curve else "none")
    monkeypatch.setitem(DERIVED, row.name, row)
    case = replace(CASE, thresholds=(*CLAIMS, Threshold("evaluations", "times", at_least=2)))
    files = [(each, judge_file(case, each)) for each in (parse_result("a", ran()), parse_result("b", ran(epochs=3)))]
    assert [verdict.passed for _, verdict in files] == [True, True]
    assert judge_set(case, files).findings[-1].measured == 2.5


def test_a_failure_of_mlperfs_may_be_expected_too() -> None:
    claim = replace(CLAIMS[1], expected_failure=ExpectedFailure("the old data", "2027-01-31"))
    case, result = replace(CASE, thresholds=(CLAIMS[0], claim)), parse_result("a", ran(accuracy=0.7))
    assert judge_file(case, result, "2027-01-31").passed
    assert judge_file(case, result, "2027-02-01").ruling is Ruling.FAILED
    assert judge_set(case, [(result, judge_file(case, result, "2027-01-31"))], "2027-01-31").passed


def test_a_benchmark_of_another_name_is_another_only_where_mlperf_has_ours() -> None:
    lines = [event("submission_benchmark", 0, "resnet"), *ran()]
    assert judge_file(CASE, parse_result("a", lines)).passed
    own = replace(CASE, workload=replace(CASE.workload, name="my_network"))
    assert judge_file(own, parse_result("a", lines)).passed


@pytest.mark.parametrize(("seconds", "accuracy"), [(180, 0.76), (360, 0.76), (180, 0.7), (197, 0.759)])
def test_a_file_and_a_run_with_the_same_numbers_have_the_same_findings(seconds: int, accuracy: float) -> None:
    """`aisbench judge` and a first trial without a history: outcome, value, limit and text agree.

    A file by itself assumes no noise; the set that it is does, as a run does.
    """
    case = replace(CASE, thresholds=(*CLAIMS, Threshold("scaling", at_least=0.9, base="1x1")))
    file = parse_result("a", ran(seconds=seconds, accuracy=accuracy))
    measured = make_measurements(case, file.measured["throughput"] / 8, accuracy)
    trial = make_trial(case, run="now", step=Step.JUDGE, measurements=measured)
    plain, judged = (
        VerdictStep(Rules(assume_noise=assume_noise)).judge(trial, (), "2027-01-01").verdict
        for assume_noise in (False, True)
    )
    assert judge_file(case, file, "2027-01-01") == plain
    assert judge_set(case, [(file, plain)], "2027-01-01").findings == judged.findings


def test_blocks_of_epochs_count_as_their_epochs() -> None:
    block = {"first_epoch_num": 1, "epoch_count": 4}
    again = {"first_epoch_num": 5, "epoch_count": 4}
    lines = [
        event("run_start", 0),
        event("train_samples", 0, 1000),
        event("block_start", 0, **block),
        event("block_stop", 1, first_epoch_num=1),
        event("block_start", 1, **again),  # the run ended within it
        event("eval_accuracy", 1, 0.76, epoch_num=4),
        event("run_stop", 10_000, status="success"),
    ]
    assert parse_result("a", lines).measured["throughput"] == 400.0


def test_where_samples_are_counted_instead_of_epochs_the_tracked_throughput_is_taken() -> None:
    lines = [line.replace('"epoch_num": ', '"epoch_num": 79950') for line in ran()]
    lines[2:2] = [f" 0: {event('tracked_stats', 2, {'throughput': speed})}" for speed in (10.0, 30.0)]
    result = parse_result("bert", lines)
    assert result.measured["throughput"] == 15.0  # work by time
    assert result.throughput_from == "the mean of tracked_stats"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (ran(status="aborted"), "accuracy: run_stop says 'aborted'"),
        (ran(status=""), "run_stop has no status"),
        (ran(accuracy=0.7), "accuracy 0.7, wanted >= 0.759"),
        (ran(accuracy=76.0), "eval_accuracy 76 is not between 0 and 1"),
        (ran(accuracy=float("nan")), "eval_accuracy is not a finite number"),
        (ran(seconds=360), "throughput 7111.11 images/s, wanted >= 13000 images/s"),
        (ran(seconds=0), "run_stop is not after run_start"),
        (ran(samples=None), "its events tell no throughput"),
        (without("run_stop"), "run_stop is missing: the run did not end"),
        (without("run_start"), "run_start is missing"),
        (without("eval_accuracy"), "eval_accuracy is missing"),
        ([*ran(), *ran()], "it holds more than one run: run_start is told 2 times"),
        (
            [*ran(), event("run_stop", 180_000, status="success")],
            "it holds more than one run: run_stop is told 2 times",
        ),
        (
            [event("submission_benchmark", 0, "bert"), *ran()],
            "submission_benchmark is 'bert', and resnet50 is 'resnet'",
        ),
        ([*ran(), ':::MLLOG {"key": "eval_acc'], "line 11 is not an event of MLPerf's"),
        ([], "there is no line with :::MLLOG"),
    ],
)
def test_nothing_passes_by_accident(lines: list[str], text: str) -> None:
    verdict = judge_file(CASE, parse_result("a", lines))
    assert verdict.ruling is Ruling.FAILED
    assert text in str(verdict)


KEYS = st.sampled_from(
    ["run_start", "run_stop", "eval_accuracy", "train_samples", "epoch_stop", "block_stop", "throughput"]
)
JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just({"throughput": 10**400})


@given(
    st.lists(
        st.builds(
            lambda key, ms, value, number: event(key, ms, value, epoch_num=number, first_epoch_num=number),
            KEYS, JSON, JSON, JSON,
        )
        | st.text(max_size=20).map(":::MLLOG".__add__)
    )
)  # fmt: skip
@pytest.mark.slow
def test_no_file_breaks_the_judge(lines: list[str]) -> None:
    judge_file(CASE, parse_result("a", lines))


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    folder = tmp_path / "suites" / "resnet50"
    folder.mkdir(parents=True)
    (folder / "workload.toml").write_text(
        'name = "resnet50"\ncode = ["code"]\nentry = "train.py"\n[metrics.throughput]\nunit = "images/s"\n',
        encoding="utf-8",
    )
    (folder / "thresholds.toml").write_text(
        '[modelarts."*"]\n'
        'throughput = { reference = 14151.0, lower = -0.05, unit = "images/s", per = "node" }\n'
        "accuracy = { at_least = 0.759 }\n"
        '[local."*"]\nthroughput = { at_least = 1, unit = "images/s" }\naccuracy = { at_least = 0.1 }\n',
        encoding="utf-8",
    )
    return tmp_path / "suites"


def results(folder: Path, **files: list[str]) -> Path:
    for name, lines in files.items():
        (folder / "run" / name).mkdir(parents=True)
        (folder / "run" / name / f"result_{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "run" / "README.md").write_text("about :::MLLOG", encoding="utf-8")
    (folder / "run" / "notes.txt").write_text("nothing of interest", encoding="utf-8")
    return folder / "run"


def judge(suites: Path, folder: Path, *more: str) -> int:
    return main(["judge", str(folder), "--workload", "resnet50", "--suites", str(suites), *more])


def test_a_folder_is_judged_file_by_file_and_as_a_set(
    suites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = results(tmp_path, a=ran(), b=ran(seconds=185))
    assert judge(suites, folder) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in output if not line.startswith(" ")] == [
        "PASSED a/result_a.txt",
        "PASSED b/result_b.txt",
        "PASSED the set of 2",
    ]
    assert judge(suites, folder, "--shape", "2x8") == 1  # the claim is per node
    assert judge(suites, folder / "a" / "result_a.txt") == 0


def test_one_file_that_does_not_pass_fails_the_set(
    suites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = results(tmp_path, a=ran(), b=ran(status="aborted"), c=[])
    assert judge(suites, folder, "--json") == 1
    output = json.loads(capsys.readouterr().out)
    assert (output["schema"], output["exit_code"], output["set"]["verdict"]) == ("aisbench-judge/1", 1, "FAILED")
    assert output["set"]["reason"] == "2 of 3 did not pass: b/result_b.txt, c/result_c.txt"
    assert [each["verdict"] for each in output["files"]] == ["PASSED", "FAILED", "FAILED"]
    assert output["files"][1]["status"] == "aborted"


def test_packed_results_and_those_without_a_suffix_count_too(
    suites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "result_0.txt.gz").write_bytes(gzip.compress("\n".join(ran()).encode()))
    assert judge(suites, folder) == 0
    (folder / "result_1").write_text("\n".join(ran(status="aborted")), encoding="utf-8")
    (folder / "RUN.LOG").write_text("\n".join(ran(accuracy=0.1)), encoding="utf-8")
    capsys.readouterr()
    assert judge(suites, folder) == 1
    output = capsys.readouterr().out
    assert "PASSED result_0.txt.gz" in output
    assert "FAILED the set of 3: 2 of 3 did not pass: RUN.LOG, result_1" in output
    (folder / "result_0.txt.gz").write_bytes((folder / "result_0.txt.gz").read_bytes()[:-20])
    assert judge(suites, folder) == 4
    assert "result_0.txt.gz cannot be unpacked" in capsys.readouterr().err


def test_one_run_is_no_set_of_two(suites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = results(tmp_path, a=ran(), b=["another banner", *ran()], c=[], d=[])
    assert judge(suites, folder) == 1
    output = capsys.readouterr().out
    assert "PASSED a/result_a.txt" in output
    assert "FAILED b/result_b.txt: throughput: it is the same run as a/result_a.txt" in output
    assert "the same run as c" not in output, "two empty files are two runs that failed"


def test_the_platform_chooses_the_claims_and_no_result_is_no_pass(
    suites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = results(tmp_path, a=ran(seconds=9999))
    assert judge(suites, slow) == 1
    assert judge(suites, slow, "--platform", "local") == 0
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    assert judge(suites, tmp_path / "empty") == 5
    assert "nothing was judged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["--workload", "bert"], "holds a workload 'bert'; known: resnet50"),
        (["--shape", "8"], "'8' is not a shape"),
        (["--platform", "moon"], "unknown platform 'moon'"),
        (["--suites", "/none"], "there is no folder /none"),
    ],
)
def test_what_is_typed_wrong_is_one_line(
    change: list[str], text: str, suites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(suites, results(tmp_path, a=ran()), *change) == 4
    output = capsys.readouterr().err
    assert text in output
    assert output.count("\n") == 1


def read_back(results: dict[str, Any]) -> Result:
    submission = {"org": "us", "platform": "local", "status": "research"}
    return parse_result("ours", mlperf_log(results["started"], results["cases"][0], 1, submission).splitlines())


def test_a_run_of_ours_in_mlperfs_words_says_what_it_measured() -> None:
    result = read_back(results_json())
    assert result.measured == {"throughput": pytest.approx(3772.4), "accuracy": 0.998}
    assert (result.status, result.seconds, result.missing) == ("success", 6.04, ())
    assert read_back(results_json(outcome="missed")).status == "aborted"
    assert [each.text for each in read_back(results_json(accuracy=None)).missing] == [
        "run_stop says 'aborted'",
        "eval_accuracy is missing",
    ]
    assert (benchmark_name("resnet50_cifar10"), benchmark_name("bert"), benchmark_name("points")) == (
        "resnet",
        "bert",
        "points",
    )


@pytest.mark.parametrize(
    ("content", "case", "text"),
    [
        (None, "resnet50-1x8", "No such file"),
        ("[]", "resnet50-1x8", "is not a results.json"),
        ('{"cases": [{"id": "resnet50-1x8"}]}', "resnet50-1x8", "is not a results.json: 'trials'"),
        ('{"cases": [{"id": "resnet50-1x8", "trials": [{}]}]}', "resnet50-1x8", "is not a results.json: 'settings'"),
        (json.dumps(results_json()), "bert-1x8", "no trial of 'bert-1x8'; known: resnet50-1x8"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    content: str | None, case: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main(["mllog", case, "--results", str(file)]) == 4
    assert text in capsys.readouterr().err
