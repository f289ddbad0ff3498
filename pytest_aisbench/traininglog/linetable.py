"""What one line of a training log says, and the tables by which the readers take it from the line.

A `LineTable` is one regular expression; a `FieldTable` reads lines that name their numbers and do not always print the
same ones. `readers.py` has the tables of the frameworks.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_aisbench.model.metric import SAMPLES_PER_S

# A regular expression that reads each part of a number in one way only: it scans a line of nothing but digits once.
NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?|[-+]?inf|nan)"
COUNT = r"(\d{1,12})"
_DIGITS = 12  # of a count
Reader = Callable[[str], "LogLine | None"]


@dataclass(frozen=True)
class LogLine:
    """What one line of a log says. None: the line does not say it, or its number is not finite."""

    epoch: int | None = None  # counted from 1
    step: int | None = None
    loss: float | None = None
    has_loss: bool = False  # the line gives a loss, finite or not
    steps: int | None = None  # how many steps there will be, of the epoch or of the whole training
    ms_per_step: float | None = None
    throughput: float | None = None  # of one rank
    total: float | None = None  # the throughput of the whole job
    unit: str = SAMPLES_PER_S  # of both
    final: bool = False  # the throughput is that of the whole run
    batch: int | None = None
    skipped: int | None = None  # steps since the line before whose update was skipped
    nans: int | None = None  # steps since the line before whose loss was not finite
    accuracy: float | None = None
    elapsed: float | None = None  # seconds of training before this evaluation
    at: float | None = None  # seconds since a moment that all lines of the log share
    window: tuple[float, float] | None = None  # when the training began and ended, seconds since the epoch


# Numbers and times in a line

_FIELD = re.compile(rf"(?<![\w@])([A-Za-z][\w@]{{0,40}}):\s{{0,8}}{NUMBER}(?![\d/])")
_STAMP = re.compile(r"\[(\d{4})[/-](\d{1,2})[/-](\d{1,2}) (\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,6}))?\]")


def named_numbers(text: str) -> dict[str, float | None]:
    """`loss: 4.6, ips: 40.6 images/sec` by name; the last value of a name counts."""
    return {match[1]: finite(match[2]) for match in _FIELD.finditer(text)}


def finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


def finite_number(value: Any) -> float | None:
    """The number of a JSON value; None for what is no number, or too large to calculate with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) and abs(value) < 1e300 else None
    except OverflowError:  # an integer beyond every float
        return None


def _positive(value: float) -> float | None:
    return value if 0 < value < math.inf else None


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else _positive(seconds * 1000)


def line_time(line: str) -> float | None:
    """Seconds of a stamp like `[2022/04/04 17:51:12]`, in any time zone: only differences count."""
    match = _STAMP.match(line)
    if not match:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)  # a year that begins in March
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day
    return 86400.0 * days + 3600 * hour + 60 * minute + second + float(f"0.{match[7] or 0}")


# Lines that a table describes


def group(name: str, number: str = NUMBER) -> str:
    """A number with a name, which is that of a field of `LogLine`."""
    return f"(?P<{name}>{number[1:-1]})"


EPOCH, STEP, STEPS = group("epoch", COUNT), group("step", COUNT), group("steps", COUNT)
LOSS, ACCURACY, MS, SPEED, TOTAL = map(group, ("loss", "accuracy", "ms_per_step", "throughput", "total"))
SECONDS = group("seconds_per_step")
_WHOLE_NUMBERS = ("epoch", "step", "steps")
_OF = "of"


@dataclass(frozen=True)
class LineTable:
    """A line of a framework: a regular expression whose groups are named after the fields of `LogLine`.

    Beside a group `accuracy` there may be one that is named `of`: then their ratio counts, as in workload.toml. A group
    `seconds_per_step` stands for `ms_per_step`.
    """

    pattern: str
    scale: float = 1.0  # of the accuracy: 0.01 for a percentage
    first: Mapping[str, int] = field(
        default_factory=dict
    )  # what the framework calls its first epoch, or step, if not 1
    final: bool = False
    flags: re.RegexFlag = re.RegexFlag(0)

    @functools.cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self.flags)

    def read(self, line: str) -> LogLine | None:
        match = self.expression.match(line)
        if not match:
            return None
        texts = {name: text for name, text in match.groupdict().items() if text is not None}
        of = float(texts.pop(_OF, "1"))
        if not of:
            return None
        seconds = texts.pop("seconds_per_step", None)
        fields: dict[str, Any] = {
            name: int(text) + 1 - self.first.get(name, 1) if name in _WHOLE_NUMBERS else finite(text)
            for name, text in texts.items()
        }
        if seconds:
            fields["ms_per_step"] = milliseconds(finite(seconds))
        if (accuracy := fields.get("accuracy")) is not None:
            fields["accuracy"] = accuracy / of * self.scale
        return LogLine(**fields, has_loss="loss" in fields, final=self.final)


class Field(NamedTuple):
    """What a named field of a line is for `LogLine`."""

    name: str  # of a field of `LogLine`; or `batch of job`, samples of a step of the whole job
    unit: str = SAMPLES_PER_S  # of a throughput
    suffix: str = ""  # that the number has: `1.2s`
    scale: float = 1.0


_BATCH_OF_JOB = "batch of job"
_COUNTS = ("skipped", "nans", _BATCH_OF_JOB)
_SPEEDS = ("throughput", "total")
# `829`, `21,734`, `1.19E+01`; of `13372.8/13364.7` the first is of now, the second a mean.
_CELL = re.compile(rf"(\d{{1,3}}(?:,\d{{3}})+(?:\.\d*)?|{NUMBER[1:-1]})(?:/{NUMBER})?")
_SPACED = re.compile(r"(?<=\s\s)([a-z_]{1,40}):\s{1,16}(\S{1,40})(?=\s\s|\s{0,8}\Z)")


def spaced_cells(text: str) -> Iterable[tuple[str, str]]:
    """`loss:  5.9866  grad_norm:  0.5402`: two blanks or more between the fields."""
    return (match.groups() for match in _SPACED.finditer(text))  # type: ignore[misc]  # two groups


def barred_cells(text: str) -> Iterator[tuple[str, str]]:
    """` lm loss: 1.19E+01 | loss scale: 1.0`; old ones have a blank in place of the colon."""
    for cell in text.split("|"):
        name, colon, value = cell.partition(":")
        if not colon:
            name, _, value = cell.rstrip().rpartition(" ")
        yield name.strip(), value.strip()


def closed_cells(text: str) -> Iterator[tuple[str, str]]:
    """Fields that each end with a bar: what follows the last bar is torn."""
    return barred_cells(text.rpartition("|")[0])


@dataclass(frozen=True)
class FieldTable:
    """A line of a framework that names its numbers, in any order, and leaves some of them out."""

    mark: str  # a text that every such line has, and hardly another
    begin: str  # a regular expression up to the first field, with groups named after the fields of `LogLine`
    cells: Callable[[str], Iterable[tuple[str, str]]]  # the rest of the line, as names and values
    fields: Mapping[str, Field]  # by the name in the line; of several speeds in a line the first of these counts
    first: Mapping[str, int] = field(default_factory=dict)
    leaves_out_nan: bool = False  # the framework prints a loss only if it is finite

    @functools.cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(self.begin)

    def read(self, line: str) -> LogLine | None:
        match = self.expression.match(line) if self.mark in line else None
        if not match:
            return None
        texts: dict[str, str] = {}
        for name, text in self.cells(line[match.end() :]):
            if name in self.fields:
                texts[name] = "" if name in texts else text  # two lines in one: neither number counts
        values: dict[str, Any] = {
            name: int(text) + 1 - self.first.get(name, 1) for name, text in match.groupdict().items()
        }
        for name, meaning in self.fields.items():
            if name not in texts or meaning.name in values or (meaning.name in _SPEEDS and "unit" in values):
                continue
            values[meaning.name] = _cell_value(texts[name], meaning)
            if meaning.name in _SPEEDS and values[meaning.name] is not None:
                values["unit"] = meaning.unit
        batch, ms = values.pop(_BATCH_OF_JOB, None), values.get("ms_per_step")
        if batch and ms and "unit" not in values:
            values["total"] = _positive(batch * 1000 / ms)
        return LogLine(**values, has_loss=self.leaves_out_nan or "loss" in values)


def _cell_value(text: str, meaning: Field) -> float | None:
    """The number of a field, if it is whole, and one that the field can have."""
    match = _CELL.fullmatch(text.removesuffix(meaning.suffix)) if text.endswith(meaning.suffix) else None
    if not match:
        return None
    value = finite(match[1].replace(",", ""))
    if value is None or meaning.name == "loss":
        return value
    if meaning.name in _COUNTS:
        return int(value) if value.is_integer() and 0 <= value < 10**_DIGITS else None
    return _positive(value * meaning.scale)


def any_of(*tables: LineTable | FieldTable | Reader) -> Reader:
    """A reader that asks one after the other."""
    readers = [table.read if isinstance(table, LineTable | FieldTable) else table for table in tables]

    def read(line: str) -> LogLine | None:
        return next(filter(None, (reader(line) for reader in readers)), None)

    return read
