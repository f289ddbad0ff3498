"""Reads result files of MLPerf for speed and accuracy, and writes our results as such a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.model.clock import seconds_of
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, MissingResult
from pytest_aisbench.traininglog.readers import MLLOG, MOST_EPOCHS, finite_number, parse_event

_MOST_UNREADABLE = 5  # of the lines that cannot be read, we report so many
BENCHMARKS = ("resnet", "bert", "ssd", "maskrcnn", "dlrm", "rnnt", "unet3d")
_COUNTED = "train_samples × epochs / (run_stop − run_start)"
_TRACKED = "the mean of tracked_stats"
_START, _END, _POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"


@dataclass(frozen=True)
class Result:
    """One run of MLPerf, as its result file describes it."""

    name: str
    status: str  # of run_stop; empty if there is none
    seconds: float | None
    measured: Mapping[str, float]
    missing: tuple[MissingResult, ...]
    throughput_from: str = ""  # how the throughput was calculated
    evaluations: tuple[tuple[float, float], ...] = ()  # seconds since run_start, and the accuracy then
    benchmark: str = ""  # what was trained, in MLPerf's words


@dataclass
class _Events:
    """What the lines of one file say."""

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
    """The result in the lines of a file; lines without an event are ignored."""
    events, seen = _Events(), 0
    for number, line in enumerate(lines, start=1):
        if MLLOG not in line:
            continue
        seen += 1
        event = parse_event(line)
        time = finite_number(event.get("time_ms")) if event else None
        if event is None or time is None:
            if len(events.missing) < _MOST_UNREADABLE:
                events.missing.append(MissingResult(ACCURACY, f"line {number} is not an event of MLPerf's"))
            continue
        metadata = event.get("metadata")
        _gather(events, event["key"], event.get("value"), metadata if isinstance(metadata, dict) else {}, time)
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
    status = next((each for each in events.statuses if each != "success"), "success") if events.statuses else ""
    if events.statuses and status != "success":
        missing.append(MissingResult(ACCURACY, f"run_stop says {status!r}" if status else "run_stop has no status"))
    if events.accuracies:
        last = max(events.accuracies, key=lambda evaluation: evaluation[0])[0]
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
                text = "neither train_samples with epochs, nor tracked_stats with a throughput"
                missing.append(MissingResult(THROUGHPUT, f"its events tell no throughput: {text}"))
    begun = min(events.starts, default=math.inf)
    evaluated = sorted(((time - begun) / 1000, accuracy) for time, accuracy in events.accuracies if time >= begun)
    return Result(name, status, seconds, measured, tuple(missing), source, tuple(evaluated), events.benchmark)


def _speed(events: _Events, seconds: float) -> tuple[float, str]:
    """The throughput and how it was calculated: over the whole run if possible, since a threshold means that."""
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
    """MLPerf's name of a workload; the workload's own name where MLPerf has none."""
    return next((name for name in BENCHMARKS if workload.lower().startswith(name)), workload)


# Our results as a log of MLPerf


def mlperf_log(started: str, case: Mapping[str, Any], epochs: int, submission: Mapping[str, str]) -> str:
    """A case of `results.json` as a log of MLPerf, for tools that read that; `started` is when its run started.

    `submission` has `org`, `platform` and `status`, in MLPerf's sense.
    Each event is a line. What we do not know, such as the number of samples or whether caches were cleared, is null.
    Only differences of the times mean anything.
    """
    return "".join(
        f"{MLLOG} "
        + json.dumps(
            {
                "namespace": "",
                "time_ms": time,
                "event_type": kind,
                "key": key,
                "value": value,
                "metadata": {"file": "results.json", "lineno": 0, **metadata},
            },
            allow_nan=False,
        )
        + "\n"
        for time, kind, key, value, metadata in _log_events(started, case, epochs, submission)
    )


def _log_events(
    started: str, case: Mapping[str, Any], epochs: int, submission: Mapping[str, str]
) -> Iterator[tuple[int, str, str, Any, dict[str, Any]]]:
    """Time in ms, type, key, value and metadata of each event."""
    trial = case["trials"][-1]
    begun = int(seconds_of(started) * 1000)
    start = begun + int((trial["queued_s"] or 0.0) * 1000)
    stop = start + max(1, int((trial["ran_s"] or 0.0) * 1000))
    throughput, accuracy = (case["metrics"].get(name, {}).get("value") for name in ("throughput", "accuracy"))
    learnt = [finding["outcome"] == "met" for finding in case["findings"] if finding["metric"] == "accuracy"]
    converged = trial["phase"] == "SUCCEEDED" and accuracy is not None and bool(learnt) and all(learnt)

    yield begun, _POINT, "submission_org", submission["org"], {}
    yield (
        begun,
        _POINT,
        "submission_platform",
        f"{submission['platform']} {case['nodes']}x{case['devices_per_node']}",
        {},
    )
    yield begun, _POINT, "submission_division", "open", {}
    yield begun, _POINT, "submission_status", submission["status"], {}
    yield begun, _POINT, "submission_benchmark", benchmark_name(case["workload"]), {}
    yield begun, _POINT, "cache_clear", None, {}
    yield begun, _START, "init_start", None, {}
    yield start, _END, "init_stop", None, {}
    yield start, _START, "run_start", None, {}
    yield start, _POINT, "train_samples", None, {}
    yield start, _POINT, "eval_samples", None, {}
    block = {"first_epoch_num": 1, "epoch_count": epochs}
    yield start, _START, "block_start", None, block
    yield stop, _END, "block_stop", None, block
    if throughput is not None:
        yield stop, _POINT, "tracked_stats", {"throughput": throughput}, {"epoch_num": epochs}
    yield stop, _START, "eval_start", None, {"epoch_num": epochs}
    if accuracy is not None:
        yield stop, _POINT, "eval_accuracy", accuracy, {"epoch_num": epochs}
    yield stop, _END, "eval_stop", None, {"epoch_num": epochs}
    yield stop, _END, "run_stop", None, {"status": "success" if converged else "aborted"}
