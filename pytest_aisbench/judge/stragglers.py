"""Cards and nodes that are slower than the others: which, by how much, and what that costs the whole.

The rule. Each is held against the median of all others, itself left out, so that it works from two on: of two nodes the
slower one is known, where a z-score could never fire. It is slow if it is below that median by more than 5 %, and by
more than four times the spread of the others (1.4826 × their median absolute deviation).

Nodes come first, each by the median of its cards, the upper one of an even number: so it is slow only if more than half
of its cards are, and they are then not named one by one. The spread of nodes is at least what the noise of their cards
makes of such medians, since two nodes alone tell none. Then every card of the other nodes is held against all of these.

The cost is the share by which the whole falls short of what it would be if the slow ones were as fast as the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median, median_high

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.entry import Straggler
from pytest_aisbench.domain.messages import joined, message
from pytest_aisbench.domain.metric import LARGEST, MAD_TO_SIGMA

TOLERANCE = 0.05
_DEVIATIONS = 4.0
_OF_A_MEDIAN = math.sqrt(math.pi / 2)  # its standard deviation is so many times that of a mean


def stragglers(by_rank: Sequence[float | None], shape: Shape) -> tuple[Straggler, ...]:
    """The costliest first. A rank that was not measured is somebody else's concern, and no reference to anybody."""
    found = {rank: value for rank, value in enumerate(by_rank) if value is not None and 0 <= value < LARGEST}
    nodes: dict[int, list[int]] = {}
    for rank in found:
        nodes.setdefault(rank // shape.devices, []).append(rank)
    speeds = {node: median_high(found[rank] for rank in ranks) for node, ranks in nodes.items()}
    slow = _slow(speeds, _noise(nodes, found)) if shape.nodes > 1 else {}
    told = [
        Straggler(node, None, None, speeds[node] / others, _lost(nodes[node], others, found))
        for node, others in slow.items()
    ]
    if shape.nodes == 1 or shape.devices > 1:  # the only card of a node is the node
        healthy = {rank: value for rank, value in found.items() if rank // shape.devices not in slow}
        for rank, others in _slow(healthy).items():
            node, card = divmod(rank, shape.devices)
            told.append(Straggler(node, card, rank, found[rank] / others, _lost([rank], others, found)))
    return tuple(sorted(told, key=lambda each: -each.cost))


def summary(found: Sequence[Straggler], most: int = 3) -> str:
    """One line for a verdict; empty where everybody keeps pace."""
    more = message("more", count=str(len(found) - most)) if len(found) > most else ""
    return message("slow", who=joined((*(each.text for each in found[:most]), more))) if found else ""


def _noise(nodes: Mapping[int, Sequence[int]], found: Mapping[int, float]) -> float:
    """What the noise of cards lets two nodes with the fewest of them differ by; 0 where no node has two."""
    apart = [
        abs(found[rank] - middle) * math.sqrt(len(ranks) / (len(ranks) - 1))
        for ranks in nodes.values()
        if len(ranks) > 1
        for middle in [median(found[rank] for rank in ranks)]
        for rank in ranks
    ]
    return MAD_TO_SIGMA * median(apart) * _OF_A_MEDIAN * math.sqrt(2 / min(map(len, nodes.values()))) if apart else 0.0


def _slow(found: Mapping[int, float], least: float = 0.0) -> dict[int, float]:
    """Those that are slow, each with the median of the others, whose spread is `least` or more."""
    order = sorted(found.values())
    slow = {}
    for name, value in found.items():
        others = _median_without(order, value)
        if value >= others * (1 - TOLERANCE):
            continue
        spread = MAD_TO_SIGMA * median(abs(found[other] - others) for other in found if other != name)
        if value < others - _DEVIATIONS * max(spread, least):
            slow[name] = others
    return slow


def _median_without(order: Sequence[float], value: float) -> float:
    """The median of what is sorted, `value` left out: without sorting the others once more for each of a thousand."""
    at, last = bisect_left(order, value), len(order) - 2

    def other(index: int) -> float:
        return order[index if index < at else index + 1]

    return (other(last // 2) + other((last + 1) // 2)) / 2 if last >= 0 else value


def _lost(ranks: Sequence[int], level: float, found: Mapping[int, float]) -> float:
    """The share of the whole that is lost by those of them that are below `level`, that of the others."""
    lost = math.fsum(max(level - found[rank], 0.0) for rank in ranks)
    return lost / (math.fsum(found.values()) + lost)
