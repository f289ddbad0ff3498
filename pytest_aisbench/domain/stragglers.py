"""Cards and nodes that are slower than the others: which, by how much, and what that costs the whole.

The rule. Each rank is held against the median of all others, itself left out, so that it works from two ranks on: of
two nodes the slower one is known, where a z-score could never fire. It is slow if it is below that median by more than
5 % and by more than four times the spread of the others (1.4826 × their median absolute deviation). A node is slow if
more than half of its cards are; they are then not named one by one. The cost is the share by which the whole falls
short of what it would be if the slow ones were as fast as the others' median.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_aisbench.domain.case import Shape

TOLERANCE = 0.05
_DEVIATIONS = 4.0
_SIGMA = 1.4826  # makes the median absolute deviation of normal noise its standard deviation


@dataclass(frozen=True)
class Straggler:
    """A card, or a whole node where `card` is None."""

    node: int
    card: int | None
    rank: int | None
    ratio: float  # of the others' median
    cost: float  # the share of the whole that is lost by it

    def __str__(self) -> str:
        who = f"node {self.node}" if self.card is None else f"node {self.node} card {self.card} (rank {self.rank})"
        return f"{who} at {self.ratio:.1%} of the others, which costs the whole {self.cost:.1%}"


def stragglers(by_rank: Sequence[float | None], shape: Shape) -> tuple[Straggler, ...]:
    """The costliest first. A rank that was not measured is somebody else's concern, and no reference to anybody."""
    found = {rank: value for rank, value in enumerate(by_rank) if value is not None and 0 <= value < math.inf}
    slow = _slow(found)
    told: list[Straggler] = []
    for node in range(shape.nodes):
        cards = [rank for rank in range(node * shape.devices, (node + 1) * shape.devices) if rank in found]
        behind = [rank for rank in cards if rank in slow]
        if shape.nodes > 1 and 2 * len(behind) > len(cards):
            told.append(Straggler(node, None, None, *_lost(behind, slow, found)))
        else:
            told += [Straggler(node, rank % shape.devices, rank, *_lost([rank], slow, found)) for rank in behind]
    return tuple(sorted(told, key=lambda each: -each.cost))


def summary(found: Sequence[Straggler], most: int = 3) -> str:
    """One line for a verdict; empty where everybody keeps pace."""
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return f"slow: {'; '.join(map(str, found[:most]))}{more}" if found else ""


def _slow(found: Mapping[int, float]) -> dict[int, float]:
    """The ranks that are slow, each with the median of the others."""
    order = sorted(found.values())
    slow = {}
    for rank, value in found.items():
        others = _median_without(order, value)
        if value >= others * (1 - TOLERANCE):
            continue
        rest = [other for name, other in found.items() if name != rank]
        spread = _SIGMA * median(abs(other - others) for other in rest)
        if value < others - _DEVIATIONS * spread:
            slow[rank] = others
    return slow


def _median_without(order: Sequence[float], value: float) -> float:
    """The median of what is sorted, `value` left out: without sorting the others once more for each of a thousand."""
    at, last = bisect_left(order, value), len(order) - 2

    def other(index: int) -> float:
        return order[index if index < at else index + 1]

    return (other(last // 2) + other((last + 1) // 2)) / 2 if last >= 0 else value


def _lost(ranks: Sequence[int], slow: Mapping[int, float], found: Mapping[int, float]) -> tuple[float, float]:
    """How fast they are beside the others, and the share of the whole that is lost by it."""
    measured, others = math.fsum(found[rank] for rank in ranks), math.fsum(slow[rank] for rank in ranks)
    return measured / others, (others - measured) / (math.fsum(found.values()) + others - measured)
