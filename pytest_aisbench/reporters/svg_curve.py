"""Speed and loss through a training, the warm-up told from the steady state, the claim's band behind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pytest_aisbench.domain.curve import Curve, Point, warm_up
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.reporters.svg_frame import (
    BAND,
    BAR,
    FAINT,
    GRID,
    LEFT,
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

HEIGHT, FLOOR = 210, 172
_FEWEST = 2


@dataclass(frozen=True)
class Claim:
    """Where the speed of a curve should be, in the curve's own unit."""

    reference: float | None = None
    low: float | None = None
    high: float | None = None

    def per(self, share: float) -> Claim:
        found = (None if bound is None else bound / share for bound in (self.reference, self.low, self.high))
        return Claim(*found)


def speed_chart(curve: Curve, *, title: str, claim: Claim | None = None, say: Language = ENGLISH) -> str:
    """'' where the log told less than two speeds."""
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
    return _drawn(points, values, (title, " · ".join(parts), unit), say, slow=slow or 0, claim=claim)


def loss_chart(curve: Curve, *, title: str, say: Language = ENGLISH) -> str:
    points = _finite(curve.loss.points)
    if len(points) < _FEWEST:
        return ""
    values = [point.value for point in points]
    story = say("loss story", first=number(values[0]), last=number(values[-1]))
    return _drawn(points, values, (title, story, ""), say)


def _finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point.value)]


def _drawn(
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
    y, x = Scale(marks[0], marks[-1], FLOOR, TOP), Scale(0, len(values) - 1, LEFT, RIGHT)
    parts = [_band(claim, y) if claim else "", levels(y, marks)]
    if slow:
        parts.append(_warm_up(x(slow - 0.5), say))
    drawn = path((x(index), y(value)) for index, value in enumerate(values))
    parts.append(f"<path d='{drawn}' fill='none' stroke='{BAR}' stroke-width='1.6'/>")
    if claim and claim.reference is not None:
        parts.append(line(y, claim.reference, say("reference")))
    parts += _steps(points, x, say)
    if unit:
        parts.append(f"<text x='12' y='{HEIGHT - 8}' fill='{FAINT}'>{escape(fitted(unit, 20))}</text>")
    return picture(title, story, parts, HEIGHT, seal(title, values))


def _band(claim: Claim, y: Scale) -> str:
    if claim.low is None and claim.high is None:
        return ""
    top, floor = (TOP if claim.high is None else y(claim.high)), (FLOOR if claim.low is None else y(claim.low))
    return f"<path d='M{LEFT} {short(top)}H{RIGHT}V{short(floor)}H{LEFT}z' fill='{BAND}'/>"


def _warm_up(x: float, say: Language) -> str:
    return (
        f"<path d='M{short(x)} {TOP}V{FLOOR}' stroke='{FAINT}' stroke-dasharray='2 3'/>"
        f"<path d='M{LEFT} {TOP}H{short(x)}V{FLOOR}H{LEFT}z' fill='{GRID}' fill-opacity='.5'/>"
        f"<text x='{short(min(x + 4, RIGHT - 50))}' y='{FLOOR - 5}' fill='{FAINT}'>← {escape(say('warm-up'))}</text>"
    )


def _steps(points: Sequence[Point], x: Scale, say: Language) -> Iterator[str]:
    """Where in the training the first point is, the middle one and the last."""
    last = len(points) - 1
    for index, anchor in {0: "start", last // 2: "middle", last: "end"}.items():
        point = points[index]
        where = " ".join(
            say(name, count=count) for name, count in (("epoch", point.epoch), ("step", point.step)) if count
        )
        text = escape(where or say("point", count=index + 1))
        yield f"<text x='{short(x(index))}' y='{FLOOR + 15}' text-anchor='{anchor}'>{text}</text>"
