"""Whoever is killed, nothing of a job is left: neither ranks nor what they started, in whatever session."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import PATIENCE, wait_until

from pytest_aisbench.localcloud.engine import process_engine
from pytest_aisbench.localcloud.engine.private_root import pid_namespace
from pytest_aisbench.localcloud.engine.process_engine import ProcessEngine
from pytest_aisbench.localcloud.obs.storage import Objects

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")]

ROOT = Path(process_engine.__file__).parents[2]

CLOUD = """
import pathlib, sys, threading
from pytest_aisbench.localcloud.engine import process_engine
from pytest_aisbench.localcloud.engine.process_engine import ProcessEngine
from pytest_aisbench.localcloud.engine.launch import Ended, Launch, Place
from pytest_aisbench.localcloud.obs.storage import Objects

folder, isolation, job = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if isolation == "walk":
    process_engine.pid_namespace = lambda: None
objects = Objects(folder / "objects")
objects.create_bucket("bucket")
objects.put("bucket", "code/train.py", (folder / "train.py").read_bytes())
ended = threading.Event()

def hear(event):
    print(event, flush=True)
    if isinstance(event, Ended):
        ended.set()

engine = ProcessEngine(objects, folder / "work", "http://127.0.0.1:9", grace=0.3)
engine.start(Launch(job, 2, 2, "python-local", sys.executable, Place("bucket", "code/"), "train.py"), hear)
ended.wait()
"""

# Each rank is deaf to SIGTERM and has two children, one of them in a session of its own, and a grandchild.
RANK = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeper!r}, '{mark}-deep'])"
subprocess.Popen([sys.executable, "-c", sleeper, "{mark}-plain"])
subprocess.Popen([sys.executable, "-c", parent, "{mark}-session"], start_new_session=True)
time.sleep(600)
"""
PROCESSES = 2 * 2 * 3  # with the mark in their command line


class Cloud:
    def __init__(self, folder: Path, isolation: str) -> None:
        self.mark = f"mark-{uuid.uuid4()}"
        self.job = str(uuid.uuid4())
        self.folder = folder
        (folder / "train.py").write_text(RANK.replace("{mark}", self.mark))
        (folder / "cloud.py").write_text(CLOUD)
        self.process = subprocess.Popen(
            [sys.executable, folder / "cloud.py", folder, isolation, self.job],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def marked(self) -> list[int]:
        """The ranks' children, by their command line; the nodes and ranks, which name the job."""
        return with_command_line(self.mark) + with_command_line(f"/{self.job}/") + self.nodes()

    def nodes(self) -> list[int]:
        return with_command_line(f"modelarts-job-{self.job}-worker-")

    def await_everybody(self) -> None:
        wait_until(lambda: with_command_line(self.mark), lambda pids: len(pids) >= PROCESSES)

    def await_nobody(self) -> None:
        wait_until(lambda: [command_line(pid) for pid in self.marked()], lambda commands: not commands)


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def with_command_line(text: str) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if text.encode() in command_line(pid)]


@pytest.fixture(params=["namespace", "walk"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cloud]:
    if request.param == "namespace" and not pid_namespace():
        pytest.skip("this machine allows no pid namespace")
    cloud = Cloud(tmp_path, request.param)
    try:
        cloud.await_everybody()
        yield cloud
    finally:
        cloud.process.kill()
        cloud.process.communicate()
        for pid in cloud.marked():  # so that a failure here does not litter the machine
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_when_the_cloud_is_killed(cloud: Cloud) -> None:
    cloud.process.kill()
    cloud.await_nobody()
    work = cloud.folder / "work"
    assert (work / cloud.job).exists()
    objects = Objects(cloud.folder / "objects")
    ProcessEngine(objects, work, "http://127.0.0.1:9")
    assert not (work / cloud.job).exists(), "the next cloud tidies up"
    objects.close()


def test_when_every_process_of_a_node_is_killed(cloud: Cloud) -> None:
    """With the node the job is over: the other node ends as well, and the cloud hears of it."""
    for pid in with_command_line(f"modelarts-job-{cloud.job}-worker-1"):
        with contextlib.suppress(ProcessLookupError):  # one may die of the other's death
            os.kill(pid, signal.SIGKILL)
    cloud.await_nobody()
    output, _ = cloud.process.communicate(timeout=PATIENCE)
    assert "TaskEnded(task='worker-1', exit_code=137" in output
    assert "Ended(phase='Failed'" in output


def test_when_a_rank_is_killed(cloud: Cloud) -> None:
    [rank] = [pid for pid in with_command_line("train.py") if _rank_of(pid, cloud.job) == "2"]
    os.kill(rank, signal.SIGKILL)
    cloud.await_nobody()
    output, _ = cloud.process.communicate(timeout=PATIENCE)
    assert "TaskEnded(task='worker-1', exit_code=137" in output


def _rank_of(pid: int, job: str) -> str:
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        environment = dict(entry.partition("=")[::2] for entry in entries)
        if environment.get("JOB_ID") == job:
            return environment["RANK_ID"]
    return ""


def test_a_node_whose_disk_is_full_says_so(tmp_path: Path) -> None:
    mark = f"mark-{uuid.uuid4()}"
    table, script = tmp_path / "table.json", tmp_path / "train.py"
    table.write_text(json.dumps({"status": "completed", "group_list": [{"instance_list": []}]}))
    script.write_text("import time\nfor _ in range(6000): print('x', flush=True); time.sleep(0.1)")
    log = tmp_path / "worker.log"
    log.symlink_to("/dev/full")
    rank = {
        "command": [sys.executable, str(script), mark],
        "folder": str(tmp_path),
        "log": str(tmp_path / "rank.log"),
        "environment": {},
    }
    spec = {
        "environment": {},
        "pre_start": [],
        "pre_start_folder": "",
        "pre_start_environment": "",
        "ranks": [rank],
        "log": str(log),
        "silent": False,
        "rank_table": str(table),
        "rank_table_v1": str(tmp_path / "v1.json"),
        "grace": 0.1,
        "view": "",
        "binds": [],
        "read_only": [],
    }
    with subprocess.Popen(
        [sys.executable, "-c", "from pytest_aisbench.localcloud.engine import node; node.run()"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as node:
        assert node.stdin
        assert node.stdout
        node.stdin.write(json.dumps(spec).encode() + b"\n")
        node.stdin.flush()
        *_, last = node.stdout.read().splitlines()
    assert "No space left" in json.loads(last)["fault"]
    assert not with_command_line(mark)
