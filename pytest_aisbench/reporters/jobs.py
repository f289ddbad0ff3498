"""The jobs of a ledger, for a person's 80 columns or for a program."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.report.text import span
from pytest_aisbench.services.cancel import CancelReport
from pytest_aisbench.services.clock import stamp
from pytest_aisbench.services.jobs import Held

SCHEMA = "aisbench-jobs/1"
_ROW = "{:<34} {:<7} {:<10} {:<14} {}"


def table(jobs: Iterable[Held]) -> Iterator[str]:
    """Three lines of a job: identifiers are long, and a shortened one is of no use."""
    rows = list(jobs)
    if rows:
        yield _ROW.format("CASE", "STEP", "PHASE", "SINCE", "OWNER")
    for held in rows:
        trial = held.trial
        since = time.strftime("%m-%d %H:%M:%S", time.localtime(_since(held)))
        case = trial.case.id if len(trial.case.id) <= 34 else f"{trial.case.id[:33]}…"
        yield _ROW.format(plain(case), trial.step.name, _phase(held) or "-", since, held.holder.value)
        yield f"  job {plain(trial.job_id or '-')} run {plain(trial.run)}"
        yield f"  name {plain(trial.name)}"


def document(jobs: Iterable[Held]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "jobs": [
            {
                "case": held.trial.case.id,
                "run": held.trial.run,
                "trial": held.trial.number,
                "job_name": held.trial.name,
                "job_id": held.trial.job_id,
                "step": held.trial.step.name,
                "phase": _phase(held),
                "platform_phase": held.trial.job.platform_phase if held.trial.job else None,
                "platform": held.trial.place,
                "owner": held.owner,
                "owner_state": held.holder.value,
                "since": stamp(_since(held)),
            }
            for held in jobs
        ],
    }


def stopped(report: CancelReport) -> str:
    """`3043/13231 (aisbench-debug): stopped (KILLED); it was RUNNING, and ran for 12.3 s`."""
    name = f" ({report.name})" if report.name and report.name != report.job else ""
    was = [f"it was {report.before}"] if report.before else []
    ran = [f"{'and' if was else 'it'} ran for {span(report.ran_s)}"] if report.ran_s is not None else []
    return f"{report.job}{name}: {'; '.join([report.text, *filter(None, [', '.join(was + ran)])])}"


def _phase(held: Held) -> str | None:
    return held.trial.job.phase.value if held.trial.job else None


def _since(held: Held) -> float:
    """When it came to where it is: to its phase while it is watched, else to its step."""
    times, step = held.trial.times, held.trial.step.name.lower()
    at_step = times.get(step, 0.0)
    return times.get((_phase(held) or "").lower(), at_step) if step == "watch" else at_step
