"""How busy the nodes of running jobs are: one look at /proc each second for all of them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from pytest_aisbench.localcloud import processes

PERIOD = 1.0  # seconds; the vendor's is a minute, and our jobs are over by then
LONGEST = 3600  # samples of a node, the newest

_Node = tuple[str, str]  # job and task


class Usage:
    """Looks for as long as there is a node."""

    def __init__(self, period: float = PERIOD) -> None:
        self._period = period
        self._pids: dict[_Node, int] = {}
        self._samples: dict[_Node, deque[tuple[float, float]]] = {}  # CPU and memory
        self._spent: dict[_Node, float] = {}  # seconds of CPU, at the last look
        self._looked = 0.0
        self._lock = threading.Lock()
        self._looking = False

    def begin(self, job_id: str, task: str, pid: int) -> None:
        """From now on the process and all its descendants are the node."""
        with self._lock:
            self._pids[job_id, task] = pid
            if not self._looking and processes.LINUX:
                self._looking = True
                threading.Thread(target=self._look, name="usage of nodes", daemon=True).start()

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

    def _look(self) -> None:
        while True:
            with self._lock:
                pids = dict(self._pids)
                self._looking = bool(pids)
            if not pids:
                return
            self._sample(pids)
            time.sleep(self._period)

    def _sample(self, pids: dict[_Node, int]) -> None:
        families, now = processes.families(pids.values()), time.monotonic()
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with self._lock:
            room = (now - self._looked) * (os.cpu_count() or 1)
            before, self._looked, self._spent = self._spent, now, {}
            for node, pid in pids.items():
                spent, memory = families[pid]
                self._spent[node] = spent
                if node in before and node in self._pids:
                    cpu = min(100.0, max(0.0, 100 * (spent - before[node]) / room))
                    self._samples.setdefault(node, deque(maxlen=LONGEST)).append((cpu, 100 * memory / machine))
