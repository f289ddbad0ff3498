"""Computes where the lines and dots of a chart go; the templates draw them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_aisbench.judge.trend import ChangePoint, change_points
from pytest_aisbench.tester_server.contract import number as finite

WIDTH, HEIGHT = 960, 260
_LEAST = 1e-300  # of an axis: numbers below it lose their digits
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 14, 30


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    row: Any  # the result that it stands for


@dataclass(frozen=True)
class Tick:
    at: float
    value: float


@dataclass(frozen=True)
class LevelChange:
    """Where the level of a trend changed: at the first result of the new level."""

    x: float
    point: ChangePoint
    row: Any


@dataclass(frozen=True)
class Chart:
    line: str  # points of a polyline
    band: tuple[str, ...]  # polygons
    reference: tuple[str, ...]  # polylines
    dots: tuple[Dot, ...]
    ticks: tuple[Tick, ...]
    changes: tuple[LevelChange, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


class Judged(NamedTuple):
    """A value and the band that it was compared with."""

    value: float | None
    low: float | None
    high: float | None
    reference: float | None
    row: Any


def trend(rows: Sequence[Any]) -> Chart | None:
    """Throughput in the order of `rows`, oldest first."""
    return _trend(Judged(row.throughput, row.low, row.high, row.reference, row) for row in rows)


def accuracy(rows: Sequence[Any]) -> Chart | None:
    return _trend(Judged(row.accuracy, row.target, None, None, row) for row in rows)


def _trend(judged: Iterable[Judged]) -> Chart | None:
    measured = [(each.value, each) for each in judged if each.value is not None]
    if not measured:
        return None
    edges = [edge for _, each in measured for edge in (each.low, each.high, each.reference) if edge is not None]
    bottom, top = span([value for value, _ in measured] + edges)
    step = (WIDTH - LEFT - RIGHT) / len(measured)
    across = [LEFT + step * (index + 0.5) for index in range(len(measured))]
    dots = tuple(
        Dot(_r(x), _down(value, bottom, top), each.row) for x, (value, each) in zip(across, measured, strict=True)
    )
    band, reference, at = [], [], 0
    for edge, group in itertools.groupby(measured, key=lambda pair: (pair[1].low, pair[1].high, pair[1].reference)):
        low, high, middle = edge
        first, at = at, at + len(list(group))
        left, right = _r(LEFT + step * first), _r(LEFT + step * at)
        if low is not None or high is not None:
            upper = _down(top if high is None else high, bottom, top)
            lower = _down(bottom if low is None else low, bottom, top)
            band.append(f"{left},{upper} {right},{upper} {right},{lower} {left},{lower}")
        if middle is not None:
            y = _down(middle, bottom, top)
            reference.append(f"{left},{y} {right},{y}")
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    ticks = tuple(Tick(_down(value, bottom, top), value) for value in round_values(bottom, top))
    changes = tuple(
        LevelChange(_r(LEFT + step * point.index), point, measured[point.index][1].row)
        for point in change_points([value for value, _ in measured])
    )
    return Chart(line, tuple(band), tuple(reference), dots, ticks, changes)


@dataclass(frozen=True)
class Scaled:
    """A shape beside the one with the fewest cards."""

    row: Any
    cards: int
    efficiency: float | None  # what share of the base's speed a card keeps


def scaled(rows: Sequence[Any]) -> list[Scaled]:
    """`rows` from few cards to many; the base is the first that was measured."""
    base: float | None = None
    points = []
    for row in rows:
        cards = (row.nodes or 0) * (row.devices or 0)
        # Where every node trains alone the throughput is that of one node.
        share = (row.devices or 0) if row.mode == "single-server" else cards
        each = row.throughput / share if row.throughput and share else None
        base = base or each
        points.append(Scaled(row, cards, finite(each / base) if each and base else None))
    return points


def efficiency(points: Sequence[Scaled]) -> Chart | None:
    """Efficiency over the number of cards, on a logarithmic axis; the ideal, 1, is the reference line."""
    measured = [point for point in points if point.efficiency is not None and point.cards]
    if len(measured) < 2:
        return None
    bottom, top = span([point.efficiency or 0.0 for point in measured] + [1.0, 0.5])
    logs = [math.log2(point.cards) for point in measured]
    reach = (logs[-1] - logs[0]) or 1.0
    room = WIDTH - LEFT - RIGHT - 40
    dots = tuple(
        Dot(_r(LEFT + 20 + room * (log - logs[0]) / reach), _down(point.efficiency or 0.0, bottom, top), point)
        for log, point in zip(logs, measured, strict=True)
    )
    ideal = _down(1.0, bottom, top)
    ticks = tuple(Tick(_down(value, bottom, top), value) for value in round_values(bottom, top))
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    return Chart(line, (), (f"{LEFT},{ideal} {WIDTH - RIGHT},{ideal}",), dots, ticks)


@dataclass(frozen=True)
class Strip:
    """A slow node or card, and its cost in each of equal spans of time."""

    node: int
    card: int | None
    seen: int
    worst: float  # ratio
    cost: float  # mean over all sightings
    last: Any
    cells: tuple[tuple[int, float, int], ...]  # which span, mean cost, how often


def strips(rows: Sequence[Any], spans: int = 40, limit: int = 60) -> list[Strip]:
    """The costliest first; `rows` are sightings, newest first."""
    if not rows:
        return []
    oldest, newest = min(row.ended for row in rows), max(row.ended for row in rows)
    length = (newest - oldest) / spans or 1.0
    groups: dict[tuple[int, int | None], list[Any]] = {}
    for row in rows:
        groups.setdefault((row.node, row.card), []).append(row)
    all_strips = []
    for (node, card), seen in groups.items():
        cells: dict[int, list[float]] = {}
        for row in seen:
            cells.setdefault(min(spans - 1, int((row.ended - oldest) / length)), []).append(row.cost)
        means = tuple((at, sum(costs) / len(costs), len(costs)) for at, costs in sorted(cells.items()))
        cost = sum(row.cost for row in seen) / len(seen)
        all_strips.append(Strip(node, card, len(seen), min(row.ratio for row in seen), cost, seen[0], means))
    return sorted(all_strips, key=lambda strip: -strip.cost * strip.seen)[:limit]


def sparkline(values: Sequence[float], width: int = 120, height: int = 24) -> str:
    """Points of a polyline; empty for fewer than two."""
    if len(values) < 2:
        return ""
    bottom, top = span(values)
    step = (width - 4) / (len(values) - 1)
    return " ".join(
        f"{_r(2 + step * index)},{_r(2 + (height - 4) * (top - value) / (top - bottom))}"
        for index, value in enumerate(values)
    )


def span(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis: somewhat wider than the values."""
    low, high = min(values), max(values)
    room = (high - low) * 0.08 or abs(high) * 0.08
    room = room if room > _LEAST else 1.0
    return low - room, high + room


def round_values(bottom: float, top: float) -> list[float]:
    """Three to six round values within the range."""
    raw = (top - bottom) / 4
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * nice for nice in (1, 2, 2.5, 5, 10) if scale * nice >= raw)
    first = math.ceil(bottom / step)
    return [round(step * (first + index), 12) for index in range(10) if step * (first + index) <= top]


def _down(value: float, bottom: float, top: float) -> float:
    return _r(TOP + (HEIGHT - TOP - BOTTOM) * (top - value) / (top - bottom))


def _r(value: float) -> float:
    return round(value, 1)
