"""The suites of images of one's own, trained by PaddlePaddle and by PyTorch themselves, each by its own launcher.

On CPU, in a Python that has the framework: PADDLE_PYTHON=FILE, TORCH_PYTHON=FILE.
"""

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
PYTHONS = {name: os.environ.get(f"{name.upper()}_PYTHON", "") for name in ("paddle", "torch")}
each_framework = pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=pytest.mark.skipif(not python, reason=f"{name.upper()}_PYTHON names no Python"))
        for name, python in PYTHONS.items()
    ],
)


def train(
    framework: str, reports: Path, nodes: int, devices: int, *options: str
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The only case as results.json tells it, and the checksums of the weights on each node, by rank."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "suites" / f"{framework}_mlp"), "-q", *options]
    command += ["--nodes", str(nodes), "--aisbench-devices", str(devices), "--aisbench-tester", "none"]
    command += ["--aisbench-frameworks", f"{framework}={PYTHONS[framework]}", "--aisbench-reports", str(reports)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((reports / "latest/results.json").read_text())["cases"]
    assert case["metrics"]["accuracy"]["value"] > 0.9
    return case, checksums(reports, case["id"])


@each_framework
@pytest.mark.parametrize("api", ["V1", "V2"])
@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 2), (2, 2)])
def test_every_rank_ends_with_the_same_weights(
    framework: str, api: str, nodes: int, devices: int, tmp_path: Path
) -> None:
    case, weights = train(framework, tmp_path, nodes, devices, "--aisbench-modelarts-version", api)
    assert len(case["trials"][0]["throughput_by_rank"]) == nodes * devices
    assert [len(told) for told in weights.values()] == [devices] * nodes
    assert len({told for of_node in weights.values() for told in of_node}) == 1


@each_framework
def test_a_server_that_trains_alone_has_weights_and_results_of_its_own(framework: str, tmp_path: Path) -> None:
    case, weights = train(framework, tmp_path, 2, 2, "--aisbench-single-server")
    assert len(case["trials"][0]["accuracy_by_server"]) == 2
    assert [len(told) for told in weights.values()] == [2, 2]
    assert [len(set(told)) for told in weights.values()] == [1, 1]
