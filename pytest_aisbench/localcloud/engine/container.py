"""The inside of one node: `Container` creates its folders and specifies the processes that it is to run.

The folders are those of ModelArts (`/home/ma-user/modelarts/…`, `/user/config`, `/cache`), below a root for each node.
Where the machine allows it, the processes of the node see them at the platform's own paths.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine.launch import Channel, Launch, node_address, rank_table
from pytest_aisbench.localcloud.engine.private_root import PATHS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aisbench.localcloud.engine.node import Rank, Spec
    from pytest_aisbench.localcloud.obs.storage import Objects


log = logging.getLogger(__name__)
MA_HOME = "/home/ma-user"
MODELARTS = f"{MA_HOME}/modelarts"
JOB_DIR = f"{MODELARTS}/user-job-dir"
LOGS = f"{MODELARTS}/log"
PYTHON = f"{MA_HOME}/.local/python"
"""The environment of the node's own Python."""
WORK_HOME = "/home/work"
JOB_DIR_V1 = f"{WORK_HOME}/user-job-dir"
TEMPORARY = PATHS[-1]
PACKAGES = Path(__file__).parents[1] / "container_site"
"""What jobs find in their containers: MoXing, and the scripts of the vendors' images."""
_SUDO = PACKAGES / "apulis/bin/sudo"  # images let their user become root, and pre-start scripts rely on it
ENTRY = "run_train.sh"
"""The script of V1's base images: downloads the code, then runs the command."""
RANK_TABLE = "jobstart_hccl.json"
_RANK_TABLES = f"{MA_HOME}/rank_table"
# The paths of sockets have at most 107 bytes, and libraries add up to 35 to TMPDIR.
LONGEST_TMPDIR = 70
_EXPORTED = "pre-start.env"


# These keep what a pre-start script exports, also when it calls `exit`.
_SOURCE_SHELL = """trap 'code=$?; env -0 > "$0"; exit $code' EXIT; . "$1\""""
_SOURCE_PYTHON = (
    "import atexit, os, pathlib, runpy, sys; target, script = sys.argv[1:]; sys.argv = [script]; "
    "dump = lambda: pathlib.Path(target).write_bytes(b''.join(k + b'=' + v + b'\\0' for k, v in os.environb.items())); "
    "atexit.register(dump); runpy.run_path(script, run_name='__main__')"
)


class Container:
    def __init__(self, root: Path, launch: Launch, index: int) -> None:
        self.root = root
        self.task = f"worker-{index}"
        self._launch = launch
        self._index = index
        self._layout = Layout(root, private=False)
        self._job_dir = JOB_DIR_V1 if launch.contract == "V1" else JOB_DIR
        self._code = f"{self._job_dir}/{launch.code.name}" if launch.code else self._job_dir
        self.logs = log_folder(root)
        self.worker_log = self.logs / launch.log_name(self.task)
        self._rank_table = self.path("/user/config") / RANK_TABLE
        self._python = launch.interpreter  # until `prepare`
        self.temporary = self.path(TEMPORARY)

    @property
    def mark(self) -> tuple[str, str]:
        return process_mark(self._launch, self._index)

    def path(self, inside: str) -> Path:
        """The host's path of something with this path in the container."""
        return self._layout.outside(inside)

    def resolve_link(self, path: Path) -> Path:
        return self._layout.resolve_link(path)

    def prepare(self, objects: Objects, *, private: bool) -> None:
        """Create the folders and download code and inputs. `private`: the processes of the node will see the folders
        at the platform's paths."""
        self._layout = Layout(self.root, private)
        launch = self._launch
        folders = [self._job_dir, LOGS, "/user/config", _RANK_TABLES, "/cache", WORK_HOME, "/view"]
        folders += [channel.local_dir for channel in (*launch.inputs, *launch.outputs) if channel.local_dir]
        folders += [_workspace(card) for card in range(launch.cards)]
        for folder in folders:
            self.path(folder).mkdir(parents=True, exist_ok=True)
        self._make_temporary()
        self._mount_volumes()
        self._provide_python(PYTHON)
        (self.path(PYTHON) / "bin/sudo").symlink_to(_SUDO)
        self.write_rank_table("initializing")
        if launch.image and launch.contract == "V1":
            shutil.copy(PACKAGES / ENTRY, self.path(WORK_HOME))  # it downloads the code
        elif launch.code:
            objects.download(launch.code.bucket, launch.code.prefix, self.path(self._code))
        for channel in launch.inputs:
            if channel.local_dir:
                objects.download(channel.place.bucket, channel.place.prefix, self.path(channel.local_dir))

    def _make_temporary(self) -> None:
        if not self._layout.private and len(os.fsencode(self.temporary)) > LONGEST_TMPDIR:
            self.temporary = Path(tempfile.mkdtemp(prefix="aisbench-node-"))
        self.temporary.mkdir(exist_ok=True)

    def _mount_volumes(self) -> None:
        for volume in self._launch.volumes:
            share, folder = self._layout.share(volume.source), self.path(volume.folder)
            share.mkdir(parents=True, exist_ok=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not self._layout.private:
                folder.symlink_to(share)

    def _provide_python(self, folder: str) -> None:
        outside, inside = self.path(folder), self._layout.inside(folder)
        self._python = provide_python(self._launch.interpreter, outside, inside)

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

    def spec(self, port: int, store: Mapping[str, str], grace: float) -> Spec:
        """What the node process is to run. `store`: the variables by which the job reaches the object store."""
        launch, layout = self._launch, self._layout
        temporary = TEMPORARY if layout.private else str(self.temporary)
        return {
            "environment": environment(
                launch, self._index, layout, python=self._python, port=port, temporary=temporary, store=store
            ),
            "pre_start": self._pre_start(f"{temporary}/{_EXPORTED}"),
            "pre_start_folder": layout.inside(self._job_dir),
            "pre_start_environment": str(self.temporary / _EXPORTED),
            "ranks": [self._command()] if launch.image else [self._rank(card) for card in range(launch.cards)],
            "log": str(self.worker_log),
            "silent": False,
            "rank_table": str(self._rank_table),
            "rank_table_v1": "" if launch.image else str(self.path(_RANK_TABLES) / RANK_TABLE),
            "grace": grace,
            "view": str(self.path("/view")) if layout.private else "",
            "binds": self._binds() if layout.private else [],
            "read_only": package_folders(launch.interpreter),
        }

    def _binds(self) -> list[tuple[str, str]]:
        launch = self._launch
        folders = [channel.local_dir for channel in (*launch.inputs, *launch.outputs)]
        extra = {path: self.path(path) for path in folders if path and not is_covered(path)}
        extra |= {volume.folder: self._layout.share(volume.source) for volume in launch.volumes}
        return self._layout.binds(extra, launch.interpreter)

    def _pre_start(self, exported: str) -> list[str]:
        beside = str(Path(self._code, self._launch.boot_file).parent)
        if self._launch.image:
            return []
        if (self.path(beside) / "ma-pre-start.sh").is_file():
            return ["bash", "-c", _SOURCE_SHELL, exported, self._layout.inside(f"{beside}/ma-pre-start.sh")]
        if (self.path(beside) / "ma-pre-start.py").is_file():
            script = self._layout.inside(f"{beside}/ma-pre-start.py")
            return [self._python, "-c", _SOURCE_PYTHON, exported, script]
        return []

    def _rank(self, card: int) -> Rank:
        launch, layout = self._launch, self._layout
        rank = self._index * launch.cards + card
        name = f"modelarts-job-{launch.job_id}-proc-rank-{rank}-device-{card}"
        return {
            "command": [self._python, layout.inside(f"{self._code}/{launch.boot_file}"), *self._arguments()],
            "folder": layout.inside(_workspace(card)),
            "log": str(self.logs / f"{name}.txt"),
            "environment": {
                "JOB_ID": launch.job_id,
                "RANK_ID": str(rank),
                "RANK_SIZE": str(launch.nodes * launch.cards),
                "DEVICE_ID": str(card),
                "ASCEND_DEVICE_ID": str(card),
                "RANK_TABLE_FILE": layout.inside(f"{_RANK_TABLES}/{RANK_TABLE}"),
                "ASCEND_PROCESS_LOG_PATH": layout.inside(f"{LOGS}/ascend/process_log/rank_{rank}"),
            },
        }

    def _command(self) -> Rank:
        """The one process of a node with a custom image; not a login shell, and only the worker's log has its
        output."""
        launch = self._launch
        command = self._layout.translate(launch.command)
        home = WORK_HOME
        if launch.contract != "V1":  # V1 passes parameters as variables
            command = " ".join([command, *map(shlex.quote, self._arguments())])
            home = MA_HOME
        return {
            "command": ["bash", "-c", command],
            "folder": self._layout.inside(home),
            "log": str(self.root / "command.log"),
            "environment": {},
        }

    def _arguments(self) -> list[str]:
        channels = (*self._launch.inputs, *self._launch.outputs)
        named = [
            (channel.name, _channel_value(channel, self._layout)) for channel in channels if not channel.by_environment
        ]
        return [f"--{name}={value}" for name, value in (*named, *self._launch.parameters)]


def log_folder(root: Path) -> Path:
    return Layout(root, private=False).outside(LOGS)


def _workspace(card: int) -> str:
    return f"{MODELARTS}/workspace/device{card}"


@dataclass(frozen=True)
class Layout:
    root: Path
    private: bool
    """True if its processes see the folders at the platform's own paths, False if below the root."""
    paths: tuple[str, ...] = PATHS
    """Those of the platform."""

    def outside(self, path: str) -> Path:
        return self.root / PurePosixPath(path).relative_to("/")

    def inside(self, path: str) -> str:
        return path if self.private else str(self.outside(path))

    def resolve_link(self, path: Path) -> Path:
        """The target of a link as the processes of the node see it: in a folder of the node, not of the host."""
        target = str(path.readlink()) if self.private and path.is_symlink() else ""
        return self.outside(target) if is_covered(target, self.paths) else path

    def translate(self, command: str) -> str:
        """Replace the platform's paths in a command by those that the processes of the node see."""
        paths = "|".join(map(re.escape, self.paths))
        return re.sub(rf"(?<![\w./-])(?:{paths})(?![\w.-])", lambda match: self.inside(match[0]), command)

    def share(self, source: str) -> Path:
        """The host's folder that stands for a network share; the same for all jobs of this cloud."""
        return self.root.parents[1] / "shares" / re.sub(r"[^\w.-]+", "_", source)

    def binds(self, extra: dict[str, Path], interpreter: str) -> list[tuple[str, str]]:
        """The folders of the host, each with the path at which the node sees it. `extra`: further ones, by the node's
        path. The interpreter keeps its path."""
        binds = [(str(self.outside(path)), path) for path in self.paths]
        binds += [(str(folder), path) for path, folder in extra.items()]
        python = Path(interpreter)
        needed = {python.parents[1], python.resolve().parents[1], PACKAGES}
        return binds + [(str(folder), str(folder)) for folder in sorted(needed) if is_covered(str(folder), self.paths)]


def is_covered(path: str, paths: tuple[str, ...] = PATHS) -> bool:
    return any(PurePosixPath(path).is_relative_to(covered) for covered in paths)


# The environment of a node's processes, which inherits almost nothing.

_INHERITED = {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(
    launch: Launch, index: int, layout: Layout, *, python: str, port: int, temporary: str, store: Mapping[str, str]
) -> dict[str, str]:
    """All variables of a node's processes. `python`: the node's own. `store`: those by which they reach the object
    store."""
    variables = base_environment()
    programs = [f"{layout.inside(PYTHON)}/bin", str(Path(launch.interpreter).parent)]
    variables["PATH"] = os.pathsep.join([*programs, variables.get("PATH", os.defpath)])
    variables |= {
        "HOME": layout.inside(WORK_HOME if launch.contract == "V1" else MA_HOME),
        "TMPDIR": temporary,
        "PYTHONUNBUFFERED": "1",
        "HCCL_CONNECT_TIMEOUT": "1800",
        "MASTER_ADDR": node_address(0),
        "MASTER_PORT": str(port),
    }
    channels = (*launch.inputs, *launch.outputs)
    variables |= {channel.name: _channel_value(channel, layout) for channel in channels if channel.by_environment}
    variables |= launch.environment
    if launch.contract == "V1":
        variables |= _environment_v1(launch, index, port, layout)
    packages = [variables.get("PYTHONPATH", ""), str(PACKAGES)]
    return (
        variables
        | _platform(launch, index, layout)
        | {"MA_SCRIPT_INTERPRETER": python}
        | {"PYTHONPATH": os.pathsep.join(filter(None, packages))}
        | dict(store)
    )


def _platform(launch: Launch, index: int, layout: Layout) -> dict[str, str]:
    """What ModelArts sets and jobs cannot change."""
    job_dir = layout.inside(JOB_DIR_V1 if launch.contract == "V1" else JOB_DIR)
    return dict([process_mark(launch, index)]) | {
        "MA_HOME": layout.inside(MA_HOME),
        "MA_JOB_DIR": job_dir,
        "MA_MOUNT_PATH": layout.inside(MODELARTS),
        "MA_LOG_DIR": layout.inside(LOGS),
        "WORKSPACE": f"{job_dir}/{launch.code.name}" if launch.code else job_dir,
        "MA_CURRENT_IP": node_address(index),
        "MA_CURRENT_HOST_IP": node_address(index),
        "MA_NUM_HOSTS": str(launch.nodes),
        "MA_NUM_GPUS": str(launch.cards),
        "MA_TASK_NAME": "worker",
        "MA_VJ_NAME": f"ma-job-{launch.job_id}",
        "MA_JOB_KIND": "job",
        "MA_ENGINE_VERSION": launch.engine_version,
        "MA_INPUTS": json.dumps({"inputs": _channels_json(launch.inputs, layout)}),
        "MA_OUTPUTS": json.dumps({"outputs": _channels_json(launch.outputs, layout)}),
        "VC_TASK_INDEX": str(index),
        "VC_WORKER_NUM": str(launch.nodes),
        # Addresses, not names as on the platform: no resolver here knows the names.
        "VC_WORKER_HOSTS": ",".join(node_address(node) for node in range(launch.nodes)),
        "RANK_TABLE_FILE": layout.inside("/user/config"),
    }


def _environment_v1(launch: Launch, index: int, port: int, layout: Layout) -> dict[str, str]:
    """What V1 sets on one node and jobs cannot change: urls instead of folders, DLS_ and BATCH_ variables.

    The scripts of ais-bench-stubs name the results of a node by `BATCH_TASK_INDEX`, and take 0 where it is not set.
    """
    hosts = [f"{node_address(node)}:{port}" for node in range(launch.nodes)]
    urls = {channel.name: channel.place.url for channel in (*launch.inputs, *launch.outputs)}
    variables = {
        "DLS_JOB_ID": launch.resource_id,
        "DLS_TASK_INDEX": str(index),
        "DLS_TASK_NUMBER": str(launch.nodes),
        "DLS_APP_URL": launch.code.url if launch.code else "",
        "DLS_DATA_URL": urls.get("data_url", ""),
        "DLS_TRAIN_URL": urls.get("train_url", ""),
        "BATCH_JOB_ID": launch.resource_id,
        "BATCH_CURRENT_HOST": node_address(index),
        "BATCH_CURRENT_PORT": str(port),
        "BATCH_TASK_INDEX": str(index),
        "BATCH_TASK_CURRENT_HOST_IP": node_address(index),
        "BATCH_TASK_LOG_PATH": layout.inside(LOGS),
        "BATCH_TASK_CURRENT_INSTANCE": f"{launch.resource_id}-job-{launch.name}-{index}",
    }
    if launch.logs:
        variables |= {"DLS_USE_UPLOADER": "1", "DLS_UPLOAD_LOG_OBS_DIR": launch.logs.url}
    if launch.nodes == 1:
        return variables | {f"BATCH_{launch.name}.0_HOSTS": hosts[0]}
    return variables | {f"BATCH_CUSTOM{node}_HOSTS": host for node, host in enumerate(hosts)}


def base_environment() -> dict[str, str]:
    """What every process of a job has, on all platforms."""
    return dict.fromkeys(_THREADS, "1") | inherited_environment()  # the ranks share the cores already


def inherited_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}


def process_mark(launch: Launch, index: int) -> tuple[str, str]:
    """A variable, and its value, that all processes of this node have and no others."""
    return "MA_CURRENT_INSTANCE_NAME", f"modelarts-job-{launch.job_id}-worker-{index}"


def _channel_value(channel: Channel, layout: Layout) -> str:
    """What the job gets as the value of a channel: the folder, or the url of a channel without one."""
    return layout.inside(channel.local_dir) if channel.local_dir else channel.place.url


def _channels_json(channels: tuple[Channel, ...], layout: Layout) -> list[dict[str, Any]]:
    return [
        {
            "parameter": {"label": channel.name, "value": _channel_value(channel, layout)},
            "data_source": {"obs": {"obs_url": str(channel.place)}},
        }
        for channel in channels
    ]


# The Python of one node: an environment of its own on top of the cloud's, as a container has one. What a job installs
# goes into the folders of its node and is gone with them; it sees everything that the Python below has, and pip refuses
# to remove anything of that; where the machine allows private mounts, nothing else can, either.

_ASK = (
    "import json, site, sys; "
    "print(json.dumps([sys.executable, sys.base_prefix, list(sys.version_info[:2]), site.getsitepackages()]))"
)
_PATIENCE = 60  # seconds: a Python on a network share starts slowly


@dataclass(frozen=True)
class Interpreter:
    executable: str  # without links
    home: str  # the folder of the Python that environments are made from
    version: str  # such as 3.11
    packages: tuple[str, ...]


@functools.cache
def describe_python(interpreter: str) -> Interpreter | None:
    """None for a program that only starts a Python: an environment on top of it would lose what the program sets."""
    try:
        # -I: without the variables of this process.
        answer = subprocess.run(
            [interpreter, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
        executable, base, version, packages = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.debug("%s is used as it is: %s", interpreter, error)
        return None
    real = os.path.realpath(interpreter)
    if os.path.realpath(executable) != real:
        log.debug("%s is used as it is: it starts %s", interpreter, executable)
        return None
    return Interpreter(real, str(Path(base, "bin")), ".".join(map(str, version)), tuple(packages))


def package_folders(interpreter: str) -> list[str]:
    """Where the packages of the Python below are, which no job may change."""
    below = describe_python(interpreter)
    return list(below.packages) if below else []


def provide_python(interpreter: str, folder: Path, inside: str) -> str:
    """Fill `folder`, which the node sees as `inside`, with programs called `python` and `pip`; return the path of the
    Python that the node is to use."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    below = describe_python(interpreter)
    if below is None:
        _write_program(programs / "python", f'exec {shlex.quote(interpreter)} "$@"')
        return interpreter
    packages = folder / "lib" / f"python{below.version}" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    settings = f"home = {below.home}\ninclude-system-site-packages = false\nversion = {below.version}\n"
    (folder / "pyvenv.cfg").write_text(settings)
    # Read after the node's own packages, which therefore come first; addsitedir obeys the .pth files there.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in below.packages]
    (packages / "_below.pth").write_text("".join(lines))
    python, major = f"{inside}/bin/python", below.version.partition(".")[0]
    for name in ("python", f"python{major}", f"python{below.version}"):
        (programs / name).symlink_to(below.executable)
    for name in ("pip", f"pip{major}", f"pip{below.version}"):
        _write_program(programs / name, f'exec {shlex.quote(python)} -m pip "$@"')
    return python


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
