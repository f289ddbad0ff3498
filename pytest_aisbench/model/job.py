"""A job: what is asked of a platform, what the platform says of it, and its addresses in the Store."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.messages import plain


@dataclass(frozen=True, order=True, slots=True)
class StoreUrl:
    """`obs://bucket/key`; a folder ends with `/`."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        scheme, colon, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if not colon or scheme not in {"obs", "s3"} or not bucket:
            raise UsageFault(f"{text!r} is not a place in the Store", advice="write obs://bucket/folder/")
        return cls(bucket, key)

    def __truediv__(self, part: str) -> StoreUrl:
        """An address below this folder; with a `/` at its end it is a folder again."""
        gap = "" if not self.key or self.key.endswith("/") else "/"
        return StoreUrl(self.bucket, f"{self.key}{gap}{part.lstrip('/')}")

    @property
    def is_folder(self) -> bool:
        return not self.key or self.key.endswith("/")

    def __str__(self) -> str:
        return f"obs://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a trial is in the Store: code and inputs by content, shared with other trials; its own outputs and logs."""

    root: StoreUrl
    code: StoreUrl
    inputs: StoreUrl | None = None

    @property
    def outputs(self) -> StoreUrl:
        return self.root / "outputs/"

    @property
    def logs(self) -> StoreUrl:
        return self.root / "logs/"


class Phase(enum.Enum):
    """Where a job is in its life. Only a word that the platform uses for an end becomes a final phase."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        return self not in {Phase.PENDING, Phase.RUNNING}


BY_PARAMETER, BY_ENVIRONMENT = "parameter", "environment"


@dataclass(frozen=True)
class JobSpec:
    """Everything that a platform needs to run a trial; no two jobs ever have the same name."""

    name: str
    shape: Shape
    code: StoreUrl  # the folder that holds the entry
    entry: str
    outputs: StoreUrl
    logs: StoreUrl
    inputs: StoreUrl | None = None
    framework: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    max_run_s: float | None = None  # the platform ends the job then, even if our process is gone
    urls_by: str = BY_PARAMETER  # how the entry is given `train_url` and `data_url`


def check_job_name(name: str, platform: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        advice = "use 1 to 64 letters, digits, underscores and hyphens"
        raise UsageFault(f"{name!r} cannot be the name of a job on {platform}", advice=advice)


def check_parameter_names(names: Iterable[str], set_by_platform: Collection[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[^\s=]+", name):
            raise UsageFault(f"{name!r} cannot be a parameter", advice="write names without blanks and =")
        if name in set_by_platform:
            raise UsageFault(f"parameter {name} is set by the platform", advice="remove it from workload.toml")


def check_variable_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageFault(f"{name!r} cannot be an environment variable", advice="use letters, digits and _")


@dataclass(frozen=True, slots=True)
class Request:
    """The HTTP request that creates a job; it holds no secret and can be printed."""

    method: str
    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the platform last described it."""

    id: str
    phase: Phase
    platform_phase: str  # the platform's own word
    known: bool = True  # False if we do not know the platform's word; the job counts as running
    reason: str = ""
    exit_code: int | None = None
    queued_s: float | None = None
    ran_s: float | None = None
    name: str = ""  # if the platform says it
    stuck: str = ""  # why a job that waits can never start; empty while it may
    hosts: tuple[str, ...] = ()  # the names of its nodes in the order of the ranks, if the platform says them

    def __post_init__(self) -> None:
        """Clean texts and times: half a character or a NaN in one answer must not keep the ledger from storing it."""
        for name in ("platform_phase", "reason", "name", "stuck"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name in ("queued_s", "ran_s"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < math.inf:
                object.__setattr__(self, name, None)


@dataclass(frozen=True, slots=True)
class TrainedWith:
    """What a job really trained with, as its log or workload.toml tells; without a name, neither does."""

    name: str = ""  # `torch`; of a miniature what it is written with, `numpy`
    version: str = ""
    source: str = ""  # which of the two tells it
    miniature: bool = False
    instead_of: str = ""  # of a miniature: the framework that it stands in for
    real: str = ""  # of a miniature: the option that trains with that framework; empty if the workload has no such way


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """The few lines of a log that say most of why a trial did not pass; none if the rank printed nothing."""

    log: str  # the file, as `Trial.logs` has it
    rank: int | None  # that failed first; None if the log does not tell
    node: int | None  # whose log it is; None for the log of one rank
    lines: tuple[str, ...]


@dataclass(frozen=True)
class LogPart:
    """Text of a node's log from an offset, and the offset of what follows."""

    text: str
    next: int


@dataclass(frozen=True)
class Sample:
    """The power of a node at a moment."""

    at: float  # seconds since the epoch
    node: str
    watts: float


@dataclass(frozen=True)
class Power:
    """The power and energy of all nodes of a job; None if they are unknown, with the reason in `why`."""

    average_w: float | None = None
    max_w: float | None = None
    energy_j: float | None = None
    source: str = ""
    why: str = ""
    gaps: tuple[str, ...] = ()
