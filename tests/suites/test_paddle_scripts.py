"""The PaddlePaddle scripts without PaddlePaddle: what a node of V1 and of V2 is told, and what it starts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import printed_json, run_python

SUITES = Path(__file__).parents[2] / "suites"
CODE = [SUITES / "paddle_mlp" / "code", SUITES / "perceptron", SUITES / "miniature", SUITES / "image"]
V1 = {
    "DLS_TASK_INDEX": "1",
    "DLS_TASK_NUMBER": "2",
    "DLS_TRAIN_URL": "s3://bucket/out/",
    "DLS_DATA_URL": "s3://bucket/no-data/",
    "BATCH_CURRENT_HOST": "10.0.0.2",
    "BATCH_CURRENT_PORT": "7001",
    "BATCH_CUSTOM0_HOSTS": "10.0.0.1:7000",
    "BATCH_CUSTOM1_HOSTS": "10.0.0.2:7001",
    "epochs": "3",
}
V2 = {
    "VC_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "ma-job-1-worker-0.ma-job-1,ma-job-1-worker-1.ma-job-1",
    "MA_NUM_GPUS": "2",
}


def told(expression: str, environment: dict[str, str], devices: Path) -> Any:
    """An expression on the node, among the code that is staged for the suite."""
    program = f"""
import dataclasses, json, pathlib, contract, launch, launching, nodes, train
environment = {environment!r}
try:
    node = nodes.read_node(environment, pathlib.Path({str(devices)!r}))
    print(json.dumps({expression}))
except contract.ContractError as error:
    print(json.dumps("refused: " + str(error)))
"""
    return printed_json(CODE, program)


def test_v1_names_the_nodes_with_their_ports_and_hosts_are_without(tmp_path: Path) -> None:
    node = {"index": 1, "hosts": ["10.0.0.1", "10.0.0.2"], "port": 7000, "cards": 1, "accelerated": False}
    assert told("dataclasses.asdict(node)", V1, tmp_path) == node


def test_v2_names_the_nodes_without_ports(tmp_path: Path) -> None:
    hosts = ["ma-job-1-worker-0.ma-job-1", "ma-job-1-worker-1.ma-job-1"]
    node = {"index": 1, "hosts": hosts, "port": 6170, "cards": 2, "accelerated": False}
    assert told("dataclasses.asdict(node)", V2, tmp_path) == node


def test_one_node_of_v1_has_no_list_of_hosts(tmp_path: Path) -> None:
    alone = {"DLS_TASK_INDEX": "0", "DLS_TASK_NUMBER": "1", "BATCH_CURRENT_HOST": "10.0.0.1"}
    assert told("node.hosts", alone, tmp_path) == ["10.0.0.1"]


@pytest.mark.parametrize("kind", ["nvidia", "davinci"])
def test_cards_are_counted_where_the_platform_does_not_tell(kind: str, tmp_path: Path) -> None:
    for name in (f"{kind}0", f"{kind}1", f"{kind}2", f"{kind}ctl", f"{kind}_manager"):
        (tmp_path / name).touch()
    assert told("[node.cards, node.accelerated]", V1, tmp_path) == [3, True]
    assert told("[node.cards, node.accelerated]", V2, tmp_path) == [2, True]


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        ({**V1, "DLS_TASK_NUMBER": "3"}, "there are 3 nodes, and BATCH_CUSTOM2_HOSTS is not set"),
        ({**V2, "VC_TASK_INDEX": "2"}, "this is node 2, and there are 2: "),
        ({**V1, "DLS_TASK_INDEX": "one"}, "DLS_TASK_INDEX='one' is not a number"),
        ({**V1, "BATCH_CUSTOM0_HOSTS": "10.0.0.1:first"}, "BATCH_CUSTOM0_HOSTS='first' is not a number"),
    ],
)
def test_what_a_platform_forgets_is_said(environment: dict[str, str], fault: str, tmp_path: Path) -> None:
    assert told("node.index", environment, tmp_path).startswith(f"refused: {fault}")


def test_nodes_that_train_together_meet_at_the_ports_of_the_first(tmp_path: Path) -> None:
    command = told("launch.command(node, 'logs')", V1, tmp_path)
    assert command[1:3] == ["-m", "paddle.distributed.launch"]
    assert {"--ips=10.0.0.1,10.0.0.2", "--host=10.0.0.2", "--start_port=7000", "--nproc_per_node=1"} <= set(command)


def test_a_node_that_trains_alone_knows_of_no_other(tmp_path: Path) -> None:
    command = told("launch.command(node.by_itself(), 'logs')", V2, tmp_path)
    assert "--nproc_per_node=2" in command
    assert not [argument for argument in command if argument.startswith(("--ips", "--host"))]


def test_cards_are_named_where_there_are_some(tmp_path: Path) -> None:
    for card in range(2):
        (tmp_path / f"davinci{card}").touch()
    assert "--devices=0,1" in told("launch.command(node.by_itself(), 'logs')", V2, tmp_path)
    assert "PADDLE_DISTRI_BACKEND" not in told("launching.for_ranks(launch.LAUNCHER, node, environment)", V2, tmp_path)


def test_parameters_of_v1_are_variables_and_of_v2_arguments(tmp_path: Path) -> None:
    by_v1 = told("nodes.arguments(train.parser(), [], environment)", V1, tmp_path)
    assert by_v1 == ["--epochs=3", "--train_url=s3://bucket/out/", "--data_url=s3://bucket/no-data/"]
    argv = "['--train_url=/out', '--epochs=3']"
    assert told(f"nodes.arguments(train.parser(), {argv}, environment)", V2, tmp_path) == [
        "--train_url=/out",
        "--epochs=3",
    ]


def test_the_launcher_which_writes_its_environment_down_gets_no_key(tmp_path: Path) -> None:
    keys = {"ACCESS_KEY_ID": "AK", "SECRET_ACCESS_KEY": "SK", "SECURITY_TOKEN": "T", "OBS_SK": "S"}
    kept = told(
        "launching.for_ranks(launch.LAUNCHER, node, environment)",
        {**V1, **keys, "PADDLE_MASTER": "x", "PATH": "/bin"},
        tmp_path,
    )
    assert not set(kept) & {*keys, "PADDLE_MASTER"}
    assert kept["PATH"] == "/bin"
    assert kept["PADDLE_DISTRI_BACKEND"] == "gloo"


def test_a_rank_is_numbered_by_the_launcher(tmp_path: Path) -> None:
    rank = {**V2, "PADDLE_TRAINER_ID": "3", "PADDLE_TRAINERS_NUM": "4"}
    job = "(lambda job: [job.rank, job.size, job.all_ranks, job.server])(train.read(['--train_url=/out'], environment))"
    assert told(job, rank, tmp_path) == [3, 4, 4, None]
    alone = {**V2, "PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2", "SINGLESERVER_MODE": "True"}
    assert told(job, alone, tmp_path) == [1, 2, 4, 1]


def test_the_reason_is_of_the_rank_that_failed_by_itself(tmp_path: Path) -> None:
    logs = "[['a', 'Terminated', ''], ['b', '[ERROR] rank 1: no data']]"
    assert told(f"launching.reason({logs})", V2, tmp_path) == "[ERROR] rank 1: no data"
    assert told("launching.reason([['a', 'ValueError: x'], []])", V2, tmp_path) == "ValueError: x"
    assert told("launching.reason([[]])", V2, tmp_path) == "the ranks said nothing"


@pytest.mark.parametrize(("script", "whose"), [("train.py", "0"), ("launch.py", "of this node")])
@pytest.mark.skipif(importlib.util.find_spec("paddle") is not None, reason="PaddlePaddle is installed here")
def test_without_paddle_a_job_ends_with_one_line(script: str, whose: str, tmp_path: Path) -> None:
    done = run_python(CODE, CODE[0] / script, f"--train_url={tmp_path}")
    assert done.returncode == 1
    assert done.stderr == f"[ERROR] rank {whose}: paddle is not installed for {sys.executable}\n"
