"""The platform `slurm` on a real Slurm of two nodes, by the contract of Platform and beyond it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import Cluster
from slurm_jobs import ended, make_spec, platform_on, submit

from pytest_aisbench.cli import main
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, Phase, StoreUrl
from pytest_aisbench.platforms.slurm.platform import Slurm
from pytest_aisbench.platforms.slurm.script import Folders, job_script
from pytest_aisbench.platforms.slurm.settings import Options
from pytest_aisbench.ranktable.check import check_text
from pytest_aisbench.testing import PlatformContract

pytestmark = pytest.mark.slow
PLACE = StoreUrl("share", "a/")


@pytest.fixture
def platform(slurm: Cluster) -> Iterator[Slurm]:
    with contextlib.closing(platform_on(slurm)) as platform:
        yield platform


class TestSlurm(PlatformContract):
    @pytest.fixture
    def platform(self, slurm: Cluster) -> Iterator[Slurm]:
        with contextlib.closing(platform_on(slurm)) as platform:
            yield platform


def test_every_script_is_bash() -> None:
    hostile = {"word": "a'b\"c $HOME `id` \\ α", "empty": ""}
    folders = Folders("/s/jobs/n", "/s/code/", "/s/out/", "/s/logs", "", "/s")
    for launcher, container in [("ranks", ""), ("torchrun", "pyxis"), ("horovod", "apptainer"), ("mpi", "")]:
        options = Options(launcher=launcher, container=container, image="x", gres="npu", prologue="module load a\nb")
        spec = JobSpec("n", Shape(2, 8), PLACE, "train.py", PLACE, PLACE, parameters=hostile, environment=hostile)
        subprocess.run(["bash", "-n"], input=job_script(spec, options, folders).encode(), check=True)


def test_one_rank_that_fails_ends_the_job_with_its_own_code(platform: Slurm) -> None:
    """srun says 143 of it, and Slurm forgets the 3."""
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK_ID'] == '1' else time.sleep(600)"
    job = ended(platform, submit(platform, make_spec(platform, code, Shape(2, 2))))
    assert (job.phase, job.exit_code) == (Phase.FAILED, 3)
    assert job.reason == "rank 1 on node1 (worker-0) ended with exit code 3"
    assert job.hosts == ("node1", "node2")


def test_what_a_rank_knows(platform: Slurm) -> None:
    """Its numbers, where all meet, its card, its server: as on ModelArts. The lines of one log do not mix."""
    names = ("RANK_ID", "RANK_SIZE", "DEVICE_ID", "DEVICE_NUM", "MASTER_ADDR", "MASTER_PORT", "VC_TASK_INDEX")
    code = f"""
        import json, os
        table = json.load(open(os.environ["RANK_TABLE_FILE"]))
        known = {{name: os.environ[name] for name in {names!r}}}
        print(json.dumps({{**known, "servers": [[d["rank_id"] for d in s["device"]] for s in table["server_list"]]}}))
        """
    spec = make_spec(platform, code, Shape(2, 2), environment={"PYTHONUNBUFFERED": "1"})
    job_id = submit(platform, spec)
    assert ended(platform, job_id).phase is Phase.SUCCEEDED
    logs = [platform.logs(job_id, node).text for node in (0, 1)]
    rows = sorted((json.loads(line) for log in logs for line in log.splitlines()), key=lambda row: row["RANK_ID"])
    assert [row["RANK_ID"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["DEVICE_ID"] for row in rows] == ["0", "1", "0", "1"]
    assert [row["VC_TASK_INDEX"] for row in rows] == ["0", "0", "1", "1"]
    assert {(row["RANK_SIZE"], row["DEVICE_NUM"], row["MASTER_ADDR"]) for row in rows} == {("4", "2", "127.0.0.1")}
    assert len({row["MASTER_PORT"] for row in rows}) == 1
    assert rows[0]["servers"] == [["0", "1"], ["2", "3"]]


def test_the_rank_table_has_the_addresses_of_the_nodes_cards(slurm: Cluster) -> None:
    for index, node in enumerate(slurm.nodes):
        cards = "".join(f"address_{card}=10.{index}.0.{card + 1}\nnetmask_{card}=255.0.0.0\n" for card in range(2))
        (slurm.share / f"hccn-{node}.conf").write_text(cards)
    conf = f"{slurm.share}/hccn-%n.conf"
    with contextlib.closing(platform_on(slurm, gres="npu", hccn_conf=conf)) as platform:
        code = "import os; print(open(os.environ['RANK_TABLE_FILE']).read())"
        job_id = submit(platform, make_spec(platform, code, Shape(2, 2), framework="mindspore"))
        missing = submit(platform, make_spec(platform, code, Shape(2, 3), framework="mindspore"))
        assert ended(platform, job_id).phase is Phase.SUCCEEDED
        text = platform.logs(job_id).text.splitlines()[0]
        ips = [card["device_ip"] for server in json.loads(text)["server_list"] for card in server["device"]]
        assert ips == ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2"]
        # Both nodes of this cluster have one address; else HCCL could use the table.
        assert [str(problem) for problem in check_text(text) if "127.0.0.1" not in str(problem)] == []
        job = ended(platform, missing)
        assert (job.phase, job.exit_code) == (Phase.FAILED, 95)
        assert "has no addresses of 3 cards" in platform.logs(missing).text


def test_a_rank_table_is_made_from_the_nodes_of_a_cluster(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, node in enumerate(slurm.nodes):
        (slurm.share / f"made-{node}.conf").write_text(f"address_0=10.{index}.0.1\naddress_1=10.{index}.0.2\n")
    file = tmp_path / "hccl.json"
    conf = f"{slurm.share}/made-%n.conf"
    assert main(["ranktable", "make", "--slurm", "node[1-2]", "--hccn-conf", conf, "--output", str(file)]) == 0
    servers = json.loads(file.read_text())["server_list"]
    assert [server["server_id"] for server in servers] == ["node1", "node2"], "both have one address here"
    assert [card["device_ip"] for card in servers[1]["device"]] == ["10.1.0.1", "10.1.0.2"]
    assert main(["ranktable", "make", "--slurm", "node1", "--hccn-conf", "/nowhere"]) == 4
    assert "there is no /nowhere" in capsys.readouterr().err


def test_launchers_are_started_once_for_each_node_or_once(slurm: Cluster) -> None:
    """With stand-ins for torchrun and horovodrun that tell what they were given."""
    tools = slurm.share / "tools"
    (tools / "torch/distributed").mkdir(parents=True, exist_ok=True)
    (tools / "torch/distributed/run.py").write_text("import sys; print('torchrun', *sys.argv[1:])")
    (tools / "horovodrun").write_text('#!/bin/sh\necho horovodrun "$@"\n')
    (tools / "horovodrun").chmod(0o755)
    prologue = f"export PATH={tools}:$PATH PYTHONPATH={tools}"
    with contextlib.closing(platform_on(slurm, prologue=prologue)) as platform:
        shape = Shape(2, 2)
        by_torch = submit(platform, make_spec(platform, shape=shape, options={"launcher": "torchrun"}))
        by_horovod = submit(platform, make_spec(platform, shape=shape, options={"launcher": "horovod"}))
        assert {ended(platform, job_id).phase for job_id in (by_torch, by_horovod)} == {Phase.SUCCEEDED}
        for node in (0, 1):
            (line,) = platform.logs(by_torch, node).text.splitlines()
            assert line.startswith(f"torchrun --nnodes=2 --node-rank={node} --nproc-per-node=2 --master-addr=127.0.0.1")
        (line,) = platform.logs(by_horovod).text.splitlines()
        assert line.startswith(f"horovodrun -np 4 -H 127.0.0.1:2,127.0.0.1:2 {sys.executable} train.py")
        assert platform.logs(by_horovod, 1).text == ""


def test_completed_is_no_success_without_the_ranks(slurm: Cluster) -> None:
    with contextlib.closing(platform_on(slurm, prologue="exit 0")) as platform:
        job = ended(platform, submit(platform, make_spec(platform)))
    assert (job.phase, job.platform_phase) == (Phase.LOST, "COMPLETED")
    assert "left no record of its ranks" in job.reason
    with contextlib.closing(platform_on(slurm, srun="--gres=npu:99")) as platform:
        job = ended(platform, submit(platform, make_spec(platform)))
    assert job.phase is Phase.LOST
    assert "1 of 1 ranks left no exit code" in job.reason


def test_only_our_own_job_is_stopped(slurm: Cluster, platform: Slurm) -> None:
    """One of the same user with a longer name runs on, and one that no request of ours made cannot be stopped."""
    spec = make_spec(platform, "import time; time.sleep(600)")
    job_id = submit(platform, spec)
    longer = slurm.run("sbatch", "--parsable", "-J", f"{spec.name}-1", "-o", "/dev/null", "--wrap", "sleep 600")
    try:
        platform.cancel(job_id)
        assert ended(platform, job_id).phase is Phase.CANCELLED
        platform.cancel(f"{longer}/{spec.name}-1")
        platform.cancel(longer)
        assert slurm.run("squeue", "-h", "-j", longer, "-o", "%T") in {"RUNNING", "PENDING"}
    finally:
        slurm.run("scancel", longer)


def test_a_number_alone_is_enough_for_a_person(platform: Slurm) -> None:
    job_id = submit(platform, make_spec(platform, "print('hello')"))
    ended(platform, job_id)
    assert platform.logs(job_id.partition("/")[0]).text == "hello\n"
