"""One job while it runs: its containers are filled, its nodes watched, its results brought home."""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.apulis_pod import Pod
from pytest_aisbench.localcloud.container import Container
from pytest_aisbench.localcloud.launch import Ended, Started, TaskEnded, TaskStarted
from pytest_aisbench.localcloud.mirror import Mirror
from pytest_aisbench.localcloud.node_process import NodeProcess
from pytest_aisbench.localcloud.objects import ObjectError
from pytest_aisbench.localcloud.private_root import container_support
from pytest_aisbench.localcloud.rendezvous import node_address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_aisbench.localcloud.launch import Launch, Report
    from pytest_aisbench.localcloud.objects import Objects
    from pytest_aisbench.localcloud.rendezvous import Ports
    from pytest_aisbench.localcloud.store_access import StoreAccess
    from pytest_aisbench.localcloud.usage import Usage

log = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds beyond the grace that a node may take to end its ranks, before it is ended itself
_PUSH_PERIOD = 1.0


class Run:
    def __init__(
        self,
        objects: Objects,
        folder: Path,
        launch: Launch,
        report: Report,
        *,
        ports: Ports,
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
        self._store = store
        self._grace = grace
        self._ended = ended
        self._log_frozen = log_frozen
        self._usage = usage
        kind = Pod if launch.pods else Container
        self._containers = [kind(folder / str(node), launch, node) for node in range(launch.nodes)]
        self._mirrors = [
            Mirror(objects, container.path(channel.local_dir), channel.place, container.followed)
            for container in self._containers
            for channel in launch.outputs
            if channel.local_dir
        ]
        self._log_mirrors = [
            Mirror(objects, container.logs, launch.logs, container.followed)
            for container in self._containers
            if launch.logs
        ]
        self._succeeded: set[str] = set()  # tasks
        self._stopping = ""  # the reason
        self._abandoned = False
        self._woken, self._wake = os.pipe()
        self._lock = threading.Lock()  # of the pipe: once closed, its numbers are somebody else's
        # A daemon: a cloud that just ends closes the nodes' standard input, and that ends them.
        self._thread = threading.Thread(target=self._run, name=f"job {launch.job_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Without waiting. `at_once`: without grace, and results are not brought home."""
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
            container.prepare(self._objects, private=private)
            if self._stopping:
                return Ended("Terminated", self._stopping)
        port = self._ports.take(node_address(0))
        variables = self._store.lend()
        nodes: list[NodeProcess] = []
        try:
            for container in self._containers:
                spec = container.spec(port, variables, self._grace)
                nodes.append(NodeProcess(container, spec))
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
                self._push(everything=True)
        return end

    def _watch(self, nodes: list[NodeProcess]) -> Ended:
        """Until no node is left."""
        never = float("inf")
        push = time.monotonic() + _PUSH_PERIOD
        limit = time.monotonic() + (self._launch.time_limit or never)
        kill = never
        first: Ended | None = None  # what ends the job before its nodes do
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
                            first = self._bury(key.data, first, **event)
                        else:
                            self._report(TaskStarted(key.data.task))
                now = time.monotonic()
                if now >= limit:
                    limit = never
                    self._stopping = self._stopping or "The job ran as long as its auto_stop allows."
                if self._stopping and first is None:
                    first = Ended("Terminated", self._stopping)
                if first and kill == never:
                    kill = now + self._grace + _PATIENCE
                    for node in nodes:
                        node.stop()
                if now >= kill or self._abandoned:
                    for node in nodes:
                        node.kill()
                if now >= push:
                    self._push()
                    push = now + max(_PUSH_PERIOD, 10 * (time.monotonic() - now))
        return first or Ended("Completed")

    def _bury(self, node: NodeProcess, first: Ended | None, *, code: int, fault: str, event: str) -> Ended | None:
        message = fault or (f"Training end with return code: {code}" if code else "")
        self._report(TaskEnded(node.task, code, message))
        if first is None and fault:
            return Ended("Abnormal", f"The platform failed on {node.task}: {fault}", node.task)
        if first is None and code:
            return Ended("Failed", f"{node.task}: {message}", node.task)
        self._succeeded.add(node.task)
        if first is None and self._launch.is_done(self._succeeded):
            return Ended("Completed")
        return first

    def _push(self, *, everything: bool = False) -> None:
        for mirror in self._mirrors if self._log_frozen() else [*self._mirrors, *self._log_mirrors]:
            mirror.push(everything=everything)
