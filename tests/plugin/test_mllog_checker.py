"""MLPerf's own tools are the referee: they read logs as we do, and accept those that `aisbench mllog` writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from factories import results_json
from mlperf_logs import CONTRADICTORY, READABLE

from pytest_aisbench.cli import main
from pytest_aisbench.config.toml_document import parse_or_empty
from pytest_aisbench.traininglog.mlperf import RUNS_OF_A_SET, parse_result
from pytest_aisbench.traininglog.readers import MLLOG, parse_event


@pytest.mark.parametrize(
    ("workload", "rules"), [("resnet50", "1.1.0"), ("resnet50", "4.0.0"), ("bert", "2.0.0"), ("bert", "5.0.0")]
)
def test_mlperfs_own_checker_accepts_it(workload: str, rules: str, tmp_path: Path) -> None:
    source, made = tmp_path / "results.json", tmp_path / "result_0.txt"
    source.write_text(json.dumps(results_json(workload=workload)), encoding="utf-8")
    (tmp_path / "logs").mkdir()
    log = "".join(f"epoch: {epoch} step: 9, loss is 1\n" * 8 for epoch in (1, 2, 3, 4))  # eight ranks write to it
    (tmp_path / "logs" / "worker-0.log").write_text(log, encoding="utf-8")
    assert main(["mllog", f"{workload}-1x8", "--results", str(source), "--output", str(made)]) == 0
    assert '"epoch_count": 4' in made.read_text(encoding="utf-8")
    checker = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", rules]
    for file, code in ((made, 0), (tmp_path / "broken.txt", 1)):
        if code:
            file.write_text(made.read_text(encoding="utf-8").replace("run_stop", "run_pause"), encoding="utf-8")
        done = subprocess.run(
            [*checker, "--log_output", tmp_path / "log", file], capture_output=True, text=True, check=False
        )
        assert bool(done.returncode) is bool(code), done.stderr


TOTALLED = ("bert, total at the end",)  # what they count is in no evaluation


@pytest.fixture(scope="module")
def referee() -> Any:
    """The checker of reference convergence points, which counts what a run has trained."""
    from mlperf_logging.rcp_checker import rcp_checker  # with scipy, which takes a second

    return rcp_checker


@pytest.mark.slow
def test_samples_are_counted_as_by_the_checker_of_convergence(referee: Any, tmp_path: Path) -> None:
    logs = {**READABLE, **{name: log for name, (log, _) in CONTRADICTORY.items()}}
    for name, log in logs.items():
        file = tmp_path / "result_0.txt"
        file.write_text(log.text, encoding="utf-8")
        diverged, epochs, batch, benchmark = referee.read_submission_file(str(file), "4.0.0", use_train_samples=False)
        ours = parse_result(name, log.lines)
        assert (diverged, benchmark) == (0, ours.benchmark), name
        assert (epochs, batch) == (ours.epoch_num, ours.declared["global_batch_size"]), name
        if name in READABLE and name not in TOTALLED:
            unit = 1 if benchmark == "bert" else ours.declared["train_samples"]
            assert ours.samples == epochs * unit, name
            assert ours.measured["throughput"] == pytest.approx(epochs * unit / log.seconds), name


@pytest.mark.slow
def test_the_total_that_bert_declares_is_what_the_checker_may_count_instead(referee: Any, tmp_path: Path) -> None:
    """With `--bert_train_samples` it takes `train_samples` as samples: never times anything."""
    for name in ("nvidia bert", "bert, blocks of evaluations", *TOTALLED):
        log, file = READABLE[name], tmp_path / "result_0.txt"
        file.write_text(log.text, encoding="utf-8")
        counted = referee.read_submission_file(str(file), "4.0.0", use_train_samples=True)[1]
        assert counted == log.samples == parse_result(name, log.lines).samples


@pytest.mark.parametrize("name", READABLE)
def test_lines_are_parsed_as_by_the_compliance_checker(name: str, tmp_path: Path) -> None:
    from mlperf_logging.compliance_checker.mlp_parser import parse_file

    file = tmp_path / "result_0.txt"
    file.write_text(READABLE[name].text, encoding="utf-8")
    theirs, failed = parse_file(str(file), ruleset="4.0.0")
    ours = [event for line in READABLE[name].lines if MLLOG in line and (event := parse_event(line))]
    assert not failed
    assert [(line.timestamp, line.key, line.value) for line in theirs] == [
        (event["time_ms"], event["key"], {"value": event["value"], "metadata": event["metadata"]}) for event in ours
    ]


def test_the_number_of_runs_is_mlperfs() -> None:
    from mlperf_logging import benchmark_meta

    theirs = benchmark_meta._ALL_RESULT_FILE_COUNTS["training"]
    assert {name: theirs[name] for name in RUNS_OF_A_SET} == RUNS_OF_A_SET


def test_the_floor_of_resnet50_is_mlperfs_target() -> None:
    import mlperf_logging

    rules = Path(mlperf_logging.__file__).parent / "compliance_checker"
    targets = {
        float(found[1])
        for file in rules.glob("training_*/closed_resnet.yaml")
        for found in re.finditer(r"v\['value'\] >= ([\d.]+)", file.read_text(encoding="utf-8"))
    }
    shipped = Path(__file__).parents[2] / "suites/resnet50/thresholds.toml"
    claims = parse_or_empty(shipped.read_text(encoding="utf-8"))
    assert [claims[platform]["*"]["accuracy"] for platform in ("modelarts", "apulis")] == [{"at_least": 0.759}] * 2
    assert targets == {0.759}
