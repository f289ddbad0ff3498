"""The requests to Apulis, against requests written by hand from its guide."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from apulis_request import ACCESS, GPU, SPEC, rendered

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.platforms.apulis import request, watch
from pytest_aisbench.platforms.apulis.settings import ENDPOINTS

# The seed's two-node job, as the platform's own page submits it.
TWO_NODES = {
    "jobName": "resnet50-2x8-r-0a1b2c",
    "description": "aisbench resnet50-2x8 trial r/resnet50-2x8/1",
    "userName": "admin",
    "vcName": "platform",
    "team": "platform",
    "jobType": "training",
    "jobtrainingtype": "PSDistJob",
    "gpuType": "huawei_npu_arm64",
    "resourcegpu": 8,
    "numps": 1,
    "numpsworker": 2,
    "preemptionAllowed": "False",
    "image": "apulistech/mindspore:0.3.0-withtools",
    "containerUserId": 0,
    "hostNetwork": True,
    "isPrivileged": True,
    "workPath": "./",
    "dataPath": "./",
    "jobPath": "./",
    "enableworkpath": True,
    "enabledatapath": True,
    "enablejobpath": True,
    "env": [{"name": "AIS_LOGS", "value": "obs://share/aisbench/trials/r/resnet-2x8/1/logs/"}],
    "interactivePorts": "",
    "plugins": {},
    "frameworkType": "mindspore",
    "masterCmd": "bash -c 'echo AISBENCH_IDLE; exec sleep infinity'",
}


def test_two_nodes_are_the_seeds_distributed_job() -> None:
    body = rendered(SPEC)
    command = body.pop("cmd")
    assert body.pop("workerCmd") == command
    assert body == {**TWO_NODES, "jobId": body["jobId"]}  # the id has a test of its own


def test_one_node_is_a_regular_job() -> None:
    body = rendered(replace(SPEC, shape=Shape(1, 8)))
    changed = {"jobtrainingtype": "RegularJob", "hostNetwork": False, "isPrivileged": False}
    dropped = {"numps", "numpsworker", "masterCmd"}
    expected = {key: value for key, value in {**TWO_NODES, **changed}.items() if key not in dropped}
    assert {key: value for key, value in body.items() if key not in {"cmd", "jobId"}} == expected


def test_an_id_is_the_names_own() -> None:
    ids = {rendered(replace(SPEC, name=name))["jobId"] for name in ("a", "a", "a-1", "b")}
    assert len(ids) == 3
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", each) for each in ids)


def test_options_reach_the_request() -> None:
    options = {**GPU, "preemptible": True, "endpoints": ["ssh", "tensorboard"], "done": "ALL DONE"}
    body = rendered(replace(SPEC, options=options, shape=Shape(1, 3)))
    assert body["gpuType"] == "nvidia_gpu_amd64"
    assert body["preemptionAllowed"] == "True"
    assert body["endpoints"] == ["ssh", "tensorboard"]
    assert {"name": "AIS_UNTIL", "value": "ALL%20DONE"} in body["env"]
    assert "logDir" not in body  # it would start a second job under the same id


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": Shape(2, 4)}, "several nodes train with 8 NPUs"),
        ({"shape": Shape(1, 3)}, "gives no 3 NPUs"),
        ({"name": "no name"}, "cannot be the name"),
        ({"environment": {"DLWS_ROLE_IDX": "0"}}, "DLWS_ and DLTS_ are the platform's"),
        ({"environment": {"A-B": "0"}}, "'A-B' cannot be an environment variable"),
        ({"parameters": {"train_url": "x"}}, "train_url is set by the platform"),
        ({"parameters": {"a b": "x"}}, "'a b' cannot be a parameter"),
        ({"options": {"image": "i", "done": 1}}, r"\[apulis\] done in workload.toml is not text"),
        ({"options": {}}, "image is missing"),
        ({"options": {"image": "i", "launcher": "mpi"}}, "'mpi' is not known; write one of ranks, horovod"),
        ({"options": {"image": "i", "endpoints": ["telnet"]}}, "choose among ssh"),
        ({"options": {"image": "i", "endpoints": "ssh"}}, "choose among ssh"),
        ({"options": {"image": "i", "device_type": "a b"}}, "'a b' is not a name"),
        ({"options": {"image": "i", "preemptible": "no"}}, "neither true nor false"),
        ({"options": {"image": "i", "code_dir": "code"}}, "not an absolute path"),
        ({"options": {"image": "i", "command": "&& sleep infinity"}}, "trains nothing"),
        ({"options": {"image": "i", "command": "a\nb"}}, "several lines"),
        ({"options": {"image": "i", "command": "a && sleep infinity && b"}}, "command .* never ends; write done too"),
        ({"options": {"image": "i", "command": "a; tail -f /dev/null"}}, "command .* never ends; write done too"),
        ({"options": {**GPU, "command": "cd ~ && horovodrun -np 16 python a.py"}}, "horovodrun on every node"),
        ({"options": {"image": "i", "command": "a", "launcher": "horovod"}}, "both command and launcher"),
        (
            {"options": {**GPU, "launcher": "horovod"}, "environment": {"SINGLESERVER_MODE": "True"}},
            "no node trains alone; leave --aisbench-single-server out",
        ),
    ],
)
def test_what_cannot_run_is_not_sent(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        rendered(replace(SPEC, **changed))


def test_a_script_may_be_given_its_urls_as_variables() -> None:
    command = rendered(replace(SPEC, urls_by="environment"))["cmd"]
    assert "--train_url=" not in command
    assert re.search(r'exec env train_url=\S+/outputs/ "\$python" train\.py --epoch_size=90 ', command), command
    assert "--train_url=" in rendered(SPEC)["cmd"]


def test_a_command_may_wait_for_ever_where_it_says_when_it_is_done() -> None:
    options = {**GPU, "command": "a && tail -f /dev/null", "done": "ALL DONE", "endpoints": list(ENDPOINTS)}
    body = rendered(replace(SPEC, options=options))
    assert "tail -f /dev/null" in body["workerCmd"]
    assert body["endpoints"] == ["ssh", "ipython", "tensorboard", "vscode"]


def test_a_launcher_of_one_node_may_be_a_command() -> None:
    options = {**GPU, "command": "horovodrun -np 8 python train.py"}
    assert "horovodrun" in rendered(replace(SPEC, shape=Shape(1, 8), options=options))["cmd"]
    alone = replace(SPEC, options=options, environment={"SINGLESERVER_MODE": "True"})
    assert "horovodrun" in rendered(alone)["workerCmd"]


def test_pods_know_the_share_by_their_own_path_or_by_ours() -> None:
    spec = replace(SPEC, inputs=StoreUrl("share", "aisbench/data/1/"))
    assert "--data_url=/data/ais/aisbench/data/1/" in rendered(spec)["workerCmd"]
    same = rendered(spec, replace(ACCESS, share_in_pods=""))["workerCmd"]
    assert "--data_url=/mnt/apulis/aisbench/data/1/" in same
    theirs = rendered(replace(spec, options={**SPEC.options, "data_dir": "/data/cifar"}))["workerCmd"]
    assert "--data_url=/data/cifar" in theirs


@pytest.mark.parametrize(
    ("changed", "nodes", "speakers"),
    [({"shape": Shape(1, 8)}, 1, 1), ({}, 2, 2), ({"options": {**GPU, "launcher": "horovod"}}, 2, 1)],
)
def test_a_job_tells_who_says_that_it_is_done(changed: dict[str, Any], nodes: int, speakers: int) -> None:
    """To whoever takes it over: a launcher speaks for all nodes."""
    facts = request.job_facts(rendered(replace(SPEC, **changed)))
    assert (facts.nodes, facts.speakers, facts.logs, facts.until) == (nodes, speakers, SPEC.logs, "")
    assert request.job_facts({}).nodes == 1, "one that is not ours"


# The log, as the platform writes it.

RULES = "=" * 57 + "\n"


def page(**pods: str) -> str:
    text = ""
    for pod, log in pods.items():
        for word in ("logs from pod", "end of logs from pod"):
            heading = f"{RULES * 3}        {word}: j-{pod}\n{RULES * 3}"
            text += heading + (log if word.startswith("logs") else "\n")
    return text


def test_a_log_is_told_apart_by_pods() -> None:
    logs = watch.split_pods(page(ps0="AISBENCH_IDLE\n", worker0="a\n" + RULES + "b\n", worker1="c\n"))
    assert watch.text_of_node(logs, 0) == "a\n" + RULES + "b\n"
    assert watch.text_of_node(logs, 1) == "c\n"
    assert watch.text_of_node(logs, 2) == ""
    assert watch.text_of_node(watch.split_pods("only\n"), 0) == "only\n"


def test_a_launcher_speaks_for_the_first_node() -> None:
    logs = watch.split_pods(page(ps0="[1,0]: epoch 1\n", worker0="AISBENCH_IDLE\n", worker1="AISBENCH_IDLE\n"))
    assert watch.text_of_node(logs, 0) == "[1,0]: epoch 1\n"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("DLTS_JOB_TOKEN=abc", "DLTS_JOB_TOKEN=***"),
        ("PASSWORD=two words, 'three'", "PASSWORD=***"),
        ("export MY_SK='x y'", "export MY_SK=***"),
        ('declare -x IDENTITY_TOKEN="eyJ0"', "declare -x IDENTITY_TOKEN=***"),
        ("[3]<stdout>:PASSWORD=two words", "[3]<stdout>:PASSWORD=***"),
        ("PASSWORD: hunter2", "PASSWORD: ***"),
        ("+ PASSWORD='two words' ./run.sh", "+ PASSWORD=*** ./run.sh"),
        ("{'IDENTITY_TOKEN': 'eyJ0', 'RANK_ID': '0'}", "{'IDENTITY_TOKEN': ***, 'RANK_ID': '0'}"),
        ("Authorization: Bearer 0123456789abcdef0", "Authorization: Bearer ***"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJ1aWQiOjF9.a-_ it is", "token *** it is"),
        ("loss=2.5, 900 tokens: 3", "loss=2.5, 900 tokens: 3"),
        ("RANK_SIZE=16 DEVICE_ID=0", "RANK_SIZE=16 DEVICE_ID=0"),
    ],
)
def test_tokens_that_a_script_prints_are_masked(line: str, left: str) -> None:
    assert watch.split_pods(page(worker0=f"{line}\n"))["j-worker0"] == f"{left}\n"


def test_a_line_without_end_is_read_too() -> None:
    """In no more than a moment, and not in the square of its length."""
    text = "TOKEN" * 200_000 + "\n"
    assert watch.split_pods(text) == {"": text}
