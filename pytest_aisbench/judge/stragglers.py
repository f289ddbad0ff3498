"""Cards and nodes that are slower than the others: which, by how much, and what that costs the job.

The rule. Each is compared with the median of all others, itself left out, so that it works from two on: of two nodes
the slower one is found, where a z-score could never fire. It is slow if it is below that median by more than 5 %, and
by more than four times the spread of the others (1.4826 × their median absolute deviation).

Nodes come first. The speed of a node is the median of its cards, the upper one of an even number: so it is slow only if
more than half of its cards are, and these are then not named one by one. The spread of nodes is at least what the noise
of their cards makes of such medians, since two nodes alone have none. Then every card of the other nodes is compared
with all cards of these nodes.

The cost is the share by which the job falls short of what it would be if the slow ones were as fast as the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median, median_high

from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.messages import joined, message
from pytest_aisbench.model.metric import LARGEST, MAD_TO_SIGMA
from pytest_aisbench.model.results import Straggler

TOLERANCE = 0.05
_DEVIATIONS = 4.0
_MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)  # the standard deviation of a median, by that of a mean


def find_stragglers(by_rank: Sequence[float | None], shape: Shape, hosts: Sequence[str] = ()) -> tuple[Straggler, ...]:
    """The costliest first. A rank without a speed is left out: a missing result is reported elsewhere. `hosts` are the
    names of the nodes, if they are known."""
    speeds = {rank: value for rank, value in enumerate(by_rank) if value is not None and 0 <= value < LARGEST}
    nodes: dict[int, list[int]] = {}
    for rank in speeds:
        nodes.setdefault(rank // shape.devices, []).append(rank)
    node_speeds = {node: median_high(speeds[rank] for rank in ranks) for node, ranks in nodes.items()}
    slow_nodes = _slow(node_speeds, _noise_of_nodes(nodes, speeds)) if shape.nodes > 1 else {}
    slow = [
        Straggler(node, None, None, node_speeds[node] / others, _cost(nodes[node], others, speeds))
        for node, others in slow_nodes.items()
    ]
    if shape.nodes == 1 or shape.devices > 1:  # the only card of a node is the node
        healthy = {rank: value for rank, value in speeds.items() if rank // shape.devices not in slow_nodes}
        for rank, others in _slow(healthy).items():
            node, card = divmod(rank, shape.devices)
            slow.append(Straggler(node, card, rank, speeds[rank] / others, _cost([rank], others, speeds)))
    if len(hosts) == shape.nodes:
        slow = [replace(each, host=hosts[each.node]) for each in slow]
    return tuple(sorted(slow, key=lambda each: -each.cost))


def stragglers_message(slow: Sequence[Straggler], most: int = 3) -> str:
    """One line for a verdict; empty if none is slow."""
    more = message("more", count=str(len(slow) - most)) if len(slow) > most else ""
    return message("slow", who=joined((*(each.text for each in slow[:most]), more))) if slow else ""


def _noise_of_nodes(nodes: Mapping[int, Sequence[int]], speeds: Mapping[int, float]) -> float:
    """How far the noise of cards lets two nodes with the fewest cards differ; 0 if no node has two cards."""
    distances = [
        abs(speeds[rank] - middle) * math.sqrt(len(ranks) / (len(ranks) - 1))
        for ranks in nodes.values()
        if len(ranks) > 1
        for middle in [median(speeds[rank] for rank in ranks)]
        for rank in ranks
    ]
    if not distances:
        return 0.0
    fewest = min(map(len, nodes.values()))
    return MAD_TO_SIGMA * median(distances) * _MEDIAN_TO_MEAN * math.sqrt(2 / fewest)


def _slow(speeds: Mapping[int, float], least_spread: float = 0.0) -> dict[int, float]:
    """The slow ones, each with the median of the others."""
    order = sorted(speeds.values())
    slow = {}
    for name, value in speeds.items():
        others = sum(middles_without(order, value)) / 2
        if value >= others * (1 - TOLERANCE):
            continue
        spread = MAD_TO_SIGMA * median(abs(speeds[other] - others) for other in speeds if other != name)
        if value < others - _DEVIATIONS * max(spread, least_spread):
            slow[name] = others
    return slow


def middles_without(order: Sequence[float], value: float) -> tuple[float, float]:
    """The two middle ones of sorted values, `value` left out, without sorting the others again for each of a thousand.

    They are the same one of an odd number, and the value itself if there is no other.
    """
    at, last = bisect_left(order, value), len(order) - 2

    def other(index: int) -> float:
        return order[index if index < at else index + 1]

    return (other(last // 2), other((last + 1) // 2)) if last >= 0 else (value, value)


def _cost(ranks: Sequence[int], level: float, speeds: Mapping[int, float]) -> float:
    """The share of the whole that these ranks lose by staying below `level`, the speed of the others."""
    lost = math.fsum(max(level - speeds[rank], 0.0) for rank in ranks)
    return lost / (math.fsum(speeds.values()) + lost)
