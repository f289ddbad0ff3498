"""A case and a run as flat names and values, for CI servers that read nothing else."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_aisbench import __version__
from pytest_aisbench.domain.entry import CaseEntry, RunEntry, TrialEntry
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.i18n import ENGLISH
from pytest_aisbench.report.columns import efficiency, total
from pytest_aisbench.report.text import as_typed


def of_case(case: CaseEntry, where: str = "") -> dict[str, str]:
    """What the ledger has of a case; `where` is the platform."""
    facts = dict(_case(case, where))
    return {name: plain(str(value)) for name, value in facts.items() if value is not None}


def _case(case: CaseEntry, where: str) -> Iterator[tuple[str, Any]]:
    yield from (("case", case.id), ("workload", case.workload), ("platform", where or None))
    yield from (("nodes", case.nodes), ("devices_per_node", case.devices_per_node))
    yield from (("shape", f"{case.nodes}x{case.devices_per_node}"), ("mode", case.mode))
    yield from (("verdict", case.verdict.value if case.verdict else None), ("reason", case.reason))
    yield from (("trials", len(case.trials)), ("card_hours", case.card_hours))
    for name, metric in case.metrics.items():
        yield from ((name, metric.value), (f"{name}.unit", metric.unit or None))
    for finding in case.findings:
        yield from ((f"{finding.metric}.wanted", finding.wanted), (f"{finding.metric}.outcome", finding.outcome.value))
    if case.background and case.background.reference is not None:
        yield f"{THROUGHPUT}.reference", number(case.background.reference)
    if case.background and case.background.interval:
        yield f"{THROUGHPUT}.interval", " .. ".join(map(number, case.background.interval))
    yield "efficiency", None if (share := efficiency(case)) is None else number(share)
    if case.trials:
        yield from _trial(case, case.trials[-1])


def _trial(case: CaseEntry, newest: TrialEntry) -> Iterator[tuple[str, Any]]:
    yield from (("job_id", newest.job_id), ("phase", newest.phase))
    yield from (("queued_s", total(case, "queued_s")), ("ran_s", total(case, "ran_s")))
    yield "stragglers", "; ".join(map(str, newest.stragglers)) or None
    for name, trait in newest.traits.items():
        yield f"trait.{name}", trait


def of_run(run: RunEntry) -> dict[str, str]:
    """What it was, where it ran, by which versions, and how it ended."""
    facts: dict[str, Any] = {"run": run.run, "schema": run.schema, "started": run.started, "finished": run.finished}
    facts |= {name: as_typed(run.settings[name]) for name in ("platform", "nodes") if name in run.settings}
    facts |= {"version": __version__, "python": platform.python_version(), "pytest": pytest.__version__}
    if run.exit_code is not None:
        facts |= {"exit_code": run.exit_code, "exit": ENGLISH.exit_code(run.exit_code)}
    facts["missing"] = ",".join(missing(run)) or None
    return {name: plain(str(value)) for name, value in facts.items() if value is not None}


def missing(run: RunEntry) -> list[str]:
    """The required cases that nobody judged."""
    judged = {case.id for case in run.cases if case.verdict}
    return [case for case in run.settings.get("required") or () if case not in judged]
