"""The inside of one node: its folders, and the processes that it is to run.

The folders are the platform's (`/home/ma-user/modelarts/…`, `/user/config`, `/cache`), below a root of the node's
own. Where the machine allows it the node's processes see them at the platform's own paths.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud import container_environment, layout, v1_container
from pytest_aisbench.localcloud.layout import Layout
from pytest_aisbench.localcloud.rendezvous import rank_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aisbench.localcloud.launch import Launch
    from pytest_aisbench.localcloud.node import Rank, Spec
    from pytest_aisbench.localcloud.objects import Objects

RANK_TABLE = "jobstart_hccl.json"

_RANK_TABLES = f"{layout.MA_HOME}/rank_table"
# Sockets in TMPDIR have paths of at most 107 bytes, and libraries add up to 35 of their own.
LONGEST_TMPDIR = 70
_EXPORTED = "pre-start.env"

# What a pre-start script exports must outlive it, also when it calls `exit`.
_SOURCE_SHELL = """trap 'code=$?; env -0 > "$0"; exit $code' EXIT; . "$1\""""
_SOURCE_PYTHON = (
    "import atexit, os, pathlib, runpy, sys; target, script = sys.argv[1:]; sys.argv = [script]; "
    "dump = lambda: pathlib.Path(target).write_bytes(b''.join(k + b'=' + v + b'\\0' for k, v in os.environb.items())); "
    "atexit.register(dump); runpy.run_path(script, run_name='__main__')"
)


def log_folder(root: Path) -> Path:
    return Layout(root, private=False).outside(layout.LOGS)


class Container:
    def __init__(self, root: Path, launch: Launch, index: int) -> None:
        self.root = root
        self.task = f"worker-{index}"
        self._launch = launch
        self._index = index
        self._places = Layout(root, private=False)
        self._job_dir = v1_container.JOB_DIR if launch.contract == "V1" else layout.JOB_DIR
        self._code = f"{self._job_dir}/{launch.code.name}" if launch.code else self._job_dir
        self.logs = log_folder(root)
        self.worker_log = self.logs / launch.log_name(self.task)
        self._rank_table = self.path("/user/config") / RANK_TABLE
        self.temporary = self.path(layout.TEMPORARY)

    @property
    def mark(self) -> tuple[str, str]:
        return container_environment.mark(self._launch, self._index)

    def path(self, inside: str) -> Path:
        """Where something lies that the job knows by its path in the container."""
        return self._places.outside(inside)

    def followed(self, path: Path) -> Path:
        return self._places.followed(path)

    def prepare(self, objects: Objects, *, private: bool) -> None:
        """`private`: the node's processes will see its folders at the platform's paths."""
        self._places = Layout(self.root, private)
        launch = self._launch
        folders = [self._job_dir, layout.LOGS, "/user/config", _RANK_TABLES, "/cache", v1_container.WORK_HOME, "/view"]
        folders += [channel.local_dir for channel in (*launch.inputs, *launch.outputs) if channel.local_dir]
        folders += [_workspace(card) for card in range(launch.cards)]
        for folder in folders:
            self.path(folder).mkdir(parents=True, exist_ok=True)
        if not self._places.private and len(os.fsencode(self.temporary)) > LONGEST_TMPDIR:
            self.temporary = Path(tempfile.mkdtemp(prefix="aisbench-node-"))
        self.temporary.mkdir(exist_ok=True)
        self._mount_volumes()
        self._provide_python()
        self.write_rank_table("initializing")
        if launch.image and launch.contract == "V1":
            shutil.copy(layout.PACKAGES / v1_container.ENTRY, self.path(v1_container.WORK_HOME))  # it brings the code
        elif launch.code:
            objects.download(launch.code.bucket, launch.code.prefix, self.path(self._code))
        for channel in launch.inputs:
            if channel.local_dir:
                objects.download(channel.place.bucket, channel.place.prefix, self.path(channel.local_dir))

    def _mount_volumes(self) -> None:
        for volume in self._launch.volumes:
            share, folder = self._places.share(volume.source), self.path(volume.folder)
            share.mkdir(parents=True, exist_ok=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not self._places.private:
                folder.symlink_to(share)

    def _provide_python(self) -> None:
        """Commands and scripts say `python`, which not every interpreter is called. A link would lose a venv."""
        interpreter = Path(self._launch.interpreter)
        if not interpreter.with_name("python").exists():
            program = self.path(layout.PROGRAMS) / "python"
            program.parent.mkdir(parents=True)
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(interpreter))} "$@"\n')
            program.chmod(0o755)

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
        """`store`: the variables by which the job reaches the object store."""
        launch, places = self._launch, self._places
        temporary = layout.TEMPORARY if places.private else str(self.temporary)
        return {
            "environment": container_environment.environment(
                launch, self._index, places, port=port, temporary=temporary, store=store
            ),
            "pre_start": self._pre_start(f"{temporary}/{_EXPORTED}"),
            "pre_start_folder": places.inside(self._job_dir),
            "pre_start_environment": str(self.temporary / _EXPORTED),
            "ranks": [self._command()] if launch.image else [self._rank(card) for card in range(launch.cards)],
            "log": str(self.worker_log),
            "silent": False,
            "rank_table": str(self._rank_table),
            "rank_table_v1": "" if launch.image else str(self.path(_RANK_TABLES) / RANK_TABLE),
            "grace": grace,
            "view": str(self.path("/view")) if places.private else "",
            "binds": self._binds() if places.private else [],
        }

    def _binds(self) -> list[tuple[str, str]]:
        launch = self._launch
        folders = [channel.local_dir for channel in (*launch.inputs, *launch.outputs)]
        extra = {path: self.path(path) for path in folders if path and not layout.is_covered(path)}
        extra |= {volume.folder: self._places.share(volume.source) for volume in launch.volumes}
        return self._places.binds(extra, launch.interpreter)

    def _pre_start(self, exported: str) -> list[str]:
        beside = str(Path(self._code, self._launch.boot_file).parent)
        if self._launch.image:
            return []
        if (self.path(beside) / "ma-pre-start.sh").is_file():
            return ["bash", "-c", _SOURCE_SHELL, exported, self._places.inside(f"{beside}/ma-pre-start.sh")]
        if (self.path(beside) / "ma-pre-start.py").is_file():
            script = self._places.inside(f"{beside}/ma-pre-start.py")
            return [self._launch.interpreter, "-c", _SOURCE_PYTHON, exported, script]
        return []

    def _rank(self, card: int) -> Rank:
        launch, places = self._launch, self._places
        rank = self._index * launch.cards + card
        name = f"modelarts-job-{launch.job_id}-proc-rank-{rank}-device-{card}"
        return {
            "command": [launch.interpreter, places.inside(f"{self._code}/{launch.boot_file}"), *self._arguments()],
            "folder": places.inside(_workspace(card)),
            "log": str(self.logs / f"{name}.txt"),
            "environment": {
                "JOB_ID": launch.job_id,
                "RANK_ID": str(rank),
                "RANK_SIZE": str(launch.nodes * launch.cards),
                "DEVICE_ID": str(card),
                "ASCEND_DEVICE_ID": str(card),
                "RANK_TABLE_FILE": places.inside(f"{_RANK_TABLES}/{RANK_TABLE}"),
                "ASCEND_PROCESS_LOG_PATH": places.inside(f"{layout.LOGS}/ascend/process_log/rank_{rank}"),
            },
        }

    def _command(self) -> Rank:
        """Of a custom image: one process for each node, in no login shell, its output in the worker's log alone."""
        launch = self._launch
        command = self._places.translated(launch.command)
        home = v1_container.WORK_HOME
        if launch.contract != "V1":  # whose parameters are variables
            command = " ".join([command, *map(shlex.quote, self._arguments())])
            home = layout.MA_HOME
        return {
            "command": ["bash", "-c", command],
            "folder": self._places.inside(home),
            "log": str(self.root / "command.log"),
            "environment": {},
        }

    def _arguments(self) -> list[str]:
        channels = (*self._launch.inputs, *self._launch.outputs)
        named = [
            (channel.name, container_environment.told(channel, self._places))
            for channel in channels
            if not channel.by_environment
        ]
        return [f"--{name}={value}" for name, value in (*named, *self._launch.parameters)]


def _workspace(card: int) -> str:
    return f"{layout.MODELARTS}/workspace/device{card}"
