"""MLPerf's own checker reads the logs that `aisbench mllog` writes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from factories import results_json

from pytest_aisbench.cli import main


@pytest.mark.parametrize(
    ("workload", "rules"), [("resnet50", "1.1.0"), ("resnet50", "4.0.0"), ("bert", "2.0.0"), ("bert", "5.0.0")]
)
def test_mlperfs_own_checker_accepts_it(workload: str, rules: str, tmp_path: Path) -> None:
    if not importlib.util.find_spec("mlperf_logging"):
        pytest.skip("mlperf-logging comes with the extra [dev]")
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
