"""What the pods of an Apulis job find, and what becomes of the job when they end: real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from apulis_client import ENDED, GPU, Apulis
from waiting import wait_until

from pytest_aisbench.localcloud.engine import process_engine
from pytest_aisbench.localcloud.engine.private_root import container_support
from pytest_aisbench.localcloud.server import LocalCloud
from pytest_aisbench.ranktable.check import check_text

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_mounts = pytest.mark.skipif(not container_support()[0], reason=container_support()[1])

RULE = "=" * 57
CHARTS = "/endpoints/grafana/api/datasources/proxy/1/api/v1/query_range"


@pytest.fixture(scope="module")
def apulis() -> Iterator[Apulis]:
    with LocalCloud() as cloud:
        yield Apulis(cloud, Path(cloud.card()["apulis_storage"]))


def told(log: str, word: str) -> Any:
    """What a job has printed as `word JSON`; the first of them."""
    return json.loads(next(line.partition(" ")[2] for line in log.splitlines() if line.startswith(f"{word} ")))


PRINT_ENVIRONMENT = "python -c 'import json, os; print(\"told\", json.dumps(dict(os.environ)))'"


@needs_mounts
def test_a_regular_job_has_its_folders_and_variables(apulis: Apulis) -> None:
    (apulis.storage / "data/cifar").mkdir(parents=True)
    (apulis.storage / f"work/{apulis.user}/code").mkdir()
    command = f"""
{PRINT_ENVIRONMENT}
echo folder $PWD
ls -d /data/cifar /work/code ~/code /pod/job_command.sh /pod/running/ROLE_READY
grep -c ^export.DLWS_JOB_ID= /pod.env
cat /job/hostfile ~/ib_config
touch /tmp/mine
echo 0.97 > /job/accuracy.txt
sudo -E bash -c 'echo framework $aiframework'
"""
    job = apulis.submit(
        command, resourcegpu=2, frameworkType="mindspore", env=[{"name": "K", "value": "a b"}], outputPath="/job/out"
    )
    log = apulis.finished(job)

    environment = told(log, "told")
    home = f"/home/{apulis.user}"
    expected = {
        "DLWS_JOB_ID": job,
        "DLWS_USER_NAME": apulis.user,
        "DLWS_VC_NAME": "platform",
        "DLWS_GPU_TYPE": "huawei_npu_arm64",
        "DLWS_REST_API": apulis.card["apulis_endpoint"],
        "DLWS_NUM_PS": "0",
        "DLWS_NUM_WORKER": "1",
        "DLWS_NUM_GPU_PER_WORKER": "2",
        "DLWS_ROLE_NAME": "master",
        "DLWS_ROLE_IDX": "0",
        "POD_NAME": job,
        "VISIBLE_IDS": "0,1",
        "aiframework": "mindspore",
        "OUTPUT_PATH": "/job/out",
        "K": "a b",
        "HOME": home,
    }
    assert {name: environment.get(name) for name in expected} == expected
    assert environment["NPU_IPS"].startswith("0:127.")
    # The guide's command of one node names the first worker.
    assert environment["DLWS_SD_worker0_SSH_PORT"] == environment["DLWS_SD_SELF_SSH_PORT"]
    assert {"FAMILY_TOKEN", "DLTS_JOB_TOKEN", "IDENTITY_TOKEN", "PASSWORD"} <= environment.keys()
    scripts_do = {"RANK_ID", "RANK_SIZE", "DEVICE_ID", "RANK_TABLE_FILE", "DLWS_WORKER_NUM", "DLWS_HOST_NETWORK"}
    assert not scripts_do & environment.keys()
    assert not {"ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "S3_ENDPOINT"} & environment.keys()  # nobody lends keys here
    lines = log.splitlines()
    slots = ("master slots=2", "ib-master slots=2")
    for line in (f"folder {home}", "/data/cifar", "/work/code", f"{home}/code", "1", *slots):
        assert line in lines
    assert {"/pod/job_command.sh", "/pod/running/ROLE_READY", "framework mindspore"} <= set(lines)
    assert "ModelArts" not in log
    path = apulis.of("GetJobDetailV2", job)["jobParams"]["jobPath"]
    assert (apulis.storage / "work" / path / "accuracy.txt").read_text() == "0.97\n"
    assert not Path("/tmp/mine").exists()


@needs_mounts
def test_the_pods_of_a_distributed_job_know_each_other(apulis: Apulis) -> None:
    command = f"""
{PRINT_ENVIRONMENT}
[ $DLWS_ROLE_IDX = 0 ] || exit 0
cat /job/hostfile /job/ib_config-worker-1 ~/ib_config
getent hosts ib-worker-1
ssh -p $DLWS_SD_worker1_SSH_PORT -o StrictHostKeyChecking=no worker-1 'echo there $POD_NAME $POD_IP'
ssh 10.9.8.7 true || echo nowhere $?
cp ~/.npu/$DLWS_JOB_ID/*.json ~/.npu/$DLWS_JOB_ID/*.info /job/
ls ~/.npu/$DLWS_JOB_ID/setup_environment_done ~/.ssh/config /job/ib_ready
bash ~/.npu/$DLWS_JOB_ID/train.sh bash -c 'echo rank $RANK_ID device $DEVICE_ID of $RANK_SIZE'
"""
    job = apulis.distribute(command)
    log = apulis.finished(job)

    environment = told(log, "told")
    expected = {
        "DLWS_NUM_PS": "1",
        "DLWS_NUM_WORKER": "2",
        "DLWS_WORKER_NUM": "2",
        "DLWS_ROLE_NAME": "worker",
        "DLWS_IS_NPU_JOB": "true",
        "DLWS_HOST_NETWORK": "enable",
        "POD_NAME": f"{job}-worker0",
    }
    assert {name: environment.get(name) for name in expected} == expected
    second = environment["DLWS_SD_worker1_IP"]
    assert second not in {environment["DLWS_SD_worker0_IP"], environment["DLWS_SD_ps0_IP"]}
    assert 40000 <= int(environment["DLWS_SD_worker1_SSH_PORT"]) < 50000
    lines = log.splitlines()
    assert [lines.count(f"{prefix}worker-1 slots=8") for prefix in ("", "ib-")] == [1, 2]
    assert f"there {job}-worker1 {second}" in lines
    assert "nowhere 255" in lines
    assert "rank 7 device 7 of 8" in lines  # the platform's own script counts within one node
    assert "RANK_ID" not in environment
    banners = [f"        logs from pod: {job}-{pod}" for pod in ("ps0", "worker0", "worker1")]
    assert [line for line in lines if line.startswith("        logs from pod")] == banners
    assert lines[:4] == [RULE, RULE, RULE, banners[0]]

    path = apulis.storage / "work" / apulis.of("GetJobDetailV2", job)["jobParams"]["jobPath"]
    assert [check_text((path / name).read_text()) for name in ("hccl_ms.json", "hccl_tf.json")] == [[], []]
    lab = json.loads((path / "hccl_ms.json").read_text())
    (group,) = lab["group_list"]
    assert (lab["deploy_mode"], lab["para_plane_nic_num"], group["group_name"]) == ("lab", "8", "test")
    assert (group["device_num"], group["server_num"], group["instance_count"]) == ("16", "2", "16")
    assert [instance["rank_id"] for instance in group["instance_list"]] == [str(rank) for rank in range(16)]
    assert group["instance_list"][15]["server_id"] == second
    assert len({instance["devices"][0]["device_ip"] for instance in group["instance_list"]}) == 16
    cloud = json.loads((path / "hccl_tf.json").read_text())
    assert "version" not in cloud
    assert [i["pod_name"] for i in cloud["group_list"][0]["instance_list"]] == [f"{job}-worker-0", f"{job}-worker-1"]
    assert (path / "npu_1.info").read_text().splitlines()[1] == f"host={second}"


def test_a_ps_that_ends_well_ends_the_job_whatever_the_workers_do(apulis: Apulis) -> None:
    mark = uuid.uuid4().hex
    job = apulis.distribute(f"exec -a {mark} sleep 600", masterCmd="echo served", gpuType=GPU, resourcegpu=1)
    assert "served" in apulis.finished(job).splitlines()
    assert not running(mark)


def test_without_a_command_of_its_own_the_ps_runs_that_of_the_workers(apulis: Apulis) -> None:
    job = apulis.distribute("test $DLWS_ROLE_NAME = worker || exit 3; sleep 600", masterCmd=None, resourcegpu=1)
    ended = apulis.until(job, ENDED)
    assert (ended["jobStatus"], ended["errorMsg"]) == ("failed", "pod failed")


@pytest.mark.slow
def test_a_command_that_never_ends_is_killed_and_nothing_of_it_is_left(apulis: Apulis) -> None:
    mark = uuid.uuid4().hex
    job = apulis.distribute("exit 7", resourcegpu=1)
    apulis.until(job, {"failed"})  # `cmd` is what the workers run where they have no command of their own
    job = apulis.distribute("exit 7", resourcegpu=1, workerCmd=f"echo DONE rc=0 && exec -a {mark} sleep infinity")
    wait_until(lambda: apulis.log(job).count("DONE rc=0") == 2)
    assert apulis.status(job) == "running"
    assert len(running(mark)) == 2
    assert apulis.of("KillJob", job)["result"].startswith("Success")
    apulis.until(job, {"killed"})
    assert not running(mark)
    assert apulis.log(job).count("DONE rc=0") == 2


def test_a_log_comes_in_pages_and_the_raw_one_in_the_wrong_order(apulis: Apulis) -> None:
    job = apulis.submit("seq 1 20500")
    apulis.until(job, ENDED)
    first, last, beyond = (apulis.of("GetJobLog", job, page=page) for page in (1, 11, 99))
    assert (first["max_page"], first["cursor"], len(first["log"].splitlines())) == (11, None, 2000)
    assert apulis.of("GetJobLog", job)["log"] == first["log"]
    assert "20500" in last["log"].splitlines()
    assert beyond == last
    raw = apulis.of("GetJobRawLog", job)["log"]
    assert raw.index("\n18500\n") < raw.index("\n2500\n")
    path = apulis.storage / "work" / apulis.of("GetJobDetailV2", job)["jobParams"]["jobPath"] / "logs"
    assert (path / "max_page").read_text() == "11"
    assert (path / f"log-container-{job}.txt.11").read_text() == last["log"]


def test_without_private_mounts_commands_are_told_where_the_folders_are(
    apulis: Apulis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_engine, "container_support", lambda: (False, ""))
    job = apulis.submit("ls /pod/running && echo fine > /job/found && cd /work && pwd -P")
    log = apulis.finished(job)
    path = apulis.storage / "work" / apulis.of("GetJobDetailV2", job)["jobParams"]["jobPath"]
    assert (path / "found").read_text() == "fine\n"
    assert str(apulis.storage / "work" / apulis.user) in log.splitlines()


@needs_mounts
def test_horovodrun_starts_ranks_on_the_hosts_of_ib_config(apulis: Apulis) -> None:
    """Where the pod's Python has no Horovod: each rank is told who it is, on the pod that it is meant for."""
    rank = "bash -c 'echo rank $HOROVOD_RANK of $HOROVOD_SIZE, $HOROVOD_LOCAL_RANK on $POD_NAME in $PWD'"
    launch = "horovodrun -np 3 -hostfile ~/ib_config -p $DLWS_SD_worker0_SSH_PORT --network-interface ib0"
    job = apulis.distribute("sleep 600", masterCmd=f"cd /data && {launch} {rank}", gpuType=GPU, resourcegpu=2)
    lines = apulis.finished(job).splitlines()
    assert f"[0]<stdout>:rank 0 of 3, 0 on {job}-worker0 in /data" in lines
    assert f"[1]<stdout>:rank 1 of 3, 1 on {job}-worker0 in /data" in lines
    assert f"[2]<stdout>:rank 2 of 3, 0 on {job}-worker1 in /data" in lines


def test_a_rank_that_fails_ends_those_that_horovodrun_started(apulis: Apulis) -> None:
    mark = uuid.uuid4().hex
    rank = f"bash -c 'test $HOROVOD_RANK = 0 || exit 3; exec -a {mark} sleep 600'"
    job = apulis.submit(f"horovodrun -np 2 {rank}", resourcegpu=2)
    assert apulis.until(job, ENDED)["jobStatus"] == "failed"
    assert not running(mark)


@needs_mounts
def test_ssh_takes_options_on_either_side_of_the_host(apulis: Apulis) -> None:
    """As Horovod writes them."""
    command = (
        "ssh -o StrictHostKeyChecking=no worker-1 -p $DLWS_SD_worker1_SSH_PORT -o ConnectTimeout=9 'echo in $POD_NAME'"
    )
    job = apulis.distribute(f"[ $DLWS_ROLE_IDX = 1 ] || {command}", gpuType=GPU, resourcegpu=1)
    assert f"in {job}-worker1" in apulis.finished(job).splitlines()


def test_an_image_has_the_python_of_the_framework_that_it_is_called_after(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho the Python of Horovod\n")
    python.chmod(0o755)
    with LocalCloud(interpreters={"horovod": str(python)}) as cloud:
        apulis = Apulis(cloud, Path(cloud.card()["apulis_storage"]))
        jobs = {name: apulis.submit("python -V", image=name) for name in ("horovod/horovod:0.28.1", "mindspore:1.3")}
        said = {name: apulis.finished(job).splitlines() for name, job in jobs.items()}
    assert "the Python of Horovod" in said["horovod/horovod:0.28.1"]
    assert any(line.startswith("Python 3.") for line in said["mindspore:1.3"])


@pytest.mark.slow
def test_charts_tell_how_busy_the_pods_are(apulis: Apulis) -> None:
    job = apulis.distribute("for i in $(seq 100); do sleep 0.1; done", gpuType=GPU, resourcegpu=1)

    def series(metric: str) -> list[dict[str, Any]]:
        status, answer = apulis.raw("GET", CHARTS, query=f'{metric}{{job_name="{job}"}}', start=0, end=1, step=60)
        assert status == 200, answer
        found: list[dict[str, Any]] = json.loads(answer)["data"]["result"]
        return found

    wait_until(lambda: len(series("task_cpu_percent")) == 2)
    assert {row["metric"]["pod_name"] for row in series("task_mem_usage_percent")} == {
        f"{job}-worker{i}" for i in (0, 1)
    }
    assert all(0 <= float(value) <= 100 for row in series("task_cpu_percent") for _, value in row["values"])
    assert series("task_device_percent") == []
    assert apulis.raw("GET", CHARTS, query="up")[0] == 400
    apulis.of("KillJob", job)


def running(mark: str) -> list[str]:
    if shutil.which("pgrep") is None:
        pytest.skip("there is no pgrep")
    return subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False).stdout.split()
