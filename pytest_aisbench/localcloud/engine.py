"""The engine that runs jobs for real: one process for each node, one supervising thread for each job."""

from __future__ import annotations

import functools
import os
import shutil
import threading
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud import container
from pytest_aisbench.localcloud.rendezvous import Ports
from pytest_aisbench.localcloud.run import Run
from pytest_aisbench.localcloud.store_access import StoreAccess
from pytest_aisbench.localcloud.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_aisbench.localcloud.accounts import Accounts
    from pytest_aisbench.localcloud.launch import Launch, Report
    from pytest_aisbench.localcloud.objects import Objects

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL. The platform's launcher waits 20, for checkpoints of gigabytes."""
_PREVIEW = 5 << 20  # the platform shows the newest 5 MB of a log


class ProcessEngine:
    def __init__(
        self,
        objects: Objects,
        work: Path,
        obs_endpoint: str,
        grace: float = GRACE,
        accounts: Accounts | None = None,
    ) -> None:
        """`accounts`: who lends jobs the keys by which they reach OBS; without, they have none."""
        self._objects = objects
        self._work = work
        self._store = StoreAccess(obs_endpoint, accounts)
        self._grace = grace
        self._ports = Ports()
        self._runs: dict[str, Run] = {}
        self._launches: dict[str, Launch] = {}  # until they are forgotten
        self._forgotten: set[str] = set()  # while they still run
        self._frozen: dict[str, dict[str, int]] = {}  # the sizes of a job's logs, by task
        self._usage = Usage()
        self._lock = threading.Lock()
        # What a cloud that was killed left here: its jobs are unknown to this one.
        for left in work.glob("????????-????-????-????-????????????"):
            shutil.rmtree(left, ignore_errors=True)

    def start(self, launch: Launch, report: Report) -> None:
        run = Run(
            self._objects,
            self._folder(launch.job_id),
            launch,
            report,
            ports=self._ports,
            store=self._store,
            grace=self._grace,
            ended=functools.partial(self._ended, launch.job_id),
            log_frozen=lambda: launch.job_id in self._frozen,
            usage=self._usage,
        )
        with self._lock:
            self._launches[launch.job_id] = launch
            run.start()
            self._runs[launch.job_id] = run

    def stop(self, job_id: str) -> None:
        with self._lock:
            run = self._runs.get(job_id)
        if run:
            run.stop("The job was stopped by its user.")

    def log(self, job_id: str, task: str) -> tuple[bytes, int] | None:
        frozen = self._frozen.get(job_id)
        try:
            with self._log_file(job_id, task).open("rb") as file:
                size = os.fstat(file.fileno()).st_size if frozen is None else frozen.get(task, 0)
                start = max(0, size - _PREVIEW)
                file.seek(start)
                return file.read(size - start), size
        except (FileNotFoundError, KeyError):  # not begun yet, or forgotten already
            return None

    def usage(self, job_id: str, task: str) -> Mapping[str, Sequence[float]]:
        return self._usage.of(job_id, task)

    def freeze_log(self, job_id: str, *, frozen: bool) -> None:
        if not frozen:
            self._frozen.pop(job_id, None)
            return
        tasks = [f"worker-{root.name}" for root in self._folder(job_id).glob("*")]
        logs = {task: self._log_file(job_id, task) for task in tasks}
        self._frozen[job_id] = {task: path.stat().st_size for task, path in logs.items() if path.exists()}

    def forget(self, job_id: str) -> None:
        self._frozen.pop(job_id, None)
        self._usage.forget(job_id)
        with self._lock:
            if job_id in self._runs:
                self._forgotten.add(job_id)
                return
            self._launches.pop(job_id, None)
        shutil.rmtree(self._folder(job_id), ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            run.stop("The local cloud was closed.", at_once=True)
        for run in runs:
            run.join()

    def _ended(self, job_id: str) -> None:
        with self._lock:
            del self._runs[job_id]
            forgotten = job_id in self._forgotten
            self._forgotten.discard(job_id)
            if forgotten:
                del self._launches[job_id]
        if forgotten:
            self._usage.forget(job_id)
            shutil.rmtree(self._folder(job_id), ignore_errors=True)

    def _log_file(self, job_id: str, task: str) -> Path:
        root = self._folder(job_id) / task.rpartition("-")[2]
        return container.log_folder(root) / self._launches[job_id].log_name(task)

    def _folder(self, job_id: str) -> Path:
        return self._work / job_id
