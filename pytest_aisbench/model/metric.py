"""What is measured: metrics, measurements, missing results, and the curve of a training by its log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from pytest_aisbench.errors import perhaps
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.verdict import number, quantity

THROUGHPUT = "throughput"
ACCURACY = "accuracy"
SOFTWARE_UPDATE = "software update"  # names a finding in place of a metric
SCALING = "scaling"
STEADY_THROUGHPUT = "steady_throughput"
TIME_TO_ACCURACY = "time_to_accuracy"
LOSS = "loss"
SAMPLES_PER_S, TOKENS_PER_S, STEPS_PER_S = "samples/s", "tokens/s", "steps/s"  # in which a log gives a speed
MAD_TO_SIGMA = 1.4826  # times the median distance from the median: the standard deviation of normal noise
LARGEST = 1e100  # no machine does more; sums of what is below, and squares, are finite
PHYSICAL_LIMIT = 1e12  # that a value is below, unless workload.toml sets another `limit`


@dataclass(frozen=True)
class LogReading:
    """How a metric is read from the log, if the script writes no file with it: the keys of `[metrics.<name>]`.

    `times` and `samples` are products: each factor is a number, the name of a parameter, or `ranks`.
    """

    pattern: str = ""  # empty: the time that the job ran is taken in place of a printed number
    take: str = ""  # which number of several lines; empty: there is one line
    printed_by: str = "job"  # or `rank`: every rank prints a number of its own
    times: tuple[str, ...] = ()  # how many lines there must be; empty: not known
    scale: float = 1.0  # what the printed number is multiplied by
    samples: tuple[str, ...] = ()  # the number is the seconds that so many samples take; empty: it is the value


@dataclass(frozen=True, slots=True)
class Metric:
    """A name and the unit it is given in; a ratio has the unit ''."""

    name: str
    unit: str
    limit: float = PHYSICAL_LIMIT  # what is further from 0 is a fault of the measurement
    noise: float | None = None  # of one trial, as a share of its value, until history knows; None: the default
    log: LogReading | None = None  # None: the script writes it to a file

    @property
    def is_by_rank(self) -> bool:
        """Whether every rank has a value of its own; else the job has one, or each node that trains alone."""
        return self.name == THROUGHPUT if self.log is None else self.log.printed_by == "rank"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One finite number that a rank, a node that trains alone, or the whole job wrote; and the object, or the log, it
    came from."""

    metric: str
    value: float
    unit: str
    source: str
    rank: int | None = None
    server: int | None = None  # set where every node trains alone


@dataclass(frozen=True, slots=True)
class MissingResult:
    """A result that is not there, or cannot be used, in one line that names it."""

    metric: str
    text: str


class MetricValues(dict[str, float]):
    """Values by metric. A name that is not there is an error that says which are."""

    def __missing__(self, name: str) -> float:
        __tracebackhide__ = True
        advice = perhaps(name, self) if self else "nothing was measured"
        raise KeyError(f"the metric {name!r} was not measured; {advice}")


# The curve of a training: how loss, speed and accuracy developed.

MOST = 200  # points that are kept of a series; every second goes when there are more
_FEWEST = 4
_DEVIATIONS = 3.0
_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)  # of a thousand jobs there are hundreds of thousands
class Point:
    epoch: int
    step: int
    value: float


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """The accuracy of one evaluation, and after how many seconds of training, if the log tells."""

    epoch: int
    accuracy: float
    seconds: float | None = None


@dataclass(frozen=True)
class Curve:
    loss: Series = Series()
    speed: Series = Series()
    unit: str = ""  # of the speed: `samples/s`, `tokens/s` or `steps/s`
    of: str = ""  # whose speed it is: the `rank` that was followed, or the whole `job`
    # The speed over the whole run, as the log itself says at its end: of one rank, and of the whole job.
    rank_speed: float | None = field(default=None, metadata={"alias": "told"})
    job_speed: float | None = field(default=None, metadata={"alias": "total"})
    whole_unit: str = SAMPLES_PER_S  # of these two
    batch: int | None = None  # samples of a step of one rank, where the log says it
    evaluations: tuple[AccuracyPoint, ...] = ()
    window: tuple[float, ...] | None = None  # when training began and ended, seconds since the epoch by its nodes
    began: float | None = None  # when the first stamped line was printed that is no evaluation's, by its own clock
    # Steps whose update was skipped, and whose loss was not finite; None if the log counts none.
    skipped: int | None = None
    nans: int | None = None

    @cached_property  # asked for a dozen times per trial
    def pace(self) -> Pace | None:
        """The speed, whole and by parts; None if the log shows no speed."""
        return _pace(self)


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a training, whole and by parts."""

    unit: str
    of: str
    whole: float  # as the log says at its end, or else over all points
    warm_up_points: int = 0
    warm_up: float | None = None
    steady: float | None = None  # None if the warm-up cannot be told apart
    epochs: int = 0  # in the log

    @property
    def text(self) -> str:
        text = message("pace", whole=quantity(self.whole, self.unit))
        if self.steady is not None:
            text += message("pace steady", value=number(self.steady))
        if self.warm_up is not None:
            text += message("pace warm-up", value=number(self.warm_up), points=points_of(self.warm_up_points))
        return text + message("pace of job" if self.of == "job" else "pace of rank")

    def __str__(self) -> str:
        return str(self.text)


def counts_the_same(unit: str, of_log: str) -> bool:
    """Whether a workload's unit of throughput counts what a log counts. A workload has many names for samples, and
    tokens are none of them."""
    return of_log != STEPS_PER_S and unit.lower().startswith("token") == (of_log == TOKENS_PER_S)


def points_of(count: int) -> str:
    return message("one point") if count == 1 else message("points", count=str(count))


def _pace(curve: Curve) -> Pace | None:
    scale, unit = (curve.batch, SAMPLES_PER_S) if curve.unit == STEPS_PER_S and curve.batch else (1, curve.unit)
    speeds = [speed * scale for speed in curve.speed.values]
    if not speeds or not all(map(math.isfinite, speeds)):
        of, whole = ("job", curve.job_speed) if curve.job_speed else ("rank", curve.rank_speed)
        return Pace(curve.whole_unit, of, whole) if whole else None
    slow, whole = warm_up(speeds), curve.job_speed if curve.of == "job" else curve.rank_speed
    return Pace(
        unit,
        curve.of,
        whole if whole and unit == curve.whole_unit else _mean(speeds),
        slow or 0,
        _mean(speeds[:slow]) if slow else None,
        None if slow is None else _mean(speeds[slow:]),
        max(point.epoch for point in curve.speed.points),
    )


def warm_up(speeds: Sequence[float]) -> int | None:
    """How many points at the beginning belong to the warm-up; None if it cannot be told apart."""
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
