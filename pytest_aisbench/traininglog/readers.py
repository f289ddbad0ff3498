"""Reads the lines of a training log, whichever framework printed them: epoch, step, loss, speed, accuracy.

`read_progress` takes a log piece by piece and returns how far the training is. It asks `read_line` for what one line
says, and that asks the readers of `READERS`, one per framework, in turn. A reader takes any line, since a job may print
anything, and returns a `LogLine`, or None where the line is not its framework's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

MOST_CHARACTERS = 4096  # of a line that we read; a job may print a gigabyte without a line end
MLLOG = ":::MLLOG"
MOST_EPOCHS = 100_000  # BERT counts samples where others count epochs
# A regular expression that reads each part of a number in one way only: it scans a line of nothing but digits once.
NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?|[-+]?inf|nan)"
COUNT = r"(\d{1,12})"
_LATEST_COUNTS = ("ms_per_step", "throughput", "total", "accuracy")  # of these fields the last value counts


@dataclass(frozen=True)
class LogLine:
    """What one line of a log says. None: the line does not say it, or its number is not finite."""

    epoch: int | None = None  # counted from 1
    step: int | None = None
    loss: float | None = None
    has_loss: bool = False  # the line gives a loss, finite or not
    ms_per_step: float | None = None
    throughput: float | None = None  # samples/s of the rank that printed the line
    total: float | None = None  # samples/s of the whole job
    final: bool = False  # the throughput is that of the whole run
    batch: int | None = None
    accuracy: float | None = None
    elapsed: float | None = None  # seconds of training before this evaluation
    at: float | None = None  # seconds since a moment that all lines of the log share
    window: tuple[float, float] | None = None  # when the training began and ended, seconds since the epoch


@dataclass(frozen=True)
class Progress:
    """What a log has said so far; None until the log says it, and again for a loss that is not finite.

    Set `ranks` at the start: how many ranks write to this log. Each rank prints the same epochs, so only their number
    distinguishes a rank that lags from a training that began again, as `Model.train(1)` in a loop does.
    """

    epoch: int = 0  # counted from 1, over all restarts
    step: int = 0  # as printed: of the epoch, or of the whole training
    loss: float | None = None
    ms_per_step: float | None = None
    lines: int = 0
    throughput: float | None = None  # of the rank that printed it last
    accuracy: float | None = None
    ranks: int = 1
    total: float | None = None  # throughput of the whole job, where the log gives that instead
    # The state of the reader.
    rest: str = ""  # the beginning of a line that is not complete yet
    rank: str = ""  # the rank that we follow, where lines name their rank
    restarted: int = 0  # epochs before the last restart
    arrived: int = 0  # ranks that printed the newest epoch and step


# How far a training is


def read_progress(progress: Progress, text: str) -> Progress:
    """The progress after more of the log, which may end in the middle of a line."""
    for after, _ in progress_by_line(progress, text):
        progress = after
    return progress


def progress_by_line(progress: Progress, text: str) -> Iterator[tuple[Progress, LogLine | None]]:
    """The progress after each line that a reader understood, with that line; at last, the progress after all text."""
    *whole, rest = text.split("\n")
    if not whole:
        yield replace(progress, rest=unfinished(progress.rest + rest)), None
        return
    whole[0] = progress.rest + whole[0]
    lines = progress.lines + len(whole)
    for text_line in whole:
        rank, line = read_line(text_line) or ("", None)
        if line is None:
            continue
        # Any rank may print the final figures and an accuracy. For the rest we follow one rank.
        if progress.rank and rank != progress.rank and not line.final:
            if line.accuracy is None:
                continue
            line = LogLine(accuracy=line.accuracy)
        progress = _after_line(progress, rank, line)
        yield progress, line
    yield replace(progress, lines=lines, rest=unfinished(rest)), None


def _after_line(progress: Progress, rank: str, line: LogLine) -> Progress:
    if line.epoch is not None and line.step is None:  # the epoch continues, or is the next
        reached = max(progress.epoch, progress.restarted + line.epoch)
        progress = replace(progress, epoch=reached, loss=line.loss if line.has_loss else progress.loss, rank=rank)
    elif line.epoch is not None:
        progress = _after_training_line(progress, rank, line, line.epoch)
    elif line.step is not None and line.step >= progress.step:  # an evaluation counts its own steps, from 1 again
        progress = replace(progress, step=line.step, loss=line.loss if line.has_loss else progress.loss, rank=rank)
    elif line.step is not None and line.total is None and line.throughput is None:
        return progress if line.accuracy is None else replace(progress, accuracy=line.accuracy)
    elif line.has_loss:
        progress = replace(progress, loss=line.loss)
    news = {name: value for name in _LATEST_COUNTS if (value := getattr(line, name)) is not None}
    return replace(progress, **news) if news else progress


def _after_training_line(progress: Progress, rank: str, line: LogLine, epoch: int) -> Progress:
    step = line.step or 0
    now, last = (epoch, step), (progress.epoch - progress.restarted, progress.step)
    ranks = 1 if rank else progress.ranks
    arrived, restarted = progress.arrived + 1, progress.restarted
    if now > last:
        arrived = 1
    elif progress.arrived >= ranks:  # all ranks printed this step: an earlier one is a restart
        arrived, restarted = 1, progress.epoch
    elif now < last:
        return progress  # a rank that lags
    return replace(
        progress,
        epoch=restarted + epoch,
        step=step,
        loss=line.loss if line.has_loss else progress.loss,
        rank=rank,
        restarted=restarted,
        arrived=arrived,
    )


# One line

# mpirun's `[1,0]<stdout>:`, horovodrun's `[0]<stdout>:`, torchrun's `[rank0]:` and `[default0]:`, srun's ` 0: `
_PREFIX = re.compile(
    r"[ \t]{0,8}(?:\[(\d+(?:,\d+)?)\]<std(?:out|err)>:|\[?rank[ _]?(\d+)\]?:|\[[a-z_]{1,32}(\d{1,6})\]:|(\d+):(?=\s))",
    re.IGNORECASE,
)
_OF_NODE, _BARE = 3, 4  # groups of the prefix: one counts the ranks of its node, one is srun's bare number
# Every line that a reader understands has one of these words: skip the others at once, a log may have millions.
_HINTS = ("epoch", "loss", "/step", "/sample", "img/sec", "train done", "eval ckpt", "accuracy is", "@1 ", ":::mllog")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]|\x08+")


def read_line(line: str) -> tuple[str, LogLine] | None:
    """The rank that printed the line, if the line names it, and what the line says."""
    line = last_drawn(line)[:MOST_CHARACTERS]
    lowered = line.lower()
    if not any(hint in lowered for hint in _HINTS):
        return None
    rank, rest = rank_and_rest(line)
    rest = rest.lstrip()
    for reader in READERS.values():
        if log_line := reader(rest):
            return rank, log_line
    return None


def rank_and_rest(line: str) -> tuple[str, str]:
    """The rank that a launcher's prefix names, or an empty one, and the line without colours and prefixes."""
    rest, rank = _COLOUR.sub("", line), ""
    while prefix := _PREFIX.match(rest):  # torchrun puts its prefix before that of torch
        rank, rest = rank or next(filter(None, prefix.groups())), rest[prefix.end() :]
    return rank, rest


def prefixed_rank(line: str, first_of_node: int, ranks: int) -> int | None:
    """The rank that a launcher's prefix names, counted through all nodes; None without a prefix. torchrun counts the
    ranks of a node, whose first one is given. A bare number that is none of the `ranks` is a step, or anything."""
    match = _PREFIX.match(line)
    if not match:
        return None
    number = int(next(filter(None, match.groups())).rpartition(",")[2])  # mpirun writes its job before the rank
    rank = number + first_of_node if match[_OF_NODE] else number
    return None if match[_BARE] and rank >= ranks else rank


def shown(line: str) -> str:
    """The line as a terminal shows it in the end, without its colours."""
    if "\x1b" in line or "\r" in line or "\x08" in line:
        return _COLOUR.sub("", last_drawn(line))
    return line


def last_drawn(line: str) -> str:
    """The line as a terminal shows it in the end: a progress bar may redraw itself a thousand times in one line."""
    if "\r" not in line or (at := line.rstrip().rfind("\r")) < 0:
        return line
    prefix = _PREFIX.match(line)
    return (prefix[0] if prefix else "") + line[at + 1 :]


def unfinished(line: str) -> str:
    """As much of an incomplete line as its reader will need."""
    line = last_drawn(line)
    body = line.rstrip()
    gap = line[len(body) :]
    return body[:MOST_CHARACTERS] + ("\r" if "\r" in gap else gap[:MOST_CHARACTERS])


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


def milliseconds(seconds: float | None) -> float | None:
    return seconds * 1000 if seconds and math.isfinite(seconds * 1000) else None


def line_time(line: str) -> float | None:
    """Seconds of a stamp like `[2022/04/04 17:51:12]`, in any time zone: only differences count."""
    match = _STAMP.match(line)
    if not match:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)  # a year that begins in March
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day
    return 86400.0 * days + 3600 * hour + 60 * minute + second + float(f"0.{match[7] or 0}")


# MindSpore, and its BERT

_LOSS = re.compile(rf"epoch:\s*{COUNT},?\s*step:\s*{COUNT},\s*loss(?: is|:)\s*{NUMBER}", re.IGNORECASE)
_TIME = re.compile(rf"(?:train )?epoch time:\s*{NUMBER}(?: ms)?,\s*per step time:\s*{NUMBER}", re.IGNORECASE)
_OUTPUTS = re.compile(
    rf"epoch:\s*{COUNT}(?:\.\d*)?,\s*current epoch percent:\s*[\d.]+,\s*step:\s*{COUNT},\s*outputs are\s{{0,8}}"
    rf"\(?(?:Tensor\(shape=\[[^\]]*\],\s*dtype=\w+,\s{{0,8}}(?:value=)?)?[\s\[]{{0,16}}{NUMBER}",
    re.IGNORECASE,
)


def _mindspore(line: str) -> LogLine | None:
    if match := _LOSS.match(line):
        return LogLine(int(match[1]), int(match[2]), finite(match[3]), has_loss=True)
    if match := _TIME.match(line):
        return LogLine(ms_per_step=finite(match[2]))
    return None


def _bert(line: str) -> LogLine | None:
    match = _OUTPUTS.match(line)  # the callback that prints the percentage counts epochs from 0
    return LogLine(int(match[1]) + 1, int(match[2]), finite(match[3]), has_loss=True) if match else None


# AIS-Bench

_DONE = re.compile(rf"train done\b.*\bsingle_throughput_rate:\s*{NUMBER}")
_BATCH = re.compile(rf"\bbatchsize:\s*{COUNT}")
_ACCURACY = re.compile(rf"(?:eval ckpt result:|Accuracy is:)\s*(?:\{{[^:]*:)?\s*{NUMBER}")
_EVALUATION = re.compile(rf"eval epoch:\s*{COUNT},\s*accuracy:\s*{NUMBER},\s*elapsed:\s*{NUMBER}\s*s\b")
_DOOMSDAY = 1e11  # seconds since the epoch; no calendar goes much further
_WINDOW = re.compile(rf"\bstarttime:\s*{NUMBER} endtime:\s*{NUMBER} ")


def _aisbench(line: str) -> LogLine | None:
    """Reads what AIS-Bench's own scripts print, and the evaluation line that we ask a script to print."""
    if match := _DONE.match(line):
        batch = _BATCH.search(line)
        return LogLine(
            throughput=finite(match[1]), final=True, batch=int(batch[1]) if batch else None, window=_window(line)
        )
    if match := _ACCURACY.match(line):
        return LogLine(accuracy=finite(match[1]))
    if match := _EVALUATION.match(line):
        return LogLine(accuracy=finite(match[2]), elapsed=finite(match[3]))
    return None


def _window(line: str) -> tuple[float, float] | None:
    match = _WINDOW.search(line)
    start, end = (finite(match[1]), finite(match[2])) if match else (None, None)
    return (start, end) if start is not None and end is not None and 0 < start < end < _DOOMSDAY else None


# Paddle and PaddleClas

_PADDLE = re.compile(
    rf"(?:\[\d{{4}}[^\]]*\]\s*)?(?:[\w.]+\s+INFO:\s*)?"
    rf"(?:\[Train\]\[Epoch {COUNT}/\d+\]\[Iter:\s*{COUNT}/\d+\]|\[Epoch {COUNT}, iter:\s*{COUNT}\])"
)
_PADDLE_EVAL = re.compile(rf"(?:\[\d{{4}}[^\]]*\]\s*)?(?:[\w.]+\s+INFO:\s*)?\[Eval\]\[Epoch {COUNT}\]\[Avg\]")
_TOKENS = re.compile(r"ips:\s{0,8}\S{1,40}\s{0,8}tokens?/")  # of a language: no samples


def _paddle(line: str) -> LogLine | None:
    if match := _PADDLE.match(line):
        named = named_numbers(line[match.end() :])
        return LogLine(
            int(match[1] or match[3]),
            int(match[2] or match[4]),
            named.get("loss"),
            has_loss="loss" in named,
            ms_per_step=milliseconds(named.get("batch_cost") or named.get("avg_batch_cost")),
            throughput=None if _TOKENS.search(line) else named.get("ips") or named.get("avg_ips"),
            at=line_time(line),
        )
    if match := _PADDLE_EVAL.match(line):
        return LogLine(accuracy=named_numbers(line[match.end() :]).get("top1"), at=line_time(line))
    return None


# Horovod's benchmarks

_ITER = re.compile(rf"Iter #{COUNT}:\s*{NUMBER} img/sec per \w+")
_MEAN = re.compile(rf"Img/sec per \w+:\s*{NUMBER}")
_TOTAL = re.compile(rf"Total img/sec on \d+ \w+\(s\):\s*{NUMBER}")


def _horovod(line: str) -> LogLine | None:
    if match := _ITER.match(line):
        return LogLine(step=int(match[1]) + 1, throughput=finite(match[2]))
    if match := _MEAN.match(line):
        return LogLine(throughput=finite(match[1]), final=True)
    if match := _TOTAL.match(line):
        return LogLine(total=finite(match[1]), final=True)
    return None


# Keras 2 and 3, Paddle's `Model.fit`

_EPOCH = re.compile(rf"Epoch {COUNT}/\d+\s*\Z")
_STEPS = re.compile(rf"(?:step )?{COUNT}/\d+ (?=[-\[━]|\d)")
_PER_STEP = re.compile(r"(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)(us|µs|ms|s)/(step|sample)")
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def _keras(line: str) -> LogLine | None:
    """Reads Keras 2 and 3, which order their fields differently; also Paddle's `Model.fit`."""
    if match := _EPOCH.match(line):
        return LogLine(int(match[1]), 0)
    match = _STEPS.match(line)
    if not match:
        return None
    named, took = named_numbers(line[match.end() :]), _PER_STEP.search(line)
    if "loss" not in named and not took:
        return None
    ms = float(took[1]) * _MS[took[2]] if took else None
    by_sample = bool(took and took[3] == "sample")  # Keras before 2.3
    return LogLine(
        step=int(match[1]),
        loss=named.get("loss"),
        has_loss="loss" in named,
        ms_per_step=None if by_sample else ms,
        throughput=1000 / ms if by_sample and ms else None,
        accuracy=named.get("val_accuracy", named.get("val_acc", named.get("val_sparse_categorical_accuracy"))),
    )


# PyTorch: its ImageNet and MNIST examples, torchvision, the Trainer of Transformers

# `Epoch: [0][ 10/5005]` of the ImageNet example, `Epoch: [0]  [  10/5005]` of torchvision: both count epochs from 0.
_TORCH_BATCH = re.compile(rf"Epoch: \[{COUNT}\]\s{{0,8}}\[\s{{0,12}}{COUNT}/\d+\]")
# `Loss 2.2982e+00 (2.3368e+00)`, `loss: 2.2951 (2.3368)`: the newest, then its mean.
_METER = re.compile(rf"(?<!\S)(time|loss|img/s):?\s{{1,8}}{NUMBER}(?!\S)", re.IGNORECASE)
_TOP_1 = re.compile(rf"(?:\*|Test:)\s{{0,8}}(?:\w+\s{{0,8}})?(?:Acc|Prec)@1\s{{1,8}}{NUMBER} ")
_MNIST = re.compile(rf"Train Epoch: {COUNT} \[{COUNT}/\d+ \(\s*\d+%\)\]\s{{1,8}}Loss: {NUMBER}")
_MNIST_TEST = re.compile(rf"Test set: Average loss: \S+ Accuracy: {COUNT}/{COUNT} ")
# `{'loss': 10.61, 'epoch': 0.5}`, with quotes around the numbers since Transformers 5.
_LOGGED = re.compile(r"\{'(?:loss|eval_\w{1,40}|train_runtime)': ")
_ITEM = re.compile(rf"'(\w{{1,40}})': '?{NUMBER}(?=['}},])")


def _torch(line: str) -> LogLine | None:
    if match := _TORCH_BATCH.match(line):
        return _batch(int(match[1]) + 1, int(match[2]), line[match.end() :])
    if match := _TOP_1.match(line):
        percent = finite(match[1])
        return LogLine(accuracy=None if percent is None else percent / 100)
    if match := _MNIST.match(line):
        return LogLine(int(match[1]), int(match[2]), finite(match[3]), has_loss=True)
    if match := _MNIST_TEST.match(line):
        return LogLine(accuracy=int(match[1]) / int(match[2])) if int(match[2]) else None
    if match := _LOGGED.search(line):  # two ranks may write on one line
        return _logged({item[1]: finite(item[2]) for item in _ITEM.finditer(line, match.start())})
    return None


def _batch(epoch: int, step: int, text: str) -> LogLine:
    meters = {match[1].lower(): finite(match[2]) for match in reversed(list(_METER.finditer(text)))}
    return LogLine(
        epoch,
        step,
        meters.get("loss"),
        has_loss="loss" in meters,
        ms_per_step=milliseconds(meters.get("time")),
        throughput=meters.get("img/s"),
    )


def _logged(items: dict[str, float | None]) -> LogLine:
    """Reads what the first rank logs for all ranks; an epoch that is half done is `0.5`."""
    if "train_runtime" in items:
        return LogLine(total=items.get("train_samples_per_second"), final=True)
    number = items.get("epoch")
    epoch = max(1, math.ceil(number)) if number is not None and 0 <= number < MOST_EPOCHS else None
    if "loss" in items:
        return LogLine(epoch, loss=items["loss"], has_loss=True)
    return LogLine(accuracy=items.get("eval_accuracy"))


# MLPerf


def _mlperf(line: str) -> LogLine | None:
    event = parse_event(line)
    if event is None:
        return None
    key, value, metadata = event["key"], event.get("value"), event.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if key in {"epoch_start", "block_start"}:
        number = finite_number(metadata.get("epoch_num", metadata.get("first_epoch_num")))
        return LogLine(max(1, int(number)), 0) if number is not None and 0 <= number < MOST_EPOCHS else None
    time = finite_number(event.get("time_ms"))
    if key == "eval_accuracy":
        return LogLine(accuracy=finite_number(value), at=None if time is None else time / 1000)
    if key == "run_start":
        return None if time is None else LogLine(at=time / 1000)
    if key in {"train_loss", "loss"}:
        return LogLine(step=_step(metadata), loss=finite_number(value), has_loss=True)
    if key in {"tracked_stats", "throughput"}:
        stats: Mapping[str, Any] = value if isinstance(value, dict) else {"throughput": value}
        loss = stats.get("train_loss", stats.get("loss"))
        step = _step(metadata)
        return LogLine(
            step=step, loss=finite_number(loss), has_loss=loss is not None, total=finite_number(stats.get("throughput"))
        )
    return None


def parse_event(line: str) -> dict[str, Any] | None:
    """The MLPerf event in a line, wherever the event begins."""
    at = line.find(MLLOG)
    if at < 0:
        return None
    try:
        event = json.loads(line[at + len(MLLOG) :])
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("key"), str) else None


def _step(metadata: Mapping[str, Any]) -> int | None:
    number = finite_number(metadata.get("step", metadata.get("step_num", metadata.get("samples_count"))))
    return int(number) if number is not None and 0 <= number < 1e15 else None


Reader = Callable[[str], LogLine | None]
READERS: Mapping[str, Reader] = {
    "mindspore": _mindspore,
    "bert": _bert,
    "aisbench": _aisbench,
    "paddle": _paddle,
    "horovod": _horovod,
    "keras": _keras,
    "torch": _torch,
    "mlperf": _mlperf,
}
