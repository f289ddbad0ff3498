"""Jobs of custom images: V2's command and V1's run_train.sh, as the containers of the platform run them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from cloud_client import CloudClient
from waiting import wait_until

from pytest_aisbench.localcloud.engine import process_engine
from pytest_aisbench.localcloud.engine.container import Container, Layout
from pytest_aisbench.localcloud.engine.launch import Launch
from pytest_aisbench.localcloud.engine.private_root import container_support
from pytest_aisbench.localcloud.modelarts.rules import Catalog
from pytest_aisbench.localcloud.obs.storage import Objects
from pytest_aisbench.localcloud.server import LocalCloud

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*invalid escape sequence"),
    pytest.mark.filterwarnings(r"ignore:.*'return' in a 'finally' block:SyntaxWarning"),
]

COMPLETED, FAILED = 10, 11  # of V1


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudClient]:
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", DUMP.encode())
        yield client


@pytest.fixture(params=["private", "shared"])
def paths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the platform's own paths and without: commands that name them run all the same."""
    supported, reason = container_support()
    if request.param == "shared":
        monkeypatch.setattr(process_engine, "container_support", lambda: (False, "not here"))
    elif not supported:
        pytest.skip(reason)
    return str(request.param)


DUMP = """
import json, os, pathlib, sys
arguments = dict(argument[2:].split("=", 1) for argument in sys.argv[1:])
seen = {"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd(), "file": __file__}
pathlib.Path(arguments["train_url"], os.environ["VC_TASK_INDEX"] + ".json").write_text(json.dumps(seen))
print("said by", os.environ["VC_TASK_INDEX"])
"""


def v2(client: CloudClient, command: str, **wishes: Any) -> dict[str, Any]:
    request = client.job(**wishes)
    request["algorithm"] |= {"engine": {"image_url": "org/image:1"}, "command": command}
    del request["algorithm"]["boot_file"]
    return request


def create(client: CloudClient, request: dict[str, Any]) -> Any:
    answer = client.call("POST", f"/v2/{client.project}/training-jobs", request)
    return client.until(answer["metadata"]["id"], {"Completed", "Failed", "Abnormal"})


@pytest.mark.parametrize("script", ["$MA_JOB_DIR/code/train.py", "/home/ma-user/modelarts/user-job-dir/code/train.py"])
def test_a_command_of_v2_runs_once_for_each_node(paths: str, client: CloudClient, script: str) -> None:
    out = f"out-{uuid.uuid4().hex}/"
    command = f"export GREETING=hello && python {script}"
    wishes = {"flavor": "modelarts.kat1.2xlarge", "nodes": 2, "out": out, "note": "it's $HOME"}
    answer = create(client, v2(client, command, **wishes))
    job = answer["metadata"]["id"]
    assert answer["status"]["phase"] == "Completed", client.log(job)
    assert answer["algorithm"]["engine"] == {"image_url": "org/image:1"}
    assert answer["algorithm"]["command"] == command
    assert sorted(client.keys(out)) == ["0.json", "1.json"]
    for node in (0, 1):
        seen = json.loads(client.get(f"{out}{node}.json"))
        environment = seen["environment"]
        home = environment["MA_HOME"]
        assert home.endswith("/home/ma-user")
        assert (paths == "private") == (home == "/home/ma-user")
        assert seen["cwd"] == home
        assert seen["file"] == f"{home}/modelarts/user-job-dir/code/train.py"
        assert seen["arguments"]["note"] == "it's $HOME", "the platform's arguments are no shell text"
        assert environment["GREETING"] == "hello"
        assert (environment["MA_NUM_GPUS"], environment["MA_NUM_HOSTS"]) == ("2", "2")
        assert environment["RANK_TABLE_FILE"].endswith("/user/config")
        assert not {"RANK_ID", "DEVICE_ID", "RANK_SIZE"} & set(environment)
        assert client.log(job, f"worker-{node}")["content"].count(f"said by {node}") == 1
    assert not [key for key in client.keys("log/") if job in key and "proc-rank" in key]


def test_the_exit_code_of_a_command_is_the_jobs(client: CloudClient) -> None:
    answer = create(client, v2(client, "echo oh no; (exit 5); [ $? = 5 ] && exit 5; true"))
    assert answer["status"]["phase"] == "Failed"
    assert answer["status"]["task_statuses"][0]["exit_code"] == 5
    assert "oh no" in client.log(answer["metadata"]["id"])["content"]


def test_an_image_may_bring_all_the_code(client: CloudClient) -> None:
    request = v2(client, "test -d $MA_JOB_DIR && echo ready")
    del request["algorithm"]["code_dir"]
    assert create(client, request)["status"]["phase"] == "Completed"


def test_a_rank_table_is_there_before_long(client: CloudClient) -> None:
    script = """
import json, os, pathlib, time
table = pathlib.Path(os.environ["RANK_TABLE_FILE"], "jobstart_hccl.json")
deadline = time.time() + 20
while json.loads(table.read_text())["status"] != "completed" and time.time() < deadline:
    time.sleep(0.02)
assert json.loads(table.read_text())["group_list"][0]["device_count"] == "2"
"""
    client.put("code/table.py", script.encode())
    request = v2(client, "python $MA_JOB_DIR/code/table.py", flavor="modelarts.kat1.2xlarge")
    answer = create(client, request)
    assert answer["status"]["phase"] == "Completed", client.log(answer["metadata"]["id"])


@pytest.mark.parametrize("missing", ["command", "image"])
def test_an_image_needs_a_command_and_a_command_an_image(client: CloudClient, missing: str) -> None:
    request = v2(client, "true")
    if missing == "command":
        del request["algorithm"]["command"]
    else:
        request["algorithm"]["engine"] = {}
    path = f"/v2/{client.project}/training-jobs"
    assert client.refused("POST", path, request) == (400, "ModelArts.2806")


V1_SCRIPT = """
import json, os, sys
import moxing as mox
seen = {"environment": dict(os.environ), "cwd": os.getcwd(), "arguments": sys.argv[1:]}
seen["data"] = mox.file.list_directory(os.environ["DLS_DATA_URL"])
mox.file.write(os.environ["DLS_TRAIN_URL"] + os.environ["DLS_TASK_INDEX"] + ".json", json.dumps(seen))
print("said by", os.environ["DLS_TASK_INDEX"])
"""
RUN_SH = 'cd "$(dirname "$0")" && ls && python train.py --from-shell\n'


class V1Job:
    """One that has run to its end."""

    def __init__(self, client: CloudClient, command: str, **changes: Any) -> None:
        key = uuid.uuid4().hex
        for name, content in {"train.py": V1_SCRIPT, "run.sh": RUN_SH}.items():
            client.put(f"{key}/paddle/{name}", content.encode())
        client.put(f"{key}/empty/", b"")
        self.out, self.data, self.logs = f"{key}/out/", f"{key}/empty/", f"{key}/log/"
        self.name = f"paddle-{key}"
        config = {
            "worker_server_num": 1,
            "app_url": f"/{client.bucket}/{key}/paddle/",
            "data_url": f"/{client.bucket}/{self.data}",
            "train_url": f"/{client.bucket}/{self.out}",
            "log_url": f"/{client.bucket}/{self.logs}",
            "parameter": [{"label": "LEARNING_RATE", "value": "0.1"}],
            "spec_id": 1,
            "user_image_url": "host/org/image:1",
            "user_command": command,
        }
        jobs = f"/v1/{client.project}/training-jobs"
        created = client.call("POST", jobs, {"job_name": self.name, "config": config | changes})
        version = f"{jobs}/{created['job_id']}/versions/{created['version_id']}"
        answer = wait_until(lambda: client.call("GET", version), lambda answer: answer["status"] in {COMPLETED, FAILED})
        self.status = answer["status"]
        self.worker_log = f"{answer['resource_id']}-job-{self.name}-0.log"
        self.log = client.get(self.logs + self.worker_log).decode()


@pytest.mark.parametrize(
    "script", ["bash /home/work/user-job-dir/paddle/run.sh", "python /home/work/user-job-dir/paddle/train.py"]
)
def test_run_train_brings_the_code_and_runs_the_command(paths: str, client: CloudClient, script: str) -> None:
    job = V1Job(client, f"bash /home/work/run_train.sh {script}")
    assert job.status == COMPLETED, job.log
    seen = json.loads(client.get(f"{job.out}0.json"))
    environment = seen["environment"]
    expected = {
        "DLS_TASK_INDEX": "0",
        "DLS_TASK_NUMBER": "1",
        "DLS_DATA_URL": f"s3://{client.bucket}/{job.data}",
        "DLS_TRAIN_URL": f"s3://{client.bucket}/{job.out}",
        "LEARNING_RATE": "0.1",
    }
    assert {name: environment.get(name) for name in expected} == expected
    assert "BATCH_CURRENT_HOST" in environment
    assert seen["data"] == [], "a job without data has an empty folder"
    assert seen["arguments"] == (["--from-shell"] if "run.sh" in script else []), "parameters are variables"
    job_dir = f"{environment['HOME']}/user-job-dir"
    assert environment["HOME"].endswith("/home/work")
    assert seen["cwd"] in {job_dir, f"{job_dir}/paddle"}
    assert "said by 0" in job.log
    names = client.keys(job.logs)
    assert job.worker_log in names
    assert any(name.startswith("dls-log-") for name in names)


def test_every_node_of_v1_knows_the_others_by_host_and_port(client: CloudClient) -> None:
    command = "bash /home/work/run_train.sh python /home/work/user-job-dir/paddle/train.py"
    job = V1Job(client, command, worker_server_num=2)
    assert job.status == COMPLETED, job.log
    hosts = []
    for node in (0, 1):
        environment = json.loads(client.get(f"{job.out}{node}.json"))["environment"]
        listed = [environment[f"BATCH_CUSTOM{index}_HOSTS"] for index in (0, 1)]
        mine = f"{environment['BATCH_CURRENT_HOST']}:{environment['BATCH_CURRENT_PORT']}"
        assert listed[node] == mine
        hosts.append(listed)
    assert hosts[0] == hosts[1]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("bash /home/work/run_train.sh bash -c 'exit 7'", 7),
        # What guides get wrong fails here as it does there.
        ("bash /home/work/run_train.sh bash /home/work/user-job-dir/run.sh", 127),
        ("bash /home/work/run_train.sh python /home/work/user-job-dir/paddle/run.sh", 1),
        ("DLS_APP_URL=s3://aisbench/nothing/here/ bash /home/work/run_train.sh true", 127),
    ],
)
def test_what_fails_has_its_exit_code(client: CloudClient, command: str, code: int) -> None:
    job = V1Job(client, command)
    assert job.status == FAILED
    assert f"Training end with return code: {code}" in job.log


def test_a_node_path_in_a_command_is_no_part_of_a_longer_one(tmp_path: Path) -> None:
    shared = Layout(tmp_path, private=False)
    command = "bash /home/work/run.sh --a=/cache/x /opt/cache /home/workers /tmpfs '/tmp'"
    wanted = f"bash {tmp_path}/home/work/run.sh --a={tmp_path}/cache/x /opt/cache /home/workers /tmpfs '{tmp_path}/tmp'"
    assert shared.translate(command) == wanted
    assert Layout(tmp_path, private=True).translate(command) == command


def test_python_is_there_by_that_name(tmp_path: Path) -> None:
    """Debian's interpreter is called python3 alone; scripts made for the platform's images say `python`."""
    interpreter = tmp_path / "bin/python3"
    interpreter.parent.mkdir()
    interpreter.write_text("#!/bin/sh\necho the interpreter got $1\n")
    interpreter.chmod(0o755)
    objects = Objects(tmp_path / "objects")
    launch = Launch("id", 1, 1, "", str(interpreter), None, "", image="org/image:1", command="python")
    container = Container(tmp_path / "work/id/0", launch, 0)
    container.prepare(objects, private=False)
    spec = container.spec(1, {}, 1.0)
    found = subprocess.run(
        [*spec["ranks"][0]["command"][:2], "python it"], env=spec["environment"], capture_output=True, check=True
    )
    assert found.stdout == b"the interpreter got it\n"
    objects.close()


@pytest.mark.parametrize(
    ("image", "python"),
    [
        ("swr.cn-north-4.myhuaweicloud.com/deep-learning-diy/paddle-gpu-cuda10-2.0.1:latest", "/p/python"),
        ("host:5000/org/PaddlePaddle", "/p/python"),
        ("org/horovod:paddle", "/h/python"),
        ("paddle/numpy:1", sys.executable),
    ],
)
def test_an_image_called_after_a_framework_has_its_python(image: str, python: str) -> None:
    assert Catalog({"paddle": "/p/python", "horovod": "/h/python"}).interpreter_in(image) == python
