"""A checkup for whoever asks from a shell: as lines, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_aisbench.domain.checkup import Check, Health
from pytest_aisbench.domain.messages import plain

SCHEMA = "aisbench-doctor/1"


def line(check: Check) -> str:
    text = f"{check.text}; {check.fix}" if check.fix else check.text
    return f"{check.health.value:<8} {check.name}: {plain(text)}"


def summary(checks: Sequence[Check]) -> str:
    counts = {health: sum(check.health is health for check in checks) for health in Health}
    told = [
        f"{counts[health]} {health.value}{'s' * (counts[health] != 1)}" for health in (Health.FAILURE, Health.WARNING)
    ]
    return f"{len(checks)} checks: {', '.join(told)}"


def document(checks: Sequence[Check]) -> dict[str, Any]:
    return {"schema": SCHEMA, "checks": [_row(check) for check in checks]}


def _row(check: Check) -> dict[str, str]:
    return {"name": check.name, "state": check.health.value, "text": check.text, "fix": check.fix}
