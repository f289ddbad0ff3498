"""What a job drew: power over its window, node by node, and the energy that it makes.

The rule. Between two samples of a node its power is a straight line, and beyond its first and last sample it stays as
it was there. Energy is the area under the sum over the nodes, from the first second of the window to the last; the
average is energy by time, and the highest power that of the sum. A stretch without a sample that is longer than three
times the node's usual interval is a gap: it is told, and where gaps make up more than half of a node's window nothing
is told of the job but that.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytest_aisbench.domain.metric import summed
from pytest_aisbench.domain.threshold import number

MARGIN_S = 60.0  # around the window: the samples that its ends lie between
_FEWEST = 3  # samples of a node
_GAP = 3.0  # usual intervals
_MOST_MISSING = 0.5  # of the window
_TOLD = 5  # gaps


@dataclass(frozen=True)
class Sample:
    """What a node drew at a moment."""

    at: float  # seconds since the epoch
    node: str
    watts: float


@dataclass(frozen=True)
class Power:
    """Of all nodes of a job together; None where nobody knows, and why."""

    average_w: float | None = None
    max_w: float | None = None
    energy_j: float | None = None
    source: str = ""
    why: str = ""
    gaps: tuple[str, ...] = ()


def drawn(samples: Iterable[Sample], start: float, end: float, nodes: int, source: str) -> Power:
    """Over the window, by samples of exactly as many nodes."""
    if not start < end:
        return Power(source=source, why="the job has no time in which to draw power")
    lines = _lines(samples, start, end)
    inside = {node: line for node, line in lines.items() if any(start <= at <= end for at, _ in line)}
    if len(inside) != nodes:
        return Power(source=source, why=f"there are samples of {len(inside)} nodes during the job, it has {nodes}")
    few = next((node for node, line in sorted(inside.items()) if len(line) < _FEWEST), None)
    if few is not None:
        return Power(source=source, why=f"node {few} has only {len(inside[few])} samples during the job")
    gaps: list[str] = []
    for node, line in sorted(inside.items()):
        found, missing = _gaps(line, start, end)
        if missing > _MOST_MISSING * (end - start):
            return Power(source=source, why=f"node {node} was not sampled for {missing / (end - start):.0%} of the job")
        gaps += [f"node {node}: no sample for {number(long)} s after {number(after)} s" for after, long in found]
    times = sorted({start, end, *(at for line in inside.values() for at, _ in line if start < at < end)})
    watts = [summed(_at(line, moment) for line in inside.values()) for moment in times]
    energy = summed((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(zip(times, watts, strict=True)))
    if not math.isfinite(energy):
        return Power(source=source, why="the samples are beyond every finite sum")
    told = (*gaps[:_TOLD], *([f"and {len(gaps) - _TOLD} gaps more"] if len(gaps) > _TOLD else []))
    return Power(energy / (end - start), max(watts), energy, source, gaps=told)


_Line = Sequence[tuple[float, float]]


def _lines(samples: Iterable[Sample], start: float, end: float) -> dict[str, _Line]:
    """By node, in order; of several at one moment the last counts. A sample that is no power is left out."""
    found: dict[str, dict[float, float]] = {}
    for sample in samples:
        near = start - MARGIN_S <= sample.at <= end + MARGIN_S
        if near and 0 <= sample.watts < math.inf:
            found.setdefault(sample.node, {})[sample.at] = sample.watts
    return {node: sorted(line.items()) for node, line in found.items()}


def _at(line: _Line, moment: float) -> float:
    index = bisect_left(line, (moment, -math.inf))
    if index == 0:
        return line[0][1]
    if index == len(line):
        return line[-1][1]
    (before, low), (after, high) = line[index - 1], line[index]
    return low + (high - low) * (moment - before) / (after - before)


def _gaps(line: _Line, start: float, end: float) -> tuple[list[tuple[float, float]], float]:
    """Where each begins, in seconds of the window, and how long it is; and how much of the window they are."""
    times = [at for at, _ in line]
    usual = median(b - a for a, b in pairwise(times))
    edges = [*([start] if times[0] > start else []), *times, *([end] if times[-1] < end else [])]
    found = [
        (max(a, start) - start, min(b, end) - max(a, start))
        for a, b in pairwise(edges)
        if b - a > _GAP * usual and b > start and a < end
    ]
    return found, math.fsum(long for _, long in found)
