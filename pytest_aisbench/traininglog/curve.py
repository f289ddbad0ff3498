"""How loss and speed went through a training, and its warm-up told from its steady state.

The rule. The level of the steady state is the median of the second half of the speeds. A speed is slow if it is below
that level by more than three times the spread of the second half (1.4826 × the median absolute deviation) and by more
than 5 %. The warm-up is the unbroken row of slow points at the beginning: compiling, filling caches, the first reading
of the data. A training of fewer than four points, or one that is still slow in its middle, has no steady state to tell.

Each point stands for as much work as any other, so the speed over several is their harmonic mean: work by time.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_aisbench.model.curve import MOST, AccuracyPoint, Curve, Point
from pytest_aisbench.traininglog.readers import Progress, Told, follow


def curve(text: str, ranks: int = 1) -> Curve:
    """The curve of a log, or of as much of it as there is; `ranks` is how many wrote to it."""
    return extended(Curve(), Progress(ranks=ranks), f"{text}\n")[0]


def extended(known: Curve, progress: Progress, text: str) -> tuple[Curve, Progress]:
    """After more of the log, for one that is still written."""
    for after, told in follow(progress, text):
        if told:
            known = _with(known, progress, after, told)
        progress = after
    return known, progress


def reached(known: Curve, accuracy: float) -> float | None:
    """After how many seconds of training an evaluation was first at least so good; None where none was, or nobody
    knows when. Of very many evaluations some are not kept: then it is the first of those that are, never too soon."""
    times = (each.seconds for each in known.evaluations if each.accuracy >= accuracy)
    return next((time for time in times if time is not None), None)


def _with(known: Curve, before: Progress, after: Progress, told: Told) -> Curve:
    if told.final:
        return replace(
            known,
            rank_speed=_positive(told.throughput) or known.rank_speed,
            job_speed=_positive(told.total) or known.job_speed,
            batch=told.batch or known.batch,
            window=_spanned(known.window, told.window),
        )
    if told.at is not None and told.accuracy is None and known.began is None:
        known = replace(known, began=told.at)
    if told.accuracy is not None:
        known = _evaluated(known, AccuracyPoint(after.epoch, told.accuracy, _since(known.began, told)))
    at = (after.epoch, after.step)
    moved = at != (before.epoch, before.step)
    if told.loss is not None and (moved or told.step is None):
        known = replace(known, loss=known.loss.and_then(Point(*at, told.loss)))
    speed, unit, of = _speed(told)
    if speed is None or (unit, of) != (known.unit or unit, known.of or of):  # of several kinds the first counts
        return known
    last = known.speed.points[-1] if known.speed.points else None
    again = last is not None and (last.epoch, last.step) == at != (0, 0)  # another rank's, or an evaluation's
    if again and told.total is None:
        return known
    return replace(known, speed=known.speed.and_then(Point(*at, speed)), unit=unit, of=of)


def _spanned(known: tuple[float, ...] | None, told: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """From the first rank's beginning to the last one's end."""
    ends = [each for each in (known, told) if each]
    return (min(start for start, _ in ends), max(end for _, end in ends)) if ends else None


def _evaluated(known: Curve, evaluation: AccuracyPoint) -> Curve:
    kept = known.evaluations if len(known.evaluations) < MOST else known.evaluations[::2]
    return replace(known, evaluations=(*kept, evaluation))


def _since(began: float | None, told: Told) -> float | None:
    seconds = told.elapsed
    if seconds is None and told.at is not None and began is not None:
        seconds = told.at - began
    return seconds if seconds is not None and seconds >= 0 else None


def _speed(told: Told) -> tuple[float | None, str, str]:
    if told.total is not None:
        return _usable(told.total), "samples/s", "job"
    if told.throughput is not None:
        return _usable(told.throughput), "samples/s", "rank"
    return _usable(1000 / told.ms_per_step) if told.ms_per_step else None, "steps/s", "rank"


def _positive(speed: float | None) -> float | None:
    return speed if speed and speed > 0 else None


def _usable(speed: float) -> float | None:
    """Neither zero nor so extreme that sums of it or its inverse are not finite."""
    return speed if 1e-9 < speed < 1e15 else None
