"""Strings that a job, a platform or a user wrote, made fit to be shown."""

from __future__ import annotations


def plain(text: str, limit: int = 1000) -> str:
    """One printable line: no terminal sequence, no reversed writing, nothing that XML forbids."""
    shown = "".join(
        char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text[:limit]
    )
    return f"{shown}…" if len(text) > limit else shown
