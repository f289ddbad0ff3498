"""Reads result files of MLPerf for speed and accuracy, and writes our results as such a file.

How many samples a run trained. MLCommons' own RCP checker takes it from `epoch_num` of the last `eval_accuracy` before
`run_stop`, and so do we: it counts epochs of `train_samples` each, and in BERT samples. The blocks and epochs of a log
cannot replace it, since every submitter counts something else there (epochs, steps, samples, evaluations), but they can
contradict it. Then the throughput is not known, and the result says which numbers do not fit.

Only events between `run_start` and `run_stop` count, by their lines and by their times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from pytest_aisbench.model.clock import seconds_of
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, MissingResult
from pytest_aisbench.traininglog.linetable import finite_number
from pytest_aisbench.traininglog.readers import MLLOG, MOST_EPOCHS, parse_event

_T = TypeVar("_T")
_MOST_UNREADABLE = 5  # of the lines that cannot be read, we report so many
_MOST_EVENTS = 100_000  # that matter to us; a run of MLPerf has some hundreds
_LONGEST_TEXT = 100  # of a name that a log gives
# MLPerf's names, and how many runs of each make a result.
RUNS_OF_A_SET: Mapping[str, int] = {
    "resnet": 5, "bert": 10, "ssd": 5, "maskrcnn": 5, "dlrm": 5, "rnnt": 10, "unet3d": 40,
}  # fmt: skip
BENCHMARKS = tuple(RUNS_OF_A_SET)
SAMPLE_COUNTERS = frozenset({"bert"})  # whose `epoch_num` counts samples
_COUNTED = "train_samples × epochs / (run_stop − run_start)"
_COUNTED_SAMPLES = "samples, by the last eval_accuracy / (run_stop − run_start)"
_TOTAL = "train_samples, the total at the end / (run_stop − run_start)"
_TRACKED = "the mean of tracked_stats"
_START, _END, _POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"

_EPOCHS_AGREE = 0.02  # an `epoch_num` may be so much above what the blocks say; below, one epoch: some count from 0
_SAMPLES_AGREE = 0.05  # steps × batch leave out what is packed into a sequence: 1.6 % in public logs
_LEAST_OF_TOTAL = 0.01  # of `train_samples`, which in BERT is the total or the plan: fewer are steps or evaluations

_METADATA = ("epoch_num", "first_epoch_num", "epoch_count", "samples_count")
_DECLARED = ("submission_benchmark", "train_samples", "global_batch_size")
_KEYS = frozenset(
    {
        *_DECLARED, "run_start", "run_stop", "eval_accuracy", "epoch_start", "epoch_stop", "block_start", "block_stop",
        "tracked_stats", "throughput",
    }
)  # fmt: skip


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
    contradictions: tuple[str, ...] = ()  # numbers of the file that exclude each other, a line each
    epoch_num: float | None = None  # of the last evaluation: what the RCP checker of MLCommons counts
    samples: float | None = None  # that were trained
    declared: Mapping[str, float] = field(default_factory=dict)  # train_samples and global_batch_size
    run: tuple[Any, ...] = ()  # what identifies the run: its times and its evaluations; empty if it has none
    events: int = 0  # lines with an event, readable or not


@dataclass(frozen=True)
class _Event:
    """A line of the log that matters to us."""

    line: int
    time: float  # ms
    key: str
    value: float | str | None  # a number or a short text: nothing of the file's size
    numbers: Mapping[str, float]  # of its metadata
    status: str

    @classmethod
    def of(cls, line: int, time: float, event: Mapping[str, Any]) -> _Event:
        value, metadata = event.get("value"), event.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        numbers = ((name, finite_number(metadata.get(name))) for name in _METADATA)
        if isinstance(value, dict) and event["key"] == "tracked_stats":
            value = value.get("throughput")
        return cls(
            line,
            time,
            event["key"],
            value[:_LONGEST_TEXT] if isinstance(value, str) else finite_number(value),
            {name: number for name, number in numbers if number is not None},
            str(metadata.get("status", ""))[:_LONGEST_TEXT],
        )

    @property
    def amount(self) -> float:
        """Its value; 0 if that is no number."""
        return self.value if isinstance(self.value, float) else 0.0

    def number(self, name: str) -> float | None:
        return self.numbers.get(name)


def parse_result(name: str, lines: Iterable[str], benchmark: str = "") -> Result:
    """The result in the lines of a file; lines without an event are ignored.

    `benchmark` is MLPerf's name of what we expect, for a file that does not name it.
    """
    events: list[_Event] = []
    missing: list[MissingResult] = []
    seen = 0
    for number, line in enumerate(lines, start=1):
        if MLLOG not in line:
            continue
        seen += 1
        event = parse_event(line)
        time = finite_number(event.get("time_ms")) if event else None
        if event is None or time is None:
            if len(missing) < _MOST_UNREADABLE:
                missing.append(MissingResult(ACCURACY, f"line {number} is not an event of MLPerf's"))
        elif event["key"] in _KEYS:
            if len(events) == _MOST_EVENTS:
                missing.insert(0, MissingResult(ACCURACY, f"it has more than {_MOST_EVENTS} events: no log of one run"))
                break
            events.append(_Event.of(number, time, event))
    if not seen:
        missing += [MissingResult(metric, f"there is no line with {MLLOG}") for metric in (THROUGHPUT, ACCURACY)]
        return Result(name, "", None, {}, tuple(missing))
    return _Reading(events, missing).result(name, benchmark, seen)


class _Reading:
    """What the events of one file say, and what they fail to say."""

    def __init__(self, events: Sequence[_Event], missing: list[MissingResult]) -> None:
        self._missing = missing
        self._contradictions: list[str] = []
        self._starts = [event for event in events if event.key == "run_start"]
        self._stops = [event for event in events if event.key == "run_stop"]
        self._inside = self._window(events)
        self._evaluations = self._finite_evaluations()
        evaluations = sum(event.key == "eval_accuracy" for event in events)
        self._outside = evaluations - len(self._of("eval_accuracy"))
        self._benchmarks = _distinct(str(event.value or "") for event in events if event.key == "submission_benchmark")
        self._train_samples = _numbers(events, "train_samples")
        self._total_line = min((event.line for event in events if event.key == "train_samples"), default=0)
        self._batches = _numbers(events, "global_batch_size")

    def result(self, name: str, expected: str, seen: int) -> Result:
        self._check_run()
        status = self._status()
        accuracy = self._accuracy()
        measured = {} if accuracy is None else {ACCURACY: accuracy}
        self._check_declarations()
        seconds, samples, source = self._seconds(), None, ""
        if seconds is not None and seconds > 0:
            speed, samples, source = self._speed(seconds, benchmark_name(self._benchmark() or expected))
            if speed is not None:
                measured[THROUGHPUT] = speed
        begun = self._starts[0].time if self._starts else 0.0
        declared = {"train_samples": self._train_samples, "global_batch_size": self._batches}
        return Result(
            name, status, seconds, measured, tuple(self._missing), source,
            tuple(((event.time - begun) / 1000, event.amount) for event in self._evaluations),
            self._benchmark(), tuple(self._contradictions),
            self._evaluations[-1].number("epoch_num") if self._evaluations else None, samples,
            {key: values[0] for key, values in declared.items() if len(values) == 1}, self._identity(), seen,
        )  # fmt: skip

    def _benchmark(self) -> str:
        return self._benchmarks[-1] if self._benchmarks else ""

    # The window

    def _window(self, events: Sequence[_Event]) -> list[_Event]:
        if not self._starts or not self._stops:
            return []
        first, last = self._starts[0], self._stops[-1]
        return [
            event for event in events if first.line < event.line < last.line and first.time <= event.time <= last.time
        ]

    def _of(self, *keys: str) -> list[_Event]:
        return [event for event in self._inside if event.key in keys]

    def _seconds(self) -> float | None:
        if not self._starts or not self._stops:
            return None
        seconds = (self._stops[-1].time - self._starts[0].time) / 1000
        if seconds <= 0:
            self._missing.append(MissingResult(THROUGHPUT, "run_stop is not after run_start"))
        return seconds

    def _check_run(self) -> None:
        for key, events in (("run_start", self._starts), ("run_stop", self._stops)):
            if not events:
                ending = ": the run did not end" if key == "run_stop" else ""
                self._missing.append(MissingResult(THROUGHPUT, f"{key} is missing{ending}"))
            elif len(events) > 1:
                text = f"it holds more than one run: {key} is told {len(events)} times"
                self._missing.append(MissingResult(THROUGHPUT, text))

    def _status(self) -> str:
        if not self._stops:
            return ""
        statuses = [event.status for event in self._stops]
        status = next((each for each in statuses if each != "success"), "success")
        if status != "success":
            text = f"run_stop says {status!r}" if status else "run_stop has no status"
            self._missing.append(MissingResult(ACCURACY, text))
        return status

    def _identity(self) -> tuple[Any, ...]:
        times = tuple((event.key, event.time) for event in (*self._starts, *self._stops))
        learnt = tuple((event.time, event.amount, event.number("epoch_num")) for event in self._evaluations)
        return (times, learnt) if times else ()

    # Accuracy

    def _finite_evaluations(self) -> list[_Event]:
        every = self._of("eval_accuracy")
        finite = [event for event in every if isinstance(event.value, float)]
        if len(finite) < len(every):
            self._missing.append(MissingResult(ACCURACY, "eval_accuracy is not a finite number"))
        return finite

    def _accuracy(self) -> float | None:
        if not self._evaluations:
            where = f" between run_start and run_stop: {self._outside} are outside" if self._outside else ""
            self._missing.append(MissingResult(ACCURACY, f"eval_accuracy is missing{where}"))
            return None
        last = self._evaluations[-1]
        latest = max(event.time for event in self._evaluations)
        if last.time < latest:
            self._contradictions.append(
                f"the last eval_accuracy, in line {last.line}, is {(latest - last.time) / 1000:g} s older than another"
            )
        accuracy = last.amount
        if not 0 <= accuracy <= 1:
            self._missing.append(MissingResult(ACCURACY, f"eval_accuracy {accuracy:g} is not between 0 and 1"))
        return accuracy

    # Throughput

    def _check_declarations(self) -> None:
        for key, values in (("submission_benchmark", self._benchmarks), ("train_samples", self._train_samples)):
            if len(values) > 1:
                different = " and ".join(repr(each) if isinstance(each, str) else _count(each) for each in values[:3])
                self._contradictions.append(f"{key} is {different}: a run has one")

    def _speed(self, seconds: float, benchmark: str) -> tuple[float | None, float | None, str]:
        """The throughput, the samples and their source: over the whole run, since a threshold means that."""
        samples, source = self._samples(benchmark)
        if self._contradictions:
            return None, None, ""
        if samples is None:
            speeds = [event.amount for event in self._of("tracked_stats", "throughput") if event.amount > 0]
            if speeds:
                return len(speeds) / math.fsum(1 / speed for speed in speeds), None, _TRACKED
        elif math.isfinite(samples / seconds):
            return samples / seconds, samples, source
        text = "neither eval_accuracy with epoch_num and train_samples, nor tracked_stats with a throughput"
        self._missing.append(MissingResult(THROUGHPUT, f"its events tell no throughput: {text}"))
        return None, None, ""

    def _samples(self, benchmark: str) -> tuple[float | None, str]:
        """The samples that were trained, None if no event counts them; notes a contradiction."""
        if not self._evaluations or len(self._train_samples) > 1:
            return None, ""
        last = self._evaluations[-1]
        trained = last.number("epoch_num")
        if trained is None:
            counted = last.number("samples_count") if benchmark not in BENCHMARKS else None  # newer ones count so
            return (counted if counted and counted > 0 else None), _COUNTED_SAMPLES
        earlier = max(event.number("epoch_num") or 0.0 for event in self._evaluations)
        if trained < earlier:
            numbers = f"{_count(trained)}, and an earlier one {_count(earlier)}"
            self._contradictions.append(f"the last eval_accuracy says epoch_num {numbers}")
        total = self._train_samples[0] if self._train_samples else 0.0
        if trained <= 0:
            return None, ""
        if benchmark in SAMPLE_COUNTERS:
            if total <= 0 and not self._batches:
                return None, ""  # nothing confirms that these are samples
            if earlier <= 1 and self._total_line > last.line:
                # All evaluations say epoch 1, and count nothing. MLCommons' checker then takes the total
                # (`--bert_train_samples`). A log that states it before the training states a plan.
                return total, _TOTAL
            self._note(self._samples_contradiction(trained, total))
            return trained, _COUNTED_SAMPLES
        certain = benchmark in BENCHMARKS and bool(self._benchmarks)  # that these are epochs
        if total <= 0 or (trained >= MOST_EPOCHS and not certain):
            return None, ""
        self._note(self._epochs_contradiction(trained, certain=certain))
        return total * trained, _COUNTED

    def _note(self, contradiction: str) -> None:
        if contradiction:
            self._contradictions.append(contradiction)

    def _epochs_contradiction(self, epochs: float, *, certain: bool) -> str:
        """Why so many epochs cannot have been trained; empty if epochs and blocks of the log agree with it."""
        claim = f"eval_accuracy says {_count(epochs)} epochs"
        spans = list(self._epoch_spans())
        if epochs >= MOST_EPOCHS or not (spans or certain):
            return f"{claim}, which no block and no epoch of the log confirms"
        for what, least, most in spans:
            if not least - 1 <= epochs <= most * (1 + _EPOCHS_AGREE):
                span = _count(most) if least == most else f"{_count(least)} to {_count(most)}"
                return f"{claim}, and its {what} say {span}"
        return ""

    def _epoch_spans(self) -> Iterator[tuple[str, float, float]]:
        """How many epochs the log shows at least and at most, by each kind of its events.

        `epoch_count` is taken only where there is no other sign, because some logs say 1 for blocks of four epochs;
        the name of a `block_stop` never, because some logs call a block by its first epoch, and others by the next.
        """
        stopped = {event.number("epoch_num") for event in self._of("epoch_stop")}
        started = {event.number("epoch_num") for event in self._of("epoch_start")}
        if stopped or started:
            yield "epoch_start and epoch_stop", float(len(stopped)), float(max(len(stopped), len(started)))
        blocks = [event for event in self._of("block_start") if event.number("first_epoch_num") is not None]
        firsts = sorted({event.number("first_epoch_num") or 0.0 for event in blocks})
        counts = [event.number("epoch_count") or 0.0 for event in blocks]
        if len(firsts) > 1:
            reach = firsts[-1] - firsts[0]
            longest = max(after - before for before, after in pairwise(firsts))
            yield "blocks", reach, reach + max(longest, counts[-1])
        elif firsts:
            yield "blocks", 0.0, math.fsum(counts)

    def _samples_contradiction(self, samples: float, total: float) -> str:
        """Why this cannot be a number of samples; empty if batch, total and blocks of the log agree with it."""
        claim = f"eval_accuracy says {_count(samples)} samples"
        batch = max(self._batches, default=0.0)
        if samples < batch:
            return f"{claim}, fewer than one global_batch_size of {_count(batch)}"
        if total > 0 and not _LEAST_OF_TOTAL * total <= samples <= total * (1 + _EPOCHS_AGREE):
            return f"{claim}, and train_samples is {_count(total)}"
        starts, stops = self._of("block_start"), self._of("block_stop")
        ended = stops[-1].line if stops else 0
        counts = [event.number("epoch_count") or 0.0 for event in starts if event.line < ended]
        if max(counts, default=0.0) <= 1:
            return ""  # a block is an interval between evaluations, or the whole run
        blocks = (math.fsum(counts), stops[-1].number("first_epoch_num") or 0.0)
        fitting = [count * unit for count in blocks for unit in (1.0, batch)]
        if any(abs(samples - each) <= _SAMPLES_AGREE * each for each in fitting if each > 0):
            return ""
        units = f"samples or steps of {_count(batch)}" if batch else "samples"
        return f"{claim}, and its blocks count {_count(blocks[0])} {units}, to {_count(blocks[1])}"


def _numbers(events: Iterable[_Event], key: str) -> list[float]:
    return _distinct(event.amount for event in events if event.key == key)


def _distinct(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(value for value in values if value))


def _count(number: float) -> str:
    """A count as a reader looks for it in the file: 3170304, not 3.1703e+06."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:g}"


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
