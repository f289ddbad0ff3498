"""The throughput of every rank, so that a slow or silent card is seen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.stragglers import find_stragglers
from pytest_aisbench.reporters.svg_frame import (
    BAR,
    FAINT,
    GRID,
    LEFT,
    ODD,
    PAPER,
    RIGHT,
    TOP,
    Scale,
    line,
    picture,
    seal,
    short,
)

HEIGHT, FLOOR = 236, 202
MOST_BARS = 256
MOST_TOOLTIPS = 64


def rank_chart(
    values: Sequence[float | None], devices: int, *, title: str, unit: str = "", say: Language = ENGLISH
) -> str:
    """One bar per rank, grouped by node; above 256 ranks a bar is the slowest of several. '' without any number."""
    ranks = [value if value is not None and math.isfinite(value) else None for value in values]
    if all(value is None for value in ranks):
        return ""
    return _Chart(ranks, devices, title, plain(unit, 20), say).drawn()


def outliers(ranks: Sequence[float | None]) -> set[int]:
    """Ranks further from the median than 5% of it and than the noise of the others explains."""
    known = [value for value in ranks if value is not None]
    if len(known) < 3:
        return set()
    middle = statistics.median(known)
    noise = 1.4826 * statistics.median(abs(value - middle) for value in known)
    far = max(3.5 * noise, 0.05 * abs(middle))
    return {rank for rank, value in enumerate(ranks) if value is not None and abs(value - middle) > far}


def odd_ranks(ranks: Sequence[float | None], devices: int) -> set[int]:
    """Those, and all whom the verdict calls slow: a picture does not contradict the words beside it."""
    slow = find_stragglers(ranks, Shape(math.ceil(len(ranks) / devices), devices))
    cards = (range(devices) if each.card is None else (each.card,) for each in slow)
    named = {each.node * devices + card for each, mine in zip(slow, cards, strict=True) for card in mine}
    return outliers(ranks) | {rank for rank in named if rank < len(ranks) and ranks[rank] is not None}


@dataclass(frozen=True)
class _Bar:
    first: int  # its ranks
    last: int
    value: float | None  # of the slowest of them; None where one is missing
    odd: bool
    x: float


class _Chart:
    def __init__(self, ranks: Sequence[float | None], devices: int, title: str, unit: str, say: Language) -> None:
        known = [value for value in ranks if value is not None]
        self.ranks, self.devices, self.title, self.unit, self.say = ranks, devices, title, unit, say
        self.median = statistics.median(known)
        self.odd = odd_ranks(ranks, devices)
        self.scale = _round_above(max(known))
        self.size = _bucket(len(ranks), devices)  # ranks per bar
        self.per_node = max(1, devices // self.size)  # bars per node
        self.gap = 0.8 if self.per_node > 1 else 0.0  # between nodes, in bars
        self.count = math.ceil(len(ranks) / self.size)
        self.groups = math.ceil(self.count / self.per_node)
        self.slot = min(60.0, (RIGHT - LEFT - 8) / (self.count + self.gap * (self.groups - 1)))
        self.wide = self.slot * (0.82 if self.slot > 3 else 0.94)
        self.mark = seal(title, ranks)

    def drawn(self) -> str:
        hatched = (
            f"<pattern id='{self.mark}' width='6' height='6' patternUnits='userSpaceOnUse'"
            f" patternTransform='rotate(45)'><path d='M0 0V6' stroke='{ODD}' stroke-width='2'/></pattern>"
        )
        parts = (hatched, *self.axes(), *self.shapes(), *self.signs(), *self.line())
        return picture(self.title, self.story(), parts, HEIGHT, self.mark)

    def story(self) -> str:
        """The picture in words, for those who cannot see it and for those in a hurry."""
        parts = [self.say("median story", value=self.amount(self.median))]
        if self.size > 1:
            parts.append(self.say("each bar", count=self.size))
        return " · ".join((*parts, *odd_ones(self.ranks, self.odd, self.median, self.say)))

    def amount(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def y(self, value: float) -> str:
        return short(FLOOR - max(value, 0.0) / self.scale * (FLOOR - TOP))

    def bars(self) -> Iterator[_Bar]:
        for index in range(self.count):
            first = index * self.size
            ranks = range(first, min(first + self.size, len(self.ranks)))
            known = [value for rank in ranks if (value := self.ranks[rank]) is not None]
            slowest = min(known) if len(known) == len(ranks) else None
            x = LEFT + 4 + self.slot * (index + self.gap * (index // self.per_node))
            yield _Bar(first, ranks[-1], slowest, any(rank in self.odd for rank in ranks), x)

    def shapes(self) -> Iterator[str]:
        """Bars with a tooltip each, or one path per colour where there are too many for that."""
        by_colour: dict[str, str] = {}
        for bar in self.bars():
            top = str(TOP) if bar.value is None else self.y(bar.value)
            colour = f"url(#{self.mark})" if bar.value is None else ODD if bar.odd else BAR
            shape = f"M{short(bar.x)} {FLOOR}V{top}h{short(self.wide)}V{FLOOR}z"
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
        """What colour alone would say is also said by a sign."""
        arrows = ""
        for bar in self.bars():
            middle = bar.x + self.wide / 2
            if bar.value is None and self.wide >= 9:
                yield (
                    f"<text transform='translate({short(middle + 4)} {FLOOR - 6})rotate(-90)'"
                    f" stroke='{PAPER}' stroke-width='4' paint-order='stroke'>{escape(self.say('missing'))}</text>"
                )
            elif bar.value is None or bar.odd:
                tip = str(TOP + 8) if bar.value is None else self.y(bar.value)
                arrows += f"M{short(middle)} {tip}l-4 -8h8z"
        if arrows:
            yield f"<path d='{arrows}' fill='{ODD}'/>"

    def axes(self) -> Iterator[str]:
        yield f"<text x='12' y='{HEIGHT - 6}' fill='{FAINT}'>{escape(self.unit)}</text>"
        for value in (0.0, self.scale / 2, self.scale):
            y = self.y(value)
            yield f"<path d='M{LEFT} {y}H{RIGHT}' stroke='{GRID}'/>"
            yield f"<text x='{LEFT - 6}' y='{y}' dy='4' text-anchor='end'>{number(value)}</text>"
        group = self.slot * (self.per_node + self.gap)
        nodes = max(1, self.size // self.devices)  # per bar
        for index in range(0, self.groups, max(1, math.ceil(58 / group))):
            x = LEFT + 4 + index * group + self.slot * self.per_node / 2
            node = escape(self.say("node n", node=index * nodes))
            yield f"<text x='{short(x)}' y='{FLOOR + 14}' text-anchor='middle'>{node}</text>"

    def line(self) -> Iterator[str]:
        yield line(Scale(0.0, self.scale, FLOOR, TOP), max(self.median, 0.0), self.say("median"))


def odd_ones(ranks: Sequence[float | None], odd: set[int], median: float, say: Language) -> Iterator[str]:
    """Who is far from the others and who said nothing, in words."""
    far = [f"{rank} ({(ranks[rank] or 0.0) / (median or 1.0) - 1:+.0%})" for rank in sorted(odd)]
    gone = [str(rank) for rank, value in enumerate(ranks) if value is None]
    for names, key in ((far, "outliers"), (gone, "missing ranks")):
        if names:
            told = ", ".join(names[:4])
            told = say("and more", names=told, count=len(names) - 4) if len(names) > 4 else told
            yield say(key, count=len(names), names=told)
    if not far and not gone and len(ranks) > 1:
        yield say("no outlier", count=len(ranks))


def _bucket(ranks: int, devices: int) -> int:
    """How many ranks share a bar: a part of a node or whole nodes, never pieces of two."""
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
