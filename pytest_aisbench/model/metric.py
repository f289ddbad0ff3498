"""Metrics, their measurements, and results that are missing."""

from __future__ import annotations

from dataclasses import dataclass

THROUGHPUT = "throughput"
ACCURACY = "accuracy"
SCALING = "scaling"
STEADY_THROUGHPUT = "steady_throughput"
TIME_TO_ACCURACY = "time_to_accuracy"
MAD_TO_SIGMA = 1.4826  # times the median distance from the median: the standard deviation of normal noise
LARGEST = 1e100  # no machine does more; sums of what is below, and squares, are finite


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
