"""Our own words for a verdict, and values as a person writes them."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_aisbench.domain.entry import CaseEntry
from pytest_aisbench.domain.text import plain
from pytest_aisbench.domain.verdict import Ruling

__all__ = ["WHAT_TO_DO", "plain", "span", "what_to_do", "words", "worst_first"]

_WITHOUT_A_JOB = "no job ran: change what the reason names"
WHAT_TO_DO = {
    Ruling.FAILED: "the workload is to blame: read the job's log, then the findings",
    Ruling.BROKEN: "the platform is to blame: run it again; if it stays, give its operator the job id",
    Ruling.INCONCLUSIVE: "the noise is larger than the margin: run it again on a quieter machine, or widen the margin",
}


def what_to_do(case: CaseEntry) -> str:
    """Whose turn it is; empty for a case that passed or was not judged."""
    ran = any(trial.job_id for trial in case.trials)
    if case.verdict is Ruling.FAILED and not ran:
        return _WITHOUT_A_JOB
    return WHAT_TO_DO.get(case.verdict, "") if case.verdict else ""


def worst_first(cases: Iterable[CaseEntry]) -> list[CaseEntry]:
    """What somebody must act on stands before what is as it should be."""
    order = [Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE, None, Ruling.PASSED]
    return sorted(cases, key=lambda case: order.index(case.verdict))


def span(seconds: float | None) -> str:
    """A duration as a person says it: `3.2 s`, `4 min 05 s`, `2 h 10 min`."""
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def words(value: object) -> str:
    """A setting as it is typed: lists with commas."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
