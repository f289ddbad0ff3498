"""The contract between platforms and engines: a platform gives an `Engine` a `Launch`, the engine reports an `Event`.

Also what both engines share: addresses and ports of nodes, rank tables, and the alarm that makes timed calls.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import heapq
import itertools
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.apulis.pods import Pods


log = logging.getLogger(__name__)
# Below the ports that the kernel gives to outgoing connections.
_PORTS = range(16384, 32768)


@dataclass(frozen=True)
class Launch:
    """A job as an engine needs it."""

    job_id: str
    nodes: int
    cards: int  # in each node
    engine_version: str
    interpreter: str
    code: Place | None  # None where a custom image has all it needs
    boot_file: str  # relative to the code; empty where `command` says all
    parameters: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Channel, ...] = ()
    outputs: tuple[Channel, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    logs: Place | None = None
    time_limit: float | None = None  # seconds
    contract: str = "V2"
    """What the container looks like: `V2`, `V1` (urls instead of folders, /home/work, DLS_ and BATCH_ variables) or
    `apulis` (shared folders, DLWS_ variables)."""
    name: str = ""  # the job's name, which V1 uses for log files and hosts
    resource_id: str = ""  # V1's id of one run of a job
    image: str = ""  # a custom one, only a name here: `command` runs once for each node
    command: str = ""
    volumes: tuple[Volume, ...] = ()
    pods: Pods | None = None  # the nodes of an apulis job, which need not be equal

    @property
    def tasks(self) -> list[str]:
        return [f"worker-{node}" for node in range(self.nodes)]

    @property
    def ranks(self) -> int:
        return self.pods.ranks if self.pods else self.nodes * self.cards

    def is_done(self, succeeded: Collection[str]) -> bool:
        """True if the job has succeeded with these tasks, though others still run."""
        return self.pods is not None and self.pods.is_done(succeeded)

    def log_name(self, task: str) -> str:
        """The name of the file, and of the object, with the output of the task."""
        if self.contract == "V1":
            return f"{self.resource_id}-job-{self.name}-{task.rpartition('-')[2]}.log"
        return f"{self.job_id}-{task}.log" if self.pods else f"modelarts-job-{self.job_id}-{task}.log"


@dataclass(frozen=True)
class Channel:
    """An input or an output: a place in the store, and the folder of the container that stands for it."""

    name: str
    place: Place
    local_dir: str  # in the container, absolute; empty in V1, whose jobs get the url and copy it themselves
    by_environment: bool = False
    """The boot file gets it by an environment variable instead of a command line argument."""


@dataclass(frozen=True)
class Volume:
    """A network share (SFS, NAS) that is mounted at a folder of the container."""

    source: str  # host:/path
    folder: str  # in the container, absolute
    read_only: bool = False


@dataclass(frozen=True)
class Place:
    """A folder in the object store; the prefix is empty or ends with a slash."""

    bucket: str
    prefix: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.prefix.rstrip("/").rpartition("/")[2] or self.bucket

    @property
    def url(self) -> str:
        """The form in which V1 gives it to a script."""
        return f"s3:/{self}"

    def __str__(self) -> str:
        return f"/{self.bucket}/{self.prefix}"


class Engine(Protocol):
    def start(self, launch: Launch, report: Report) -> None:
        """Return at once; report events, `Ended` exactly once, last, and from another thread."""

    def stop(self, job_id: str) -> None:
        """Ask the job to end; do nothing where it has ended already or was never started."""

    def log(self, job_id: str, task: str) -> tuple[bytes, int] | None:
        """The newest part of the log of the task, and the size of the whole; None while there is none."""

    def usage(self, job_id: str, task: str) -> Mapping[str, Sequence[float]]:
        """How busy the task was, in percent, by the vendor's metric names: one sample a second, for the last hour."""

    def freeze_log(self, job_id: str, *, frozen: bool) -> None:
        """Stop or resume the growth of the log, in `log` and in the store; the job runs on."""

    def forget(self, job_id: str) -> None:
        """The job was deleted: remove what is kept of it, now or when it ends."""

    def close(self) -> None:
        """End all jobs, and return when nothing is left of them."""


@dataclass(frozen=True)
class Started:
    """All nodes have been started."""


@dataclass(frozen=True)
class TaskStarted:
    task: str


@dataclass(frozen=True)
class TaskEnded:
    task: str
    exit_code: int
    message: str


@dataclass(frozen=True)
class Ended:
    """The last event of a job: its outputs and logs are in the store, its processes are gone."""

    phase: str  # Completed, Failed, Terminated or Abnormal
    message: str = ""
    task: str = ""  # the one that ended the job


Event = Started | TaskStarted | TaskEnded | Ended
Report = Callable[[Event], None]


# Where the ranks of a job find each other: addresses on loopback, a port, and the rank table.


def node_address(node: int) -> str:
    return f"127.0.{node // 250}.{node % 250 + 2}" if _many_loopbacks() else "127.0.0.1"


def card_address(node: int, card: int) -> str:
    return f"127.{node // 250 + 1}.{node % 250}.{card + 1}" if _many_loopbacks() else "127.0.0.1"


@functools.cache
def _many_loopbacks() -> bool:
    """True on Linux, which answers to all of 127/8; others answer only to configured addresses."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.2", 0))
        except OSError:
            return False
    return True


class Ports:
    """Gives each job of an engine a free port of its own."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def _candidates(self) -> Iterator[int]:
        # From a random one on: another cloud on this machine chooses from the same range.
        first = random.SystemRandom().randrange(len(_PORTS))
        return itertools.chain(_PORTS[first:], _PORTS[:first])

    def take(self, address: str) -> int:
        with self._lock:
            for port in self._candidates():
                if port not in self._taken and _is_free(address, port):
                    self._taken.add(port)
                    return port
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    def give_back(self, port: int) -> None:
        with self._lock:
            self._taken.discard(port)


def _is_free(address: str, port: int) -> bool:
    for host in (address, ""):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            continue
        return False
    return True


def rank_table(job_id: str, nodes: int, cards: int, status: str) -> dict[str, Any]:
    """The rank table as ModelArts writes it (version 0.1): `completed` lists all nodes, `initializing` none."""
    if status != "completed":
        return {"status": status}
    instances = [
        {
            "pod_name": f"modelarts-job-{job_id}-worker-{node}",
            "server_id": node_address(node),
            "devices": [{"device_id": str(card), "device_ip": card_address(node, card)} for card in range(cards)],
        }
        for node in range(nodes)
    ]
    group = {
        "group_name": "job-trainjob",
        "device_count": str(nodes * cards),
        "instance_count": str(nodes),
        "instance_list": instances,
    }
    return {"status": status, "group_count": "1", "group_list": [group]}


class Alarm:
    """Makes calls at given times, all from one thread, so that thousands of waits cost almost nothing."""

    def __init__(self, name: str) -> None:
        self._calls: list[tuple[float, int, Callable[[], None]]] = []  # a heap
        self._numbers = itertools.count()  # keeps calls of the same time in the order of `at`
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """Make the call at `moment` of time.monotonic, or at once if it has passed; never after `close`."""
        with self._changed:
            entry = (moment, next(self._numbers), call)
            heapq.heappush(self._calls, entry)
            if self._thread.ident is None and not self._closed:
                self._thread.start()
            if self._calls[0] is entry:  # otherwise the thread wakes early enough
                self._changed.notify()

    def close(self) -> None:
        """Return when no call runs any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            started = self._thread.ident is not None
        if started:
            self._thread.join()

    def _run(self) -> None:
        while call := self._next():
            try:
                call()
            except Exception:
                log.exception("a timed call failed")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                wait = self._calls[0][0] - time.monotonic() if self._calls else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._calls)[2]
                self._changed.wait(wait)
        return None
