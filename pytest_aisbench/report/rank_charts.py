"""Chooses the charts of a case, and draws those that show the throughput of every rank."""

from __future__ import annotations

import math
import statistics
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.stragglers import find_stragglers
from pytest_aisbench.model.case import Mode, Shape
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import SAMPLES_PER_S, STEPS_PER_S, THROUGHPUT, counts_the_same
from pytest_aisbench.model.results import CaseEntry, TrialEntry
from pytest_aisbench.model.verdict import number
from pytest_aisbench.report.charts import (
    BAR,
    FAINT,
    GRID,
    INK,
    LEFT,
    ODD,
    PAPER,
    RIGHT,
    TOP,
    WIDTH,
    Claim,
    Scale,
    history_chart,
    loss_chart,
    picture,
    picture_id,
    scaling_chart,
    short,
    speed_chart,
    timeline,
    value_line,
)
from pytest_aisbench.report.text import display_width

_MAPPED = 4  # nodes from which on a map is clearer than bars
_COUNTED = frozenset(
    {"images/s", "samples/s", "examples/s", "sequences/s", "sentences/s", "tokens/s"}
)  # units that count what a log calls samples, or tokens


class Chart(NamedTuple):
    name: str
    draw: Callable[[], str]  # returns the picture; empty if there is too little to show
    rank: int  # where room is short, the highest is left out first


def case_charts(case: CaseEntry, say: Language) -> Iterator[Chart]:
    """The charts that a case has data for; none is drawn before its `draw` is called."""
    if not case.trials:
        return
    last, shape = case.trials[-1], f"{case.nodes}x{case.devices_per_node}"
    speed = case.metrics.get(THROUGHPUT)
    unit, now = (speed.unit, speed.value) if speed else ("", None)

    def chart(key: str, draw: Callable[..., str], *values: object, rank: int, **options: object) -> Chart:
        name = say(key, case=case.id)
        return Chart(name, lambda: draw(*values, title=name, say=say, **options), rank)

    yield chart("lifecycle", timeline, case.trials, rank=7)
    mapped = case.nodes >= _MAPPED and case.devices_per_node > 1
    ranks = (last.throughput_by_rank, case.devices_per_node)
    yield chart(*(("heat map", heat_map) if mapped else ("rank chart", rank_chart)), *ranks, unit=unit, rank=5)
    if last.curve and last.curve.speed.points:
        yield chart("speed curve", speed_chart, last.curve, claim=_claim(case, last, unit), rank=8)
    if case.background and case.background.history:
        yield chart("history", history_chart, case.background, now, unit=unit, rank=6)
    if case.background and len(case.background.scaling) > 1:
        yield chart("scaling", scaling_chart, case.background.scaling, shape, unit=unit, rank=9)
    if last.curve and last.curve.loss.points:
        yield chart("loss curve", loss_chart, last.curve, rank=10)


def _claim(case: CaseEntry, trial: TrialEntry, unit: str) -> Claim | None:
    """The band of the case's throughput, for the speed in its log: a rank's share of it if the log is of one rank.

    None if the log counts something else, such as steps of unknown size.
    """
    curve, background = trial.curve, case.background
    if curve is None or background is None or unit not in _COUNTED:
        return None
    counted = SAMPLES_PER_S if curve.unit == STEPS_PER_S and curve.batch else curve.unit
    if not counts_the_same(unit, counted):
        return None
    whole = Claim(background.reference, background.low, background.high)
    if curve.of == "job":
        return whole
    nodes = 1 if case.mode == Mode.SINGLE_SERVER.value else case.nodes
    return whole.per(nodes * case.devices_per_node)


# Bars: one for each rank, so that a slow or missing card stands out

BARS_HEIGHT, BARS_FLOOR = 236, 202
MOST_BARS = 256
MOST_TOOLTIPS = 64


def rank_chart(
    values: Sequence[float | None], devices: int, *, title: str, unit: str = "", say: Language = ENGLISH
) -> str:
    """One bar per rank, grouped by node; above 256 ranks a bar is the slowest of several. Empty without numbers."""
    ranks = [value if value is not None and math.isfinite(value) else None for value in values]
    if all(value is None for value in ranks):
        return ""
    return _BarChart(ranks, devices, title, plain(unit, 20), say).draw()


@dataclass(frozen=True)
class _Bar:
    first: int  # the first of its ranks
    last: int
    value: float | None  # the slowest of them; None if one is missing
    odd: bool
    x: float


class _BarChart:
    def __init__(self, ranks: Sequence[float | None], devices: int, title: str, unit: str, say: Language) -> None:
        values = [value for value in ranks if value is not None]
        self.ranks, self.devices, self.title, self.unit, self.say = ranks, devices, title, unit, say
        self.median = statistics.median(values)
        self.odd = odd_ranks(ranks, devices)
        self.scale = _round_above(max(values))
        self.size = _bucket(len(ranks), devices)  # ranks per bar
        self.per_node = max(1, devices // self.size)  # bars per node
        self.gap = 0.8 if self.per_node > 1 else 0.0  # between nodes, in bars
        self.count = math.ceil(len(ranks) / self.size)
        self.groups = math.ceil(self.count / self.per_node)
        self.slot = min(60.0, (RIGHT - LEFT - 8) / (self.count + self.gap * (self.groups - 1)))
        self.wide = self.slot * (0.82 if self.slot > 3 else 0.94)
        self.mark = picture_id(title, ranks)

    def draw(self) -> str:
        hatched = (
            f"<pattern id='{self.mark}' width='6' height='6' patternUnits='userSpaceOnUse'"
            f" patternTransform='rotate(45)'><path d='M0 0V6' stroke='{ODD}' stroke-width='2'/></pattern>"
        )
        parts = (hatched, *self.axes(), *self.shapes(), *self.signs(), *self.line())
        return picture(self.title, self.story(), parts, BARS_HEIGHT, self.mark)

    def story(self) -> str:
        """The chart in words, for people who cannot see it or have no time."""
        parts = [self.say("median story", value=self.amount(self.median))]
        if self.size > 1:
            parts.append(self.say("each bar", count=self.size))
        return " · ".join((*parts, *odd_ones(self.ranks, self.odd, self.median, self.say)))

    def amount(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def y(self, value: float) -> str:
        return short(BARS_FLOOR - max(value, 0.0) / self.scale * (BARS_FLOOR - TOP))

    def bars(self) -> Iterator[_Bar]:
        for index in range(self.count):
            first = index * self.size
            ranks = range(first, min(first + self.size, len(self.ranks)))
            values = [value for rank in ranks if (value := self.ranks[rank]) is not None]
            slowest = min(values) if len(values) == len(ranks) else None
            x = LEFT + 4 + self.slot * (index + self.gap * (index // self.per_node))
            yield _Bar(first, ranks[-1], slowest, any(rank in self.odd for rank in ranks), x)

    def shapes(self) -> Iterator[str]:
        """Bars with a tooltip each, or one path per colour if there are too many for that."""
        by_colour: dict[str, str] = {}
        for bar in self.bars():
            top = str(TOP) if bar.value is None else self.y(bar.value)
            colour = f"url(#{self.mark})" if bar.value is None else ODD if bar.odd else BAR
            shape = f"M{short(bar.x)} {BARS_FLOOR}V{top}h{short(self.wide)}V{BARS_FLOOR}z"
            if self.count <= MOST_TOOLTIPS:
                yield f"<path d='{shape}' fill='{colour}'><title>{escape(self.tooltip(bar))}</title></path>"
            else:
                by_colour[colour] = by_colour.get(colour, "") + shape
        for colour, shape in by_colour.items():
            yield f"<path d='{shape}' fill='{colour}'/>"

    def tooltip(self, bar: _Bar) -> str:
        who = self.say("rank n" if bar.first == bar.last else "ranks n", first=bar.first, last=bar.last)
        return f"{who}: {self.say('no result') if bar.value is None else self.amount(bar.value)}"

    def signs(self) -> Iterator[str]:
        """Arrows and words for what the colour shows, for people who do not see colours."""
        arrows = ""
        for bar in self.bars():
            middle = bar.x + self.wide / 2
            if bar.value is None and self.wide >= 9:
                yield (
                    f"<text transform='translate({short(middle + 4)} {BARS_FLOOR - 6})rotate(-90)'"
                    f" stroke='{PAPER}' stroke-width='4' paint-order='stroke'>{escape(self.say('missing'))}</text>"
                )
            elif bar.value is None or bar.odd:
                tip = str(TOP + 8) if bar.value is None else self.y(bar.value)
                arrows += f"M{short(middle)} {tip}l-4 -8h8z"
        if arrows:
            yield f"<path d='{arrows}' fill='{ODD}'/>"

    def axes(self) -> Iterator[str]:
        yield f"<text x='12' y='{BARS_HEIGHT - 6}' fill='{FAINT}'>{escape(self.unit)}</text>"
        for value in (0.0, self.scale / 2, self.scale):
            y = self.y(value)
            yield f"<path d='M{LEFT} {y}H{RIGHT}' stroke='{GRID}'/>"
            yield f"<text x='{LEFT - 6}' y='{y}' dy='4' text-anchor='end'>{number(value)}</text>"
        group = self.slot * (self.per_node + self.gap)
        nodes = max(1, self.size // self.devices)  # per bar
        for index in range(0, self.groups, max(1, math.ceil(58 / group))):
            x = LEFT + 4 + index * group + self.slot * self.per_node / 2
            node = escape(self.say("node n", node=index * nodes))
            yield f"<text x='{short(x)}' y='{BARS_FLOOR + 14}' text-anchor='middle'>{node}</text>"

    def line(self) -> Iterator[str]:
        yield value_line(Scale(0.0, self.scale, BARS_FLOOR, TOP), max(self.median, 0.0), self.say("median"))


def _bucket(ranks: int, devices: int) -> int:
    """How many ranks share a bar: a part of a node or whole nodes, never parts of two."""
    size = math.ceil(ranks / MOST_BARS)
    while devices % size and size % devices:
        size += 1
    return size


def _round_above(top: float) -> float:
    """The end of the axis: a round number above every bar, whose half is round too."""
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10, 12) if step * power >= top * 1.04)


# A map of the cluster: a column for each node, a row for each card, coloured by the distance from the median

MOST_NODES = 256  # columns; above, a column is the slowest of several nodes
MOST_SIGNS = 200
_LEFT, _RIGHT, _FULL = 76, 676, 0.20  # a card that is 20 % off has the full colour
_ROOMY = 12.0  # pixels from which on a cell has lines around it
_STEPS = 10  # of colour on each side
_SLOW, _FAST = (214, 80, 20), (58, 122, 200)  # the further from the median, the more opaque


def heat_map(
    values: Sequence[float | None], devices: int, *, title: str, unit: str = "", say: Language = ENGLISH
) -> str:
    """Empty for fewer than two nodes, which bars show better, and if nothing was measured."""
    ranks = [value if value is not None and math.isfinite(value) else None for value in values]
    nodes = math.ceil(len(ranks) / devices)
    if nodes < 2 or devices < 2 or all(value is None for value in ranks):
        return ""
    return _HeatMap(ranks, devices, nodes, plain(unit, 20), say).draw(title)


class _HeatMap:
    def __init__(self, ranks: Sequence[float | None], devices: int, nodes: int, unit: str, say: Language) -> None:
        self.ranks, self.devices, self.unit, self.say = ranks, devices, unit, say
        self.median = statistics.median(value for value in ranks if value is not None)
        self.per = math.ceil(nodes / MOST_NODES)  # nodes of a column
        self.columns = math.ceil(nodes / self.per)
        self.cells = [[self.slowest(column, card) for column in range(self.columns)] for card in range(devices)]
        self.odd = odd_ranks(ranks, devices)
        self.high = max(8.0, min(22.0, 176 / devices))
        self.wide = min(96.0, (_RIGHT - _LEFT) / self.columns)
        self.right, self.floor = _LEFT + self.wide * self.columns, TOP + self.high * devices

    def draw(self, title: str) -> str:
        image = b64encode(_png([[_colour(value, self.median) for value in row] for row in self.cells])).decode()
        size = f"width='{short(self.right - _LEFT)}' height='{short(self.floor - TOP)}' preserveAspectRatio='none'"
        parts = [
            f"<image x='{_LEFT}' y='{TOP}' {size} style='image-rendering:pixelated'",
            f" href='data:image/png;base64,{image}'/>",
            f"<path d='{self.grid()}' fill='none' stroke='{GRID}'/>",
            *self.signs(),
            *self.names(),
            *_key(self.say),
        ]
        story = [self.say("median story", value=f"{number(self.median)} {self.unit}".strip())]
        if self.per > 1:
            story.append(self.say("each cell", count=self.per))
        story += odd_ones(self.ranks, self.odd, self.median, self.say)
        return picture(
            title, " · ".join(story), parts, math.ceil(self.floor) + 28, picture_id(title, self.ranks, "map")
        )

    def slowest(self, column: int, card: int) -> float | None:
        nodes = range(column * self.per, (column + 1) * self.per)
        cards = [self.ranks[at] for node in nodes if (at := node * self.devices + card) < len(self.ranks)]
        values = [value for value in cards if value is not None]
        return min(values) if values and len(values) == len(cards) else None

    def grid(self) -> str:
        """Lines around every cell, or around the map if cells are narrow: a cell at the median has no colour."""
        frame = f"M{_LEFT} {TOP}H{short(self.right)}V{short(self.floor)}H{_LEFT}z"
        if self.wide < _ROOMY:
            return frame
        across = (f"M{_LEFT} {short(TOP + self.high * card)}H{short(self.right)}" for card in range(1, self.devices))
        down = (f"M{short(_LEFT + self.wide * at)} {TOP}V{short(self.floor)}" for at in range(1, self.columns))
        return "".join((frame, *across, *down))

    def corner(self, column: int, card: int) -> str:
        return f"M{short(_LEFT + self.wide * column)} {short(TOP + self.high * card)}"

    def signs(self) -> Iterator[str]:
        """A ring around each outlier and a cross on each missing card, for people who do not see colours."""
        wide, high = short(self.wide), short(self.high)
        odd = sorted({((rank // self.devices) // self.per, rank % self.devices) for rank in self.odd})
        gone = [(column, card) for card, row in enumerate(self.cells) for column, at in enumerate(row) if at is None]
        rings = "".join(f"{self.corner(*cell)}h{wide}v{high}h-{wide}z" for cell in odd[:MOST_SIGNS])
        crosses = "".join(f"{self.corner(*cell)}l{wide} {high}m-{wide} 0l{wide}-{high}" for cell in gone[:MOST_SIGNS])
        for shape, colour in ((rings, INK), (crosses, FAINT)):
            if shape:
                yield f"<path d='{shape}' fill='none' stroke='{colour}' stroke-width='1.5'/>"

    def names(self) -> Iterator[str]:
        widest = 6.2 * display_width(self.say("node n", node=self.columns * self.per)) + 6
        every = math.ceil(widest / self.wide)
        for column in range(0, self.columns, every):
            x, anchor = (self.wide / 2, "middle") if every == 1 else (0.0, "start")
            x, name = x + _LEFT + self.wide * column, escape(self.say("node n", node=column * self.per))
            if x + widest < WIDTH:
                yield f"<text x='{short(x)}' y='{short(self.floor + 14)}' text-anchor='{anchor}'>{name}</text>"
        for card in range(0, self.devices, max(1, math.ceil(11 / self.high))):
            y = short(TOP + self.high * (card + 0.5) + 4)
            yield f"<text x='{_LEFT - 6}' y='{y}' text-anchor='end'>{escape(self.say('card'))} {card}</text>"


def _colour(value: float | None, median: float) -> int:
    """The index of a colour: 0 for missing, then from slow to fast."""
    if value is None:
        return 0
    share = (value / median - 1) / _FULL if median else 0.0
    return 1 + _STEPS + round(max(-1.0, min(1.0, share)) * _STEPS)


def _png(rows: Sequence[Sequence[int]]) -> bytes:
    """A PNG with indexed colours, more opaque the further from the median: it looks right on light and dark pages."""
    sides = [(_SLOW, step / _STEPS) for step in range(_STEPS, -1, -1)]
    sides = [(_SLOW, 0.0), *sides, *((_FAST, step / _STEPS) for step in range(1, _STEPS + 1))]
    palette, solid = b"".join(bytes(colour) for colour, _ in sides), bytes(round(255 * share) for _, share in sides)
    size = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9)
    chunks = ((b"IHDR", size), (b"PLTE", palette), (b"tRNS", solid), (b"IDAT", data), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _key(say: Language) -> Iterator[str]:
    """The legend of the colours."""
    x, away = WIDTH - 68, f"{_FULL:.0%}"
    for index, (colour, text) in enumerate(((_SLOW, f"-{away}"), (None, say("median")), (_FAST, f"+{away}"))):
        y, filled = TOP + 18 * index, "none" if colour is None else "rgb({},{},{})".format(*colour)
        yield f"<rect x='{x}' y='{y}' width='12' height='12' fill='{filled}' stroke='{GRID}'/>"
        yield f"<text x='{x + 17}' y='{y + 10}'>{escape(text)}</text>"


# Ranks that stand out, for both charts


def outliers(ranks: Sequence[float | None]) -> set[int]:
    """Ranks further from the median than 5 % of it, and further than the noise of the others explains."""
    values = [value for value in ranks if value is not None]
    if len(values) < 3:
        return set()
    middle = statistics.median(values)
    noise = 1.4826 * statistics.median(abs(value - middle) for value in values)
    far = max(3.5 * noise, 0.05 * abs(middle))
    return {rank for rank, value in enumerate(ranks) if value is not None and abs(value - middle) > far}


def odd_ranks(ranks: Sequence[float | None], devices: int) -> set[int]:
    """The outliers, and all that the verdict calls slow: the chart must agree with the text beside it."""
    slow = find_stragglers(ranks, Shape(math.ceil(len(ranks) / devices), devices))
    cards = (range(devices) if each.card is None else (each.card,) for each in slow)
    named = {each.node * devices + card for each, mine in zip(slow, cards, strict=True) for card in mine}
    return outliers(ranks) | {rank for rank in named if rank < len(ranks) and ranks[rank] is not None}


def odd_ones(ranks: Sequence[float | None], odd: set[int], median: float, say: Language) -> Iterator[str]:
    """The ranks that are far from the others, and those without a result, in words."""
    far = [f"{rank} ({(ranks[rank] or 0.0) / (median or 1.0) - 1:+.0%})" for rank in sorted(odd)]
    gone = [str(rank) for rank, value in enumerate(ranks) if value is None]
    for names, key in ((far, "outliers"), (gone, "missing ranks")):
        if names:
            text = ", ".join(names[:4])
            text = say("and more", names=text, count=len(names) - 4) if len(names) > 4 else text
            yield say(key, count=len(names), names=text)
    if not far and not gone and len(ranks) > 1:
        yield say("no outlier", count=len(ranks))
