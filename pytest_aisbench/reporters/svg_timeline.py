"""A case's life: every trial a row, every step a piece of it, at true times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from html import escape

from pytest_aisbench.domain.entry import TrialEntry
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.report.text import display_width, span
from pytest_aisbench.reporters.lifecycle import Span, spans
from pytest_aisbench.reporters.svg_frame import (
    BAR,
    FAINT,
    GRID,
    HARVEST,
    INK,
    MARK,
    PAPER,
    QUEUE,
    STAGE,
    TOP,
    Scale,
    picture,
    seal,
    short,
    ticks,
)

COLOURS = {
    "stage": STAGE, "submit": INK, "queue": QUEUE, "train": BAR, "watch": BAR, "harvest": HARVEST, "judge": MARK,
}  # fmt: skip
MOST_ROWS = 8
_LEFT, _RIGHT, _ROW, _LEAST = 76, 748, 24, 2.0
_CLOCK = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


def timeline(trials: Sequence[TrialEntry], *, title: str, say: Language = ENGLISH) -> str:
    """'' where nothing was timed. The newest trials, where there are many."""
    rows = [(trial.trial, spans(trial.times, trial.queued_s)) for trial in trials[-MOST_ROWS:]]
    rows = [(name, lived) for name, lived in rows if lived]
    if not rows:
        return ""
    start, stop = min(lived[0].start for _, lived in rows), max(lived[-1].stop for _, lived in rows)
    story = " · ".join(_worded(each, say) for each in rows[-1][1])
    scale = Scale(0.0, stop - start or 1.0, _LEFT, _RIGHT)
    floor = TOP + _ROW * len(rows)
    parts = [*_axis(scale, floor, start, say)]
    for index, (name, lived) in enumerate(rows):
        y = TOP + _ROW * index
        parts.append(f"<text x='12' y='{y + 15}'>{escape(say('trial'))} {name}</text>")
        parts += [_piece(each, scale, start, y + 3, say) for each in lived]
    return picture(title, story, parts, floor + 36, seal(title, rows))


def _worded(each: Span, say: Language) -> str:
    return f"{say(f'life {each.name}')} {span(each.stop - each.start, say)}"


def _piece(each: Span, scale: Scale, start: float, y: float, say: Language) -> str:
    at, to = scale(each.start - start), scale(each.stop - start)
    wide = max(to - at, _LEAST)
    shape = (
        f"<rect x='{short(min(at, _RIGHT - wide))}' y='{short(y)}' width='{short(wide)}' height='17'"
        f" fill='{COLOURS[each.name]}'><title>{escape(_worded(each, say))}</title></rect>"
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
    clock = datetime.fromtimestamp(start, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    told = escape(say("from the start", clock=clock))
    yield f"<text x='{_LEFT}' y='{short(floor + 29)}' fill='{FAINT}'>{told}</text>"
