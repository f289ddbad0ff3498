"""Strings that a job, a platform or a user wrote, made fit to be shown."""

from __future__ import annotations


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
