"""What one trial measured, as history keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_aisbench.domain import fingerprint
from pytest_aisbench.domain.background import Past
from pytest_aisbench.domain.entry import values
from pytest_aisbench.domain.metric import ACCURACY, LARGEST, THROUGHPUT
from pytest_aisbench.domain.rollcall import flaws_of
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.domain.verdict import Ruling


@dataclass(frozen=True)
class Measure:
    """One trial that was judged with all its ranks."""

    trial: str  # its id
    run: str
    case_id: str
    workload: str
    shape: str
    mode: str
    key: str  # of its traits; empty where they are not known, and then it is comparable to nothing
    family: str  # of its traits without the shape
    at: float  # seconds since the epoch
    throughput: float
    accuracy: float | None = None
    steady: float | None = None  # the throughput after the warm-up, as far as its log tells, in the log's own unit
    ran_s: float | None = None
    ruling: Ruling = Ruling.PASSED  # of the trial: INCONCLUSIVE where another was to decide
    counts: bool = True  # it is whole, and its accuracy held: its speed may be compared
    metrics: Mapping[str, float] = field(default_factory=dict)  # the others, by name

    def value(self, metric: str) -> float | None:
        if metric == THROUGHPUT:
            return self.throughput
        return self.accuracy if metric == ACCURACY else self.metrics.get(metric)

    @property
    def past(self) -> Past:
        return Past(self.run, self.at, self.throughput, self.accuracy)


def values_of(measures: Iterable[Measure], metric: str) -> list[float]:
    """Of those that have it."""
    return [value for value in (each.value(metric) for each in measures) if value is not None]


def counts(trial: Trial) -> bool:
    """Whether its speed may be compared: no result is missing or wrong, and every claim on the accuracy holds."""
    found = values(trial)
    if trial.fault or flaws_of(trial) or THROUGHPUT not in found:
        return False
    if not 0 < found[THROUGHPUT] < LARGEST:
        return False
    claims = [claim for claim in trial.case.thresholds if claim.metric == ACCURACY]
    bands = [claim.band(trial.case.judged_shape) for claim in claims]
    learnt = found.get(ACCURACY, math.nan)
    return bool(bands) and all(low <= learnt <= high for low, high in bands)


def measure_of(trial: Trial) -> Measure | None:
    """None where nothing was measured that could be compared to anything, or where it is not judged."""
    found = values(trial)
    if trial.step is not Step.DONE or trial.fault or not trial.judged or flaws_of(trial) or THROUGHPUT not in found:
        return None
    case, speed = trial.case, trial.curve.pace if trial.curve else None
    return Measure(
        trial=trial.id,
        run=trial.run,
        case_id=case.id,
        workload=case.workload.name,
        shape=str(case.shape),
        mode=case.mode.value,
        key=fingerprint.key(trial.traits),
        family=fingerprint.family(trial.traits),
        at=trial.times.get("done", 0.0),
        throughput=found[THROUGHPUT],
        accuracy=found.get(ACCURACY),
        steady=speed.steady if speed else None,
        ran_s=trial.job.ran_s if trial.job else None,
        ruling=trial.judged.ruling,
        counts=counts(trial),
        metrics={name: value for name, value in found.items() if name not in {THROUGHPUT, ACCURACY}},
    )
