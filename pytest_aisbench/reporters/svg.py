"""Our own small SVG: the throughput of every rank, so that a slow or silent card is seen.

Attributes stand in single quotes, because pytest-html carries the picture in a double-quoted one. The background is
drawn, so that a dark page shows dark ink on a light card.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pytest_aisbench.domain.threshold import number
from pytest_aisbench.reporters.text import plain

WIDTH, HEIGHT = 760, 236
LEFT, RIGHT, TOP, FLOOR = 64, 676, 50, 202  # the edges of the plot
MOST_BARS = 256
MOST_TOOLTIPS = 64
BAR, ODD, INK, FAINT, GRID = "#3f74b5", "#c2410c", "#1f2933", "#5f6b78", "#d5dae0"


def rank_chart(values: Sequence[float | None], devices: int, *, title: str, unit: str = "") -> str:
    """One bar per rank, grouped by node; above 256 ranks a bar is the slowest of several. '' without any number."""
    ranks = [value if value is not None and math.isfinite(value) else None for value in values]
    if all(value is None for value in ranks):
        return ""
    return _Chart(ranks, devices, plain(title, 120), plain(unit, 20)).drawn()


def outliers(ranks: Sequence[float | None]) -> set[int]:
    """Ranks further from the median than 5% of it and than the noise of the others explains."""
    known = [value for value in ranks if value is not None]
    if len(known) < 3:
        return set()
    middle = statistics.median(known)
    noise = 1.4826 * statistics.median(abs(value - middle) for value in known)
    far = max(3.5 * noise, 0.05 * abs(middle))
    return {rank for rank, value in enumerate(ranks) if value is not None and abs(value - middle) > far}


@dataclass(frozen=True)
class _Bar:
    first: int  # its ranks
    last: int
    value: float | None  # of the slowest of them; None where one is missing
    odd: bool
    x: float


class _Chart:
    def __init__(self, ranks: Sequence[float | None], devices: int, title: str, unit: str) -> None:
        known = [value for value in ranks if value is not None]
        self.ranks, self.devices, self.title, self.unit = ranks, devices, title, unit
        self.median = statistics.median(known)
        self.odd = outliers(ranks)
        self.scale = _round_above(max(known))
        self.size = _bucket(len(ranks), devices)  # ranks per bar
        self.per_node = max(1, devices // self.size)  # bars per node
        self.gap = 0.8 if self.per_node > 1 else 0.0  # between nodes, in bars
        self.count = math.ceil(len(ranks) / self.size)
        self.groups = math.ceil(self.count / self.per_node)
        self.slot = min(60.0, (RIGHT - LEFT - 8) / (self.count + self.gap * (self.groups - 1)))
        self.wide = self.slot * (0.82 if self.slot > 3 else 0.94)
        # Unique in a page of many charts: a reference into a collapsed, undisplayed chart draws nothing.
        self.mark = f"h{zlib.crc32(repr((title, ranks)).encode()):08x}"

    def drawn(self) -> str:
        title, story = escape(self.title), escape(self.story())
        return "".join(
            (
                f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}'",
                f" height='{HEIGHT}' style='max-width:100%;height:auto' fill='{INK}' font-size='11'",
                f" font-family='Helvetica,Arial,sans-serif' role='img' aria-labelledby='{self.mark}t {self.mark}d'>",
                f"<title id='{self.mark}t'>{title}</title><desc id='{self.mark}d'>{story}</desc>",
                f"<pattern id='{self.mark}' width='6' height='6' patternUnits='userSpaceOnUse'",
                f" patternTransform='rotate(45)'><path d='M0 0V6' stroke='{ODD}' stroke-width='2'/></pattern>",
                f"<rect x='.5' y='.5' width='{WIDTH - 1}' height='{HEIGHT - 1}' rx='4' fill='#fff' stroke='{GRID}'/>",
                f"<text x='12' y='19' font-size='13' font-weight='bold'>{title}</text>",
                f"<text x='12' y='36'>{story}</text>",
                *self.axes(),
                *self.shapes(),
                *self.signs(),
                *self.line(),
                "</svg>",
            )
        )

    def story(self) -> str:
        """The picture in words, for those who cannot see it and for those in a hurry."""
        parts = [f"median {self.amount(self.median)} per rank"]
        if self.size > 1:
            parts.append(f"each bar is the slowest of {self.size} ranks")
        far = [f"{rank} ({(self.ranks[rank] or 0.0) / (self.median or 1.0) - 1:+.0%})" for rank in sorted(self.odd)]
        gone = [str(rank) for rank, value in enumerate(self.ranks) if value is None]
        for names, one, many in ((far, "outlier: rank", "outliers: ranks"), (gone, "missing: rank", "missing: ranks")):
            if names:
                more = f" and {len(names) - 4} more" if len(names) > 4 else ""
                parts.append(f"{len(names)} {one if len(names) == 1 else many} {', '.join(names[:4])}{more}")
        if not far and not gone and len(self.ranks) > 1:
            parts.append(f"no outlier among {len(self.ranks)} ranks")
        return " · ".join(parts)

    def amount(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def y(self, value: float) -> str:
        return _short(FLOOR - max(value, 0.0) / self.scale * (FLOOR - TOP))

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
            shape = f"M{_short(bar.x)} {FLOOR}V{top}h{_short(self.wide)}V{FLOOR}z"
            if self.count <= MOST_TOOLTIPS:
                yield f"<path d='{shape}' fill='{colour}'><title>{escape(self.tooltip(bar))}</title></path>"
            else:
                by_colour[colour] = by_colour.get(colour, "") + shape
        for colour, shape in by_colour.items():
            yield f"<path d='{shape}' fill='{colour}'/>"

    def tooltip(self, bar: _Bar) -> str:
        who = f"rank {bar.first}" if bar.first == bar.last else f"ranks {bar.first} to {bar.last}"
        return f"{who}: {'no result' if bar.value is None else self.amount(bar.value)}"

    def signs(self) -> Iterator[str]:
        """What colour alone would say is also said by a sign."""
        arrows = ""
        for bar in self.bars():
            middle = bar.x + self.wide / 2
            if bar.value is None and self.wide >= 9:
                yield (
                    f"<text transform='translate({_short(middle + 4)} {FLOOR - 6})rotate(-90)'"
                    " stroke='#fff' stroke-width='4' paint-order='stroke'>missing</text>"
                )
            elif bar.value is None or bar.odd:
                tip = str(TOP + 8) if bar.value is None else self.y(bar.value)
                arrows += f"M{_short(middle)} {tip}l-4 -8h8z"
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
            yield f"<text x='{_short(x)}' y='{FLOOR + 14}' text-anchor='middle'>node {index * nodes}</text>"

    def line(self) -> Iterator[str]:
        y, x = self.y(self.median), RIGHT + 5
        yield f"<path d='M{LEFT} {y}H{RIGHT}' stroke='{INK}' stroke-dasharray='5 4'/>"
        yield f"<text x='{x}' y='{y}'>median<tspan x='{x}' dy='12'>{number(self.median)}</tspan></text>"


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


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
