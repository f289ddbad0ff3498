"""The platform's fixed paths, private to each node by a mount namespace, and nothing of it on the host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import PATIENCE, wait_until

from pytest_aisbench.localcloud.engine import container, private_root, process_engine, processes
from pytest_aisbench.localcloud.engine.launch import Channel, Ended, Event, Launch, Place, Volume
from pytest_aisbench.localcloud.engine.private_root import PATHS, container_support
from pytest_aisbench.localcloud.engine.process_engine import ProcessEngine
from pytest_aisbench.localcloud.obs.storage import Objects

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPPORTED, REASON = container_support()
needs_mounts = pytest.mark.skipif(not SUPPORTED, reason=REASON)
OUT = Channel("train_url", Place("bucket", "out/"), "/home/ma-user/modelarts/outputs/train_url_0")


class Engine:
    """Runs one script after another, to the end."""

    def __init__(self, folder: Path) -> None:
        self.objects = Objects(folder / "objects")
        self.objects.create_bucket("bucket")
        self.engine = ProcessEngine(self.objects, folder / "work", "http://127.0.0.1:9", grace=0.3)

    def start(self, script: str, **changes: Any) -> tuple[str, threading.Event, list[Event]]:
        job, ended, events = str(uuid.uuid4()), threading.Event(), list[Event]()
        self.objects.put("bucket", f"{job}/code/train.py", script.encode())

        def hear(event: Event) -> None:
            events.append(event)
            if isinstance(event, Ended):
                ended.set()

        fields: dict[str, Any] = {"nodes": 1, "cards": 1, "outputs": (OUT,), "interpreter": sys.executable} | changes
        launch = Launch(
            job_id=job, engine_version="", code=Place("bucket", f"{job}/code/"), boot_file="train.py", **fields
        )
        self.engine.start(launch, hear)
        return job, ended, events

    def run(self, script: str, **changes: Any) -> None:
        job, ended, events = self.start(script, **changes)
        assert ended.wait(PATIENCE)
        logs = [self.engine.log(job, f"worker-{node}") for node in range(changes.get("nodes", 1))]
        [end] = [event for event in events if isinstance(event, Ended)]
        assert end.phase == "Completed", (end, logs)

    def results(self) -> dict[str, Any]:
        found = {}
        for meta in self.objects.walk("bucket", "out/"):
            _, file = self.objects.open("bucket", meta.key)
            with file:
                found[meta.key.removeprefix("out/")] = json.loads(file.read())
        return found


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.engine.close()
    engine.objects.close()


def host() -> tuple[list[str], list[str]]:
    """What a job could have left: mounts, and folders at the platform's paths."""
    mounts = Path("/proc/self/mounts").read_text().splitlines() if processes.LINUX else []
    return mounts, [path for path in PATHS[:-1] if Path(path).exists()]


PRIVATE = """
import json, os, pathlib, sys, time
node, card = os.environ["VC_TASK_INDEX"], os.environ["DEVICE_ID"]
out = pathlib.Path(sys.argv[1].split("=")[1])
for folder in ("/tmp", "/home/ma-user", "/home/work", "/user/config", "/cache"):
    pathlib.Path(folder, "of-node-%s-card-%s" % (node, card)).touch()
deadline = time.time() + 20
while len(list(pathlib.Path("/cache").iterdir())) < 2 and time.time() < deadline:
    time.sleep(0.01)
seen = {}
for folder in ("/cache", "/tmp", "/user/config"):
    seen[folder] = sorted(path.name for path in pathlib.Path(folder).glob("of-*"))
seen["tables"] = json.loads(pathlib.Path("/user/config/jobstart_hccl.json").read_text())["status"]
seen["places"] = [os.environ[n] for n in ("HOME", "TMPDIR", "MA_HOME", "MA_JOB_DIR", "MA_LOG_DIR", "RANK_TABLE_FILE")]
seen["here"] = [__file__, os.getcwd(), str(out)]
seen["packages"] = os.path.exists(os.path.dirname(os.__file__))
out.joinpath("%s-%s.json" % (node, card)).write_text(json.dumps(seen))
"""


@needs_mounts
def test_every_node_has_the_platforms_paths_for_itself(engine: Engine) -> None:
    before = host()
    engine.run(PRIVATE, nodes=2, cards=2)
    found = engine.results()
    assert len(found) == 4
    for name, seen in found.items():
        node, card = name.removesuffix(".json").split("-")
        both = [f"of-node-{node}-card-{each}" for each in (0, 1)]
        assert [seen[folder] for folder in ("/cache", "/tmp", "/user/config")] == [both] * 3
        assert seen["tables"] == "completed"
        home = "/home/ma-user"
        modelarts = f"{home}/modelarts"
        assert seen["places"] == [
            *(home, "/tmp", home, f"{modelarts}/user-job-dir", f"{modelarts}/log"),
            f"{home}/rank_table/jobstart_hccl.json",
        ]
        assert seen["here"] == [
            f"{modelarts}/user-job-dir/code/train.py",
            f"{modelarts}/workspace/device{card}",
            f"{modelarts}/outputs/train_url_0",
        ]
        assert seen["packages"]
    assert host() == before


@needs_mounts
def test_the_host_sees_no_mount_while_a_job_runs_nor_when_it_is_killed(engine: Engine, tmp_path: Path) -> None:
    before = host()
    script = "import time; open('/cache/x', 'w').write('x' * 1000); print('ready', flush=True); time.sleep(600)"
    job, ended, _ = engine.start(script)
    wait_until(lambda: engine.engine.log(job, "worker-0"), lambda log: log and b"ready" in log[0])
    assert host() == before
    engine.engine.stop(job)
    assert ended.wait(PATIENCE)
    assert host() == before
    node = tmp_path / "work" / job / "0"
    wait_until(lambda: list(node.glob("*")), lambda left: left == [node / "home"])  # everything but the logs goes


CLOUD = """
import sys, test_node_paths as t, pathlib
engine = t.Engine(pathlib.Path(sys.argv[1]))
job, ended, _ = engine.start("import time; print('ready', flush=True); time.sleep(600)", nodes=2)
for n in (0, 1):
    t.wait_until(lambda: engine.engine.log(job, f"worker-{n}"), lambda log: log and b"ready" in log[0])
print(job, flush=True)
ended.wait()
"""


@pytest.mark.slow
@needs_mounts
def test_a_cloud_killed_outright_leaves_no_mount_and_no_process(tmp_path: Path) -> None:
    before = host()
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", CLOUD, str(tmp_path)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as cloud:
        assert cloud.stdout
        job = cloud.stdout.readline().strip()
        cloud.send_signal(signal.SIGKILL)
    assert job
    wait_until(lambda: [pid for pid in processes._pids() if _is_of(pid, job)], lambda pids: not pids)
    assert host() == before
    shutil.rmtree(tmp_path / "work")


def _is_of(pid: int, job: str) -> bool:
    """By its environment, or as a node, which has the cloud's, by its command line."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(job.encode() in entry for entry in (command, *processes._environment(pid)))
    return False


@needs_mounts
def test_an_interpreter_below_a_covered_path_is_still_there(engine: Engine, tmp_path: Path) -> None:
    """Such as a virtual environment below /tmp, or below /home/ma-user in a notebook."""
    if not container.is_covered(str(tmp_path)):
        pytest.skip("temporary folders of this machine are elsewhere")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "secret").touch()
    script = f"""
import json, os, sys
out = sys.argv[1].split("=")[1]
seen = [{str(tmp_path / "venv")!r} in "".join(sys.path), os.path.exists({str(tmp_path / "secret")!r})]
json.dump(seen, open(out + "/seen.json", "w"))
"""
    engine.run(script, interpreter=str(tmp_path / "venv/bin/python"))
    assert engine.results()["seen.json"] == [True, False]


@needs_mounts
def test_channels_and_shares_lie_where_the_job_asked_for_them(engine: Engine) -> None:
    engine.objects.put("bucket", "in/a.txt", b"data")
    fields = {
        "inputs": (Channel("data_url", Place("bucket", "in/"), "/data/set"),),
        "volumes": (Volume("192.168.0.1:/share", "/home/work/nas"),),
    }
    script = """
import json, os, pathlib, sys
_, data, out = (argument.split("=")[-1] for argument in sys.argv)
marker = pathlib.Path("/home/work/nas/count")
marker.write_text(str(int(marker.read_text()) + 1) if marker.exists() else "1")
json.dump([data, open("/data/set/a.txt").read(), marker.read_text()], open(out + "/seen.json", "w"))
"""
    engine.run(script, **fields)
    assert engine.results()["seen.json"] == ["/data/set", "data", "1"]
    engine.run(script, **fields)
    assert engine.results()["seen.json"][2] == "2", "a share outlives its jobs"


@needs_mounts
def test_a_link_to_the_nodes_own_folders_is_brought_home(engine: Engine) -> None:
    engine.run("""
import json, os, pathlib, sys
out = sys.argv[1].split("=")[1]
pathlib.Path("/cache/best.json").write_text("7")
os.symlink("/cache/best.json", out + "/latest.json")
os.symlink("/cache/gone.json", out + "/gone.json")
""")
    assert engine.results() == {"latest.json": 7}


@needs_mounts
def test_the_root_itself_cannot_be_written(engine: Engine) -> None:
    engine.run("""
import os
try:
    os.mkdir("/mine")
except OSError as error:
    assert "ead-only" in str(error)
else:
    raise SystemExit("it could")
""")


def test_without_mounts_a_job_runs_by_its_variables(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_engine, "container_support", lambda: (False, "not here"))
    engine.run(
        """
import json, os, pathlib, sys
out = sys.argv[1].split("=")[1]
pathlib.Path(os.environ["TMPDIR"], "x").touch()
json.dump([os.environ["MA_HOME"], out, os.getcwd()], open(out + "/%s.json" % os.environ["VC_TASK_INDEX"], "w"))
""",
        nodes=2,
    )
    homes = []
    for home, out, here in engine.results().values():
        assert home.endswith("/home/ma-user")
        assert out == f"{home}/modelarts/outputs/train_url_0"
        assert here == f"{home}/modelarts/workspace/device0"
        homes.append(home)
    assert len(set(homes)) == 2


def test_a_machine_that_forbids_it_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    private_root.isolation.cache_clear()
    monkeypatch.setattr(sys, "executable", "false")
    try:
        supported, reason = container_support()
    finally:
        private_root.isolation.cache_clear()
    assert not supported
    assert "/cache, /home/ma-user, /home/work, /user/config and /tmp" in reason
    assert "MA_HOME" in reason
    assert "\n" not in reason


@needs_mounts
def test_a_view_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    script = f"""
from pytest_aisbench.localcloud.engine.private_root import PrivateRoot
PrivateRoot.build({str(tmp_path / "view")!r}, [("/does/not/exist", "/cache")])
"""
    command = [sys.executable, "-c", script]
    root = str(Path(private_root.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "OSError: [Errno 2] mount /does/not/exist" in done.stderr or "mount /does/not/exist" in done.stderr
