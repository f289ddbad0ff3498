"""How loss and speed went through a training, and its warm-up told from its steady state.

The rule. The level of the steady state is the median of the second half of the speeds. A speed is slow if it is below
that level by more than three times the spread of the second half (1.4826 × the median absolute deviation) and by more
than 5 %. The warm-up is the unbroken row of slow points at the beginning: compiling, filling caches, the first reading
of the data. A training of fewer than four points, or one that is still slow in its middle, has no steady state to tell.

Each point stands for as much work as any other, so the speed over several is their harmonic mean: work by time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.metric import MAD_TO_SIGMA
from pytest_aisbench.domain.progress import Progress, follow
from pytest_aisbench.domain.threshold import number, quantity
from pytest_aisbench.domain.told import Told

MOST = 200  # points that are kept of a series; every second goes when there are more
_FEWEST = 4
_DEVIATIONS = 3.0
_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)  # of a thousand jobs there are hundreds of thousands
class Point:
    epoch: int
    step: int
    value: float


@dataclass(frozen=True)
class Series:
    """A value: `and_then` returns the next one."""

    points: tuple[Point, ...] = ()
    stride: int = 1  # of how many points one is kept
    skipped: int = 0  # since the last that was kept

    def and_then(self, point: Point) -> Series:
        if self.points and self.skipped + 1 < self.stride:
            return replace(self, skipped=self.skipped + 1)
        if len(self.points) < MOST:
            return replace(self, points=(*self.points, point), skipped=0)
        return Series((*self.points[::2], point), 2 * self.stride)

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points]


@dataclass(frozen=True)
class Evaluation:
    """What the training had learnt, and after how many seconds of it, where the log tells."""

    epoch: int
    accuracy: float
    seconds: float | None = None


@dataclass(frozen=True)
class Curve:
    loss: Series = Series()
    speed: Series = Series()
    unit: str = ""  # of the speed: `samples/s` or `steps/s`
    of: str = ""  # whose speed it is: the `rank` that was followed, or the whole `job`
    told: float | None = None  # samples/s of one rank over the whole run, as the log itself says at its end
    total: float | None = None  # the same of the whole job
    batch: int | None = None  # samples of a step of one rank, where the log says it
    evaluations: tuple[Evaluation, ...] = ()
    window: tuple[float, ...] | None = None  # when training began and ended, seconds since the epoch by its nodes
    began: float | None = None  # when the first stamped line was printed that is no evaluation's, by its own clock

    @cached_property  # whoever weighs a trial asks a dozen times
    def pace(self) -> Pace | None:
        """None where the log told no speed."""
        return _paced(self)


@dataclass(frozen=True)
class Pace:
    """The speed of a training, whole and by parts."""

    unit: str
    of: str
    whole: float  # as the log says at its end, or else over all points
    warm_up_points: int = 0
    warm_up: float | None = None
    steady: float | None = None  # None where it cannot be told from the warm-up
    epochs: int = 0  # as many as the log told of

    @property
    def text(self) -> str:
        told = message("pace", whole=quantity(self.whole, self.unit))
        if self.steady is not None:
            told += message("pace steady", value=number(self.steady))
        if self.warm_up is not None:
            told += message("pace warm-up", value=number(self.warm_up), points=points_of(self.warm_up_points))
        return told + message("pace of job" if self.of == "job" else "pace of rank")

    def __str__(self) -> str:
        return str(self.text)


def points_of(count: int) -> str:
    return message("one point") if count == 1 else message("points", count=str(count))


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


def _paced(known: Curve) -> Pace | None:
    scale, unit = (known.batch, "samples/s") if known.unit == "steps/s" and known.batch else (1, known.unit)
    speeds = [speed * scale for speed in known.speed.values]
    if not speeds or not all(map(math.isfinite, speeds)):
        of, whole = ("job", known.total) if known.total else ("rank", known.told)
        return Pace("samples/s", of, whole) if whole else None
    slow, told = warm_up(speeds), known.total if known.of == "job" else known.told
    return Pace(
        unit,
        known.of,
        told if told and unit == "samples/s" else _mean(speeds),
        slow or 0,
        _mean(speeds[:slow]) if slow else None,
        None if slow is None else _mean(speeds[slow:]),
        max(point.epoch for point in known.speed.points),
    )


def reached(known: Curve, accuracy: float) -> float | None:
    """After how many seconds of training an evaluation was first at least so good; None where none was, or nobody
    knows when. Of very many evaluations some are not kept: then it is the first of those that are, never too soon."""
    times = (each.seconds for each in known.evaluations if each.accuracy >= accuracy)
    return next((time for time in times if time is not None), None)


def warm_up(speeds: Sequence[float]) -> int | None:
    """How many points at the beginning are not steady yet; None where that cannot be told."""
    if len(speeds) < _FEWEST:
        return None
    half = speeds[len(speeds) // 2 :]
    level = median(half)
    spread = MAD_TO_SIGMA * median(abs(speed - level) for speed in half)
    floor = level - max(_DEVIATIONS * spread, _TOLERANCE * level)
    slow = next((index for index, speed in enumerate(speeds) if speed >= floor), len(speeds))
    return slow if slow <= len(speeds) // 2 else None


def _mean(speeds: Sequence[float]) -> float:
    return len(speeds) / math.fsum(1 / speed for speed in speeds)


def _with(known: Curve, before: Progress, after: Progress, told: Told) -> Curve:
    if told.final:
        return replace(
            known,
            told=_positive(told.throughput) or known.told,
            total=_positive(told.total) or known.total,
            batch=told.batch or known.batch,
            window=_spanned(known.window, told.window),
        )
    if told.at is not None and told.accuracy is None and known.began is None:
        known = replace(known, began=told.at)
    if told.accuracy is not None:
        known = _evaluated(known, Evaluation(after.epoch, told.accuracy, _since(known.began, told)))
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


def _evaluated(known: Curve, evaluation: Evaluation) -> Curve:
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
