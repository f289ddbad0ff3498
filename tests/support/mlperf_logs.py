"""Logs of MLPerf as submitters write them, each with what is true of it.

The dialects are those of public results of MLPerf Training 0.7 to 4.0: what `epoch_num` and the blocks count, where
`train_samples` stands, how a `block_stop` is named. Each builder is given the truth, and writes what such a system
would have written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

IMAGENET = 1_281_167
START_MS = 1_621_528_160_000


@dataclass(frozen=True)
class MlperfLog:
    """The lines of a result file, and the truth about the run."""

    lines: tuple[str, ...]
    benchmark: str
    samples: float  # by `epoch_num`; what is to be read
    seconds: float
    accuracy: float
    epoch_num: float

    @property
    def throughput(self) -> float:
        return self.samples / self.seconds

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def prefixed(self, prefix: str) -> MlperfLog:
        return replace(self, lines=tuple(f"{prefix}{line}" for line in self.lines))


@dataclass
class _Writer:
    """Writes events with a clock that goes on."""

    extra: Mapping[str, Any]  # what every event has beside time, key, value and metadata
    ms: int = START_MS
    lines: list[str] = field(default_factory=list)

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        about = {"file": "/workspace/train.py", "lineno": 88, **metadata}
        event = {**self.extra, "time_ms": self.ms, "key": key, "value": value, "metadata": about}
        self.lines.append(":::MLLOG " + json.dumps(event))

    def wait(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)

    def declare(self, benchmark: str, batch: int) -> None:
        self.event("submission_benchmark", benchmark)
        self.event("submission_org", "somebody")
        self.event("init_start")
        self.event("global_batch_size", batch)
        self.event("opt_name", "lars")
        self.wait(60)
        self.event("init_stop")
        self.event("run_start")


def _accuracies(count: int, last: float) -> Iterator[float]:
    """A curve that rises to `last`."""
    for number in range(1, count):
        yield round(last * number / (count + 1), 5)
    yield last


def _finish(writer: _Writer, status: str = "success") -> None:
    writer.event("run_stop", status=status)


def nvidia_resnet(*, blocks: int = 11, speed: float = 25_000.0, accuracy: float = 0.76106) -> MlperfLog:
    """MXNet: a block of one epoch, then blocks of four; epochs are logged too, and the speed of each."""
    writer = _Writer({"namespace": "", "event_type": "POINT_IN_TIME"})
    writer.lines += ["+ echo 'Beginning trial 2 of 5'", "Clearing cache on node-0078", "vm.drop_caches = 3"]
    writer.declare("resnet", 3264)
    writer.event("train_samples", IMAGENET)
    writer.event("eval_samples", 50_000)
    epoch = 0
    for number, value in enumerate(_accuracies(blocks + 1, accuracy)):
        count = 4 if number else 1
        first = epoch + 1
        writer.event("block_start", first_epoch_num=first, epoch_count=count)
        for _ in range(count):
            epoch += 1
            writer.event("epoch_start", epoch_num=epoch)
            writer.wait(IMAGENET / speed)
            writer.lines.append(f"2021-05-20 09:34:40,494 Node[0] Epoch[{epoch - 1}] Speed: {speed:.2f} samples/sec")
            writer.event("epoch_stop", epoch_num=epoch)
            writer.event("tracked_stats", {"imgs_sec": speed}, step=epoch)
            writer.event("throughput", speed)
        writer.event("eval_start", epoch_num=epoch)
        writer.wait(0.1)
        writer.event("eval_stop", epoch_num=epoch)
        writer.event("eval_accuracy", value, epoch_num=epoch)
        writer.event("block_stop", first_epoch_num=first)
    _finish(writer)
    writer.lines.append("ENDING TIMING RUN AT 2021-05-20 09:35:18 AM")
    return _log(writer, "resnet", IMAGENET * epoch, accuracy, epoch)


def nvidia_bert(*, evaluations: int = 15, speed: float = 3000.0, accuracy: float = 0.72013) -> MlperfLog:
    """PyTorch: one block for the whole run; `train_samples` is the total; the speed follows after the run."""
    writer = _Writer({"namespace": "", "event_type": "POINT_IN_TIME"})
    writer.declare("bert", 4608)
    writer.event("epoch_start", epoch_num=0)
    writer.event("block_start", first_epoch_num=1, epoch_count=1)
    samples = 0
    for value in _accuracies(evaluations, accuracy):
        samples += 202_752
        writer.wait(202_752 / speed)
        writer.event("eval_accuracy", value, epoch_num=samples)
    writer.event("block_stop", first_epoch_num=1)
    writer.event("epoch_stop", epoch_num=samples)
    writer.event("train_samples", samples)
    writer.event("eval_samples", 10_000)
    _finish(writer)
    writer.event("tracked_stats", {"throughput": speed, "epoch_num": samples}, step=[2, 652])
    return _log(writer, "bert", samples, accuracy, samples)


def ascend_resnet(
    *,
    blocks: int = 10,
    length: int = 4,
    speed: float = 15_000.0,
    accuracy: float = 0.76088,
    first: int = 1,
    count: int | None = None,
    starts: int = 1,
    stop_names_next: bool = False,
) -> MlperfLog:
    """MindSpore or TensorFlow on Ascend.

    `count` is the `epoch_count` that a block claims, whatever its `length`; `starts` is how often it says that it
    starts; `first` is the number of the first epoch; `stop_names_next` names a stop by the epoch that follows.
    """
    samples = 1_277_952
    writer = _Writer({"namespace": "mindspore", "event_type": "POINT_IN_TIME"})
    writer.declare("resnet", 4096)
    writer.event("train_samples", samples)
    writer.event("eval_samples", 51_200)
    for number, value in enumerate(_accuracies(blocks, accuracy)):
        begin, end = first + number * length, (number + 1) * length
        for _ in range(starts):
            writer.event("block_start", first_epoch_num=begin, epoch_count=length if count is None else count)
            writer.wait(samples * length / starts / speed)
        writer.event("block_stop", first_epoch_num=end if stop_names_next else begin)
        writer.event("eval_accuracy", value, epoch_num=end)
    _finish(writer)
    return _log(writer, "resnet", samples * blocks * length, accuracy, blocks * length)


def ascend_bert(*, evaluations: int = 18, speed: float = 450.0, accuracy: float = 0.72013) -> MlperfLog:
    """MindSpore on Ascend: an evaluation before the run, blocks by samples, `train_samples` after `run_stop`."""
    writer = _Writer({"namespace": "mindspore", "event_type": "POINT_IN_TIME"})
    writer.event("eval_accuracy", 0.3409, train_samples=0, epoch_num=0)
    writer.declare("bert", 4096)
    step = samples = 176_128
    first = count = 1
    for number, value in enumerate(_accuracies(evaluations, accuracy), start=1):
        samples = number * step
        writer.event("block_start", first_epoch_num=first, epoch_count=count)
        writer.wait(step / speed)
        writer.event("block_stop", first_epoch_num=samples, epoch_num=samples)
        writer.event("eval_accuracy", value, train_samples=samples, epoch_num=samples)
        first = count = samples
    _finish(writer)
    writer.event("train_samples", samples)
    writer.event("eval_samples", 10_000)
    return _log(writer, "bert", samples, accuracy, samples)


def step_block_bert(*, blocks: int = 17, speed: float = 3000.0, accuracy: float = 0.72026) -> MlperfLog:
    """TPU: blocks count steps, `epoch_num` counts packed samples (1.6 % more), `train_samples` is the plan."""
    writer = _Writer({"namespace": "main"})
    writer.declare("bert", 3072)
    writer.event("train_samples", 3_505_152)
    samples = 0
    for number, value in enumerate(_accuracies(blocks, accuracy), start=1):
        writer.event("block_start", first_epoch_num=56 * number, epoch_count=56)
        samples = number * 174_720
        writer.wait(174_720 / speed)
        writer.event("block_stop", first_epoch_num=56 * number)
        writer.event("eval_accuracy", value, epoch_num=samples)
    _finish(writer)
    return _log(writer, "bert", samples, accuracy, samples)


def interval_block_bert(*, blocks: int = 17, speed: float = 1500.0, accuracy: float = 0.7204) -> MlperfLog:
    """IPU: a block is the interval between two evaluations, `epoch_count` 1."""
    writer = _Writer({"namespace": "", "event_type": "POINT_IN_TIME"})
    writer.declare("bert", 3072)
    for number, value in enumerate(_accuracies(blocks, accuracy)):
        writer.event("block_start", first_epoch_num=number, epoch_count=1)
        writer.wait(175_000 / speed)
        writer.event("block_stop", first_epoch_num=number)
        writer.lines.append("")
        writer.event("eval_accuracy", value, epoch_num=175_000 * (number + 1))
    writer.event("train_samples", 175_000 * blocks)
    _finish(writer)
    return _log(writer, "bert", 175_000 * blocks, accuracy, 175_000 * blocks)


def total_bert(*, evaluations: int = 16, speed: float = 2400.0, at_end: bool = True) -> MlperfLog:
    """Paddle: every `epoch_num` is 1; `train_samples` is the total, logged at the end (or before, as a plan)."""
    total, accuracy = 150_024 * evaluations, 0.72024
    writer = _Writer({"namespace": "paddle_mlperf", "event_type": "POINT_IN_TIME"})
    writer.declare("bert", 448)
    if not at_end:
        writer.event("train_samples", total)
    writer.event("block_start", first_epoch_num=1, epoch_count=1)
    for value in _accuracies(evaluations, accuracy):
        writer.wait(150_024 / speed)
        writer.event("eval_accuracy", value, epoch_num=1)
    writer.event("block_stop", first_epoch_num=1)
    if at_end:
        writer.event("train_samples", total)
    _finish(writer)
    return _log(writer, "bert", total, accuracy, 1)


def evaluation_counting_bert(*, speed: float = 263.0, accuracy: float = 0.71212) -> MlperfLog:
    """A submission of 0.7 whose `epoch_num` counts evaluations and whose blocks count steps: nothing counts samples."""
    writer = _Writer({"namespace": "main"})
    writer.declare("bert", 440)
    writer.event("train_samples", 3_565_320)
    for number in range(6):
        writer.event("block_start", first_epoch_num=1137 * number, epoch_count=1137)
        writer.wait(1137 * 440 / speed)
        writer.event("block_stop", first_epoch_num=1137 * number)
    writer.event("eval_accuracy", accuracy, epoch_num=6)
    _finish(writer)
    return _log(writer, "bert", 6 * 1137 * 440, accuracy, 6)


def step_counting_bert(*, accuracy: float = 0.71270) -> MlperfLog:
    """A submission of 0.7 whose `epoch_num` and blocks both count steps."""
    writer = _Writer({"namespace": "main"})
    writer.declare("bert", 8192)
    writer.event("train_samples", 4_063_232)
    for number, value in enumerate(_accuracies(8, accuracy), start=1):
        writer.event("block_start", first_epoch_num=62 * number, epoch_count=62)
        writer.wait(2.8)
        writer.event("block_stop", first_epoch_num=62 * number)
        writer.event("eval_accuracy", value, epoch_num=62 * number)
    _finish(writer)
    return _log(writer, "bert", 8 * 62 * 8192, accuracy, 62 * 8)


def zero_based_resnet(*, blocks: int = 10, speed: float = 15_000.0, accuracy: float = 0.75952) -> MlperfLog:
    """TensorFlow 2: epochs are counted from 0, so that `epoch_num` is one behind; MLPerf counts that number."""
    writer = _Writer({"namespace": "main"})
    writer.declare("resnet", 2496)
    writer.event("train_samples", IMAGENET)
    for number, value in enumerate(_accuracies(blocks, accuracy)):
        writer.event("block_start", first_epoch_num=4 * number, epoch_count=4)
        writer.wait(4 * IMAGENET / speed)
        writer.event("eval_accuracy", value, epoch_num=4 * number + 3)
        writer.event("block_stop", first_epoch_num=4 * number, epoch_count=4)
    _finish(writer)
    epoch = 4 * blocks - 1
    return _log(writer, "resnet", IMAGENET * epoch, accuracy, epoch)


def _log(writer: _Writer, benchmark: str, samples: float, accuracy: float, epoch_num: float) -> MlperfLog:
    times = {}
    for line in writer.lines:
        if line.startswith(":::MLLOG"):
            event = json.loads(line.removeprefix(":::MLLOG"))
            times[event["key"]] = event["time_ms"]
    seconds = (times["run_stop"] - times["run_start"]) / 1000
    return MlperfLog(tuple(writer.lines), benchmark, samples, seconds, accuracy, epoch_num)


# Logs that say how many samples they trained.
READABLE: Mapping[str, MlperfLog] = {
    "nvidia resnet": nvidia_resnet(),
    "nvidia resnet, srun -l": nvidia_resnet().prefixed("0: "),
    "nvidia bert": nvidia_bert(),
    "nvidia bert, srun -l": nvidia_bert().prefixed(" 0: "),
    "ascend resnet": ascend_resnet(),
    "ascend resnet, epoch_count 1 for four epochs": ascend_resnet(count=1),
    "ascend resnet, four starts of epoch_count 1": ascend_resnet(count=1, starts=4),
    "ascend resnet, stops named by the next epoch": ascend_resnet(
        blocks=30, length=2, first=0, stop_names_next=True, accuracy=0.76005
    ),
    "ascend bert": ascend_bert(),
    "bert, blocks of steps": step_block_bert(),
    "bert, blocks of evaluations": interval_block_bert(),
    "bert, total at the end": total_bert(),
    "resnet, epochs from 0": zero_based_resnet(),
}
# Logs that contradict themselves, and the line that says so.
CONTRADICTORY: Mapping[str, tuple[MlperfLog, str]] = {
    "bert, evaluations counted": (
        evaluation_counting_bert(),
        "eval_accuracy says 6 samples, fewer than one global_batch_size of 440",
    ),
    "bert, steps counted": (
        step_counting_bert(),
        "eval_accuracy says 496 samples, fewer than one global_batch_size of 8192",
    ),
    "bert, nothing counted, total planned": (
        total_bert(at_end=False),
        "eval_accuracy says 1 samples, fewer than one global_batch_size of 448",
    ),
}
