"""The history of a case for a person's 80 columns, for a program, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timezone
from statistics import fmean, stdev
from typing import Any

from pytest_aisbench.domain.background import Background
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.trial import TrialRecord
from pytest_aisbench.report.text import wrap
from pytest_aisbench.reporters.curve import drawn
from pytest_aisbench.services.chronicle import Chapter, Chronicle
from pytest_aisbench.services.clock import day, stamp

SCHEMA = "aisbench-history/1"
_WIDTH = 80
_ROW = " {:>4} {:<16} {:<22} {:>11} {:>8} {:<12}"


def lines(story: Chronicle) -> Iterator[str]:
    case = story.case
    whole = [measure for chapter in story.chapters for measure in chapter.measures]
    newest = "" if len(whole) == story.count else f"the newest {len(whole)} of "
    yield f"{case.id}: {newest}{_many(story.count, 'trial')}, {day(whole[0].at)} to {day(whole[-1].at)}"
    for claim in case.thresholds:
        yield f"  claimed at last: {plain(claim.metric)} {claim.wanted(case.judged_shape)}"
    for chapter in story.chapters:
        yield ""
        yield from _chapter(chapter, story.unit)


def _chapter(chapter: Chapter, unit: str) -> Iterator[str]:
    named = chapter.key or "not known, so comparable to nothing"
    yield f"fingerprint {named}: {_many(len(chapter.measures), 'trial')}"
    for line in chapter.changed:
        yield from wrap(f"  changed  {plain(line)}", " " * 11, _WIDTH)
    if speeds := chapter.speeds:
        yield f"  {drawn(speeds)}"
        yield f"  {_spread(speeds, unit)}"
    for remark in chapter.remarks:
        yield from wrap(f"  remark   {plain(remark)}", " " * 11, _WIDTH)
    yield _ROW.format("", "when (UTC)", "run", "throughput", "accuracy", "verdict").rstrip()
    place = 0
    for measure in chapter.measures:
        place += measure.counts
        yield _ROW.format(
            place if measure.counts else "-",
            _minute(measure.at),
            plain(measure.run, 22),
            number(measure.throughput),
            "-" if measure.accuracy is None else number(measure.accuracy),
            measure.ruling.value,
        ).rstrip()


def _spread(speeds: list[float], unit: str) -> str:
    unit = f" {unit}" if unit else ""
    mean = fmean(speeds)
    told = f"{len(speeds)} that count: mean {number(mean)}{unit}"
    if len(speeds) > 1:
        told += f", CV {stdev(speeds) / mean:.2%}, {number(min(speeds))} .. {number(max(speeds))}"
    return told


def document(story: Chronicle) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "case": story.case.id,
        "unit": story.unit,
        "trials": story.count,
        "fingerprints": [
            {
                "fingerprint": chapter.key or None,
                "traits": dict(chapter.traits),
                "changed": list(chapter.changed),
                "remarks": list(chapter.remarks),
                "trials": [_trial(measure) for measure in chapter.measures],
            }
            for chapter in story.chapters
        ],
    }


def _trial(measure: TrialRecord) -> dict[str, Any]:
    return {
        "run": measure.run,
        "trial": measure.trial,
        "at": stamp(measure.at),
        "metrics": {THROUGHPUT: measure.throughput, ACCURACY: measure.accuracy, **measure.metrics},
        "steady": measure.steady,
        "ran_s": measure.ran_s,
        "verdict": measure.ruling.value,
        "counts": measure.counts,
    }


def picture(story: Chronicle) -> str:
    """Of the newest chapter, with the band and the reference of its claim; empty for fewer than two that count."""
    from pytest_aisbench.reporters.svg_past import MOST_PAST, history_chart

    newest = [measure.past for measure in story.chapters[-1].measures if measure.counts][-MOST_PAST:]
    if len(newest) < 2:
        return ""
    shape = story.case.judged_shape
    claim = next((claim for claim in story.case.thresholds if claim.metric == THROUGHPUT), Threshold(THROUGHPUT))
    low, high = (None if math.isinf(bound) else bound for bound in claim.band(shape))
    background = Background(claim.expected(shape), low, high, history=tuple(newest[:-1]))
    title, last = f"{story.case.id}: {THROUGHPUT}", newest[-1]
    return history_chart(background, last.value, title=title, unit=story.unit, day=day(last.at))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M")
