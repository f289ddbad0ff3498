"""The command that Apulis' pods get, run by bash as a pod would run it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from apulis_request import ACCESS, GPU, SPEC, rendered
from waiting import wait_until

from pytest_aisbench.config.access import Access
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, StoreUrl
from pytest_aisbench.secret import Secret

# The command runs as it is, in a bash, with the environment that the platform sets.


def bash(command: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


class Pods:
    """A folder that is the share, and pods that are processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.access = replace(ACCESS, share=str(folder), share_in_pods="")
        self.code = folder / SPEC.code.key
        self.code.mkdir(parents=True)
        self.tools = folder / "tools"
        self.tools.mkdir()

    def script(self, text: str, name: str = "train.py") -> None:
        (self.code / name).write_text(text)

    def run(self, spec: JobSpec, role: str, index: int = 0, key: str = "cmd", **more: str) -> tuple[int, str]:
        command = rendered(spec, self.access)[key]
        environment = self.environment(role, index, more)
        ended = bash(command, environment)
        assert ended.stderr in {"", "Terminated\n"}
        return ended.returncode, ended.stdout

    def environment(self, role: str, index: int, more: Mapping[str, str]) -> dict[str, str]:
        return {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder),
            "DLWS_JOB_ID": "j",
            "DLWS_USER_NAME": "admin",
            "DLWS_ROLE_NAME": role,
            "DLWS_ROLE_IDX": str(index),
            **more,
        }

    def rank_table(self, name: str = "hccl_ms.json") -> None:
        folder = self.folder / "home/.npu/j"
        folder.mkdir(parents=True)
        (folder / name).write_text('{"status": "completed"}')


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


SAY = """
import json, os, sys
names = ("RANK_ID", "RANK_SIZE", "DEVICE_ID", "DEVICE_NUM", "RANK_TABLE_FILE", "MINDSPORE_HCCL_CONFIG_PATH")
print(json.dumps([*(os.environ.get(name) for name in names), os.getcwd(), sys.argv]) + "\\n", end="", flush=True)
"""


@pytest.mark.parametrize(("workdir", "cards"), [("local", 8), ("shared", 2)])
@pytest.mark.slow
def test_every_card_of_every_node_is_a_rank_of_its_own(pods: Pods, workdir: str, cards: int) -> None:
    """The guide's script gives the ranks 0 to 7 to both nodes, and the job hangs."""
    pods.script(SAY)
    pods.rank_table()
    options = {**SPEC.options, "workdir": workdir, "device_type": "huawei_npu_arm64" if cards == 8 else "gpu"}
    spec = replace(SPEC, shape=Shape(2, cards), options=options)
    ranks = []
    for node in (0, 1):
        code, out = pods.run(spec, "worker", node)
        assert code == 0
        lines = [line for line in out.splitlines() if line]
        assert lines[-1] == f"AISBENCH_DONE node={node} rc=0"
        ranks += [json.loads(line) for line in lines[:-1]]
    assert sorted(int(rank) for rank, *_ in ranks) == list(range(2 * cards))
    assert all(int(rank) % cards == int(device) for rank, _, device, *_ in ranks)
    assert {(size, devices) for _, size, _, devices, *_ in ranks} == {(str(2 * cards), str(cards))}
    table = f"{pods.folder}/home/.npu/j/hccl_ms.json" if cards == 8 else None
    assert {(one, other) for *_, one, other, _, _ in ranks} == {(table, table)}
    assert len({folder for *_, folder, _ in ranks}) == 2 * cards, "no two ranks stand in one folder"
    assert all(("trials" in folder) == (workdir == "shared") for *_, folder, _ in ranks)
    outputs = f"{pods.folder}/{SPEC.outputs.key}"
    assert ranks[0][-1] == ["train.py", "--epoch_size=90", f"--train_url={outputs}"]
    assert Path(outputs).is_dir()


def test_tensorflow_gets_its_own_rank_table(pods: Pods) -> None:
    pods.script(SAY)
    pods.rank_table("hccl_tf.json")
    code, out = pods.run(replace(SPEC, framework="tensorflow", shape=Shape(1, 2)), "master")
    assert code == 0
    assert "hccl_tf.json" in out


def test_the_ps_says_a_word_and_waits(pods: Pods) -> None:
    """Where one pod says nothing no log is kept; where it ends, the job is over. So by either command."""
    body = rendered(SPEC, pods.access)
    for command in (body["masterCmd"], body["cmd"]):
        with subprocess.Popen(
            ["bash", "-c", command], env=pods.environment("ps", 0, {}), stdout=subprocess.PIPE, text=True
        ) as pod:
            assert pod.stdout is not None
            assert pod.stdout.readline() == "AISBENCH_IDLE\n"
            assert pod.poll() is None
            pod.kill()


def test_what_the_user_gave_arrives_as_it_was_given(pods: Pods) -> None:
    word = "α & 'ω' \"$HOME\"; exit 3"
    pods.script("import os, sys; print([sys.argv[1], os.environ['WORD']])")
    spec = replace(SPEC, shape=Shape(1, 1), parameters={"word": word}, environment={"WORD": word})
    assert pods.run(spec, "master")[1].splitlines()[0] == str([f"--word={word}", word])


def test_ranks_meet_at_the_first_worker_unless_told(pods: Pods) -> None:
    pods.script("import os; print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])")
    spec = replace(SPEC, shape=Shape(1, 1), options=GPU)
    assert pods.run(spec, "worker", DLWS_SD_worker0_IP="10.0.0.7")[1].startswith("10.0.0.7 29500\n")
    assert pods.run(spec, "master")[1].startswith("127.0.0.1 29500\n")
    addressed = replace(spec, environment={"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1"})
    assert pods.run(addressed, "master")[1].startswith("10.0.0.9 1\n")


def test_a_rank_that_fails_ends_the_others(pods: Pods) -> None:
    pods.script("import os, sys, time\nif os.environ['RANK_ID'] == '1': sys.exit(7)\ntime.sleep(600)")
    spec = replace(SPEC, shape=Shape(1, 2), options=GPU)
    code, out = pods.run(spec, "master")
    assert (code, out) == (7, "AISBENCH_DONE node=0 rc=7\n")


@pytest.mark.slow
def test_a_job_ends_though_nobody_watches(pods: Pods) -> None:
    pods.script("import time; time.sleep(600)")
    code, out = pods.run(replace(SPEC, shape=Shape(1, 1), options=GPU, max_run_s=0.6), "master")
    assert code == 124
    assert "AISBENCH_DONE" not in out
    assert not list(pods.folder.glob("aisbench-j/node-*"))


@pytest.mark.slow
def test_a_job_that_is_stopped_before_its_ranks_begin_leaves_nothing(pods: Pods) -> None:
    """It waits for a rank table that does not come, and the time limit strikes."""
    pods.script("print('never')")
    code, out = pods.run(replace(SPEC, shape=Shape(1, 2), max_run_s=1), "master")
    assert code == 124
    assert "never" not in out
    assert not list(pods.folder.glob("aisbench-j/node-*"))


@pytest.mark.parametrize(
    "command",
    [
        "./run_8p.sh",
        "./run_8p.sh && sleep infinity",
        "./run_8p.sh; sleep infinity ",
        "bash -c ' ./run_8p.sh &&sleep infinity'",  # as the platform's guide has it
    ],
)
def test_a_command_of_ones_own_runs_once_per_node_and_ends(pods: Pods, command: str) -> None:
    """Also a script that may not be executed where it was staged."""
    pods.script('#!/bin/bash\necho "$RANK_START $SERVER_ID of $RANK_SIZE $TRAIN_URL"; exit ${RC:-0}', "run_8p.sh")
    spec = replace(SPEC, shape=Shape(2, 2), options={**GPU, "command": command})
    outputs = f"{pods.folder}/{SPEC.outputs.key}"
    assert pods.run(spec, "worker", 1) == (0, f"2 1 of 4 {outputs}\nAISBENCH_DONE node=1 rc=0\n")
    assert pods.run(spec, "worker", 1, RC="5")[0] == 5


# The guide's script: it numbers the cards of every node from 0, and waits for them without asking how they ended.
GUIDE = """#!/bin/bash
export RANK_SIZE=${SIZE:-4}
for ((i = 0; i < 2; i++)); do
    export DEVICE_ID=$i RANK_ID=$((${START:-0} + i))
    python train.py &
done
wait
"""


def test_ranks_that_a_script_numbers_from_0_on_every_node_are_caught_before_they_wait(pods: Pods) -> None:
    pods.script(GUIDE, "run_8p.sh")
    pods.script("import os, time\nprint('rank', os.environ['RANK_ID'], flush=True)\ntime.sleep(600)")
    spec = replace(SPEC, shape=Shape(2, 2), options={**GPU, "command": "./run_8p.sh && sleep infinity"})
    code, out = pods.run(spec, "worker", 1)
    assert code == 1
    message, done = out.splitlines()[-2:]
    advice = "give card i RANK_ID=$((RANK_START + i))"
    assert re.fullmatch(rf"aisbench: RANK_ID is [01] on node 1, whose ranks are 2 to 3: {re.escape(advice)}", message)
    assert done == "AISBENCH_DONE node=1 rc=1"
    assert not _running(pods.folder), "what the script started has ended with it"


@pytest.mark.parametrize("told", [{"START": "2"}, {"SIZE": "2"}], ids=["numbered through", "a node by itself"])
@pytest.mark.slow
def test_ranks_that_nobody_else_is_are_let_alone(pods: Pods, told: dict[str, str]) -> None:
    """Nor is a process of one rank, such as that of an evaluation, taken for one of all."""
    pods.script(GUIDE, "run_8p.sh")
    # One write: unbuffered, the pieces of two ranks' lines would mix.
    pods.script("import os, time\ntime.sleep(1)\nprint(f'rank {os.environ[\"RANK_ID\"]}\\n', end='')")
    spec = replace(SPEC, shape=Shape(2, 2), options={**GPU, "command": "./run_8p.sh"})
    code, out = pods.run(spec, "worker", 1, **told)
    assert (code, out.splitlines()[-1], out.count("rank ")) == (0, "AISBENCH_DONE node=1 rc=0", 2)


def _running(folder: Path) -> list[str]:
    """Processes that stand in a folder below it."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            place = str(link.readlink())
            found += [place] if place.startswith(f"{folder}/") else []
    return found


# The end of the guide's script, word for word.
GUIDES_TRAP = 'trap "trap - SIGTERM && kill -- -$$" SIGINT SIGTERM EXIT\n'


@pytest.mark.parametrize(("end", "code"), [("true", 0), ("exit 5", 5)])
def test_a_script_that_kills_its_group_when_it_exits_keeps_its_exit_code(pods: Pods, end: str, code: int) -> None:
    """Also what it leaves in the background is ended."""
    pods.script(f"python train.py &\n{GUIDES_TRAP}{end}\n", "run_8p.sh")
    pods.script("import time; time.sleep(600)")
    spec = replace(SPEC, shape=Shape(1, 2), options={**GPU, "command": "./run_8p.sh"})
    ended = bash(rendered(spec, pods.access)["cmd"], pods.environment("master", 0, {}))
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (code, f"AISBENCH_DONE node=0 rc={code}")
    wait_until(lambda: not _running(pods.folder))


@pytest.mark.slow
def test_a_script_with_a_trap_and_its_children_end_when_the_job_is_stopped(pods: Pods) -> None:
    pods.script(f"python train.py &\n{GUIDES_TRAP}wait\n", "run_8p.sh")
    pods.script("import time; time.sleep(600)")
    spec = replace(SPEC, shape=Shape(1, 2), options={**GPU, "command": "./run_8p.sh"}, max_run_s=1)
    ended = bash(rendered(spec, pods.access)["cmd"], pods.environment("master", 0, {}))
    assert ended.returncode == 124
    wait_until(lambda: not _running(pods.folder))


def test_code_that_the_pods_have_is_used(pods: Pods, tmp_path: Path) -> None:
    there = tmp_path / "installed"
    there.mkdir()
    (there / "train.py").write_text("print('installed')")
    spec = replace(SPEC, shape=Shape(1, 1), options={**GPU, "code_dir": str(there), "data_dir": "/data/cifar10"})
    assert pods.run(spec, "master")[1].startswith("installed\n")
    assert "--data_url=/data/cifar10" in rendered(spec)["cmd"]
    missing = replace(spec, options={**GPU, "code_dir": "/data/nowhere"})
    code, out = pods.run(missing, "master")
    assert code == 1
    assert "there is no folder /data/nowhere on this pod: check code_dir" in out


def test_horovod_is_started_once_by_the_pod_without_cards(pods: Pods) -> None:
    """It finds the workers by the file that the platform writes for it."""
    (pods.tools / "horovodrun").write_text('#!/bin/bash\necho "$@"\n')
    (pods.tools / "horovodrun").chmod(0o755)
    (pods.folder / "home").mkdir()
    (pods.folder / "home/ib_config").write_text("ib-worker-0 slots=8\nib-worker-1 slots=8\n")
    options = {**GPU, "launcher": "horovod", "network_interface": "ib0"}
    spec = replace(SPEC, options=options)
    body = rendered(spec, pods.access)
    assert body["workerCmd"] == rendered(SPEC)["masterCmd"]
    assert body["masterCmd"] == body["cmd"]
    code, out = pods.run(spec, "ps", key="masterCmd", DLWS_SD_worker0_SSH_PORT="40001")
    given = f"-np 16 -hostfile {pods.folder}/home/ib_config -p 40001 --network-interface ib0 "
    assert (code, out.startswith(given)) == (0, True), out
    code, out = pods.run(replace(spec, shape=Shape(1, 8)), "master")
    assert (code, out.startswith("-np 8 /")) == (0, True), out


def test_with_obs_code_and_results_are_urls(pods: Pods) -> None:
    (pods.folder / "moxing.py").write_text(
        "import shutil\nclass file:\n    @staticmethod\n    def copy_parallel(source, target):\n"
        "        print('from', source)\n        shutil.copytree(__file__.replace('moxing.py', 'remote'), target)\n"
    )
    (pods.folder / "remote").mkdir()
    (pods.folder / "remote/train.py").write_text("import sys; print(sys.argv[2:])")
    keys = Access(Secret("AK"), Secret("SK"), "cn-north-4", bucket="b")
    place = StoreUrl("b", "aisbench/t/")
    spec = replace(
        SPEC, shape=Shape(1, 1), code=place / "code/", outputs=place / "outputs/", logs=place / "logs/", options=GPU
    )
    access = replace(ACCESS, share="", send_obs_keys=True)
    body = rendered(spec, access, access=keys)
    assert "SK" not in [each["value"] for each in body["env"]]
    environment = pods.environment("master", 0, {"PYTHONPATH": str(pods.folder)})
    ended = bash(body["cmd"], environment)
    assert ended.stdout.splitlines() == [
        "from obs://b/aisbench/t/code/",
        "['--train_url=obs://b/aisbench/t/outputs/']",
        "AISBENCH_DONE node=0 rc=0",
    ]
