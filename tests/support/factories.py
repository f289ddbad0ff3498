"""Makes the records that tests need: each argument that a test does not name has a plain value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_aisbench.domain.case import Case, Shape, Workload
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT, Metric, MissingResult
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.domain.verdict import Verdict
from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.values import CaseValues

_METRICS = {THROUGHPUT: Metric(THROUGHPUT, "images/s"), ACCURACY: Metric(ACCURACY, "")}


def case_values(
    thresholds: Iterable[Threshold],
    values: Mapping[str, float],
    missing: Iterable[MissingResult] = (),
    shape: Shape = Shape(1, 1),  # noqa: B008 - a frozen value
) -> CaseValues:
    """What a trial of a toy workload measured."""
    workload = Workload("toy", "", ("code",), "train.py", "python", shape.devices, _METRICS)
    return CaseValues(Case(workload, shape, tuple(thresholds)), values, tuple(missing))


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
