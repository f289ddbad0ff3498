"""Draws the charts of a case as SVG: its curves, its history, its shapes, and the life of its trials.

Attributes stand in single quotes, because pytest-html carries the picture in a double-quoted one. A picture alone is
dark ink on a light card. A dark page replaces each colour by that of `NIGHT`, with CSS rules on the attributes.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.scaling import THIS_RUN
from pytest_aisbench.judge.trend import change_points
from pytest_aisbench.model.clock import day as date_of
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import Curve, Point, warm_up
from pytest_aisbench.model.results import TrialEntry
from pytest_aisbench.model.trial import Step
from pytest_aisbench.model.verdict import Background, ScalePoint, number
from pytest_aisbench.report.text import cut, display_width, span, utc_time

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
    named = [(scale(value) + 4, f"{value:.0%}" if in_percent else number(value)) for value in values]
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
    parts.append(f"<path d='{drawn}' fill='none' stroke='{BAR}' stroke-width='1.6'/>")
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
_REACH, _LEAST_REACH = 2.0, 0.1  # how far limits may stretch a plot: in ranges of the values, and as share of one


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
    plotted = [*values, *interval, *([now] if now is not None else [])]
    plotted += _near((background.low, background.high, background.reference), min(plotted), max(plotted))
    marks = ticks(min(plotted), max(plotted))
    y, x = Scale(marks[0], marks[-1], PAST_FLOOR, TOP), Scale(0, len(past), LEFT + 10, RIGHT - 12)
    parts = [_band(background, y), grid_lines(y, marks)]
    parts += [
        _level_change(x(change.index - 0.5), change.share)
        for change in change_points(values if now is None else [*values, now])
    ]
    places = [(x(index), y(value)) for index, value in enumerate(values)]
    parts.append(f"<path d='{path(places)}' fill='none' stroke='{BAR}'/>")
    dots = "".join(f"M{short(a - 2.5)} {short(b)}a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0" for a, b in places)
    parts.append(f"<path d='{dots}' fill='{BAR}'/>")
    story = [say("history story", count=len(background.history))]
    if now is not None:
        parts += _current(x(len(past)), y, now, interval, background)
        story.append(say("newest trial" if day else "this trial", value=f"{number(now)} {unit}".strip()))
    if interval:
        story.append(say("interval", low=number(interval[0]), high=number(interval[-1])))
    if background.reference is not None and marks[0] <= background.reference <= marks[-1]:
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


def _near(bounds: Sequence[float | None], low: float, high: float) -> list[float]:
    """The limits near the values: a limit far away would make every history a flat line."""
    reach = max(_REACH * (high - low), _LEAST_REACH * abs(high))
    return [bound for bound in bounds if bound is not None and low - reach <= bound <= high + reach]


def _current(at: float, y: Scale, now: float, interval: Sequence[float], background: Background) -> Iterator[str]:
    """A diamond, in another colour outside the band, and a whisker for the interval of the trials."""
    low, high = background.low, background.high
    inside = (low is None or now >= low) and (high is None or now <= high)
    if interval:
        a, b = y(interval[0]), y(interval[-1])
        whisker = f"M{short(at)} {short(a)}V{short(b)}m-4 0h8M{short(at - 4)} {short(a)}h8"
        yield f"<path d='{whisker}' stroke='{INK}' fill='none'/>"
    yield f"<path d='M{short(at - 5.5)} {short(y(now))}l5.5-5.5l5.5 5.5l-5.5 5.5z' fill='{MARK if inside else ODD}'/>"


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


# The life of a case: a row for each trial, a piece for each step, at true times

COLOURS = {
    "stage": STAGE, "submit": INK, "queue": QUEUE, "train": BAR, "watch": BAR, "harvest": HARVEST, "judge": MARK,
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
    return f"{shape}<text x='{short(at + 5)}' y='{short(y + 12.5)}' fill='{PAPER}'>{escape(label)}</text>"


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
    name: str  # stage, submit, queue, train, harvest or judge; watch if the time in the queue is unknown
    start: float
    stop: float


def step_spans(times: Mapping[str, float], queued_s: float | None) -> list[StepSpan]:
    """The steps of a trial, each until the next begins; the watch is split into the queue and the training."""
    began = sorted((at, _STEP_NAMES.index(name)) for name, at in times.items() if name in _STEP_NAMES)
    steps: list[StepSpan] = []
    for (start, step), (stop, _) in itertools.pairwise(began):
        name = _STEP_NAMES[step]
        if name != "watch" or queued_s is None:
            steps.append(StepSpan(name, start, stop))
        else:
            middle = min(max(start + queued_s, start), stop)
            steps += [StepSpan("queue", start, middle), StepSpan("train", middle, stop)]
    return steps
