"""How far a training is, and how its loss, speed and accuracy developed, collected from its log.

`extend_curve` takes a log piece by piece and returns how far the training is, and the way there; a piece may end in the
middle of a line. `model.metric` tells the warm-up from the steady state in such a curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_aisbench.model.metric import MOST, SAMPLES_PER_S, STEPS_PER_S, AccuracyPoint, Curve, Point, Series
from pytest_aisbench.traininglog.linetable import LogLine
from pytest_aisbench.traininglog.readers import read_line, unfinished

_LATEST_COUNTS = ("steps", "ms_per_step", "throughput", "total", "accuracy")  # of these fields the last value counts


@dataclass(frozen=True)
class Progress:
    """What a log has said so far; None until the log says it, and again for a loss that is not finite.

    Set `ranks` at the start: how many ranks write to this log. Each rank prints the same epochs, so only their number
    distinguishes a rank that lags from a training that began again, as `Model.train(1)` in a loop does.
    """

    epoch: int = 0  # counted from 1, over all restarts
    step: int = 0  # as printed: of the epoch, or of the whole training
    loss: float | None = None
    ms_per_step: float | None = None
    lines: int = 0
    throughput: float | None = None  # of the rank that printed it last
    accuracy: float | None = None
    ranks: int = 1
    total: float | None = None  # throughput of the whole job, where the log gives that instead
    unit: str = SAMPLES_PER_S  # of both throughputs
    steps: int | None = None  # how many there will be, where the log says it: of the epoch, or of the whole training
    # The state of the reader.
    rest: str = ""  # the beginning of a line that is not complete yet
    rank: str = ""  # the rank that we follow, where lines name their rank
    restarted: int = 0  # epochs before the last restart
    arrived: int = 0  # ranks that printed the newest epoch and step


# How far a training is


def _progress_by_line(progress: Progress, text: str) -> Iterator[tuple[Progress, LogLine | None]]:
    """The progress after each line that a reader understood, with that line; at last, the progress after all text."""
    *whole, rest = text.split("\n")
    if not whole:
        yield replace(progress, rest=unfinished(progress.rest + rest)), None
        return
    whole[0] = progress.rest + whole[0]
    lines = progress.lines + len(whole)
    for text_line in whole:
        rank, line = read_line(text_line) or ("", None)
        if line is None:
            continue
        # Any rank may print the final figures and an accuracy. For the rest we follow one rank.
        if progress.rank and rank != progress.rank and not line.final:
            if line.accuracy is None:
                continue
            line = LogLine(accuracy=line.accuracy)
        progress = _after_line(progress, rank, line)
        yield progress, line
    yield replace(progress, lines=lines, rest=unfinished(rest)), None


def _after_line(progress: Progress, rank: str, line: LogLine) -> Progress:
    if line.epoch is not None and line.step is None:  # the epoch continues, or is the next
        reached = max(progress.epoch, progress.restarted + line.epoch)
        progress = replace(progress, epoch=reached, loss=line.loss if line.has_loss else progress.loss, rank=rank)
    elif line.epoch is not None:
        progress = _after_training_line(progress, rank, line, line.epoch)
    elif line.step is not None and line.step >= progress.step:  # an evaluation counts its own steps, from 1 again
        progress = replace(progress, step=line.step, loss=line.loss if line.has_loss else progress.loss, rank=rank)
    elif line.step is not None and line.total is None and line.throughput is None:
        return progress if line.accuracy is None else replace(progress, accuracy=line.accuracy)
    elif line.has_loss:
        progress = replace(progress, loss=line.loss)
    news = {name: value for name in _LATEST_COUNTS if (value := getattr(line, name)) is not None}
    if "throughput" in news or "total" in news:
        news["unit"] = line.unit
    return replace(progress, **news) if news else progress


def _after_training_line(progress: Progress, rank: str, line: LogLine, epoch: int) -> Progress:
    step = line.step or 0
    now, last = (epoch, step), (progress.epoch - progress.restarted, progress.step)
    ranks = 1 if rank else progress.ranks
    arrived, restarted = progress.arrived + 1, progress.restarted
    if now > last:
        arrived = 1
    elif progress.arrived >= ranks:  # all ranks printed this step: an earlier one is a restart
        arrived, restarted = 1, progress.epoch
    elif now < last:
        return progress  # a rank that lags
    return replace(
        progress,
        epoch=restarted + epoch,
        step=step,
        loss=line.loss if line.has_loss else progress.loss,
        rank=rank,
        restarted=restarted,
        arrived=arrived,
    )


# The curve


def read_curve(text: str, ranks: int = 1) -> Curve:
    """The curve of a log, or of its beginning; `ranks` is how many ranks write to it."""
    return extend_curve(Curve(), Progress(ranks=ranks), f"{text}\n")[0]


def extend_curve(curve: Curve, progress: Progress, text: str) -> tuple[Curve, Progress]:
    """The curve and the progress after more text of a log that is still being written."""
    for after, line in _progress_by_line(progress, text):
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
        known = curve if line.unit == curve.whole_unit else replace(curve, rank_speed=None, job_speed=None)
        curve = replace(
            curve,
            rank_speed=_positive(line.throughput) or known.rank_speed,
            job_speed=_positive(line.total) or known.job_speed,
            whole_unit=line.unit,
            batch=line.batch or curve.batch,
            window=_union(curve.window, line.window),
        )
    if line.skipped is not None or line.nans is not None:
        curve = replace(curve, skipped=_sum(curve.skipped, line.skipped), nans=_sum(curve.nans, line.nans))
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
    if speed is None or line.final:
        return curve
    if (curve.unit, len(curve.speed.points)) == (STEPS_PER_S, 1) != (unit, 1):  # two lines for each step
        curve = replace(curve, speed=Series(), unit="", of="")
    if (unit, of) != (curve.unit or unit, curve.of or of):  # of several kinds the first counts
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
        return _usable(line.total), line.unit, "job"
    if line.throughput is not None:
        return _usable(line.throughput), line.unit, "rank"
    return _usable(1000 / line.ms_per_step) if line.ms_per_step else None, STEPS_PER_S, "rank"


def _sum(*counts: int | None) -> int | None:
    """None if all are."""
    return sum(filter(None, counts)) if any(count is not None for count in counts) else None


def _positive(speed: float | None) -> float | None:
    return speed if speed and speed > 0 else None


def _usable(speed: float) -> float | None:
    """The speed, unless it is zero or so extreme that sums of it or of its inverse are not finite."""
    return speed if 1e-9 < speed < 1e15 else None
