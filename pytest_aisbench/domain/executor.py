"""Who ran it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Executor:
    """A CI server and its build; without a name, a person."""

    name: str = ""
    build: str = ""  # as its people call it: `nightly #12`
    url: str = ""
    number: int | None = None
