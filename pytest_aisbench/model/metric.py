"""Metrics, their measurements, and results that are missing."""

from __future__ import annotations

from dataclasses import dataclass

THROUGHPUT = "throughput"
ACCURACY = "accuracy"
# No script writes these: they are computed from other shapes, or from the log of the training.
SCALING = "scaling"
STEADY_THROUGHPUT = "steady_throughput"  # without the warm-up; `throughput` is of the whole run
TIME_TO_ACCURACY = "time_to_accuracy"  # seconds of training until an evaluation met the claim on accuracy
SPEEDS = frozenset({THROUGHPUT, STEADY_THROUGHPUT, SCALING})  # which mean nothing where nothing was learnt
MAD_TO_SIGMA = 1.4826  # times the median distance from the median: the standard deviation of normal noise
LARGEST = 1e100  # no machine does more; sums of what is below, and squares, are finite
RECKONED = frozenset({SCALING, STEADY_THROUGHPUT, TIME_TO_ACCURACY})


@dataclass(frozen=True)
class Metric:
    """A name and the unit it is given in; a ratio has the unit ''."""

    name: str
    unit: str


@dataclass(frozen=True)
class Measurement:
    """One finite number that a rank, a node that trains alone, or the whole job wrote; and the object it came from."""

    metric: str
    value: float
    unit: str
    source: str
    rank: int | None = None
    server: int | None = None  # set where every node trains alone


@dataclass(frozen=True)
class MissingResult:
    """A result that is not there, or cannot be used, in one line that names it."""

    metric: str
    text: str
