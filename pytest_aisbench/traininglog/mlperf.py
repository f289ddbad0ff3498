"""Read a result file of MLPerf: what its events say about speed and accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, MissingResult
from pytest_aisbench.traininglog.readers import MLLOG, MOST_EPOCHS, finite_number, parse_event

_MOST_UNREADABLE = 5  # lines that cannot be read; there may be thousands
BENCHMARKS = ("resnet", "bert", "ssd", "maskrcnn", "dlrm", "rnnt", "unet3d")
_COUNTED = "train_samples × epochs / (run_stop − run_start)"
_TRACKED = "the mean of tracked_stats"


@dataclass(frozen=True)
class Result:
    """One run of MLPerf's, as its file tells it."""

    name: str
    status: str  # of run_stop; empty if there is none
    seconds: float | None
    measured: Mapping[str, float]
    missing: tuple[MissingResult, ...]
    throughput_from: str = ""  # how the throughput was reckoned
    evaluations: tuple[tuple[float, float], ...] = ()  # seconds since run_start, and the accuracy then
    benchmark: str = ""  # what it says that was trained, in MLPerf's words


@dataclass
class _Events:
    """What is gathered from the lines."""

    starts: list[float] = field(default_factory=list)  # ms
    stops: list[float] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    accuracies: list[tuple[float, float]] = field(default_factory=list)  # when, and what
    speeds: list[float] = field(default_factory=list)
    samples: float | None = None
    epochs: set[float] = field(default_factory=set)
    blocks: dict[float, float] = field(default_factory=dict)  # first epoch → how many
    stopped: set[float] = field(default_factory=set)  # blocks, by their first epoch
    missing: list[MissingResult] = field(default_factory=list)
    benchmark: str = ""


def parse_result(name: str, lines: Iterable[str]) -> Result:
    """Of a file's lines; those that are no events are passed over."""
    events, seen = _Events(), 0
    for number, line in enumerate(lines, start=1):
        if MLLOG not in line:
            continue
        seen += 1
        found = parse_event(line)
        time = finite_number(found.get("time_ms")) if found else None
        if found is None or time is None:
            if len(events.missing) < _MOST_UNREADABLE:
                events.missing.append(MissingResult(ACCURACY, f"line {number} is not an event of MLPerf's"))
            continue
        metadata = found.get("metadata")
        _gather(events, found["key"], found.get("value"), metadata if isinstance(metadata, dict) else {}, time)
    if not seen:
        events.missing.append(MissingResult(THROUGHPUT, f"there is no line with {MLLOG}"))
        events.missing.append(MissingResult(ACCURACY, f"there is no line with {MLLOG}"))
        return Result(name, "", None, {}, tuple(events.missing))
    return _result(name, events)


def _gather(events: _Events, key: str, value: Any, metadata: Mapping[str, Any], time: float) -> None:
    epoch = finite_number(metadata.get("epoch_num"))
    first = finite_number(metadata.get("first_epoch_num"))
    if key == "run_start":
        events.starts.append(time)
    elif key == "run_stop":
        events.stops.append(time)
        events.statuses.append(str(metadata.get("status", "")))
    elif key == "eval_accuracy":
        accuracy = finite_number(value)
        if accuracy is None:
            events.missing.append(MissingResult(ACCURACY, "eval_accuracy is not a finite number"))
        else:
            events.accuracies.append((time, accuracy))
    elif key == "submission_benchmark":
        events.benchmark = str(value or "")
    elif key == "train_samples":
        events.samples = finite_number(value)
    elif key == "epoch_stop" and epoch is not None:
        events.epochs.add(epoch)
    elif key == "block_start" and first is not None:
        events.blocks[first] = finite_number(metadata.get("epoch_count")) or 0.0
    elif key == "block_stop" and first is not None:
        events.stopped.add(first)
    elif key in {"tracked_stats", "throughput"}:
        speed = finite_number(value.get("throughput") if isinstance(value, dict) else value)
        if speed is not None and speed > 0:
            events.speeds.append(speed)


def _result(name: str, events: _Events) -> Result:
    missing, measured = events.missing, {}
    for key, times in (("run_start", events.starts), ("run_stop", events.stops)):
        if not times:
            missing.append(
                MissingResult(THROUGHPUT, f"{key} is missing{': the run did not end' if key == 'run_stop' else ''}")
            )
        elif len(times) > 1:
            missing.append(MissingResult(THROUGHPUT, f"it holds more than one run: {key} is told {len(times)} times"))
    status = next((told for told in events.statuses if told != "success"), "success") if events.statuses else ""
    if events.statuses and status != "success":
        missing.append(MissingResult(ACCURACY, f"run_stop says {status!r}" if status else "run_stop has no status"))
    if events.accuracies:
        last = max(events.accuracies, key=lambda told: told[0])[0]
        measured[ACCURACY] = [accuracy for time, accuracy in events.accuracies if time == last][-1]
        if not 0 <= measured[ACCURACY] <= 1:
            missing.append(MissingResult(ACCURACY, f"eval_accuracy {measured[ACCURACY]:g} is not between 0 and 1"))
    else:
        missing.append(MissingResult(ACCURACY, "eval_accuracy is missing"))
    seconds, source = None, ""
    if events.starts and events.stops:
        seconds = (max(events.stops) - min(events.starts)) / 1000
        if seconds <= 0:
            missing.append(MissingResult(THROUGHPUT, "run_stop is not after run_start"))
        else:
            speed, source = _speed(events, seconds)
            if math.isfinite(speed) and speed > 0:
                measured[THROUGHPUT] = speed
            else:
                told = "neither train_samples with epochs, nor tracked_stats with a throughput"
                missing.append(MissingResult(THROUGHPUT, f"its events tell no throughput: {told}"))
    begun = min(events.starts, default=math.inf)
    evaluated = sorted(((time - begun) / 1000, accuracy) for time, accuracy in events.accuracies if time >= begun)
    return Result(name, status, seconds, measured, tuple(missing), source, tuple(evaluated), events.benchmark)


def _speed(events: _Events, seconds: float) -> tuple[float, str]:
    """Over the whole run where the events tell how much was trained, since that is what a threshold means."""
    epochs: float = len(events.epochs)
    if not epochs:
        epochs = sum(events.blocks.get(first, 0.0) for first in events.stopped)
    counted = all(number < MOST_EPOCHS for number in (*events.epochs, *events.stopped, epochs))
    if events.samples and events.samples > 0 and epochs > 0 and counted:
        return events.samples * epochs / seconds, _COUNTED
    if events.speeds:
        return len(events.speeds) / math.fsum(1 / speed for speed in events.speeds), _TRACKED
    return math.nan, ""


def benchmark_name(workload: str) -> str:
    """MLPerf's name of a workload of ours; its own where MLPerf has none."""
    return next((name for name in BENCHMARKS if workload.lower().startswith(name)), workload)
