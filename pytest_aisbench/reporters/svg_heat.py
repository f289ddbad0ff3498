"""A cluster as a map: a column for each node, a row for each card, coloured by how far a card is from the median.

The cells are one image of a pixel each: a thousand of them weigh less than a paragraph.
"""

from __future__ import annotations

import math
import statistics
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.report.text import display_width
from pytest_aisbench.reporters.svg import odd_ones, odd_ranks
from pytest_aisbench.reporters.svg_frame import FAINT, GRID, INK, TOP, WIDTH, picture, seal, short

MOST_NODES = 256  # columns; above, a column is the slowest of several nodes
MOST_SIGNS = 200
_LEFT, _RIGHT, _FULL = 76, 676, 0.20  # a card that is 20 % off has the full colour
_ROOMY = 12.0  # pixels from which on a cell has lines around it
_STEPS = 10  # of colour on each side
_SLOW, _FAST = (214, 80, 20), (58, 122, 200)  # the more so, the less of the paper is seen through


def heat_map(
    values: Sequence[float | None], devices: int, *, title: str, unit: str = "", say: Language = ENGLISH
) -> str:
    """'' for fewer than two nodes, which bars show better, and where nothing was measured."""
    ranks = [value if value is not None and math.isfinite(value) else None for value in values]
    nodes = math.ceil(len(ranks) / devices)
    if nodes < 2 or devices < 2 or all(value is None for value in ranks):
        return ""
    return _Map(ranks, devices, nodes, plain(unit, 20), say).drawn(title)


class _Map:
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

    def drawn(self, title: str) -> str:
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
        told = [self.say("median story", value=f"{number(self.median)} {self.unit}".strip())]
        if self.per > 1:
            told.append(self.say("each cell", count=self.per))
        story = " · ".join((*told, *odd_ones(self.ranks, self.odd, self.median, self.say)))
        return picture(title, story, parts, math.ceil(self.floor) + 28, seal(title, self.ranks, "map"))

    def slowest(self, column: int, card: int) -> float | None:
        nodes = range(column * self.per, (column + 1) * self.per)
        found = [self.ranks[at] for node in nodes if (at := node * self.devices + card) < len(self.ranks)]
        known = [value for value in found if value is not None]
        return min(known) if known and len(known) == len(found) else None

    def grid(self) -> str:
        """Around every cell, or around all where they are narrow: cells at the median have no colour."""
        frame = f"M{_LEFT} {TOP}H{short(self.right)}V{short(self.floor)}H{_LEFT}z"
        if self.wide < _ROOMY:
            return frame
        across = (f"M{_LEFT} {short(TOP + self.high * card)}H{short(self.right)}" for card in range(1, self.devices))
        down = (f"M{short(_LEFT + self.wide * at)} {TOP}V{short(self.floor)}" for at in range(1, self.columns))
        return "".join((frame, *across, *down))

    def corner(self, column: int, card: int) -> str:
        return f"M{short(_LEFT + self.wide * column)} {short(TOP + self.high * card)}"

    def signs(self) -> Iterator[str]:
        """A ring around what is odd and a cross where nothing was told: colour alone does not say it."""
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
    """An index: 0 is missing, then from slow to fast."""
    if value is None:
        return 0
    share = (value / median - 1) / _FULL if median else 0.0
    return 1 + _STEPS + round(max(-1.0, min(1.0, share)) * _STEPS)


def _png(rows: Sequence[Sequence[int]]) -> bytes:
    """Indexed colours, as solid as they are far from the median: the same on a light and on a dark page."""
    sides = [(_SLOW, step / _STEPS) for step in range(_STEPS, -1, -1)]
    sides = [(_SLOW, 0.0), *sides, *((_FAST, step / _STEPS) for step in range(1, _STEPS + 1))]
    palette, solid = b"".join(bytes(colour) for colour, _ in sides), bytes(round(255 * share) for _, share in sides)
    size = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9)
    chunks = ((b"IHDR", size), (b"PLTE", palette), (b"tRNS", solid), (b"IDAT", data), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(told)) + name + told + struct.pack(">I", zlib.crc32(name + told)) for name, told in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _key(say: Language) -> Iterator[str]:
    """What the colours mean."""
    x, away = WIDTH - 68, f"{_FULL:.0%}"
    for index, (colour, text) in enumerate(((_SLOW, f"-{away}"), (None, say("median")), (_FAST, f"+{away}"))):
        y, filled = TOP + 18 * index, "none" if colour is None else "rgb({},{},{})".format(*colour)
        yield f"<rect x='{x}' y='{y}' width='12' height='12' fill='{filled}' stroke='{GRID}'/>"
        yield f"<text x='{x + 17}' y='{y + 10}'>{escape(text)}</text>"
