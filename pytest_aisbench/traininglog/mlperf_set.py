"""A folder of MLPerf's results as one set: which files are its runs, which are missing, how far the runs differ.

MLPerf calls the runs of a set `result_0.txt`, `result_1.txt` and so on. A run that is left out may be the bad one, so
everything that is named like a result is either read or mentioned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_aisbench.model.metric import MAD_TO_SIGMA, THROUGHPUT, MissingResult
from pytest_aisbench.traininglog.mlperf import SAMPLE_COUNTERS, Result, benchmark_name

PACKED = ".gz"
_SUFFIXES = frozenset({".txt", ".log", ".out"})  # checkpoints and data may lie beside the results, and are large
_RESULT = "result"
_NUMBERED = re.compile(r"result[_-]?(\d{1,4})(?!\d)")  # more digits are a date
_MOST_NAMED = 5
_APART = (0.01, 4)  # a run stands apart by more than this share, and this many standard deviations of the others


@dataclass(frozen=True)
class LeftOut:
    """What is named like a result, and is not read."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} is not read: {self.why}"


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _suffix(name: str) -> str:
    stem, dot, ending = _base(name).rpartition(".")
    return dot + ending if stem else ""


def is_result_name(name: str) -> bool:
    """Whether a file is a run by its name alone: an empty `result_3.txt` is a run that failed."""
    return _base(name).lower().startswith(_RESULT)


def may_be_result(name: str) -> bool:
    """Whether a file is read to look for events."""
    unpacked = name.lower().removesuffix(PACKED)
    return _suffix(unpacked) in _SUFFIXES or (not _suffix(unpacked) and is_result_name(unpacked))


def left_out(files: Iterable[str], folders: Iterable[str], read: Iterable[str]) -> list[LeftOut]:
    """What is named like a result and is not among `read`, by paths relative to the folder of the set."""
    names_read = set(read)
    missed = [LeftOut(name, _why_not(name)) for name in files if is_result_name(name) and name not in names_read]
    for name in folders:
        inside = any(other.startswith(f"{name}/") for other in names_read)
        if _NUMBERED.match(_base(name).lower()) and not inside:
            missed.append(LeftOut(name, "it is a folder without a result"))
    return sorted(missed, key=lambda each: each.name)


def _why_not(name: str) -> str:
    if may_be_result(name):
        return "it is no file"
    suffix = _suffix(name[: -len(PACKED)] if name.lower().endswith(PACKED) else name)
    if suffix.lower() in {".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".7z"}:
        return f"unpack {suffix} first, or pack by gzip"
    return f"no result of MLPerf's ends in {suffix!r}"


def missing_runs(read: Sequence[str], unread: Iterable[LeftOut]) -> list[str]:
    """A line for each folder whose runs are not numbered from 0, or 1, without a gap."""
    every = [*read, *(each.name for each in unread)]
    numbered: dict[str, dict[int, str]] = {}
    for name in every:
        number = _NUMBERED.match(_base(name).lower())
        if number:
            numbered.setdefault(_folder(name), {}).setdefault(int(number[1]), name)
    lines = []
    for folder, numbers in _merged(numbered).items():
        present = {number for number, name in numbers.items() if name in set(read)}
        begins = 1 if min(numbers) == 1 else 0
        absent = [number for number in range(begins, max(numbers) + 1) if number not in present]
        if absent:
            place = f" in {folder}" if folder else ""
            names = _listed([f"{_RESULT}_{number}" for number in absent])
            lines.append(f"{names} {'is' if len(absent) == 1 else 'are'} missing{place}: the set has a gap")
    return lines


def _merged(numbered: Mapping[str, dict[int, str]]) -> dict[str, dict[int, str]]:
    """By folder; where each run has a folder of its own, by the folder above."""
    merged: dict[str, dict[int, str]] = {}
    for folder, numbers in numbered.items():
        above = _folder(folder) if len(numbers) == 1 and folder else folder
        for number, name in numbers.items():
            merged.setdefault(above, {}).setdefault(number, name)
    return merged


def without_copies(results: Iterable[Result]) -> list[Result]:
    """The results; one that tells of the same run as an earlier one has no throughput: a copy is no second run.

    Runs are the same if the parsed times and evaluations are, however their lines are written.
    """
    seen: dict[tuple[object, ...], str] = {}
    checked = []
    for result in results:
        same = seen.setdefault(result.run, result.name) if result.run else result.name
        if same != result.name:
            copied = MissingResult(THROUGHPUT, f"it is the same run as {same}")
            result = replace(result, missing=(*result.missing, copied))  # noqa: PLW2901
        checked.append(result)
    return checked


def differences(results: Sequence[Result]) -> list[str]:
    """A line for each setting in which the runs differ, although runs of one set share it."""
    lines = []
    settings = {"submission_benchmark": {each.name: each.benchmark for each in results if each.benchmark}}
    for key in ("train_samples", "global_batch_size"):
        settings[key] = {
            each.name: f"{each.declared[key]:.15g}"
            for each in results
            if key in each.declared
            and (key != "train_samples" or benchmark_name(each.benchmark) not in SAMPLE_COUNTERS)
        }
    for key, by_file in settings.items():
        values = sorted(set(by_file.values()))
        if len(values) > 1:
            each = (
                f"{value} ({_listed([name for name, own in by_file.items() if own == value], 2)})" for value in values
            )
            lines.append(f"the runs differ in {key}: {_listed(list(each))}")
    return lines


@dataclass(frozen=True)
class Spread:
    """How far the runs of a set are apart, and the one that is farthest from the others."""

    relative: float  # from the slowest to the fastest, by the median
    farthest: str
    off: float  # of the farthest, from the median of the others; negative if it is slower
    others: float  # from the slowest to the fastest of the others, by their median
    apart: bool  # the farthest is beyond what the others let expect

    def __str__(self) -> str:
        where = f"{abs(self.off):.1%} {'below' if self.off < 0 else 'above'} the median of the others"
        runs = f"{self.relative:.1%} from the slowest run to the fastest"
        if self.apart:
            return f"{runs}; {self.farthest} stands apart: {where}, which are within {self.others:.1%}"
        return f"{runs}; farthest is {self.farthest}, {where}"


def spread(values: Mapping[str, float]) -> Spread | None:
    """How far the positive values of a set are apart; None for fewer than three, of which none is the odd one."""
    if len(values) < 3:
        return None
    distances = {name: _distance(name, values) for name in values}
    farthest = max(distances, key=lambda name: abs(distances[name]))
    others = [value for name, value in values.items() if name != farthest]
    middle = median(others)
    noise = MAD_TO_SIGMA * median(abs(value - middle) for value in others) / middle
    return Spread(
        (max(values.values()) - min(values.values())) / median(values.values()),
        farthest,
        distances[farthest],
        (max(others) - min(others)) / middle,
        abs(distances[farthest]) > max(_APART[0], _APART[1] * noise),
    )


def _distance(name: str, values: Mapping[str, float]) -> float:
    others = median(value for other, value in values.items() if other != name)
    return values[name] / others - 1


def _listed(names: Sequence[str], most: int = _MOST_NAMED) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
