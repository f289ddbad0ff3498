"""What one line of a log says, and the numbers in it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# Each part of a number can be read in one way only: a line of nothing but digits is looked at once, not n² times.
NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?|[-+]?inf|nan)"
COUNT = r"(\d{1,12})"
_FIELD = re.compile(rf"(?<![\w@])([A-Za-z][\w@]{{0,40}}):\s{{0,8}}{NUMBER}(?![\d/])")


@dataclass(frozen=True)
class Told:
    """What a line says; None for what it does not, or says without a finite number."""

    epoch: int | None = None  # counted from 1
    step: int | None = None
    loss: float | None = None
    has_loss: bool = False  # it spoke of the loss, finite or not
    ms_per_step: float | None = None
    throughput: float | None = None  # samples/s of the rank that speaks
    total: float | None = None  # samples/s of the whole job
    final: bool = False  # its throughput is that of the whole run
    batch: int | None = None
    accuracy: float | None = None
    elapsed: float | None = None  # seconds of training before the evaluation that it tells of
    at: float | None = None  # seconds since some moment that all lines of the log share
    window: tuple[float, float] | None = None  # when the training began and ended, seconds since the epoch


def fields(text: str) -> dict[str, float | None]:
    """`loss: 4.6, ips: 40.6 images/sec` by name; the last of a name counts."""
    return {found[1]: finite(found[2]) for found in _FIELD.finditer(text)}


def finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


def milliseconds(seconds: float | None) -> float | None:
    return seconds * 1000 if seconds and math.isfinite(seconds * 1000) else None
