"""Makes the records that tests need: cases, trials and measurements, and the entries that reports are made from.

A test names what matters to it; everything else has a plain value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.values import CaseValues
from pytest_aisbench.model.case import Case, Mode, Shape, Workload
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Measurement, Metric, MissingResult
from pytest_aisbench.model.results import SCHEMA, CaseEntry, RunEntry, TrialEntry, Value
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Ruling, Threshold, Verdict

UNIT = "images/s"
METRICS = {THROUGHPUT: Metric(THROUGHPUT, UNIT), ACCURACY: Metric(ACCURACY, "")}


def make_workload(name: str = "toy", **fields: Any) -> Workload:
    defaults = {"folder": "", "code": ("code",), "entry": "train.py", "framework": "python", "devices": 2}
    return Workload(name, **{**defaults, "metrics": METRICS, **fields})


def make_case(
    shape: str = "2x2", *claims: Threshold, workload: str = "toy", mode: Mode = Mode.CLUSTER, **fields: Any
) -> Case:
    """`fields` are those of the workload."""
    parsed = Shape.parse(shape)
    return Case(make_workload(workload, **{"devices": parsed.devices, **fields}), parsed, claims, mode)


def make_measurements(
    case: Case, speed: float | Sequence[float] = 100.0, accuracy: float = 0.95
) -> tuple[Measurement, ...]:
    """What a healthy job leaves; `speed` is that of every rank, or one for each."""
    shape, alone = case.shape, case.single_server
    speeds = [speed] * shape.world if isinstance(speed, (int, float)) else speed
    nodes = range(shape.nodes) if alone else [None]
    return (
        *(
            Measurement(
                THROUGHPUT, each, UNIT, f"throughput_{rank}.json", rank, rank // shape.devices if alone else None
            )
            for rank, each in enumerate(speeds)
        ),
        *(Measurement(ACCURACY, accuracy, "", "accuracy.json", server=node) for node in nodes),
    )


def make_trial(case: Case | None = None, *, run: str = "run", number: int = 1, **fields: Any) -> Trial:
    case = case or make_case()
    return Trial(f"{run}/{case.id}/{number}", run, case, number, **{"name": f"{case.id}-{run}", **fields})


def make_trial_entry(**fields: Any) -> TrialEntry:
    defaults: dict[str, Any] = {
        "trial": 1, "job_id": "job-1", "platform_phase": "Completed", "phase": "SUCCEEDED", "queued_s": 1.0,
        "ran_s": 2.0, "throughput_by_rank": (), "throughput_by_server": (), "accuracy_by_server": (), "stragglers": (),
        "logs": (), "stage": None, "times": {}, "notes": (),
    }  # fmt: skip
    return TrialEntry(**{**defaults, **fields})


def make_case_entry(shape: str = "1x1", workload: str = "toy", **fields: Any) -> CaseEntry:
    parsed = Shape.parse(shape)
    defaults: dict[str, Any] = {
        "id": f"{workload}-{shape}", "nodes": parsed.nodes, "devices_per_node": parsed.devices, "mode": "cluster",
        "verdict": Ruling.PASSED, "reason": "fast enough", "card_hours": 0.1, "findings": (), "trials": (),
        "metrics": {THROUGHPUT: Value(10.0, UNIT), ACCURACY: Value(0.9, "")},
    }  # fmt: skip
    return CaseEntry(workload=workload, **{**defaults, **fields})


def make_run_entry(*cases: CaseEntry, **fields: Any) -> RunEntry:
    defaults: dict[str, Any] = {
        "run": "run-1", "started": "2024-01-01T00:00:00Z", "finished": None, "exit_code": None,
        "settings": {"platform": "local"},
    }  # fmt: skip
    return RunEntry(SCHEMA, cases=cases, **{**defaults, **fields})


def case_values(
    thresholds: Iterable[Threshold],
    values: Mapping[str, float],
    missing: Iterable[MissingResult] = (),
    shape: Shape = Shape(1, 1),  # noqa: B008 - a frozen value
) -> CaseValues:
    """What a trial of a toy workload measured."""
    return CaseValues(make_case(str(shape), *thresholds), values, tuple(missing))


def verdict_of(
    thresholds: Iterable[Threshold],
    values: Mapping[str, float],
    missing: Iterable[MissingResult] = (),
    shape: Shape = Shape(1, 1),  # noqa: B008 - a frozen value
    today: str = "",
) -> Verdict:
    """The verdict on a first trial, without a history."""
    return evaluate(case_values(thresholds, values, missing, shape), today=today).verdict


def results_json(accuracy: float | None = 0.998, outcome: str = "met", workload: str = "resnet50") -> dict[str, Any]:
    """The part of a results.json that `aisbench mllog` reads."""
    trial = {"trial": 1, "phase": "SUCCEEDED", "queued_s": 0.2, "ran_s": 6.04, "logs": ["logs/worker-0.log"]}
    return {
        "started": "2024-01-01T00:00:00Z",
        "settings": {"platform": "local"},
        "cases": [
            {
                "id": f"{workload}-1x8",
                "workload": workload,
                "nodes": 1,
                "devices_per_node": 8,
                "metrics": {"throughput": {"value": 3772.4, "unit": "images/s"}, "accuracy": {"value": accuracy}},
                "findings": [{"metric": "accuracy", "outcome": outcome}],
                "trials": [trial],
            }
        ],
    }
