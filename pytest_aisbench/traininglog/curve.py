"""How loss, speed and accuracy developed through a training, collected from its log.

`model.curve` tells the warm-up from the steady state in such a curve.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_aisbench.model.metric import MOST, AccuracyPoint, Curve, Point
from pytest_aisbench.traininglog.readers import LogLine, Progress, progress_by_line


def read_curve(text: str, ranks: int = 1) -> Curve:
    """The curve of a log, or of its beginning; `ranks` is how many ranks write to it."""
    return extend_curve(Curve(), Progress(ranks=ranks), f"{text}\n")[0]


def extend_curve(curve: Curve, progress: Progress, text: str) -> tuple[Curve, Progress]:
    """The curve and the progress after more text of a log that is still being written."""
    for after, line in progress_by_line(progress, text):
        if line:
            curve = _with_line(curve, progress, after, line)
        progress = after
    return curve, progress


def seconds_to_accuracy(curve: Curve, accuracy: float) -> float | None:
    """Seconds of training until an evaluation first reached `accuracy`; None if none did, or the log gives no times.

    A curve keeps some of very many evaluations, so the answer may be too late, but never too early."""
    times = (each.seconds for each in curve.evaluations if each.accuracy >= accuracy)
    return next((time for time in times if time is not None), None)


def _with_line(curve: Curve, before: Progress, after: Progress, line: LogLine) -> Curve:
    if line.final:
        return replace(
            curve,
            rank_speed=_positive(line.throughput) or curve.rank_speed,
            job_speed=_positive(line.total) or curve.job_speed,
            batch=line.batch or curve.batch,
            window=_union(curve.window, line.window),
        )
    if line.at is not None and line.accuracy is None and curve.began is None:
        curve = replace(curve, began=line.at)
    if line.accuracy is not None:
        evaluation = AccuracyPoint(after.epoch, line.accuracy, _seconds_trained(curve.began, line))
        kept = curve.evaluations if len(curve.evaluations) < MOST else curve.evaluations[::2]
        curve = replace(curve, evaluations=(*kept, evaluation))
    at = (after.epoch, after.step)
    moved = at != (before.epoch, before.step)
    if line.loss is not None and (moved or line.step is None):
        curve = replace(curve, loss=curve.loss.and_then(Point(*at, line.loss)))
    speed, unit, of = _speed(line)
    if speed is None or (unit, of) != (curve.unit or unit, curve.of or of):  # of several kinds the first counts
        return curve
    last = curve.speed.points[-1] if curve.speed.points else None
    again = last is not None and (last.epoch, last.step) == at != (0, 0)  # another rank's, or an evaluation's
    if again and line.total is None:
        return curve
    return replace(curve, speed=curve.speed.and_then(Point(*at, speed)), unit=unit, of=of)


def _union(*windows: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """From the first rank's start to the last rank's end."""
    ends = [each for each in windows if each]
    return (min(start for start, _ in ends), max(end for _, end in ends)) if ends else None


def _seconds_trained(began: float | None, line: LogLine) -> float | None:
    seconds = line.elapsed
    if seconds is None and line.at is not None and began is not None:
        seconds = line.at - began
    return seconds if seconds is not None and seconds >= 0 else None


def _speed(line: LogLine) -> tuple[float | None, str, str]:
    """The speed that a line reports, its unit, and whose speed it is."""
    if line.total is not None:
        return _usable(line.total), "samples/s", "job"
    if line.throughput is not None:
        return _usable(line.throughput), "samples/s", "rank"
    return _usable(1000 / line.ms_per_step) if line.ms_per_step else None, "steps/s", "rank"


def _positive(speed: float | None) -> float | None:
    return speed if speed and speed > 0 else None


def _usable(speed: float) -> float | None:
    """The speed, unless it is zero or so extreme that sums of it or of its inverse are not finite."""
    return speed if 1e-9 < speed < 1e15 else None
