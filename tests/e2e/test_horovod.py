"""The suite of Horovod trained by Horovod itself, on CPU, in a Python that has it: HOROVOD_PYTHON=FILE."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frameworks import checksums

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("HOROVOD_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="HOROVOD_PYTHON names no Python that has Horovod")


def train(reports: Path, *options: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The only case as results.json tells it, and the checksums of the weights on each node."""
    command = [sys.executable, "-m", "pytest", "suites/horovod_mnist", "-q", "--aisbench-reports", str(reports)]
    command += ["--aisbench-frameworks", f"horovod={PYTHON}", "--aisbench-tester", "none", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((reports / "latest/results.json").read_text())["cases"]
    assert case["metrics"]["accuracy"]["value"] > 0.9
    return case, checksums(reports, case["id"])


@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 2), (2, 2)])
def test_every_rank_ends_with_the_same_weights(nodes: int, devices: int, tmp_path: Path) -> None:
    """A platform that starts a process for each card, and no launcher."""
    case, weights = train(tmp_path, "--nodes", str(nodes), "--aisbench-devices", str(devices))
    assert len(case["trials"][0]["throughput_by_rank"]) == nodes * devices
    assert [len(told) for told in weights.values()] == [devices] * nodes
    assert len({told for of_node in weights.values() for told in of_node}) == 1


def test_a_server_that_trains_alone_has_weights_and_results_of_its_own(tmp_path: Path) -> None:
    case, weights = train(tmp_path, "--nodes", "2", "--aisbench-devices", "1", "--aisbench-single-server")
    assert len(case["trials"][0]["accuracy_by_server"]) == 2
    assert [len(told) for told in weights.values()] == [1, 1]
