"""The engine that runs jobs for real: a process for each node, and a thread for each job that supervises them.

`Run` is one job: it fills the containers, starts a `NodeProcess` for each, mirrors outputs and logs to the object
store.
"""

from __future__ import annotations

import functools
import logging
import os
import selectors
import shutil
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.apulis.pods import Pod
from pytest_aisbench.localcloud.engine import processes
from pytest_aisbench.localcloud.engine.container import Container, inherited_environment, log_folder
from pytest_aisbench.localcloud.engine.launch import (
    Ended,
    Launch,
    Place,
    Ports,
    Report,
    Started,
    TaskEnded,
    TaskStarted,
    node_address,
)
from pytest_aisbench.localcloud.engine.node_server import PATIENCE, NodeProcess, NodeServer
from pytest_aisbench.localcloud.engine.private_root import container_support, pid_namespace
from pytest_aisbench.localcloud.obs.index import ObjectError
from pytest_aisbench.localcloud.obs.storage import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_aisbench.localcloud.iam import Accounts


log = logging.getLogger(__name__)
GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL. The platform waits 20, for checkpoints of gigabytes."""
USAGE_PERIOD_S = 1.0  # the vendor samples once a minute; local jobs may end before
MAX_SAMPLES = 3600  # of a node; older ones are dropped
_PREVIEW = 5 << 20  # bytes: the platform shows the newest 5 MB of a log
_PUSH_PERIOD = 1.0  # seconds between two uploads of outputs and logs
_BYTES_PER_SECOND = 1 << 20  # upload a growing file the less often the larger it is: each time uploads all of it
_FILLED_AT_ONCE = max(4, os.cpu_count() or 1)  # more threads would wait for each other's turn, and spend CPU on that
_Node = tuple[str, str]  # job and task


class ProcessEngine:
    def __init__(
        self, objects: Objects, work: Path, obs_endpoint: str, grace: float = GRACE, accounts: Accounts | None = None
    ) -> None:
        """`accounts` lends jobs the keys for OBS; without it they have none."""
        self._objects = objects
        self._work = work
        self._store = StoreAccess(obs_endpoint, accounts)
        self._grace = grace
        self._ports = Ports()
        self._disk = threading.BoundedSemaphore(_FILLED_AT_ONCE)
        self._nodes = NodeServer(inherited_environment())
        self._runs: dict[str, Run] = {}
        self._launches: dict[str, Launch] = {}  # until `forget`
        self._forgotten: set[str] = set()  # jobs that still run
        self._frozen: dict[str, dict[str, int]] = {}  # the sizes of a job's frozen logs, by task
        self._usage = Usage()
        self._lock = threading.Lock()
        # Remove what a killed cloud left here: this one does not know its jobs.
        for left in work.glob("????????-????-????-????-????????????"):
            shutil.rmtree(left, ignore_errors=True)

    def start(self, launch: Launch, report: Report) -> None:
        run = Run(
            self._objects,
            self._folder(launch.job_id),
            launch,
            report,
            ports=self._ports,
            disk=self._disk,
            nodes=self._nodes,
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
        except (FileNotFoundError, KeyError):  # not begun yet, or already forgotten
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
        self._nodes.close()

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
        return log_folder(root) / self._launches[job_id].log_name(task)

    def _folder(self, job_id: str) -> Path:
        return self._work / job_id


class Run:
    """One job while it runs."""

    def __init__(
        self,
        objects: Objects,
        folder: Path,
        launch: Launch,
        report: Report,
        *,
        ports: Ports,
        disk: threading.BoundedSemaphore,
        nodes: NodeServer,
        store: StoreAccess,
        grace: float,
        ended: Callable[[], None],
        log_frozen: Callable[[], bool],
        usage: Usage,
    ) -> None:
        self._objects = objects
        self._launch = launch
        self._report = report
        self._ports = ports
        self._disk = disk
        self._nodes = nodes
        self._store = store
        self._grace = grace
        self._ended = ended
        self._log_frozen = log_frozen
        self._usage = usage
        kind = Pod if launch.pods else Container
        self._containers = [kind(folder / str(node), launch, node) for node in range(launch.nodes)]
        self._mirrors = [
            Mirror(objects, container.path(channel.local_dir), channel.place, container.resolve_link)
            for container in self._containers
            for channel in launch.outputs
            if channel.local_dir
        ]
        self._log_mirrors = [
            Mirror(objects, container.logs, launch.logs, container.resolve_link)
            for container in self._containers
            if launch.logs
        ]
        self._succeeded: set[str] = set()  # names of tasks
        self._stopping = ""  # the reason
        self._abandoned = False
        self._woken, self._wake = os.pipe()
        self._lock = threading.Lock()  # guards the pipe: once closed, its descriptors may be another file's
        # A daemon thread: when the cloud just ends, the standard input of the nodes closes, which ends them.
        self._thread = threading.Thread(target=self._run, name=f"job {launch.job_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Ask the job to end, without waiting. `at_once`: without grace, and without uploading results."""
        self._stopping = self._stopping or reason
        self._abandoned = self._abandoned or at_once
        with self._lock:
            if self._wake >= 0:
                os.write(self._wake, b"!")

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            end = self._train()
        except (OSError, ObjectError) as error:
            end = Ended("Abnormal", f"The platform failed: {error}")
        except Exception as error:
            log.exception("job %s", self._launch.job_id)
            end = Ended("Abnormal", f"The platform failed: {type(error).__name__}: {error}")
        self._report(end)
        with self._disk:
            for container in self._containers:
                container.clear()
        with self._lock:
            os.close(self._woken)
            os.close(self._wake)
            self._wake = -1
        self._ended()

    def _train(self) -> Ended:
        private, _ = container_support()
        for container in self._containers:
            with self._disk:
                container.prepare(self._objects, private=private)
            if self._stopping:
                return Ended("Terminated", self._stopping)
        port = self._ports.take(node_address(0))
        variables = self._store.lend()
        nodes: list[NodeProcess] = []
        try:
            for container in self._containers:
                spec = container.spec(port, variables, self._grace)
                nodes.append(NodeProcess(self._nodes, container, spec, pid_namespace()))
                self._usage.begin(self._launch.job_id, nodes[-1].task, nodes[-1].pid)
            for container in self._containers:
                container.write_rank_table("completed")
            self._report(Started())
            end = self._watch(nodes)
        finally:
            self._usage.end(self._launch.job_id)
            for node in nodes:
                node.close()
            self._ports.give_back(port)
            self._store.take_back(variables)
            if not self._abandoned:
                with self._disk:
                    self._push(everything=True)
        return end

    def _watch(self, nodes: list[NodeProcess]) -> Ended:
        """Handle events, uploads, the time limit and stopping until no node is left."""
        never = float("inf")
        push = time.monotonic() + _PUSH_PERIOD
        limit = time.monotonic() + (self._launch.time_limit or never)
        kill = never
        end: Ended | None = None  # set as soon as it is decided how the job ends
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for node in nodes:
                selector.register(node, selectors.EVENT_READ, node)
            while len(selector.get_map()) > 1:
                for key, _ in selector.select(max(0.0, min(push, limit, kill) - time.monotonic())):
                    if key.data is None:
                        os.read(self._woken, 1 << 10)
                        continue
                    for event in key.data.events():
                        if event["event"] == "ended":
                            selector.unregister(key.data)
                            end = self._node_ended(key.data, end, **event)
                        else:
                            self._report(TaskStarted(key.data.task))
                now = time.monotonic()
                if now >= limit:
                    limit = never
                    self._stopping = self._stopping or "The job ran as long as its auto_stop allows."
                if self._stopping and end is None:
                    end = Ended("Terminated", self._stopping)
                if end and kill == never:
                    kill = now + self._grace + PATIENCE
                    for node in nodes:
                        node.stop()
                if now >= kill or self._abandoned:
                    for node in nodes:
                        node.kill()
                if now >= push:
                    self._push()
                    push = now + max(_PUSH_PERIOD, 10 * (time.monotonic() - now))
        return end or Ended("Completed")

    def _node_ended(self, node: NodeProcess, end: Ended | None, *, code: int, fault: str, event: str) -> Ended | None:
        """Report the end of a task; return how the job ends, if that is decided now or was before."""
        message = fault or (f"Training end with return code: {code}" if code else "")
        self._report(TaskEnded(node.task, code, message))
        if end is None and fault:
            return Ended("Abnormal", f"The platform failed on {node.task}: {fault}", node.task)
        if end is None and code:
            return Ended("Failed", f"{node.task}: {message}", node.task)
        self._succeeded.add(node.task)
        if end is None and self._launch.is_done(self._succeeded):
            return Ended("Completed")
        return end

    def _push(self, *, everything: bool = False) -> None:
        for mirror in self._mirrors if self._log_frozen() else [*self._mirrors, *self._log_mirrors]:
            mirror.push(everything=everything)


class Mirror:
    """Copies a folder of a running job to the object store while it grows."""

    def __init__(self, objects: Objects, folder: Path, place: Place, resolve_link: Callable[[Path], Path]) -> None:
        """`resolve_link` returns the host's path of a file of the folder, which may be a link."""
        self._objects = objects
        self._resolve_link = resolve_link
        self._folder = folder
        self._place = place
        self._copied: dict[Path, tuple[int, int, int]] = {}
        self._due: dict[Path, float] = {}

    def push(self, *, everything: bool = False) -> None:
        """Upload the files that have changed; skip large ones that were uploaded recently, unless `everything`."""
        now = time.monotonic()
        for path, file in self._files():
            try:
                status = file.stat()
                version = (status.st_ino, status.st_size, status.st_mtime_ns)
                if self._copied.get(path) == version or not (everything or self._due.get(path, now) <= now):
                    continue
                key = self._place.prefix + path.relative_to(self._folder).as_posix()
                self._objects.put_file(file, self._place.bucket, key)
                self._copied[path] = version
                self._due[path] = now + status.st_size / _BYTES_PER_SECOND
            except FileNotFoundError as error:  # a temporary file that the job has removed
                log.debug("not uploaded: %s", error)

    def _files(self) -> Iterator[tuple[Path, Path]]:
        for folder, _, names in os.walk(self._folder):
            for path in (Path(folder, name) for name in names):
                file = self._resolve_link(path)
                if file.is_file():  # skip pipes, sockets and dangling links
                    yield path, file


class StoreAccess:
    """Lends a job the variables by which MoXing reaches the object store; the keys expire with the job."""

    def __init__(self, endpoint: str, accounts: Accounts | None) -> None:
        self._endpoint = endpoint
        self._accounts = accounts

    def lend(self) -> dict[str, str]:
        variables = {
            "S3_ENDPOINT": self._endpoint,
            "S3_USE_HTTPS": str(int(self._endpoint.startswith("https:"))),
            "S3_VERIFY_SSL": "0",
        }
        if self._accounts is None:
            return variables
        account = self._accounts.lend()
        return variables | {"ACCESS_KEY_ID": account.access_key, "SECRET_ACCESS_KEY": account.secret_key}

    def take_back(self, variables: Mapping[str, str]) -> None:
        if self._accounts:
            self._accounts.take_back(variables["ACCESS_KEY_ID"])


class Usage:
    """Samples once a second how busy the nodes of running jobs are, as long as there is one."""

    def __init__(self, period: float = USAGE_PERIOD_S) -> None:
        self._period = period
        self._pids: dict[_Node, int] = {}
        self._samples: dict[_Node, deque[tuple[float, float]]] = {}  # CPU and memory, in percent
        self._spent: dict[_Node, float] = {}  # seconds of CPU until the last sample
        self._sampled = 0.0
        self._lock = threading.Lock()
        self._sampling = False

    def begin(self, job_id: str, task: str, pid: int) -> None:
        """Sample the process and all its descendants as this node."""
        with self._lock:
            self._pids[job_id, task] = pid
            if not self._sampling and processes.LINUX:
                self._sampling = True
                threading.Thread(target=self._sample_all, name="usage of nodes", daemon=True).start()

    def end(self, job_id: str) -> None:
        with self._lock:
            self._pids = {node: pid for node, pid in self._pids.items() if node[0] != job_id}

    def of(self, job_id: str, task: str) -> dict[str, list[float]]:
        with self._lock:
            samples = list(self._samples.get((job_id, task), ()))
        if not samples:
            return {}
        return {"cpuUsage": [cpu for cpu, _ in samples], "memUsage": [memory for _, memory in samples]}

    def forget(self, job_id: str) -> None:
        with self._lock:
            self._samples = {node: samples for node, samples in self._samples.items() if node[0] != job_id}

    def _sample_all(self) -> None:
        while True:
            with self._lock:
                pids = dict(self._pids)
                self._sampling = bool(pids)
            if not pids:
                return
            self._sample(pids)
            time.sleep(self._period)

    def _sample(self, pids: dict[_Node, int]) -> None:
        families, now = processes.families(pids.values()), time.monotonic()
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with self._lock:
            room = (now - self._sampled) * (os.cpu_count() or 1)
            before, self._sampled, self._spent = self._spent, now, {}
            for node, pid in pids.items():
                spent, memory = families[pid]
                self._spent[node] = spent
                if node in before and node in self._pids:
                    cpu = min(100.0, max(0.0, 100 * (spent - before[node]) / room))
                    self._samples.setdefault(node, deque(maxlen=MAX_SAMPLES)).append((cpu, 100 * memory / machine))
