"""The two jobs of the Apulis platform's guide, from the suites as they are shipped, on the local cloud's Apulis."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from yard import Yard

from pytest_aisbench.localcloud.server import LocalCloud

ROOT = Path(__file__).parents[2]


def run(reports: Path, card: Path, *arguments: str, timeout: float = 300) -> tuple[Path, dict[str, Any]]:
    """The folder of the run's reports, and its cases by their ids."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "--aisbench-tester", "none"]
    command += ["--aisbench-platform", "apulis", "--aisbench-cloud", str(card), "--aisbench-reports", str(reports)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((reports / "latest/results.json").read_text())["cases"]
    return reports / "latest", {case["id"]: case for case in cases}


def weights(reports: Path, case: str) -> list[str]:
    """The checksums that all ranks told, in the logs of all nodes."""
    logs = "".join(log.read_text() for log in sorted((reports / "logs" / case / "1").glob("worker-*.log")))
    return re.findall(r"weights crc32:(\w{8})$", logs, re.MULTILINE)


def request(reports: Path, case: str) -> dict[str, Any]:
    (told,) = _tables(json.loads((reports / "requests" / f"{case}.json").read_text()))
    return told


def _tables(value: Any) -> list[dict[str, Any]]:
    """The bodies of PostJob in it, wherever they stand."""
    if isinstance(value, dict):
        return [value] if "jobtrainingtype" in value else [row for part in value.values() for row in _tables(part)]
    return [row for part in value for row in _tables(part)] if isinstance(value, list) else []


@pytest.mark.slow(seconds=10)
def test_two_nodes_of_npus_and_two_of_gpus_train_what_the_suites_say(yard: Yard) -> None:
    suites = [f"suites/{name}" for name in ("resnet50_cifar10", "horovod_mnist")]
    reports, cases = run(yard.folder / "reports", yard.card, *suites, "--nodes", "2")
    assert {name: case["verdict"] for name, case in cases.items()} == {
        "resnet50_cifar10-2x8": "PASSED",
        "horovod_mnist-2x8": "PASSED",
    }
    for name, case in cases.items():
        told = weights(reports, name)
        assert (len(told), len(set(told))) == (16, 1), name
        assert len(case["trials"][0]["throughput_by_rank"]) == 16
        assert case["trials"][0]["platform_phase"] == "finished"
    npu, gpu = (request(reports, name) for name in ("resnet50_cifar10-2x8", "horovod_mnist-2x8"))
    for body in (npu, gpu):
        assert (body["jobtrainingtype"], body["numps"], body["numpsworker"], body["resourcegpu"]) == (
            "PSDistJob", 1, 2, 8,
        )  # fmt: skip
    assert (npu["gpuType"], gpu["gpuType"]) == ("huawei_npu_arm64", "nvidia_gpu_amd64")
    assert "hccl_ms.json" in npu["workerCmd"]
    assert "sleep infinity" in npu["masterCmd"]
    assert re.search(r'horovodrun -np 16 -hostfile "\$hosts"', gpu["masterCmd"])
    assert gpu["endpoints"] == ["ssh", "ipython", "tensorboard"]


# The same by the frameworks themselves, in a Python that has them.


@pytest.mark.parametrize(
    ("framework", "suite", "nodes", "devices"),
    [("horovod", "horovod_mnist", 1, 2), ("horovod", "horovod_mnist", 2, 1), ("mindspore", "resnet50_cifar10", 1, 2)],
)
def test_pods_train_with_the_framework_of_their_image(
    framework: str, suite: str, nodes: int, devices: int, tmp_path: Path
) -> None:
    python = os.environ.get(f"{framework.upper()}_PYTHON")
    if not python:
        pytest.skip(f"{framework.upper()}_PYTHON names no Python that has it")
    card = tmp_path / "card.json"
    with LocalCloud(interpreters={framework: python}) as cloud:
        card.write_text(json.dumps(cloud.card()))
        shape = ["--nodes", str(nodes), "--aisbench-devices", str(devices), "--aisbench-frameworks", framework]
        reports, cases = run(tmp_path / "reports", card, f"suites/{suite}", *shape, timeout=900)
    (case,) = cases.values()
    assert case["metrics"]["accuracy"]["value"] > 0.9
    told = weights(reports, case["id"])
    assert (len(told), len(set(told))) == (nodes * devices, 1)
