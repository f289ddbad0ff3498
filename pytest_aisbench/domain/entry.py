"""What reporters read: a run, its cases and their trials, in the shape of `results.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.domain.background import Background
from pytest_aisbench.domain.case import Case, Mode, Shape
from pytest_aisbench.domain.comparison import Before, Brief
from pytest_aisbench.domain.curve import Curve, Pace
from pytest_aisbench.domain.energy import Power
from pytest_aisbench.domain.executor import Executor
from pytest_aisbench.domain.logged import logged, target_accuracy
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT, Measurement, mean, total
from pytest_aisbench.domain.rollcall import flaws_of
from pytest_aisbench.domain.sentence import tell
from pytest_aisbench.domain.stragglers import Straggler, stragglers
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.domain.verdict import Finding, Ruling, Verdict

SCHEMA = "aisbench-results/1"


@dataclass(frozen=True)
class Value:
    """A metric of a case; None when it was not measured."""

    value: float | None
    unit: str


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


def brief(case: CaseEntry) -> Brief:
    speed = case.metrics.get(THROUGHPUT, Value(None, ""))
    return Brief(case.id, case.verdict, speed.value, speed.unit)


def values(trial: Trial) -> dict[str, float]:
    """The case's metrics: throughput is the sum over ranks; where every node trains alone, each is the mean over the
    nodes. One that is flawed or not finite has no value. Beside them stands what the log measures by itself."""
    flawed = {flaw.metric for flaw in flaws_of(trial)}
    by_metric: dict[str, list[Measurement]] = {}
    for measurement in trial.measurements:
        by_metric.setdefault(measurement.metric, []).append(measurement)
    whole = by_node if trial.case.single_server else total
    found = {name: whole(measured) for name, measured in by_metric.items() if name not in flawed}
    return {name: value for name, value in {**logged(trial), **found}.items() if math.isfinite(value)}


def by_node(measured: Sequence[Measurement]) -> float:
    """The mean over the nodes of the sum over each one's cards."""
    nodes = sorted({each.server for each in measured if each.server is not None})
    return mean([total(each for each in measured if each.server == node) for node in nodes]) if nodes else math.nan


def by_rank(trial: Trial) -> list[float | None]:
    """The throughput of each rank; None where it was not measured."""
    ranks: list[float | None] = [None] * trial.case.shape.world
    for each in trial.measurements:
        if each.metric == THROUGHPUT and each.rank is not None and 0 <= each.rank < len(ranks):
            ranks[each.rank] = each.value
    return ranks


def trial_entry(trial: Trial) -> TrialEntry:
    shape, job = trial.case.shape, trial.job
    ranks = by_rank(trial)
    return TrialEntry(
        trial=trial.number,
        job_id=trial.job_id,
        platform_phase=job.platform_phase if job else None,
        phase=job.phase.value if job else None,
        queued_s=job.queued_s if job else None,
        ran_s=job.ran_s if job else None,
        throughput_by_rank=tuple(ranks),
        throughput_by_server=_by_server(ranks, shape),
        accuracy_by_server=tuple(m.value for m in trial.measurements if m.metric == ACCURACY),
        stragglers=stragglers(ranks, shape),
        pace=trial.curve.pace if trial.curve else None,
        logs=trial.logs,
        stage=str(trial.stage.root) if trial.stage else None,
        times=trial.times,
        notes=trial.notes,
        curve=trial.curve,
        events=trial.events,
        last_lines=trial.last_lines,
        traits=trial.traits,
        console=trial.console,
        usage=trial.usage,
        power=trial.power,
    )


def _by_server(ranks: list[float | None], shape: Shape) -> tuple[float | None, ...]:
    """The sum of each node's ranks; None where one of them is missing."""
    servers: list[float | None] = []
    for node in range(shape.nodes):
        found = [rank for rank in ranks[node * shape.devices : (node + 1) * shape.devices] if rank is not None]
        whole = sum(found) if len(found) == shape.devices else math.inf
        servers.append(whole if math.isfinite(whole) else None)
    return tuple(servers)


def _unjudged(trials: tuple[Trial, ...]) -> str:
    fault = trials[-1].fault if trials else None
    return tell("not judged") + (tell("because", why=fault.text) if fault else "")


def case_entry(case: Case, trials: tuple[Trial, ...], verdict: Verdict | None) -> CaseEntry:
    """`verdict` is the case's: the last trial's, unless the test itself did not pass."""
    measured = values(trials[-1]) if trials else {}
    # Of several trials a finding has the value that was judged: the first on a metric is that on its claim.
    judged = {each.metric: each.measured for each in reversed(verdict.findings if verdict else ())}
    measured.update({name: value for name, value in judged.items() if value is not None})
    metrics = {name: Value(measured.get(name), metric.unit) for name, metric in case.workload.metrics.items()}
    hours = sum(t.job.ran_s or 0.0 for t in trials if t.job) * case.shape.world / 3600
    return CaseEntry(
        id=case.id,
        workload=case.workload.name,
        nodes=case.shape.nodes,
        devices_per_node=case.shape.devices,
        mode=case.mode.value,
        verdict=verdict.ruling if verdict else None,
        reason=verdict.reason if verdict else _unjudged(trials),
        card_hours=round(hours, 6),
        metrics=metrics,
        findings=verdict.findings if verdict else (),
        trials=tuple(trial_entry(trial) for trial in trials),
        background=trials[-1].background if trials else None,
        target_accuracy=target_accuracy(case),
    )
