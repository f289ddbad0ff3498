"""A case beside its past and beside its other shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from pytest_aisbench.domain.background import Background, ScalePoint
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.scaling import THIS_RUN
from pytest_aisbench.judge.trend import change_points
from pytest_aisbench.reporters.svg_frame import (
    BAND,
    BAR,
    FAINT,
    INK,
    LEFT,
    MARK,
    ODD,
    PAPER,
    RIGHT,
    TOP,
    Scale,
    fitted,
    levels,
    line,
    path,
    picture,
    seal,
    short,
    ticks,
)
from pytest_aisbench.services.clock import day as date_of

MOST_PAST = 100
MOST_SHAPES = 12
HEIGHT, FLOOR = 190, 154
_REACH, _LEAST_REACH = 2.0, 0.1  # of the values' range, and of a value: how far bounds may stretch a plot


def history_chart(
    background: Background, now: float | None, *, title: str, unit: str = "", day: str = "", say: Language = ENGLISH
) -> str:
    """Every comparable trial of before as a dot, this run's, or that of a `day`, as a diamond, and a line where the
    level changed; '' without a past."""
    past = [each for each in background.history if math.isfinite(each.value)][-MOST_PAST:]
    if not past:
        return ""
    values = [each.value for each in past]
    interval = background.interval or ()
    known = [*values, *interval, *([now] if now is not None else [])]
    known += _near((background.low, background.high, background.reference), min(known), max(known))
    marks = ticks(min(known), max(known))
    y, x = Scale(marks[0], marks[-1], FLOOR, TOP), Scale(0, len(past), LEFT + 10, RIGHT - 12)
    parts = [_band(background, y), levels(y, marks)]
    parts += [
        _step(x(change.index - 0.5), change.share)
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
        parts.append(line(y, background.reference, say("reference")))
    parts.append(f"<text x='{LEFT + 10}' y='{FLOOR + 16}'>{date_of(past[0].at)}</text>")
    parts.append(f"<text x='{RIGHT - 12}' y='{FLOOR + 16}' text-anchor='end'>{escape(day or say('this run'))}</text>")
    parts.append(f"<text x='12' y='{HEIGHT - 6}' fill='{FAINT}'>{escape(fitted(unit, 20))}</text>")
    return picture(title, " · ".join(story), parts, HEIGHT, seal(title, past, now))


def _step(at: float, share: float) -> str:
    return (
        f"<path d='M{short(at)} {TOP}V{FLOOR}' stroke='{FAINT}' stroke-dasharray='2 3'/>"
        f"<text x='{short(at + 4)}' y='{TOP + 10}' fill='{FAINT}'>{share:+.1%}</text>"
    )


def _near(bounds: Sequence[float | None], low: float, high: float) -> list[float]:
    """Those that are worth their room: a floor far below would make a flat line of every history."""
    reach = max(_REACH * (high - low), _LEAST_REACH * abs(high))
    return [bound for bound in bounds if bound is not None and low - reach <= bound <= high + reach]


def _band(background: Background, y: Scale) -> str:
    if background.low is None and background.high is None:
        return ""
    top = TOP if background.high is None else y(background.high)
    floor = FLOOR if background.low is None else y(background.low)
    return f"<path d='M{LEFT} {short(top)}H{RIGHT}V{short(floor)}H{LEFT}z' fill='{BAND}'/>"


def _current(at: float, y: Scale, now: float, interval: Sequence[float], background: Background) -> Iterator[str]:
    """A diamond, and a whisker for what the trials tell; outside the band it is of another colour."""
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
    """A bar for each shape: what share of the base's speed its cards keep; that of `shape` stands out, and is told.
    One that this run did not measure is hollow. '' for fewer than two."""
    shown = [point for point in points if math.isfinite(point.value) and point.value > 0][:MOST_SHAPES]
    if len(shown) < 2:
        return ""
    shares = [_share(point, shown[0]) for point in shown]
    y, slot = Scale(0.0, max([1.1, *shares]), FLOOR, TOP), (RIGHT - LEFT) / len(shown)
    wide = min(64.0, slot * 0.6)
    parts = [levels(y, (0.0, 0.5), in_percent=True)]
    for index, (point, share) in enumerate(zip(shown, shares, strict=True)):
        x, top = LEFT + slot * (index + 0.5), y(share)
        own = point.shape == shape
        look = f"fill='{BAR}'" + (f" stroke='{INK}' stroke-width='1.5'" if own else "")
        ink, bold = PAPER, " font-weight='bold'" if own else ""
        if _is_remembered(point):
            look, ink = f"fill='{PAPER}' stroke='{BAR}' stroke-width='1.5' stroke-dasharray='4 3'", INK
        told = f"{point.shape}: {number(point.value)} {unit}, {say('efficiency', share=f'{share:.1%}')}, {point.source}"
        parts.append(
            f"<path d='M{short(x - wide / 2)} {FLOOR}V{short(top)}h{short(wide)}V{FLOOR}z' {look}>"
            f"<title>{escape(fitted(told, 120))}</title></path><g text-anchor='middle'>"
            f"<text x='{short(x)}' y='{short(top + 14)}' fill='{ink}'>{share:.0%}</text>"
            f"<text x='{short(x)}' y='{FLOOR + 14}'{bold}>{escape(fitted(point.shape, 12))}</text>"
            f"<text x='{short(x)}' y='{FLOOR + 27}' fill='{FAINT}'>{number(point.value)}</text></g>"
        )
    parts.append(line(y, 1.0, say("ideal"), "100%"))
    parts.append(f"<text x='12' y='{FLOOR + 27}' fill='{FAINT}'>{escape(fitted(unit, 9))}</text>")
    told_of, share = next(
        (each for each in zip(shown, shares, strict=True) if each[0].shape == shape), (shown[-1], shares[-1])
    )
    story = say("scaling story", value=f"{number(told_of.value)} {unit}".strip(), shape=told_of.shape)
    story = f"{story} · {say('efficiency', share=f'{share:.1%}')}"
    if any(map(_is_remembered, shown)):
        story = f"{story} · {say('from history')}"
    return picture(title, story, parts, HEIGHT, seal(title, shown))


def _is_remembered(point: ScalePoint) -> bool:
    return not point.source.startswith(THIS_RUN)


def _share(point: ScalePoint, base: ScalePoint) -> float:
    if point.efficiency is not None and math.isfinite(point.efficiency):
        return max(point.efficiency, 0.0)
    return point.value / base.value * _cards(base) / _cards(point)


def _cards(point: ScalePoint) -> int:
    nodes, _, devices = point.shape.partition("x")
    return int(nodes) * int(devices) or 1 if nodes.isdecimal() and devices.isdecimal() else 1
