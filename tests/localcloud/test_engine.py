"""Jobs that really run: what a rank finds around itself, and what becomes of it."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import site
import socket
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import PATIENCE, wait_until

from pytest_aisbench.localcloud.engine import process_engine
from pytest_aisbench.localcloud.engine.launch import (
    Channel,
    Ended,
    Event,
    Launch,
    Place,
    Started,
    TaskEnded,
    TaskStarted,
)
from pytest_aisbench.localcloud.engine.private_root import container_support, pid_namespace
from pytest_aisbench.localcloud.engine.process_engine import ProcessEngine
from pytest_aisbench.localcloud.obs.storage import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OUTPUTS = (Channel("train_url", Place("b", "out/"), "/home/ma-user/modelarts/outputs/train_url_0"),)
LOGS = Place("b", "log/")


class Watched:
    """A job in the engine's hands, and what was heard of it."""

    def __init__(self, engine: ProcessEngine, objects: Objects, script: str, **changes: Any) -> None:
        self.id = str(uuid.uuid4())
        self.engine = engine
        self.events: list[Event] = []
        self._heard = threading.Condition()
        objects.put("b", f"{self.id}/code/train.py", script.encode())
        for name, content in changes.pop("files", {}).items():
            objects.put("b", f"{self.id}/code/{name}", content.encode())
        settings: dict[str, Any] = {"nodes": 1, "cards": 1, "outputs": OUTPUTS, "logs": LOGS} | changes
        self.launch = Launch(
            job_id=self.id,
            engine_version="python-local",
            interpreter=sys.executable,
            code=Place("b", f"{self.id}/code/"),
            boot_file="train.py",
            **settings,
        )
        engine.start(self.launch, self._hear)

    def _hear(self, event: Event) -> None:
        with self._heard:
            self.events.append(event)
            self._heard.notify_all()

    def _await(self, kind: type[Any]) -> Any:
        with self._heard:
            found = self._heard.wait_for(
                lambda: [event for event in self.events if isinstance(event, kind)], timeout=PATIENCE
            )
        assert found, f"no {kind.__name__} in {self.events}; {self.log()}"
        return found[0]

    def await_start(self) -> None:
        self._await(TaskStarted)

    def end(self) -> Ended:
        ended: Ended = self._await(Ended)
        return ended

    def codes(self) -> dict[str, int]:
        return {event.task: event.exit_code for event in self.events if isinstance(event, TaskEnded)}

    def log(self, task: str = "worker-0") -> str:
        content, _ = self.engine.log(self.id, task) or (b"", 0)
        return content.decode()


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    objects = Objects(tmp_path / "objects")
    objects.create_bucket("b")
    yield objects
    objects.close()


@pytest.fixture(params=["namespace", "walk"])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a node keeps its processes together, whichever this machine would choose."""
    if request.param == "walk":
        monkeypatch.setattr(process_engine, "pid_namespace", lambda: None)
    elif not pid_namespace():
        pytest.skip("this machine allows no pid namespace")
    return str(request.param)


@pytest.fixture
def submit(objects: Objects, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    engine = ProcessEngine(objects, tmp_path / "work", "http://127.0.0.1:9", grace=0.3)
    yield lambda script, **changes: Watched(engine, objects, script, **changes)
    engine.close()


def read(objects: Objects, key: str) -> bytes:
    _, file = objects.open("b", key)
    with file:
        return file.read()


DUMP = """
import json, os, pathlib, sys
arguments = dict(argument[2:].split("=", 1) for argument in sys.argv[1:])
seen = {
    "environment": dict(os.environ),
    "arguments": arguments,
    "cwd": os.getcwd(),
    "table": json.loads(pathlib.Path(os.environ["RANK_TABLE_FILE"]).read_text()),
    "input": pathlib.Path(arguments["data_url"], "deep/data.txt").read_text(),
    "by_environment": pathlib.Path(os.environ["extra"], "more.txt").read_text(),
}
pathlib.Path(arguments["train_url"], f"rank{os.environ['RANK_ID']}.json").write_text(json.dumps(seen))
"""


def test_every_rank_finds_what_the_platform_promises(
    isolation: str, submit: Callable[..., Watched], objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "HUAWEICLOUD_SDK_SK": "s3cret-1",
        "AISBENCH_SECRET_ACCESS_KEY": "s3cret-2",
        "OBS_TOKEN": "s3cret-3",
        "AWS_SECRET_ACCESS_KEY": "s3cret-4",
        "SOME_PASSWORD": "s3cret-5",
        "PYTHONPATH": "/s3cret-6",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    objects.put("b", "in/deep/data.txt", b"the data")
    objects.put("b", "extra/more.txt", b"more of it")
    job = submit(
        DUMP,
        nodes=2,
        cards=2,
        parameters=(("lr", "0.1"), ("note", "a b=c")),
        inputs=(
            Channel("data_url", Place("b", "in/"), "/home/ma-user/modelarts/inputs/data_url_0"),
            Channel("extra", Place("b", "extra/"), "/home/ma-user/modelarts/inputs/extra_1", by_environment=True),
        ),
        environment={"GLOG_v": "3", "OMP_NUM_THREADS": "2"},
    )
    assert job.end().phase == "Completed", job.log()
    ranks = [json.loads(read(objects, f"out/rank{rank}.json")) for rank in range(4)]

    for rank, seen in enumerate(ranks):
        environment = seen["environment"]
        expected = {
            "JOB_ID": job.id,
            "RANK_ID": str(rank),
            "RANK_SIZE": "4",
            "DEVICE_ID": str(rank % 2),
            "ASCEND_DEVICE_ID": str(rank % 2),
            "VC_TASK_INDEX": str(rank // 2),
            "VC_WORKER_NUM": "2",
            "MA_NUM_HOSTS": "2",
            "MA_NUM_GPUS": "2",
            "MA_TASK_NAME": "worker",
            "MA_VJ_NAME": f"ma-job-{job.id}",
            "MA_CURRENT_INSTANCE_NAME": f"modelarts-job-{job.id}-worker-{rank // 2}",
            "HCCL_CONNECT_TIMEOUT": "1800",
            "GLOG_v": "3",
            "OMP_NUM_THREADS": "2",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        assert {name: environment.get(name) for name in expected} == expected
        assert environment["MA_JOB_DIR"] == f"{environment['MA_HOME']}/modelarts/user-job-dir"
        assert environment["WORKSPACE"] == f"{environment['MA_JOB_DIR']}/code"
        assert seen["cwd"] == f"{environment['MA_MOUNT_PATH']}/workspace/device{rank % 2}"
        assert seen["arguments"]["lr"] == "0.1"
        assert seen["arguments"]["note"] == "a b=c"
        assert seen["arguments"]["train_url"].endswith("/home/ma-user/modelarts/outputs/train_url_0")
        assert (seen["input"], seen["by_environment"]) == ("the data", "more of it")
        assert "s3cret" not in json.dumps(seen)

    homes = {seen["environment"]["MA_HOME"] for seen in ranks}
    private, _ = container_support()
    assert len(homes) == 2 or (private and homes == {"/home/ma-user"}), "each node has a container of its own"
    [table] = {json.dumps(seen["table"]) for seen in ranks}
    _check_rank_table(json.loads(table))
    [master] = {(seen["environment"]["MASTER_ADDR"], seen["environment"]["MASTER_PORT"]) for seen in ranks}
    with socket.socket() as listener:
        listener.bind((master[0], int(master[1])))


def _check_rank_table(table: dict[str, Any]) -> None:
    assert (table["version"], table["status"], table["server_count"]) == ("1.0", "completed", "2")
    devices = [device for server in table["server_list"] for device in server["device"]]
    assert [device["rank_id"] for device in devices] == ["0", "1", "2", "3"]
    assert [device["device_id"] for device in devices] == ["0", "1", "0", "1"]
    if sys.platform == "linux":
        assert len({server["server_id"] for server in table["server_list"]}) == 2
        assert len({device["device_ip"] for device in devices}) == 4


def test_the_first_exit_code_that_is_not_zero_ends_the_job(submit: Callable[..., Watched], objects: Objects) -> None:
    job = submit(
        """
import os, pathlib, sys, time
if os.environ["RANK_ID"] == "3":
    print("rank 3 gives up")
    pathlib.Path(sys.argv[1].split("=")[1], "last.txt").write_text("words")
    sys.exit(3)
time.sleep(600)
""",
        nodes=2,
        cards=2,
    )
    end = job.end()
    assert (end.phase, end.task) == ("Failed", "worker-1")
    assert job.codes()["worker-1"] == 3
    assert "rank 3 gives up" in job.log("worker-1")
    assert "Training end with return code: 3" in job.log("worker-1")
    assert read(objects, "out/last.txt") == b"words", "results of a failed job are brought home too"


def test_a_rank_ended_by_a_signal_has_the_shells_exit_code(submit: Callable[..., Watched]) -> None:
    job = submit("import os; os.kill(os.getpid(), 9)")
    assert (job.end().phase, job.codes()) == ("Failed", {"worker-0": 137})


@pytest.mark.slow
def test_a_rank_that_ignores_sigterm_is_killed(isolation: str, submit: Callable[..., Watched]) -> None:
    job = submit("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)")
    job.await_start()
    wait_until(lambda: "deaf" in job.log())
    job.engine.stop(job.id)
    assert (job.end().phase, job.codes()) == ("Terminated", {"worker-0": 143})


def test_a_stopped_rank_may_say_goodbye(submit: Callable[..., Watched], objects: Objects) -> None:
    job = submit("""
import pathlib, signal, sys, time
def leave(*_):
    pathlib.Path(sys.argv[1].split("=")[1], "checkpoint").write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(600)
""")
    wait_until(lambda: "ready" in job.log())
    job.engine.stop(job.id)
    assert job.end().phase == "Terminated"
    assert read(objects, "out/checkpoint") == b"saved"


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("ma-pre-start.sh", "export GREETING='from the shell'\nexport PATH=/opt/cann:$PATH\npwd\nexit 0\n"),
        ("ma-pre-start.py", "import os\nos.environ['GREETING'] = 'from the shell'\nprint(os.getcwd())\n"),
    ],
)
def test_what_the_pre_start_script_exports_reaches_the_ranks(
    submit: Callable[..., Watched], name: str, script: str
) -> None:
    job = submit("import os; print(os.environ['GREETING'], os.environ['RANK_ID'])", cards=2, files={name: script})
    assert job.end().phase == "Completed", job.log()
    assert "from the shell 0" in job.log()
    assert "from the shell 1" in job.log()
    assert job.log().count("/user-job-dir\n") == 1, "it runs once for each node, in user-job-dir"


def test_what_the_pre_start_script_starts_runs_as_long_as_the_job(submit: Callable[..., Watched]) -> None:
    mark = f"mark-{uuid.uuid4()}"
    daemon = f'{sys.executable} -c "import time; time.sleep(600)" {mark} &\necho $! > daemon.pid\n'
    script = "import os; os.kill(int(open(os.environ['MA_JOB_DIR'] + '/daemon.pid').read()), 0)"
    job = submit(script, files={"ma-pre-start.sh": daemon})
    assert job.end().phase == "Completed", job.log()
    assert not survivors(mark)


def test_a_pre_start_script_that_fails_fails_the_job(submit: Callable[..., Watched]) -> None:
    job = submit("print('never')", files={"ma-pre-start.sh": "echo oh no\nfalse\n"})
    assert (job.end().phase, job.codes()) == ("Failed", {"worker-0": 1})
    assert "oh no" in job.log()
    assert "never" not in job.log()


@pytest.mark.slow
def test_outputs_and_logs_are_in_the_store_while_the_job_runs(submit: Callable[..., Watched], objects: Objects) -> None:
    job = submit("""
import os, pathlib, sys, time
out = pathlib.Path(sys.argv[1].split("=")[1])
out.joinpath("early.txt").write_text("1")
print("first words", flush=True)
while not out.joinpath("go").exists():
    time.sleep(0.02)
out.joinpath("early.txt").write_text("22")
""")
    name = f"log/modelarts-job-{job.id}"
    wait_until(lambda: objects.head("b", "out/early.txt"))
    wait_until(lambda: objects.head("b", f"{name}-worker-0.log"))
    wait_until(lambda: b"first words" in read(objects, f"{name}-worker-0.log"))
    wait_until(lambda: objects.head("b", f"{name}-proc-rank-0-device-0.txt"))
    assert read(objects, f"{name}-proc-rank-0-device-0.txt") == b"first words\n"
    assert not any(isinstance(event, Ended) for event in job.events)
    [go] = (job.engine._folder(job.id) / "0").glob("**/train_url_0")
    (go / "go").touch()
    assert job.end().phase == "Completed"
    assert read(objects, "out/early.txt") == b"22"
    assert read(objects, f"{name}-worker-0.log").startswith(b"[ModelArts Service Log]")


def test_lines_of_ranks_are_not_mixed(submit: Callable[..., Watched]) -> None:
    job = submit(
        """
import os, sys
for i in range(200):
    sys.stdout.write(os.environ["RANK_ID"] * 50); sys.stdout.flush(); sys.stdout.write("\\n")
sys.stdout.write("no newline at the end")
""",
        cards=3,
    )
    assert job.end().phase == "Completed"
    lines = [line for line in job.log().splitlines() if not line.startswith("[ModelArts Service Log]")]
    wanted = [str(rank) * 50 for rank in range(3) for _ in range(200)] + ["no newline at the end"] * 3
    assert sorted(lines) == sorted(wanted)


def test_a_job_that_runs_too_long_is_stopped(submit: Callable[..., Watched]) -> None:
    job = submit("import time; time.sleep(600)", time_limit=0.2)
    end = job.end()
    assert end.phase == "Terminated"
    assert "auto_stop" in end.message


def test_jobs_side_by_side_get_ports_of_their_own(submit: Callable[..., Watched]) -> None:
    script = "import os, time; print('port', os.environ['MASTER_PORT'], flush=True); time.sleep(600)"
    jobs = [submit(script) for _ in range(3)]
    for job in jobs:
        wait_until(functools.partial(_has_said, job, "port"))
    ports = {job.log().split("port ")[1].split()[0] for job in jobs}
    assert len(ports) == 3


def _has_said(job: Watched, text: str) -> bool:
    return text in job.log()


def test_nobody_of_a_job_is_left_when_it_ends(isolation: str, submit: Callable[..., Watched]) -> None:
    mark = f"mark-{uuid.uuid4()}"
    job = submit(f"""
import subprocess, sys
for session in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "{mark}"], start_new_session=session)
""")
    assert job.end().phase == "Completed"
    assert not survivors(mark)


@pytest.mark.slow
def test_a_full_disk_is_the_platforms_fault_and_the_engine_survives_it(
    submit: Callable[..., Watched], objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_file(path: Path, bucket: str, key: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(objects, "put_file", put_file)
        job = submit("import time; time.sleep(600)")
        end = job.end()
    assert end.phase == "Abnormal"
    assert "No space left" in end.message
    assert submit("print('fine')").end().phase == "Completed"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_jobs_outlive_the_process_that_starts_nodes(submit: Callable[..., Watched], tmp_path: Path) -> None:
    """As when the kernel takes it for its memory: what runs is not touched, and what follows gets another one."""
    job = submit("import os, time\nwhile not os.path.exists(os.environ['MA_JOB_DIR'] + '/go'): time.sleep(0.01)")
    job.await_start()
    [server] = [pid for pid in survivors("engine.node_server") if _parent(pid) == os.getpid()]
    os.kill(server, signal.SIGKILL)
    (tmp_path / "work" / job.id / "0/home/ma-user/modelarts/user-job-dir/go").touch()
    assert job.end().phase == "Completed"
    assert submit("pass").end().phase == "Completed"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def test_events_come_in_order(submit: Callable[..., Watched]) -> None:
    job = submit("pass")
    job.end()
    assert [type(event) for event in job.events] == [Started, TaskStarted, TaskEnded, Ended]


def survivors(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


WHEEL = """
import pathlib, sys, zipfile
name, version = "aisbench_probe", sys.argv[1]
info = f"{name}-{version}.dist-info"
with zipfile.ZipFile(f"{name}-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr(f"{name}.py", f"version = {version!r}")
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(f"{info}/RECORD", "")
"""
INSTALLS = """
cd "$(dirname "${BASH_SOURCE[0]}")"
python wheel.py 1.0 && pip install --no-index ./aisbench_probe-1.0-*.whl || exit 3
python wheel.py 2.0 && sudo "$MA_SCRIPT_INTERPRETER" -m pip install --no-index ./aisbench_probe-2.0-*.whl || exit 4
pip3 uninstall -y pluggy
pip install --no-index --target "$HOME/aside" ./aisbench_probe-1.0-*.whl || exit 5
"""
# A job that goes around its own Python: into the folder that the packages below come from.
REACHES_BELOW = """
import pathlib, pluggy, subprocess, sys
below = pathlib.Path(pluggy.__file__).parents[1]
failed = subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--target", below, sys.argv[1]])
try:
    (below / "aisbench_probe.txt").write_text("here")
except OSError as error:
    sys.exit(0 if failed.returncode else "pip could")
sys.exit("it could write")
"""


@pytest.mark.slow
def test_what_a_job_installs_and_removes_stays_in_its_node(submit: Callable[..., Watched], objects: Objects) -> None:
    """It sees what the cloud's Python has, and the software of other jobs is not its own."""
    before = installed()
    script = (
        "import aisbench_probe, os, pathlib, pluggy, sys\n"
        "pathlib.Path(sys.argv[1].split('=')[1], 'version').write_text(aisbench_probe.version)"
    )
    job = submit(script, files={"ma-pre-start.sh": INSTALLS, "wheel.py": WHEEL})
    assert job.end().phase == "Completed", job.log()
    assert read(objects, "out/version") == b"2.0"
    assert installed() == before
    assert submit("import aisbench_probe").end().phase == "Failed"


@pytest.mark.slow
def test_a_job_cannot_write_to_the_packages_of_the_python_below(submit: Callable[..., Watched]) -> None:
    if not container_support()[0]:
        pytest.skip(container_support()[1])
    before = installed()
    pre_start = 'cd "$(dirname "${BASH_SOURCE[0]}")"\npython wheel.py 1.0 && python reach.py ./*.whl || exit 3\n'
    job = submit("", files={"ma-pre-start.sh": pre_start, "wheel.py": WHEEL, "reach.py": REACHES_BELOW})
    assert job.end().phase == "Completed", job.log()
    assert installed() == before


def installed() -> dict[str, tuple[int, int]]:
    """Every file of this Python and of its packages; caches of bytecode are no software."""
    places = {Path(sys.prefix, "bin"), *map(Path, site.getsitepackages())}
    files = (file for place in places for file in place.rglob("*") if "__pycache__" not in file.parts)
    return {str(file): (file.lstat().st_size, file.lstat().st_mtime_ns) for file in files}
