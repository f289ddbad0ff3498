"""The suite of PyTorch trained by itself, started by torchrun, on CPU, in a Python that has it: TORCH_PYTHON=FILE."""

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
PYTHON = os.environ.get("TORCH_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="TORCH_PYTHON names no Python that has PyTorch")


def train(reports: Path, nodes: int, devices: int, *options: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The only case as results.json tells it, and the checksums of the weights on each node, by rank."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "suites/torch_mlp"), "-q"]
    command += ["--nodes", str(nodes), "--aisbench-devices", str(devices), *options]
    command += ["--aisbench-frameworks", f"torch={PYTHON}", "--aisbench-reports", str(reports)]
    done = subprocess.run(
        [*command, "--aisbench-tester", "none"], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((reports / "latest/results.json").read_text())["cases"]
    return case, checksums(reports, case["id"])


@pytest.mark.parametrize("api", ["V1", "V2"])
@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 2), (2, 2)])
def test_every_rank_ends_with_the_same_weights(api: str, nodes: int, devices: int, tmp_path: Path) -> None:
    case, weights = train(tmp_path, nodes, devices, "--aisbench-modelarts-version", api)
    assert case["metrics"]["accuracy"]["value"] > 0.9
    assert len(case["trials"][0]["throughput_by_rank"]) == nodes * devices
    assert [len(found) for found in weights.values()] == [devices] * nodes
    assert len({found for node in weights.values() for found in node}) == 1


def test_a_server_that_trains_alone_has_weights_and_results_of_its_own(tmp_path: Path) -> None:
    case, weights = train(tmp_path, 2, 2, "--aisbench-single-server")
    assert len(case["trials"][0]["accuracy_by_server"]) == 2
    assert [len(set(found)) for found in weights.values()] == [1, 1]
