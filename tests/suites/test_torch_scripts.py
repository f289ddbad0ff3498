"""The PyTorch scripts without PyTorch: what torchrun is told, and what a rank is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import printed_json, run_python

SUITES = Path(__file__).parents[2] / "suites"
CODE = [SUITES / "torch_mlp" / "code", SUITES / "perceptron", SUITES / "miniature", SUITES / "image"]
V2 = {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "127.0.0.2,127.0.0.3", "MA_NUM_GPUS": "2", "MASTER_PORT": "7000"}


def told(expression: str, environment: dict[str, str], devices: Path) -> Any:
    """An expression on the node, among the code that is staged for the suite."""
    program = f"""
import json, pathlib, launch, launching, nodes, train
environment = {environment!r}
node = nodes.read_node(environment, pathlib.Path({str(devices)!r}))
print(json.dumps({expression}))
"""
    return printed_json(CODE, program)


def test_nodes_that_train_together_meet_at_the_first(tmp_path: Path) -> None:
    command = told("launch.command(node, 'logs')", V2, tmp_path)
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert set(command[3:]) == {
        *("--nnodes=2", "--node_rank=1", "--nproc_per_node=2", "--local_addr=127.0.0.3"),
        *("--master_addr=127.0.0.2", "--master_port=7000", "--log_dir=logs", "--tee=3"),
    }


def test_a_node_that_trains_alone_knows_of_no_other(tmp_path: Path) -> None:
    """Nor does it need the port that the platform named: two such nodes may be one machine."""
    command = told("launch.command(node.by_itself(), 'logs')", V2, tmp_path)
    assert set(command[3:]) == {
        *("--standalone", "--nproc_per_node=2", "--local_addr=127.0.0.3", "--log_dir=logs", "--tee=3")
    }


def test_torchrun_gets_no_key_and_on_one_machine_the_loopback(tmp_path: Path) -> None:
    ranks = "launching.for_ranks(launch.LAUNCHER, node, environment)"
    kept = told(ranks, {**V2, "SECRET_ACCESS_KEY": "SK", "PATH": "/bin"}, tmp_path)
    assert "SECRET_ACCESS_KEY" not in kept
    assert (kept["PATH"], kept["GLOO_SOCKET_IFNAME"]) == ("/bin", "lo")
    assert "GLOO_SOCKET_IFNAME" not in told(ranks, {**V2, "VC_WORKER_HOSTS": "10.0.0.1,10.0.0.2"}, tmp_path)


def test_a_rank_is_numbered_by_torchrun(tmp_path: Path) -> None:
    job = "(lambda job: [job.rank, job.size, job.all_ranks, job.server])(train.read(['--train_url=/out'], environment))"
    assert told(job, {**V2, "RANK": "3", "WORLD_SIZE": "4"}, tmp_path) == [3, 4, 4, None]
    alone = {**V2, "RANK": "1", "WORLD_SIZE": "2", "SINGLESERVER_MODE": "True"}
    assert told(job, alone, tmp_path) == [1, 2, 4, 1]


@pytest.mark.parametrize(("script", "whose"), [("train.py", "0"), ("launch.py", "of this node")])
@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_torch_a_job_ends_with_one_line(script: str, whose: str, tmp_path: Path) -> None:
    done = run_python(CODE, CODE[0] / script, f"--train_url={tmp_path}")
    assert done.returncode == 1
    assert done.stderr == f"[ERROR] rank {whose}: torch is not installed for {sys.executable}\n"
