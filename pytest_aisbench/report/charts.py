"""Draws charts as SVG: the curves of a case, its history, its shapes, the life of its trials; the scaling of a run.

A picture alone is dark ink on a light card. In our pages CSS rules on the attributes replace each colour by a variable
of `look.css`, so that pictures are dark where the page is. Bars and dots have their value as a tooltip; a curve has
its scale in `data-y`, by which the script of report.html shows the value under the pointer.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.scaling import THIS_RUN
from pytest_aisbench.judge.trend import change_points
from pytest_aisbench.model.clock import day as date_of
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import Curve, Point, warm_up
from pytest_aisbench.model.results import TrialEntry
from pytest_aisbench.model.trial import STAGING, Step
from pytest_aisbench.model.verdict import Background, ScalePoint, number
from pytest_aisbench.report.text import cut, display_width, span, utc_time

WIDTH = 760
LEFT, RIGHT, TOP = 64, 676, 50  # the edges of most plots
PAPER, INK, FAINT, GRID = "#ffffff", "#1a1f26", "#5b6673", "#dfe3e8"
BAR, ODD, BAND, MARK = "#1f55a8", "#b3261e", "#e1efe5", "#1a7f3c"
WAIT, HARVEST = "#9a4d00", "#6d4aa8"
VARIABLES = {  # of look.css, by colour
    PAPER: "ground", INK: "ink", FAINT: "soft", GRID: "line", BAR: "stroke", ODD: "bad", BAND: "band", MARK: "good",
    WAIT: "broken", HARVEST: "unsure",
}  # fmt: skip
_COLUMN = 5.9  # pixels that a column of small text takes, at most


def look() -> str:
    """The style that all our pages share."""
    return (Path(__file__).parents[1] / "look.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels: `low` lies at the pixel `at`, `high` at the pixel `to`."""

    low: float
    high: float
    at: float
    to: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.at + min(max(share, 0.0), 1.0) * (self.to - self.at)


def picture(title: str, story: str, parts: Iterable[str], height: int, name: str) -> str:
    """A card with a title, the chart in words, and the chart itself."""
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


def picture_id(*facts: object) -> str:
    """An id that no other picture of the page has: a reference into a hidden picture draws nothing."""
    return f"h{zlib.crc32(repr(facts).encode('utf-8', 'replace')):08x}"


def fitted(text: str, size: float) -> str:
    """The text on one line, cut to `size` columns."""
    return cut(plain(text), int(size))


def grid_lines(scale: Scale, values: Sequence[float], *, in_percent: bool = False) -> str:
    """Horizontal lines across the plot, each with its number."""
    lines = "".join(f"M{LEFT} {short(scale(value))}H{RIGHT}" for value in values)
    named = [(scale(value) + 4, f"{number(100 * value)}%" if in_percent else number(value)) for value in values]
    texts = "".join(f"<text x='{LEFT - 6}' y='{short(y)}'>{name}</text>" for y, name in named)
    return f"<path d='{lines}' stroke='{GRID}'/><g text-anchor='end'>{texts}</g>"


def value_line(scale: Scale, value: float, name: str, label: str = "") -> str:
    """A dashed line at a value, with its name and its label at the end."""
    y = scale(value)
    return (
        f"<path d='M{LEFT} {short(y)}H{RIGHT}' stroke='{INK}' stroke-dasharray='5 4'/>"
        f"<text x='{RIGHT + 5}' y='{short(y)}'>{escape(name)}"
        f"<tspan x='{RIGHT + 5}' dy='12'>{label or number(value)}</tspan></text>"
    )


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round numbers for an axis, from below `low` to above `high`."""
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


_CURVE = re.compile(r"(<path data-y='[^']*') d='M([^']*)'")


def without_x(svg: str) -> str:
    """The pictures with the curves as steps of y alone, in tenths of a pixel: the points of a curve are evenly spaced,
    and the script of report.html puts them there. Half of what the details of a case weigh are curves."""

    def steps(curve: re.Match[str]) -> str:
        heights = [round(10 * float(point.partition(" ")[2])) for point in curve[2].split("L")]
        return f"{curve[1]} data-d='{' '.join(str(b - a) for a, b in itertools.pairwise((0, *heights)))}'"

    return _CURVE.sub(steps, svg)


# Speed and loss through a training, with its warm-up and the band that the speed should be in

CURVE_HEIGHT, CURVE_FLOOR = 210, 172
_FEWEST = 2


@dataclass(frozen=True)
class Claim:
    """The band and the reference for the speed of a curve, in the curve's unit."""

    reference: float | None = None
    low: float | None = None
    high: float | None = None

    def per(self, share: float) -> Claim:
        return Claim(*(None if limit is None else limit / share for limit in (self.reference, self.low, self.high)))


def speed_chart(curve: Curve, *, title: str, claim: Claim | None = None, say: Language = ENGLISH) -> str:
    """Empty if the log has fewer than two speeds."""
    points = _finite(curve.speed.points)
    if len(points) < _FEWEST:
        return ""
    times, unit = (curve.batch, "samples/s") if curve.unit == "steps/s" and curve.batch else (1, curve.unit)
    values = [point.value * times for point in points]
    slow = warm_up(values)
    parts = [say("of job" if curve.of == "job" else "of rank"), say("by log")]
    if slow is not None:
        mean = len(values[slow:]) / math.fsum(1 / value for value in values[slow:])
        parts.append(say("steady", value=f"{number(float(f'{mean:.4g}'))} {unit}"))
    if slow:
        parts.append(say("warm-up story", count=slow * curve.speed.stride))
    parts.append(say("speed story", last=f"{number(float(f'{values[-1]:.4g}'))} {unit}"))
    return _curve_picture(points, values, (title, " · ".join(parts), unit), say, slow=slow or 0, claim=claim)


def loss_chart(curve: Curve, *, title: str, say: Language = ENGLISH) -> str:
    points = _finite(curve.loss.points)
    if len(points) < _FEWEST:
        return ""
    values = [point.value for point in points]
    story = say("loss story", first=number(values[0]), last=number(values[-1]))
    return _curve_picture(points, values, (title, story, ""), say)


def _finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point.value)]


def _curve_picture(
    points: Sequence[Point],
    values: Sequence[float],
    named: tuple[str, str, str],
    say: Language,
    *,
    slow: int = 0,
    claim: Claim | None = None,
) -> str:
    title, story, unit = named
    bounds = [bound for bound in (claim.reference, claim.low, claim.high) if bound is not None] if claim else []
    marks = ticks(min([*values, *bounds]), max([*values, *bounds]))
    y, x = Scale(marks[0], marks[-1], CURVE_FLOOR, TOP), Scale(0, len(values) - 1, LEFT, RIGHT)
    parts = [_band(claim, y) if claim else "", grid_lines(y, marks)]
    if slow:
        parts.append(_warm_up(x(slow - 0.5), say))
    drawn = path((x(index), y(value)) for index, value in enumerate(values))
    scale = f"{y.low:g} {y.high:g} {y.at:g} {y.to:g}"
    parts.append(f"<path data-y='{scale}' d='{drawn}' fill='none' stroke='{BAR}' stroke-width='1.6'/>")
    if claim and claim.reference is not None:
        parts.append(value_line(y, claim.reference, say("reference")))
    parts += _steps(points, x, say)
    if unit:
        parts.append(f"<text x='12' y='{CURVE_HEIGHT - 8}' fill='{FAINT}'>{escape(fitted(unit, 20))}</text>")
    return picture(title, story, parts, CURVE_HEIGHT, picture_id(title, values))


def _band(limits: Claim | Background, y: Scale) -> str:
    if limits.low is None and limits.high is None:
        return ""
    top, floor = (TOP if limits.high is None else y(limits.high)), (y.at if limits.low is None else y(limits.low))
    return f"<path d='M{LEFT} {short(top)}H{RIGHT}V{short(floor)}H{LEFT}z' fill='{BAND}'/>"


def _warm_up(x: float, say: Language) -> str:
    return (
        f"<path d='M{short(x)} {TOP}V{CURVE_FLOOR}' stroke='{FAINT}' stroke-dasharray='2 3'/>"
        f"<path d='M{LEFT} {TOP}H{short(x)}V{CURVE_FLOOR}H{LEFT}z' fill='{GRID}' fill-opacity='.5'/>"
        f"<text x='{short(min(x + 4, RIGHT - 50))}' y='{CURVE_FLOOR - 5}' fill='{FAINT}'>"
        f"← {escape(say('warm-up'))}</text>"
    )


def _steps(points: Sequence[Point], x: Scale, say: Language) -> Iterator[str]:
    """The epoch and step of the first, the middle and the last point."""
    last = len(points) - 1
    for index, anchor in {0: "start", last // 2: "middle", last: "end"}.items():
        point = points[index]
        where = " ".join(
            say(name, count=count) for name, count in (("epoch", point.epoch), ("step", point.step)) if count
        )
        text = escape(where or say("point", count=index + 1))
        yield f"<text x='{short(x(index))}' y='{CURVE_FLOOR + 15}' text-anchor='{anchor}'>{text}</text>"


# A case beside its earlier trials, and beside its other shapes

MOST_PAST = 100
MOST_SHAPES = 12
PAST_HEIGHT, PAST_FLOOR = 190, 154


def history_chart(
    background: Background, now: float | None, *, title: str, unit: str = "", day: str = "", say: Language = ENGLISH
) -> str:
    """A dot for each earlier comparable trial, a diamond for this run (or for `day`), a line where the level changed.

    Empty if there is no earlier trial.
    """
    past = [each for each in background.history if math.isfinite(each.value)][-MOST_PAST:]
    if not past:
        return ""
    values = [each.value for each in past]
    interval = background.interval or ()
    limits = [limit for limit in (background.low, background.high, background.reference) if limit is not None]
    plotted = [*values, *interval, *limits, *([now] if now is not None else [])]
    marks = ticks(min(plotted), max(plotted))
    y, x = Scale(marks[0], marks[-1], PAST_FLOOR, TOP), Scale(0, len(past), LEFT + 10, RIGHT - 12)
    parts = [_band(background, y), grid_lines(y, marks)]
    parts += [
        _level_change(x(change.index - 0.5), change.share)
        for change in change_points(values if now is None else [*values, now])
    ]
    places = [(x(index), y(value)) for index, value in enumerate(values)]
    parts.append(f"<path d='{path(places)}' fill='none' stroke='{BAR}'/>")
    dots = "".join(
        f"<circle cx='{short(a)}' cy='{short(b)}' r='3'><title>{date_of(each.at)} {escape(plain(each.run, 60))}:"
        f" {number(each.value)}</title></circle>"
        for (a, b), each in zip(places, past, strict=True)
    )
    parts.append(f"<g fill='{BAR}'>{dots}</g>")
    story = [say("history story", count=len(background.history))]
    if now is not None:
        parts += _current(x(len(past)), y, now, interval, background)
        story.append(say("newest trial" if day else "this trial", value=f"{number(now)} {unit}".strip()))
    if interval:
        story.append(say("interval", low=number(interval[0]), high=number(interval[-1])))
    if background.reference is not None:
        parts.append(value_line(y, background.reference, say("reference")))
    parts.append(f"<text x='{LEFT + 10}' y='{PAST_FLOOR + 16}'>{date_of(past[0].at)}</text>")
    parts.append(
        f"<text x='{RIGHT - 12}' y='{PAST_FLOOR + 16}' text-anchor='end'>{escape(day or say('this run'))}</text>"
    )
    parts.append(f"<text x='12' y='{PAST_HEIGHT - 6}' fill='{FAINT}'>{escape(fitted(unit, 20))}</text>")
    return picture(title, " · ".join(story), parts, PAST_HEIGHT, picture_id(title, past, now))


def _level_change(at: float, share: float) -> str:
    return (
        f"<path d='M{short(at)} {TOP}V{PAST_FLOOR}' stroke='{FAINT}' stroke-dasharray='2 3'/>"
        f"<text x='{short(at + 4)}' y='{TOP + 10}' fill='{FAINT}'>{share:+.1%}</text>"
    )


def _current(at: float, y: Scale, now: float, interval: Sequence[float], background: Background) -> Iterator[str]:
    """A diamond, in another colour outside the band, and a whisker for the interval of the trials."""
    low, high = background.low, background.high
    inside = (low is None or now >= low) and (high is None or now <= high)
    if interval:
        a, b = y(interval[0]), y(interval[-1])
        whisker = f"M{short(at)} {short(a)}V{short(b)}m-4 0h8M{short(at - 4)} {short(a)}h8"
        yield f"<path d='{whisker}' stroke='{INK}' fill='none'/>"
    yield (
        f"<path d='M{short(at - 5.5)} {short(y(now))}l5.5-5.5l5.5 5.5l-5.5 5.5z' fill='{MARK if inside else ODD}'>"
        f"<title>{number(now)}</title></path>"
    )


def scaling_chart(
    points: Sequence[ScalePoint], shape: str = "", *, title: str, unit: str = "", say: Language = ENGLISH
) -> str:
    """A bar for each shape: the share of the base's speed that its cards keep. The bar of `shape` stands out; bars from
    history are hollow. Empty for fewer than two shapes."""
    measured = [point for point in points if math.isfinite(point.value) and point.value > 0][:MOST_SHAPES]
    if len(measured) < 2:
        return ""
    shares = [_share(point, measured[0]) for point in measured]
    y, slot = Scale(0.0, max([1.1, *shares]), PAST_FLOOR, TOP), (RIGHT - LEFT) / len(measured)
    wide = min(64.0, slot * 0.6)
    parts = [grid_lines(y, (0.0, 0.5), in_percent=True)]
    for index, (point, share) in enumerate(zip(measured, shares, strict=True)):
        x, top = LEFT + slot * (index + 0.5), y(share)
        own = point.shape == shape
        look = f"fill='{BAR}'" + (f" stroke='{INK}' stroke-width='1.5'" if own else "")
        ink, bold = PAPER, " font-weight='bold'" if own else ""
        if _from_history(point):
            look, ink = f"fill='{PAPER}' stroke='{BAR}' stroke-width='1.5' stroke-dasharray='4 3'", INK
        tooltip = (
            f"{point.shape}: {number(point.value)} {unit}, {say('efficiency', share=f'{share:.1%}')}, {point.source}"
        )
        parts.append(
            f"<path d='M{short(x - wide / 2)} {PAST_FLOOR}V{short(top)}h{short(wide)}V{PAST_FLOOR}z' {look}>"
            f"<title>{escape(fitted(tooltip, 120))}</title></path><g text-anchor='middle'>"
            f"<text x='{short(x)}' y='{short(top + 14)}' fill='{ink}'>{share:.0%}</text>"
            f"<text x='{short(x)}' y='{PAST_FLOOR + 14}'{bold}>{escape(fitted(point.shape, 12))}</text>"
            f"<text x='{short(x)}' y='{PAST_FLOOR + 27}' fill='{FAINT}'>{number(point.value)}</text></g>"
        )
    parts.append(value_line(y, 1.0, say("ideal"), "100%"))
    parts.append(f"<text x='12' y='{PAST_FLOOR + 27}' fill='{FAINT}'>{escape(fitted(unit, 9))}</text>")
    named, share = next(
        (each for each in zip(measured, shares, strict=True) if each[0].shape == shape), (measured[-1], shares[-1])
    )
    story = say("scaling story", value=f"{number(named.value)} {unit}".strip(), shape=named.shape)
    story = f"{story} · {say('efficiency', share=f'{share:.1%}')}"
    if any(map(_from_history, measured)):
        story = f"{story} · {say('from history')}"
    return picture(title, story, parts, PAST_HEIGHT, picture_id(title, measured))


def _from_history(point: ScalePoint) -> bool:
    return not point.source.startswith(THIS_RUN)


def _share(point: ScalePoint, base: ScalePoint) -> float:
    if point.efficiency is not None and math.isfinite(point.efficiency):
        return max(point.efficiency, 0.0)
    return point.value / base.value * _cards(base) / _cards(point)


def _cards(point: ScalePoint) -> int:
    nodes, _, devices = point.shape.partition("x")
    return int(nodes) * int(devices) or 1 if nodes.isdecimal() and devices.isdecimal() else 1


# The scaling of all workloads of a run

MOST_LINES = 7
_RUN_HEIGHT, _RUN_FLOOR, _NAMES_AT = 280, 238, 590
_LINES = (BAR, HARVEST, WAIT, MARK, ODD, FAINT, INK)
_SIGNS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5l5 9h-10z", "M-5 0l5-5l5 5l-5 5z")


def run_scaling_chart(
    workloads: Mapping[str, Sequence[ScalePoint]], claim: float | None, *, title: str, say: Language = ENGLISH
) -> str:
    """A line for each workload: the share of the base's speed that a card keeps, by the number of cards.

    Of many workloads those that lose most; `claim` is the share that all should keep. Empty without two shapes.
    """
    lines = {
        name: [(_cards(point), _share(point, points[0]), point) for point in points]
        for name, points in workloads.items()
        if len(points) > 1
    }
    if not lines:
        return ""
    losing_most = sorted(lines, key=lambda name: min(share for _, share, _ in lines[name]))
    drawn = {name: line for name, line in lines.items() if name in losing_most[:MOST_LINES]}
    cards = sorted({count for line in drawn.values() for count, _, _ in line})
    shares = [share for line in drawn.values() for _, share, _ in line]
    marks = ticks(min([*shares, claim or 1.0, 0.9]), max([*shares, 1.0]))
    x = Scale(math.log2(cards[0]), math.log2(cards[-1]), LEFT + 10, _NAMES_AT - 20)
    y = Scale(marks[0], marks[-1], _RUN_FLOOR, TOP)
    parts = [_band(Claim(low=claim), y)] if claim else []
    parts += [grid_lines(y, marks, in_percent=True), *_card_counts(cards, x)]
    parts.append(f"<path d='M{LEFT} {short(y(1.0))}H{_NAMES_AT - 10}' stroke='{INK}' stroke-dasharray='5 4'/>")
    at_names: list[float] = []
    for index, (name, line) in enumerate(sorted(drawn.items(), key=lambda each: -each[1][-1][1])):
        colour, sign = _LINES[index], _SIGNS[index % len(_SIGNS)]
        places = [(x(math.log2(count)), y(share)) for count, share, _ in line]
        parts.append(f"<path d='{path(places)}' fill='none' stroke='{colour}' stroke-width='1.6'/>")
        for (a, b), (_, share, point) in zip(places, line, strict=True):
            hint = f"{name} {point.shape}: {number(point.value)}, {say('efficiency', share=f'{share:.1%}')}"
            look = f"fill='{PAPER if _from_history(point) else colour}' stroke='{colour}'"
            parts.append(
                f"<path transform='translate({short(a)} {short(b)})' d='{sign}' {look}>"
                f"<title>{escape(fitted(f'{hint}, {point.source}', 160))}</title></path>"
            )
        at_names.append(max(places[-1][1] + 4, at_names[-1] + 15 if at_names else 0.0))
        text = f"{fitted(name, 17)} {line[-1][1]:.0%}"
        parts.append(f"<text x='{_NAMES_AT}' y='{short(at_names[-1])}' fill='{colour}'>{escape(text)}</text>")
    worst = losing_most[0]
    least, shape = min((share, point.shape) for _, share, point in lines[worst])
    story = [say("least efficient", name=worst, shape=shape, share=f"{least:.1%}")]
    if claim:
        story.append(say("claimed efficiency", share=f"{claim:.0%}"))
    if len(lines) > len(drawn):
        story.append(say("more", count=len(lines) - len(drawn)))
    parts.append(f"<text x='12' y='{_RUN_HEIGHT - 8}' fill='{FAINT}'>{escape(say('efficiency by cards'))}</text>")
    return picture(title, " · ".join(story), parts, _RUN_HEIGHT, picture_id(title, cards, shares))


def _card_counts(cards: Sequence[int], x: Scale) -> Iterator[str]:
    """The numbers below the axis, as many as fit."""
    last = -math.inf
    for count in cards:
        if (at := x(math.log2(count))) - last >= 30:
            yield f"<text x='{short(at)}' y='{_RUN_FLOOR + 15}' text-anchor='middle'>{count}</text>"
            last = at


# The life of a case: a row for each trial, a piece for each step, at true times

COLOURS = {
    "wait": GRID, "stage": FAINT, "submit": INK, "queue": WAIT, "train": BAR, "watch": BAR, "harvest": HARVEST,
    "judge": MARK,
}  # fmt: skip
MOST_ROWS = 8
_LEFT, _RIGHT, _ROW, _LEAST = 76, 748, 24, 2.0
_CLOCK = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


def timeline(trials: Sequence[TrialEntry], *, title: str, say: Language = ENGLISH) -> str:
    """Empty if no step has a time. Of many trials, the newest."""
    rows = [(trial.trial, step_spans(trial.times, trial.queued_s)) for trial in trials[-MOST_ROWS:]]
    rows = [(name, steps) for name, steps in rows if steps]
    if not rows:
        return ""
    start, stop = min(steps[0].start for _, steps in rows), max(steps[-1].stop for _, steps in rows)
    story = " · ".join(_step_text(each, say) for each in rows[-1][1])
    scale = Scale(0.0, stop - start or 1.0, _LEFT, _RIGHT)
    floor = TOP + _ROW * len(rows)
    parts = [*_axis(scale, floor, start, say)]
    for index, (name, steps) in enumerate(rows):
        y = TOP + _ROW * index
        parts.append(f"<text x='12' y='{y + 15}'>{escape(say('trial'))} {name}</text>")
        parts += [_piece(each, scale, start, y + 3, say) for each in steps]
    return picture(title, story, parts, floor + 36, picture_id(title, rows))


def _step_text(each: StepSpan, say: Language) -> str:
    return f"{say(f'life {each.name}')} {span(each.stop - each.start, say)}"


def _piece(each: StepSpan, scale: Scale, start: float, y: float, say: Language) -> str:
    at, to = scale(each.start - start), scale(each.stop - start)
    wide = max(to - at, _LEAST)
    shape = (
        f"<rect x='{short(min(at, _RIGHT - wide))}' y='{short(y)}' width='{short(wide)}' height='17'"
        f" fill='{COLOURS[each.name]}'><title>{escape(_step_text(each, say))}</title></rect>"
    )
    label = say(f"life {each.name}")
    if wide < 6.2 * display_width(label) + 8:
        return shape
    ink = INK if COLOURS[each.name] == GRID else PAPER
    return f"{shape}<text x='{short(at + 5)}' y='{short(y + 12.5)}' fill='{ink}'>{escape(label)}</text>"


def _axis(scale: Scale, floor: float, start: float, say: Language) -> Iterator[str]:
    step = next((step for step in _CLOCK if scale.high <= 7 * step), None)
    marks = [step * index for index in range(8)] if step else ticks(0.0, scale.high, 6)
    marks = [mark for mark in marks if mark <= scale.high]
    lines = "".join(f"M{short(scale(mark))} {TOP}V{short(floor)}" for mark in marks)
    yield f"<path d='{lines}' stroke='{GRID}'/>"
    for mark in marks:
        anchor = "start" if mark == 0 else "end" if scale(mark) > _RIGHT - 20 else "middle"
        text = escape(span(mark, say) if mark else "0")
        yield f"<text x='{short(scale(mark))}' y='{short(floor + 14)}' text-anchor='{anchor}'>{text}</text>"
    text = escape(say("from the start", clock=utc_time(start)))
    yield f"<text x='{_LEFT}' y='{short(floor + 29)}' fill='{FAINT}'>{text}</text>"


_STEP_NAMES = [step.name.lower() for step in Step]


class StepSpan(NamedTuple):
    name: str  # wait, stage, submit, queue, train, harvest or judge; watch if the time in the queue is unknown
    start: float
    stop: float


def step_spans(times: Mapping[str, float], queued_s: float | None) -> list[StepSpan]:
    """The steps of a trial, each until the next begins. Before it stages it waits for a slot of the run; the watch is
    split into the queue of the platform and the training."""
    began = sorted((at, _STEP_NAMES.index(name)) for name, at in times.items() if name in _STEP_NAMES)
    steps: list[StepSpan] = []
    for (start, step), (stop, _) in itertools.pairwise(began):
        name = _STEP_NAMES[step]
        if name == "stage" and STAGING in times:
            middle = min(max(times[STAGING], start), stop)
            steps += [StepSpan("wait", start, middle), StepSpan("stage", middle, stop)]
        elif name != "watch" or queued_s is None:
            steps.append(StepSpan(name, start, stop))
        else:
            middle = min(max(start + queued_s, start), stop)
            steps += [StepSpan("queue", start, middle), StepSpan("train", middle, stop)]
    return steps
