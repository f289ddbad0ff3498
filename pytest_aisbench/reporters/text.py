"""Strings that a job, a platform or a user wrote, made fit to be shown; and our own words for a verdict."""

from __future__ import annotations

from pytest_aisbench.domain.verdict import Ruling

WHAT_TO_DO = {
    Ruling.FAILED: "the workload is to blame: read the job's log, then the findings",
    Ruling.BROKEN: "the platform is to blame: run it again; if it stays, give its operator the job id",
    Ruling.INCONCLUSIVE: "the noise is larger than the margin: allow more trials with --aisbench-max-trials",
}


def plain(text: str, limit: int = 1000) -> str:
    """One printable line: no terminal sequence, no reversed writing, nothing that XML forbids."""
    shown = "".join(
        char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text[:limit]
    )
    return f"{shown}…" if len(text) > limit else shown


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
