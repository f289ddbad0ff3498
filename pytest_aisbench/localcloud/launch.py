"""What an engine is told about a job, what it tells back, and what an engine is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.apulis_pods import Pods


@dataclass(frozen=True)
class Place:
    """A folder in the object store; the prefix is empty or ends with a slash."""

    bucket: str
    prefix: str

    @property
    def name(self) -> str:
        """Its last part."""
        return self.prefix.rstrip("/").rpartition("/")[2] or self.bucket

    @property
    def url(self) -> str:
        """As V1 names it to a script."""
        return f"s3:/{self}"

    def __str__(self) -> str:
        return f"/{self.bucket}/{self.prefix}"


@dataclass(frozen=True)
class Channel:
    """An input or an output: a folder of the container that stands for a place in the store, or only its url."""

    name: str
    place: Place
    local_dir: str  # in the container, absolute; empty in V1, whose jobs get the url and copy by themselves
    by_environment: bool = False
    """Named to the boot file by an environment variable instead of a command line argument."""


@dataclass(frozen=True)
class Volume:
    """A share of the network (SFS, NAS) that the job finds in a folder."""

    source: str  # host:/path
    folder: str  # in the container, absolute
    read_only: bool = False


@dataclass(frozen=True)
class Launch:
    job_id: str
    nodes: int
    cards: int  # of each node
    engine_version: str
    interpreter: str
    code: Place | None  # none where a custom image has all it needs
    boot_file: str  # relative to the code; empty where a command of a custom image says all
    parameters: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Channel, ...] = ()
    outputs: tuple[Channel, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    logs: Place | None = None
    time_limit: float | None = None  # seconds
    contract: str = "V2"
    """What the container looks like: V2, V1 (urls instead of folders, /home/work, DLS_ and BATCH_ variables), or apulis
    (shared folders, DLWS_ variables)."""
    name: str = ""  # the job's, which V1 uses for log files and hosts
    resource_id: str = ""  # V1's word for one run of a job
    image: str = ""  # a custom one, by name only: what runs is `command`, once for each node
    command: str = ""
    volumes: tuple[Volume, ...] = ()
    pods: Pods | None = None  # what the nodes of an apulis job are, which need not be equal

    @property
    def ranks(self) -> int:
        return self.pods.ranks if self.pods else self.nodes * self.cards

    def is_done(self, succeeded: Collection[str]) -> bool:
        """Whether the success of these tasks is the job's, though others still run."""
        return self.pods is not None and self.pods.is_done(succeeded)

    def log_name(self, task: str) -> str:
        """The file, and the object, with what the task has written."""
        if self.contract == "V1":
            return f"{self.resource_id}-job-{self.name}-{task.rpartition('-')[2]}.log"
        return f"{self.job_id}-{task}.log" if self.pods else f"modelarts-job-{self.job_id}-{task}.log"


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


class Engine(Protocol):
    def start(self, launch: Launch, report: Report) -> None:
        """Returns at once; the events come from another thread, `Ended` exactly once and last."""

    def stop(self, job_id: str) -> None:
        """Asks for `Ended`; what has ended already, or was never started, is no mistake."""

    def log(self, job_id: str, task: str) -> tuple[bytes, int] | None:
        """The newest part of what the task has written, and the size of all of it; None while there is nothing."""

    def usage(self, job_id: str, task: str) -> Mapping[str, Sequence[float]]:
        """How busy the task was, in percent, by the vendor's names, one sample each second, for the last hour."""

    def freeze_log(self, job_id: str, *, frozen: bool) -> None:
        """A frozen log grows no more, neither in `log` nor in the store; the job runs on, or will run."""

    def forget(self, job_id: str) -> None:
        """The job was deleted; what is kept of it goes, at once or when it ends."""

    def close(self) -> None:
        """End everything, and return when nothing is left."""
