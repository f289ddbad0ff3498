"""What reporters read (a run, its cases and their trials, as in `results.json`), and what is uploaded to the Tester."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from pytest_aisbench.model.case import Mode, Shape
from pytest_aisbench.model.job import LogExcerpt, Power, TrainedWith
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.metric import THROUGHPUT, Curve, Pace
from pytest_aisbench.model.verdict import Background, Finding, Ruling


@dataclass(frozen=True)
class Executor:
    """The CI server and build that started a run, without a name a person did; and the commit of its suites."""

    name: str = ""
    build: str = ""  # as its people call it: `nightly #12`
    url: str = ""
    number: int | None = None
    commit: str = ""  # the whole digest; empty if unknown
    branch: str = ""
    modified: bool | None = None  # files that git knows differ from the commit; None if a CI server named the commit
    user: str = ""  # account and machine, `ann@login1`: for the reports of the run alone, nothing uploads it

    @property
    def commit_text(self) -> str:
        """For people: `1a2b3c4d5e main`, with `+` after the commit if files were changed since."""
        return f"{self.commit[:_SHORT_COMMIT]}{'+' if self.modified else ''} {self.branch}".strip()


_SHORT_COMMIT = 10
SCHEMA = "aisbench-results/1"


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a metric; None if it was not measured."""

    value: float | None
    unit: str
    source: str = ""  # where it was read, if not from the file that the script wrote


@dataclass(frozen=True, slots=True)
class Straggler:
    """A slow card; a slow node if `card` is None."""

    node: int
    card: int | None
    rank: int | None
    ratio: float  # of the others' median
    cost: float  # the share of the job's throughput that it loses
    host: str = ""  # the node's name, if the platform says it

    @property
    def place(self) -> str:
        """The node by its number, and by its name if that is known."""
        return f"{self.node} ({self.host})" if self.host else str(self.node)

    @property
    def text(self) -> str:
        facts = {"node": self.place, "share": f"{self.ratio:.1%}", "cost": f"{self.cost:.1%}"}
        if self.card is None:
            return message("slow node", **facts)
        return message("slow card", card=str(self.card), rank=str(self.rank), **facts)

    def __str__(self) -> str:
        return str(self.text)


@dataclass(frozen=True, slots=True)
class TrialEntry:
    trial: int
    job_id: str | None
    platform_phase: str | None
    phase: str | None
    queued_s: float | None
    ran_s: float | None
    throughput_by_rank: tuple[float | None, ...]
    throughput_by_server: tuple[float | None, ...]
    accuracy_by_server: tuple[float, ...]
    stragglers: tuple[Straggler, ...]
    logs: tuple[str, ...]
    stage: str | None
    times: Mapping[str, float]  # when each step began, seconds since the epoch
    notes: tuple[str, ...]
    pace: Pace | None = None  # by its log: warm-up and steady state beside the whole run
    curve: Curve | None = None
    events: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    excerpt: LogExcerpt | None = None
    traits: Mapping[str, str] = field(default_factory=dict)
    console: str = ""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    power: Power | None = None
    trained_with: TrainedWith | None = None
    hosts: tuple[str, ...] = ()  # the names of its nodes, in the order of the ranks


@dataclass(frozen=True, slots=True)
class CaseEntry:
    id: str
    workload: str
    nodes: int
    devices_per_node: int
    mode: str
    verdict: Ruling | None
    reason: str
    card_hours: float
    metrics: Mapping[str, Value]
    findings: tuple[Finding, ...]
    trials: tuple[TrialEntry, ...]
    background: Background | None = None  # what its last trial was judged against
    target_accuracy: float | None = None  # the lower bound of the claim on it
    parameters: Mapping[str, str] = field(default_factory=dict)  # that the test's own marks gave

    @property
    def shape(self) -> Shape:
        return Shape(self.nodes, self.devices_per_node)

    @property
    def single_server(self) -> bool:
        """True if every node trains alone."""
        return self.mode == Mode.SINGLE_SERVER.value

    @property
    def trained_with(self) -> TrainedWith | None:
        """What the newest trial trained with; None if no log was read, as in ledgers of older versions."""
        return self.trials[-1].trained_with if self.trials else None

    @property
    def of_reference(self) -> float | None:
        """The throughput as a share of its reference; None without either."""
        reference = self.background.reference if self.background else None
        speed = self.metrics[THROUGHPUT].value if THROUGHPUT in self.metrics else None
        return speed / reference if speed is not None and reference else None

    @property
    def efficiency(self) -> float | None:
        """The share of the base's speed that a card keeps at this shape; None for the base itself, or without one."""
        points = self.background.scaling if self.background else ()
        base = next((point for point in points if point.efficiency == 1), None)  # which has lost nothing to itself
        own = (point.efficiency for point in points if point.shape == str(self.shape) and point is not base)
        return next(own, None)


@dataclass(frozen=True, slots=True)
class CaseBrief:
    """What the next run is compared with: so little that a run of a thousand cases is read at once."""

    id: str
    verdict: Ruling | None
    throughput: float | None
    unit: str = ""


@dataclass(frozen=True)
class PreviousRun:
    """An earlier run on the same platform."""

    run: str
    started: str
    cases: tuple[CaseBrief, ...]
    earlier: frozenset[str] = frozenset()  # cases of this run that only older runs had: they are not new


@dataclass(frozen=True)
class RunEntry:
    schema: str
    run: str
    started: str
    finished: str | None
    exit_code: int | None
    settings: Mapping[str, Any]
    cases: tuple[CaseEntry, ...]
    uploads: tuple[Mapping[str, Any], ...] = field(default=())
    before: PreviousRun | None = None  # the last run on the same platform
    green: PreviousRun | None = None  # the last of them whose exit code is 0
    executor: Executor = Executor()

    @cached_property
    def testers(self) -> Mapping[str, tuple[str, ...]]:
        """The Testers that each case was uploaded to, by case."""
        testers: dict[str, tuple[str, ...]] = {}
        for upload in self.uploads:
            testers[upload["case"]] = (*testers.get(upload["case"], ()), str(upload["tester"]))
        return testers


# Uploads to the Tester.

UPLOAD_SCHEMA = "ais-tester/1"
RESULTS, ATTACHMENTS, RUNS = "results", "attachments", "runs"  # kinds of uploads, as in the Tester's paths
RUN_END = "end"  # stands for the case if an upload is about a whole run
PRIVATE = "private local cloud"  # labels a Tester that ends with its run


class UploadState(enum.Enum):
    """Where an upload is: WAITING until the Tester takes or refuses it."""

    WAITING = "spooled"  # as ledgers have it
    DELIVERED = "delivered"
    DEAD = "dead"  # the Tester will never take it as it is


@dataclass(frozen=True)
class Destination:
    """The Tester that gets the results of a run, and what accompanies each of them. It holds no secret."""

    tester: str  # the address
    platform: str
    folder: str  # of the run: the files that a result names are below
    label: str = ""  # whose Tester it is, where that is not plain from the address
    testid: str = ""  # the Tester's name of the test; empty: every run is a test of its own
    config: Mapping[str, Any] = field(default_factory=dict)  # what config.json says
    system: Mapping[str, Any] = field(default_factory=dict)  # what system.json says
    origin: Executor = Executor()  # who started the run, and from which commit


@dataclass(frozen=True)
class RunEnd:
    """How a run ended; cases without a verdict have no result of their own that could say so."""

    run: str
    started: float
    finished: float | None  # None: it was killed
    exit_code: int | None
    unjudged: Mapping[str, str]  # cases that were to be judged, and why they were not
    unjudged_hours: float  # card-hours that they cost all the same
    missing: tuple[str, ...] = ()  # required cases without a verdict


@dataclass(frozen=True)
class UploadItem:
    """One upload, which the Tester stores exactly once however often it is sent."""

    key: str  # unique: the Tester stores one upload per key
    run: str
    case: str  # or the name of an attachment, or END
    attempt: int  # counts the uploads about the same case, from 1
    kind: str
    testid: str
    tester: str
    label: str
    body: str
    state: UploadState = UploadState.WAITING
    why: str = ""

    @property
    def destination(self) -> str:
        return f"{self.tester} ({self.label})" if self.label else self.tester


class Transport(Protocol):
    """A way to a Tester."""

    def send(self, upload: UploadItem) -> None:
        """Return once the Tester has it. A retryable error or `Refused`: send it again, now or another day; any other
        AisbenchError: it will never be taken."""

    def close(self) -> None:
        """May be called twice."""


def canonical(value: Any) -> str:
    """The canonical JSON of a value, in ASCII: half a character of a garbled log survives every encoding."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def make_upload(bound: Destination, run: str, name: str, kind: str, body: Mapping[str, Any]) -> UploadItem:
    """An upload with a key made of its body, which has testid, run_id and attempt."""
    attempt, testid = int(body["attempt"]), str(body["testid"])
    text = canonical(body)
    named = f"{testid}|{body['run_id']}|{attempt}|{text}"
    key = hashlib.sha256(named.encode()).hexdigest()
    return UploadItem(key, run, name, attempt, kind, testid, bound.tester, bound.label, text)
