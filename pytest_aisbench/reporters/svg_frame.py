"""The card that every picture is drawn on: its colours, its title, its story in words, its axis.

Attributes stand in single quotes, because pytest-html carries the picture in a double-quoted one. A picture alone is
dark ink on a light card; a page that is dark replaces the colours, each by its night, with rules on the attributes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.report.text import cut

WIDTH = 760
LEFT, RIGHT, TOP = 64, 676, 50  # the edges of most plots
PAPER, INK, FAINT, GRID = "#ffffff", "#1f2933", "#5f6b78", "#d5dae0"
BAR, ODD, BAND, MARK = "#3f74b5", "#c2410c", "#dcebdc", "#2f7d4f"
STAGE, QUEUE, HARVEST = "#677585", "#97690f", "#7a5ea8"
NIGHT = {
    PAPER: "#1b2128", INK: "#e4e8ec", FAINT: "#a3aeba", GRID: "#3a444f",
    BAR: "#6ea0dc", ODD: "#f08a4b", BAND: "#23402e", MARK: "#6fc48f",
    STAGE: "#8794a4", QUEUE: "#d9a441", HARVEST: "#a98fd6",
}  # fmt: skip
_COLUMN = 5.9  # pixels that a column of small text takes, at most


@dataclass(frozen=True)
class Scale:
    """From values to pixels; both ends are values, `at` and `to` their pixels."""

    low: float
    high: float
    at: float
    to: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.at + min(max(share, 0.0), 1.0) * (self.to - self.at)


def seal(*facts: object) -> str:
    """A name that no other picture of a page has: a reference into one that is not displayed draws nothing."""
    return f"h{zlib.crc32(repr(facts).encode('utf-8', 'replace')):08x}"


def picture(title: str, story: str, parts: Iterable[str], height: int, name: str) -> str:
    title, story = escape(fitted(title, 90)), escape(fitted(story, (WIDTH - 24) / _COLUMN))
    return "".join(
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}'",
            f" height='{height}' style='max-width:100%;height:auto' fill='{INK}' font-size='11'",
            f" font-family='Helvetica,Arial,sans-serif' role='img' aria-labelledby='{name}t {name}d'>",
            f"<title id='{name}t'>{title}</title><desc id='{name}d'>{story}</desc>",
            f"<rect x='.5' y='.5' width='{WIDTH - 1}' height='{height - 1}' rx='4' fill='{PAPER}' stroke='{GRID}'/>",
            f"<text x='12' y='19' font-size='13' font-weight='bold'>{title}</text>",
            f"<text x='12' y='36'>{story}</text>",
            *parts,
            "</svg>",
        )
    )


def fitted(text: str, size: float) -> str:
    """At most so many columns."""
    return cut(plain(text), int(size))


def levels(scale: Scale, values: Sequence[float], *, in_percent: bool = False) -> str:
    """Lines across the plot, each with its number."""
    lines = "".join(f"M{LEFT} {short(scale(value))}H{RIGHT}" for value in values)
    named = [(scale(value) + 4, f"{value:.0%}" if in_percent else number(value)) for value in values]
    texts = "".join(f"<text x='{LEFT - 6}' y='{short(y)}'>{name}</text>" for y, name in named)
    return f"<path d='{lines}' stroke='{GRID}'/><g text-anchor='end'>{texts}</g>"


def line(scale: Scale, value: float, name: str, told: str = "") -> str:
    """A dashed line at a value, named and told at its end."""
    y = scale(value)
    return (
        f"<path d='M{LEFT} {short(y)}H{RIGHT}' stroke='{INK}' stroke-dasharray='5 4'/>"
        f"<text x='{RIGHT + 5}' y='{short(y)}'>{escape(name)}"
        f"<tspan x='{RIGHT + 5}' dy='12'>{told or number(value)}</tspan></text>"
    )


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round numbers from below the lowest to above the highest."""
    if not high > low:
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1.0, 2.0, 2.5, 5.0, 10.0) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def path(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if index else 'M'}{short(x)} {short(y)}" for index, (x, y) in enumerate(points))


def short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
