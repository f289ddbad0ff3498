"""Our own words for a verdict, and values as a person writes them."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_aisbench.domain.entry import CaseEntry
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.i18n import ENGLISH, Language


def what_to_do(case: CaseEntry, say: Language = ENGLISH) -> str:
    """Whose turn it is; empty for a case that passed or was not judged."""
    if case.verdict is None or case.verdict is Ruling.PASSED:
        return ""
    ran = any(trial.job_id for trial in case.trials)
    return say("do nothing ran" if case.verdict is Ruling.FAILED and not ran else f"do {case.verdict.value}")


def worst_first(cases: Iterable[CaseEntry]) -> list[CaseEntry]:
    """What somebody must act on stands before what is as it should be."""
    order = [Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE, None, Ruling.PASSED]
    return sorted(cases, key=lambda case: order.index(case.verdict))


def span(seconds: float | None, say: Language = ENGLISH) -> str:
    """A duration as a person says it: `3.2 s`, `4 min 05 s`, `2 h 10 min`."""
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return say("seconds", value=f"{seconds:.1f}")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return say("minutes", minutes=minutes, seconds=f"{rest:02d}")
    return say("hours", hours=minutes // 60, minutes=f"{minutes % 60:02d}")


def words(value: object) -> str:
    """A setting as it is typed: lists with commas."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
