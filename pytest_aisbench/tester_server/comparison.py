"""Two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.tester_server.shown import change


@dataclass(frozen=True)
class Pair:
    """One case in both runs, or in one of them."""

    name: str
    a: Any
    b: Any

    @property
    def throughput(self) -> float | None:
        """By what share B is above A; where the units differ there is none."""
        if not self.a or not self.b or self.a.unit != self.b.unit:
            return None
        return change(self.a.throughput, self.b.throughput)

    @property
    def accuracy(self) -> float | None:
        return change(self.a.accuracy, self.b.accuracy) if self.a and self.b else None

    @property
    def turned(self) -> bool:
        return bool(self.a and self.b and self.a.verdict != self.b.verdict)


def pairs(a: Sequence[Any], b: Sequence[Any]) -> list[Pair]:
    """What turned first, then by how much was lost."""
    left, right = {row.name: row for row in a}, {row.name: row for row in b}
    found = [Pair(name, left.get(name), right.get(name)) for name in sorted({*left, *right})]
    return sorted(found, key=lambda pair: (not pair.turned, 0.0 if pair.throughput is None else pair.throughput))


def rows(found: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "case": pair.name,
            **{
                f"{metric}_{side}": getattr(row, metric) if row else None
                for metric in ("verdict", "throughput", "accuracy", "unit")
                for side, row in (("a", pair.a), ("b", pair.b))
            },
            "throughput_change": pair.throughput,
            "accuracy_change": pair.accuracy,
        }
        for pair in found
    ]
