"""A trial: one attempt at a case, as the ledger remembers it; and the record that history keeps of it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_aisbench.errors import AisbenchError, Blame
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Job, LogExcerpt, Power, Request, Stage, TrainedWith
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Curve, Measurement, MissingResult
from pytest_aisbench.model.verdict import Background, Past, Ruling, Verdict


class Step(enum.IntEnum):
    """What a trial does next. SUBMIT in the ledger is an intent: it is saved before the request leaves."""

    STAGE = 0  # or waits for its turn: `times` has STAGING from the moment it really stages
    SUBMIT = 1
    WATCH = 2
    HARVEST = 3
    JUDGE = 4
    DONE = 5


STAGING = "staging"


@dataclass(frozen=True, slots=True)
class Fault:
    """What ended a trial before its results could be judged, and who must act."""

    blame: Blame
    text: str
    # True if the job itself was not at fault, so that another trial may well succeed.
    transient: bool = field(default=False, metadata={"alias": "passing"})

    @classmethod
    def of(cls, error: AisbenchError) -> Fault:
        return cls(error.blame, str(error))


@dataclass(frozen=True, slots=True)
class Trial:
    """Immutable: each step of the engine returns a changed copy."""

    id: str  # "<run>/<case>/<number>"
    run: str
    case: Case
    number: int
    name: str  # of its job, unique for ever
    step: Step = Step.STAGE
    stage: Stage | None = None
    request: Request | None = None
    attempts: int = 0  # submissions without an answer
    job_id: str | None = None
    job: Job | None = None
    logs: tuple[str, ...] = ()  # files beside the report, relative to the run's folder
    measurements: tuple[Measurement, ...] = ()
    missing_results: tuple[MissingResult, ...] = field(default=(), metadata={"alias": "flaws"})
    curve: Curve | None = None  # loss and speed, from its log
    fault: Fault | None = None  # what ended it before its results could be judged
    judged: Verdict | None = None
    another_trial: str = field(default="", metadata={"alias": "due"})  # why one must decide; empty if none is due
    # When each step began, and "done"; "retry_after": until when the platform asked to be left alone.
    times: Mapping[str, float] = field(default_factory=dict, metadata={"key_aliases": {"spared": "retry_after"}})
    notes: tuple[str, ...] = ()  # warnings worth a line in the report
    events: tuple[str, ...] = ()  # where it did not pass: what the platform says happened last
    last_lines: tuple[str, ...] = ()  # and what its log ends with
    excerpt: LogExcerpt | None = None  # and the lines that matter most
    # Tells the platform it runs on from every other; empty for a platform that ends with the run.
    platform_id: str = field(default="", metadata={"alias": "place"})
    # How often another process has taken it; every write and every request about its job is made by the last of them.
    fence: int = 0
    fingerprint: str = ""  # of everything that decides what its job does
    expected_s: float = 0.0  # how long its job should run; 0 if unknown
    traits: Mapping[str, str] = field(default_factory=dict)  # what history must share to be compared, by name
    background: Background | None = None  # what it was judged against
    console: str = ""  # where the platform shows its job to people
    endpoints: Mapping[str, str] = field(default_factory=dict)  # ways into its job, by name; an address may be unknown
    usage: Mapping[str, float] = field(default_factory=dict)  # percent by what was used: mean over time and nodes
    power: Power | None = None  # what its nodes drew
    trained_with: TrainedWith | None = None  # None until its logs are read
    # By metric the value that its case is judged by. The fixture `trial` fills it in; the ledger has the measurements.
    metrics: Mapping[str, float] = field(default_factory=dict, compare=False, metadata={"stored": False})

    @property
    def verdict(self) -> Verdict:
        """The verdict; BROKEN for a trial that was not judged."""
        return self.judged or Verdict(Ruling.BROKEN, f"{self.case.id} was not judged")

    @property
    def throughput(self) -> float:
        """The value of the case, as the reports show it."""
        return self.metrics[THROUGHPUT]

    @property
    def accuracy(self) -> float:
        """The value of the case, as the reports show it."""
        return self.metrics[ACCURACY]

    @property
    def stopped_by(self) -> str:
        """Who stopped its job from outside of the run: `stopped by …`; empty if no person did."""
        return self.fault.text if self.fault and self.fault.blame is Blame.PERSON else ""

    @property
    def may_run(self) -> bool:
        """True if its job may still run, and cost: also a job that could not be cancelled."""
        if self.step in {Step.SUBMIT, Step.WATCH}:
            return True
        return self.job_id is not None and self.job is not None and not self.job.phase.is_final

    def __repr__(self) -> str:  # pytest prints it beside failures
        return f"<Trial {self.id} at {self.step.name}>"

    def moved(self, step: Step, now: float, **changes: Any) -> Trial:
        """The trial at its next step, which begins now."""
        times = {key: at for key, at in self.times.items() if key != "silent"}  # the platform answers again
        return replace(self, step=step, times={**times, step.name.lower(): now}, **changes)

    def noted(self, text: str) -> Trial:
        return self if text in self.notes else replace(self, notes=(*self.notes, text))


@dataclass(frozen=True)
class TrialRecord:
    """What history keeps of a judged trial that measured everything."""

    trial: str  # its id
    run: str
    case_id: str
    workload: str
    shape: str
    mode: str
    key: str  # of its traits; empty if they are unknown: such a trial is comparable to no other
    family: str  # of its traits without the shape
    at: float  # seconds since the epoch
    throughput: float
    accuracy: float | None = None
    steady: float | None = None  # the throughput after the warm-up by its log, in the log's own unit
    ran_s: float | None = None
    ruling: Ruling = Ruling.PASSED  # of the trial: INCONCLUSIVE if another was to decide
    counts: bool = True  # its accuracy held: its speed may be compared
    metrics: Mapping[str, float] = field(default_factory=dict)  # the others, by name

    def value(self, metric: str) -> float | None:
        if metric == THROUGHPUT:
            return self.throughput
        return self.accuracy if metric == ACCURACY else self.metrics.get(metric)

    @property
    def past(self) -> Past:
        return Past(self.run, self.at, self.throughput, self.accuracy)


def values_of(records: Iterable[TrialRecord], metric: str) -> list[float]:
    """The values of the records that have the metric."""
    return [value for value in (each.value(metric) for each in records) if value is not None]
