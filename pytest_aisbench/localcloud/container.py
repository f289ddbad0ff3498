"""The inside of one node: its folders, its environment, and the processes that it is to run.

The folders are the platform's (`/home/ma-user/modelarts/…`, `/user/config`, `/cache`), below a root of the node's
own. The environment is built from nothing: of the cloud's own variables only those listed here reach a job, so no
key, token or password of whoever started the cloud can.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud import v1_container
from pytest_aisbench.localcloud.rendezvous import node_address, rank_table

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.launch import Channel, Launch
    from pytest_aisbench.localcloud.node import Rank, Spec
    from pytest_aisbench.localcloud.objects import Objects

MA_HOME = "/home/ma-user"
MODELARTS = f"{MA_HOME}/modelarts"
RANK_TABLE = "jobstart_hccl.json"

_INHERITED = {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Sockets in TMPDIR have paths of at most 107 bytes, and libraries add up to 35 of their own.
_LONGEST_TMPDIR = 70

# What a pre-start script exports must outlive it, also when it calls `exit`.
_SOURCE_SHELL = """trap 'code=$?; env -0 > "$0"; exit $code' EXIT; . "$1\""""
_SOURCE_PYTHON = (
    "import atexit, os, pathlib, runpy, sys; target, script = sys.argv[1:]; sys.argv = [script]; "
    "dump = lambda: pathlib.Path(target).write_bytes(b''.join(k + b'=' + v + b'\\0' for k, v in os.environb.items())); "
    "atexit.register(dump); runpy.run_path(script, run_name='__main__')"
)


def inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}


def log_folder(root: Path) -> Path:
    return root / PurePosixPath(f"{MODELARTS}/log").relative_to("/")


class Container:
    def __init__(self, root: Path, launch: Launch, index: int) -> None:
        self.root = root
        self.task = f"worker-{index}"
        self._launch = launch
        self._index = index
        job_dir = v1_container.JOB_DIR if launch.contract == "V1" else f"{MODELARTS}/user-job-dir"
        self._code = self.path(job_dir) / launch.code.name
        self.logs = log_folder(root)
        self.worker_log = self.logs / launch.log_name(self.task)
        self._rank_table = self.path("/user/config") / RANK_TABLE
        self.temporary = root / "tmp"

    @property
    def mark(self) -> tuple[str, str]:
        """A variable that every process of this node has, and no other."""
        return "MA_CURRENT_INSTANCE_NAME", f"modelarts-job-{self._launch.job_id}-{self.task}"

    def path(self, inside: str) -> Path:
        """Where something lies that the job knows by its path in the container."""
        return self.root / PurePosixPath(inside).relative_to("/")

    def prepare(self, objects: Objects) -> None:
        launch = self._launch
        folders = [self.logs, self._rank_table.parent, self.path(f"{MA_HOME}/rank_table"), self.path("/cache")]
        folders += [self.path(channel.local_dir) for channel in self._channels() if channel.local_dir]
        folders += [self._workspace(card) for card in range(launch.cards)]
        for folder in [self._code, *folders]:
            folder.mkdir(parents=True, exist_ok=True)
        if len(os.fsencode(self.temporary)) > _LONGEST_TMPDIR:
            self.temporary = Path(tempfile.mkdtemp(prefix="aisbench-node-"))
        self.temporary.mkdir(exist_ok=True)
        self.write_rank_table("initializing")
        objects.download(launch.code.bucket, launch.code.prefix, self._code)
        for channel in launch.inputs:
            if channel.local_dir:
                objects.download(channel.place.bucket, channel.place.prefix, self.path(channel.local_dir))

    def write_rank_table(self, status: str) -> None:
        table = rank_table(self._launch.job_id, self._launch.nodes, self._launch.cards, status)
        partial = self._rank_table.with_suffix(".partial")
        partial.write_text(json.dumps(table, indent=2))
        partial.replace(self._rank_table)

    def clear(self) -> None:
        """Remove everything but the logs."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        kept = self.logs
        while kept != self.root:
            for entry in kept.parent.glob("*"):
                if entry.is_dir() and not entry.is_symlink() and entry != kept:
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry != kept:
                    entry.unlink(missing_ok=True)
            kept = kept.parent

    def spec(self, port: int, obs_endpoint: str, grace: float) -> Spec:
        launch = self._launch
        return {
            "environment": self._environment(port, obs_endpoint),
            "pre_start": self._pre_start(),
            "pre_start_folder": str(self._code.parent),
            "pre_start_environment": str(self.temporary / "pre-start.env"),
            "ranks": [self._rank(card) for card in range(launch.cards)],
            "log": str(self.worker_log),
            "rank_table": str(self._rank_table),
            "rank_table_v1": str(self.path(f"{MA_HOME}/rank_table") / RANK_TABLE),
            "grace": grace,
        }

    def _pre_start(self) -> list[str]:
        beside = (self._code / self._launch.boot_file).parent
        exported = str(self.temporary / "pre-start.env")
        if (script := beside / "ma-pre-start.sh").is_file():
            return ["bash", "-c", _SOURCE_SHELL, exported, str(script)]
        if (script := beside / "ma-pre-start.py").is_file():
            return [self._launch.interpreter, "-c", _SOURCE_PYTHON, exported, str(script)]
        return []

    def _workspace(self, card: int) -> Path:
        return self.path(f"{MODELARTS}/workspace/device{card}")

    def _rank(self, card: int) -> Rank:
        launch = self._launch
        rank = self._index * launch.cards + card
        name = f"modelarts-job-{launch.job_id}-proc-rank-{rank}-device-{card}"
        return {
            "command": [launch.interpreter, str(self._code / launch.boot_file), *self._arguments()],
            "folder": str(self._workspace(card)),
            "log": str(self.logs / f"{name}.txt"),
            "environment": {
                "JOB_ID": launch.job_id,
                "RANK_ID": str(rank),
                "RANK_SIZE": str(launch.nodes * launch.cards),
                "DEVICE_ID": str(card),
                "ASCEND_DEVICE_ID": str(card),
                "RANK_TABLE_FILE": str(self.path(f"{MA_HOME}/rank_table") / RANK_TABLE),
                "ASCEND_PROCESS_LOG_PATH": str(self.logs / "ascend" / "process_log" / f"rank_{rank}"),
            },
        }

    def _channels(self) -> tuple[Channel, ...]:
        return (*self._launch.inputs, *self._launch.outputs)

    def _told(self, channel: Channel) -> str:
        """What the job is told of a channel: the folder, or where it has none the url."""
        return str(self.path(channel.local_dir)) if channel.local_dir else channel.place.url

    def _arguments(self) -> list[str]:
        named = [(channel.name, self._told(channel)) for channel in self._channels() if not channel.by_environment]
        return [f"--{name}={value}" for name, value in (*named, *self._launch.parameters)]

    def _described(self, channels: tuple[Channel, ...]) -> list[dict[str, Any]]:
        return [
            {
                "parameter": {"label": channel.name, "value": self._told(channel)},
                "data_source": {"obs": {"obs_url": str(channel.place)}},
            }
            for channel in channels
        ]

    def _environment(self, port: int, obs_endpoint: str) -> dict[str, str]:
        launch = self._launch
        environment = dict.fromkeys(_THREADS, "1")  # the ranks share the cores already
        environment |= inherited()
        environment["PATH"] = os.pathsep.join(
            [str(Path(launch.interpreter).parent), environment.get("PATH", os.defpath)]
        )
        environment |= {
            "HOME": str(self.path(MA_HOME)),
            "TMPDIR": str(self.temporary),
            "PYTHONUNBUFFERED": "1",
            "HCCL_CONNECT_TIMEOUT": "1800",
            "MASTER_ADDR": node_address(0),
            "MASTER_PORT": str(port),
        }
        environment |= {channel.name: self._told(channel) for channel in self._channels() if channel.by_environment}
        environment |= launch.environment
        if launch.contract == "V1":
            environment |= v1_container.environment(launch, self._index, port)
        return (
            environment
            | self._platform()
            | {
                "S3_ENDPOINT": obs_endpoint,
                "S3_USE_HTTPS": str(int(obs_endpoint.startswith("https:"))),
                "S3_VERIFY_SSL": "0",
            }
        )

    def _platform(self) -> dict[str, str]:
        """What the platform sets and no job may change."""
        launch = self._launch
        return dict([self.mark]) | {
            "MA_HOME": str(self.path(MA_HOME)),
            "MA_JOB_DIR": str(self._code.parent),
            "MA_MOUNT_PATH": str(self.path(MODELARTS)),
            "MA_LOG_DIR": str(self.logs),
            "MA_SCRIPT_INTERPRETER": launch.interpreter,
            "WORKSPACE": str(self._code),
            "MA_CURRENT_IP": node_address(self._index),
            "MA_CURRENT_HOST_IP": node_address(self._index),
            "MA_NUM_HOSTS": str(launch.nodes),
            "MA_NUM_GPUS": str(launch.cards),
            "MA_TASK_NAME": "worker",
            "MA_VJ_NAME": f"ma-job-{launch.job_id}",
            "MA_JOB_KIND": "job",
            "MA_ENGINE_VERSION": launch.engine_version,
            "MA_INPUTS": json.dumps({"inputs": self._described(launch.inputs)}),
            "MA_OUTPUTS": json.dumps({"outputs": self._described(launch.outputs)}),
            "VC_TASK_INDEX": str(self._index),
            "VC_WORKER_NUM": str(launch.nodes),
            # Addresses, not names as on the platform: no resolver here knows the names.
            "VC_WORKER_HOSTS": ",".join(node_address(node) for node in range(launch.nodes)),
            "RANK_TABLE_FILE": str(self._rank_table.parent),
        }
