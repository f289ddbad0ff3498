"""Which fault strikes where: decided by the seed, the place and how often that place was reached before.

A decision depends on nothing else, so that leaving one fault out changes the others as little as possible: that makes a
failing run shorter.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_MOST = 0.6  # of the chance that any fault strikes at a place


class Met(NamedTuple):
    """A fault that production code met."""

    id: str
    kind: str
    step: str


@dataclass
class Faults:
    seed: int
    only: frozenset[str] | None = None  # if given, no other fault strikes
    intensity: float = 1.0
    is_calm: Callable[[], bool] = lambda: False
    met: list[Met] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)

    def draw(self, key: str) -> float:
        """A number from 0 to 1 for this place, another one each time."""
        self._counts[key] += 1
        text = f"{self.seed}|{key}|{self._counts[key]}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big") / (1 << 56)

    def between(self, key: str, low: float, high: float) -> float:
        return low + (high - low) * self.draw(key)

    def pick(self, key: str, choices: list[T]) -> T:
        return choices[int(self.draw(key) * len(choices))]

    def strike(self, place: str, chances: Mapping[str, float], step: str, more: float = 1.0) -> str:
        """The kind of fault that strikes at this place now, empty if none does; `chances` are those of each kind,
        which are multiplied by `more`."""
        drawn, number = self.draw(place), self._counts[place]
        if self.is_calm():
            return ""
        scale = min(self.intensity * more, _MOST / sum(chances.values()))
        for kind, chance in chances.items():
            drawn -= chance * scale
            if drawn < 0:
                return kind if self.count(f"{place}.{number}", kind, step) else ""
        return ""

    def count(self, fault: str, kind: str, step: str) -> bool:
        """Count a fault that is about to strike; False if this run leaves it out."""
        if not self.may_strike(fault, kind):
            return False
        self.met.append(Met(_id(fault, kind), kind, step))
        return True

    def may_strike(self, fault: str, kind: str) -> bool:
        return self.only is None or _id(fault, kind) in self.only


def _id(fault: str, kind: str) -> str:
    return f"{fault}:{kind}".replace(" ", "-")
