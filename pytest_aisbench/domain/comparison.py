"""What changed from one run to the next: cases that came or went, verdicts that turned, speeds that moved."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

from pytest_aisbench.domain.verdict import Ruling


@dataclass(frozen=True)
class Brief:
    """A case of a run, in so few words that a run of a thousand is read at once."""

    id: str
    verdict: Ruling | None
    throughput: float | None
    unit: str = ""


@dataclass(frozen=True)
class Before:
    """The run before this one on the same platform."""

    run: str
    started: str
    cases: tuple[Brief, ...]


@dataclass(frozen=True)
class Turn:
    """A case whose verdict is another."""

    id: str
    was: Ruling | None
    now: Ruling | None


@dataclass(frozen=True)
class Move:
    """A case that was measured in both runs."""

    id: str
    was: float
    now: float
    unit: str

    @property
    def share(self) -> float:
        return self.now / self.was - 1


@dataclass(frozen=True)
class Difference:
    new: tuple[str, ...]
    gone: tuple[str, ...]
    turned: tuple[Turn, ...]
    moved: tuple[Move, ...]  # the largest change first


def compare(before: Before, cases: Iterable[Brief]) -> Difference:
    """Units that differ are no change of speed."""
    known = {case.id: case for case in before.cases}
    now = {case.id: case for case in cases}
    pairs = [(known[name], case) for name, case in now.items() if name in known]
    moved = [
        Move(new.id, old.throughput, new.throughput, new.unit)
        for old, new in pairs
        if _is_speed(old.throughput) and _is_speed(new.throughput) and old.unit == new.unit
    ]
    return Difference(
        new=tuple(name for name in now if name not in known),
        gone=tuple(name for name in known if name not in now),
        turned=tuple(Turn(new.id, old.verdict, new.verdict) for old, new in pairs if old.verdict is not new.verdict),
        moved=tuple(sorted(moved, key=lambda move: -abs(move.share))),
    )


def _is_speed(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0
