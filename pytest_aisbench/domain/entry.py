"""What reporters read: a run, its cases and their trials, in the shape of `results.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.domain.background import Background
from pytest_aisbench.domain.case import Mode, Shape
from pytest_aisbench.domain.curve import Curve, Pace
from pytest_aisbench.domain.executor import Executor
from pytest_aisbench.domain.job import Power
from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.verdict import Finding, Ruling

SCHEMA = "aisbench-results/1"


@dataclass(frozen=True)
class Value:
    """A metric of a case; None when it was not measured."""

    value: float | None
    unit: str


@dataclass(frozen=True)
class Straggler:
    """A card, or a whole node where `card` is None."""

    node: int
    card: int | None
    rank: int | None
    ratio: float  # of the others' median
    cost: float  # the share of the whole that is lost by it

    @property
    def text(self) -> str:
        told = {"node": str(self.node), "share": f"{self.ratio:.1%}", "cost": f"{self.cost:.1%}"}
        if self.card is None:
            return message("slow node", **told)
        return message("slow card", card=str(self.card), rank=str(self.rank), **told)

    def __str__(self) -> str:
        return str(self.text)


@dataclass(frozen=True)
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
    traits: Mapping[str, str] = field(default_factory=dict)
    console: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    power: Power | None = None


@dataclass(frozen=True)
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

    @property
    def shape(self) -> Shape:
        return Shape(self.nodes, self.devices_per_node)

    @property
    def single_server(self) -> bool:
        """Whether every node trains by itself."""
        return self.mode == Mode.SINGLE_SERVER.value


@dataclass(frozen=True)
class Brief:
    """A case of a run, in so few words that a run of a thousand is read at once."""

    id: str
    verdict: Ruling | None
    throughput: float | None
    unit: str = ""


@dataclass(frozen=True)
class Before:
    """The run before this one on the same platform."""

    run: str
    started: str
    cases: tuple[Brief, ...]


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
    before: Before | None = None  # the last run on the same platform
    executor: Executor = Executor()
