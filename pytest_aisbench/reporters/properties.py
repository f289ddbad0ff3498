"""What a workload item's report carries from the process that ran the test to whoever reads it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.judge.values import case_values

PREFIX = "aisbench."
TRIAL: pytest.StashKey[Trial] = pytest.StashKey()


def properties(trial: Trial, platform: str = "") -> list[tuple[str, str | float]]:
    """Flat pairs for `item.user_properties`: they survive xdist, and JUnit shows them as they are."""
    verdict, workload = trial.judged, trial.case.workload
    pairs: list[tuple[str, str | float | None]] = [
        ("case", trial.case.id),
        ("workload", workload.name),
        ("nodes", str(trial.case.shape.nodes)),
        ("devices_per_node", str(trial.case.shape.devices)),
        ("platform", platform or None),
        ("job_id", trial.job_id),
        ("verdict", verdict.ruling.value if verdict else None),
        ("reason", verdict.reason if verdict else None),
    ]
    values = case_values(trial).values
    for name, metric in workload.metrics.items():
        pairs += [(name, values.get(name)), (f"{name}.unit", metric.unit or None)]
    pairs += [(f"{finding.metric}.wanted", finding.wanted) for finding in (verdict.findings if verdict else ())]
    return [
        (PREFIX + name, plain(value) if isinstance(value, str) else value) for name, value in pairs if value is not None
    ]


def renew(pairs: list[tuple[str, Any]], ours: list[tuple[str, str | float]]) -> None:
    """Put our pairs in place of the earlier ones; whatever else a test records stays."""
    pairs[:] = [(name, value) for name, value in pairs if not str(name).startswith(PREFIX)] + ours


def properties_of(report: Any) -> dict[str, Any]:
    """Ours, without the prefix; empty for other tests and for reports of collection, which carry none."""
    pairs = getattr(report, "user_properties", ())
    return {name.removeprefix(PREFIX): value for name, value in pairs if str(name).startswith(PREFIX)}


def case_of(report: Any) -> str | None:
    """The id of the case that this report is of."""
    case = properties_of(report).get("case")
    return None if case is None else str(case)
