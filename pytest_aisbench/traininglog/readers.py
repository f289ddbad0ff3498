"""What one line of a training's log says, by whichever framework printed it: a registry of readers.

A reader takes a line and returns what it understood, or None. It takes any line: a job may print what it likes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

# -- When a line of a log was printed, by the stamp that it begins with.

_STAMP = re.compile(r"\[(\d{4})[/-](\d{1,2})[/-](\d{1,2}) (\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,6}))?\]")


def line_time(line: str) -> float | None:
    """Seconds of a stamp like `[2022/04/04 17:51:12]`, of whatever zone: only differences count."""
    found = _STAMP.match(line)
    if not found:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)  # a year that begins in March
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day
    return 86400.0 * days + 3600 * hour + 60 * minute + second + float(f"0.{found[7] or 0}")


# -- What one line of a log says, and the numbers in it.

# Each part of a number can be read in one way only: a line of nothing but digits is looked at once, not n² times.
NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?|[-+]?inf|nan)"
COUNT = r"(\d{1,12})"
_FIELD = re.compile(rf"(?<![\w@])([A-Za-z][\w@]{{0,40}}):\s{{0,8}}{NUMBER}(?![\d/])")


@dataclass(frozen=True)
class LogLine:
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


def named_numbers(text: str) -> dict[str, float | None]:
    """`loss: 4.6, ips: 40.6 images/sec` by name; the last of a name counts."""
    return {found[1]: finite(found[2]) for found in _FIELD.finditer(text)}


def finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


def milliseconds(seconds: float | None) -> float | None:
    return seconds * 1000 if seconds and math.isfinite(seconds * 1000) else None


# -- What trainings say that torchrun starts. It adds the rank at most: the lines are those of PyTorch's own examples,

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
_MOST_TORCH_EPOCHS = 100_000


def read_torch_line(line: str) -> LogLine | None:
    if found := _TORCH_BATCH.match(line):
        return _batch(int(found[1]) + 1, int(found[2]), line[found.end() :])
    if found := _TOP_1.match(line):
        percent = finite(found[1])
        return LogLine(accuracy=None if percent is None else percent / 100)
    if found := _MNIST.match(line):
        return LogLine(int(found[1]), int(found[2]), finite(found[3]), has_loss=True)
    if found := _MNIST_TEST.match(line):
        return LogLine(accuracy=int(found[1]) / int(found[2])) if int(found[2]) else None
    if found := _LOGGED.search(line):  # two ranks may write on one line
        return _logged({item[1]: finite(item[2]) for item in _ITEM.finditer(line, found.start())})
    return None


def _batch(epoch: int, step: int, text: str) -> LogLine:
    meters = {found[1].lower(): finite(found[2]) for found in reversed(list(_METER.finditer(text)))}
    return LogLine(
        epoch,
        step,
        meters.get("loss"),
        has_loss="loss" in meters,
        ms_per_step=milliseconds(meters.get("time")),
        throughput=meters.get("img/s"),
    )


def _logged(items: dict[str, float | None]) -> LogLine:
    """Of the first rank, for all of them; an epoch that is half done is `0.5`."""
    if "train_runtime" in items:
        return LogLine(total=items.get("train_samples_per_second"), final=True)
    number = items.get("epoch")
    epoch = max(1, math.ceil(number)) if number is not None and 0 <= number < _MOST_TORCH_EPOCHS else None
    if "loss" in items:
        return LogLine(epoch, loss=items["loss"], has_loss=True)
    return LogLine(accuracy=items.get("eval_accuracy"))


MOST_CHARACTERS = 4096  # characters of a line that are looked at; a job may print a gigabyte without a line's end
# mpirun's `[1,0]<stdout>:`, horovodrun's `[0]<stdout>:`, torchrun's `[rank0]:` and `[default0]:`, srun's ` 0: `
_PREFIX = re.compile(
    r"[ \t]{0,8}(?:\[(\d+(?:,\d+)?)\]<std(?:out|err)>:|\[?rank[ _]?(\d+)\]?:|\[[a-z_]{1,32}(\d{1,6})\]:|(\d+):(?=\s))",
    re.IGNORECASE,
)
# A word that every line has which some reader knows: most lines of a log are another's, and there may be millions.
_HINTS = ("epoch", "loss", "/step", "/sample", "img/sec", "train done", "eval ckpt", "accuracy is", "@1 ", ":::mllog")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]|\x08+")

Reader = Callable[[str], LogLine | None]


def read_line(line: str) -> tuple[str, LogLine] | None:
    """Whose line it is, where it says so, and what it says."""
    line = last_drawn(line)[:MOST_CHARACTERS]
    lowered = line.lower()
    if not any(hint in lowered for hint in _HINTS):
        return None
    rest, rank = _COLOUR.sub("", line), ""
    while prefix := _PREFIX.match(rest):  # torchrun puts its own before that of torch
        rank, rest = rank or next(filter(None, prefix.groups())), rest[prefix.end() :]
    rest = rest.lstrip()
    for reader in READERS.values():
        if told := reader(rest):
            return rank, told
    return None


def last_drawn(line: str) -> str:
    """A line without what it drew over itself, as a terminal shows it: a bar may be drawn a thousand times in one."""
    if "\r" not in line or (at := line.rstrip().rfind("\r")) < 0:
        return line
    prefix = _PREFIX.match(line)
    return (prefix[0] if prefix else "") + line[at + 1 :]


def unfinished(line: str) -> str:
    """As much of a line that is not complete yet as its reader will need."""
    line = last_drawn(line)
    body = line.rstrip()
    gap = line[len(body) :]
    return body[:MOST_CHARACTERS] + ("\r" if "\r" in gap else gap[:MOST_CHARACTERS])


_LOSS = re.compile(rf"epoch:\s*{COUNT},?\s*step:\s*{COUNT},\s*loss(?: is|:)\s*{NUMBER}", re.IGNORECASE)
_TIME = re.compile(rf"(?:train )?epoch time:\s*{NUMBER}(?: ms)?,\s*per step time:\s*{NUMBER}", re.IGNORECASE)


def _mindspore(line: str) -> LogLine | None:
    if found := _LOSS.match(line):
        return LogLine(int(found[1]), int(found[2]), finite(found[3]), has_loss=True)
    if found := _TIME.match(line):
        return LogLine(ms_per_step=finite(found[2]))
    return None


_OUTPUTS = re.compile(
    rf"epoch:\s*{COUNT}(?:\.\d*)?,\s*current epoch percent:\s*[\d.]+,\s*step:\s*{COUNT},\s*outputs are\s{{0,8}}"
    rf"\(?(?:Tensor\(shape=\[[^\]]*\],\s*dtype=\w+,\s{{0,8}}(?:value=)?)?[\s\[]{{0,16}}{NUMBER}",
    re.IGNORECASE,
)


def _bert(line: str) -> LogLine | None:
    found = _OUTPUTS.match(line)  # the callback that prints the percentage counts epochs from 0
    return LogLine(int(found[1]) + 1, int(found[2]), finite(found[3]), has_loss=True) if found else None


_DONE = re.compile(rf"train done\b.*\bsingle_throughput_rate:\s*{NUMBER}")
_BATCH = re.compile(rf"\bbatchsize:\s*{COUNT}")
_ACCURACY = re.compile(rf"(?:eval ckpt result:|Accuracy is:)\s*(?:\{{[^:]*:)?\s*{NUMBER}")
_EVALUATION = re.compile(rf"eval epoch:\s*{COUNT},\s*accuracy:\s*{NUMBER},\s*elapsed:\s*{NUMBER}\s*s\b")


def _aisbench(line: str) -> LogLine | None:
    """What AIS-Bench's own scripts print, and the line of an evaluation that we ask of a script."""
    if found := _DONE.match(line):
        batch = _BATCH.search(line)
        return LogLine(
            throughput=finite(found[1]), final=True, batch=int(batch[1]) if batch else None, window=_window(line)
        )
    if found := _ACCURACY.match(line):
        return LogLine(accuracy=finite(found[1]))
    if found := _EVALUATION.match(line):
        return LogLine(accuracy=finite(found[2]), elapsed=finite(found[3]))
    return None


_DOOMSDAY = 1e11  # seconds since the epoch; no calendar goes much further
_WINDOW = re.compile(rf"\bstarttime:\s*{NUMBER} endtime:\s*{NUMBER} ")


def _window(line: str) -> tuple[float, float] | None:
    found = _WINDOW.search(line)
    start, end = (finite(found[1]), finite(found[2])) if found else (None, None)
    return (start, end) if start is not None and end is not None and 0 < start < end < _DOOMSDAY else None


_PADDLE = re.compile(
    rf"(?:\[\d{{4}}[^\]]*\]\s*)?(?:[\w.]+\s+INFO:\s*)?"
    rf"(?:\[Train\]\[Epoch {COUNT}/\d+\]\[Iter:\s*{COUNT}/\d+\]|\[Epoch {COUNT}, iter:\s*{COUNT}\])"
)
_PADDLE_EVAL = re.compile(rf"(?:\[\d{{4}}[^\]]*\]\s*)?(?:[\w.]+\s+INFO:\s*)?\[Eval\]\[Epoch {COUNT}\]\[Avg\]")
_TOKENS = re.compile(r"ips:\s{0,8}\S{1,40}\s{0,8}tokens?/")  # of a language: no samples


def _paddle(line: str) -> LogLine | None:
    if found := _PADDLE.match(line):
        named = named_numbers(line[found.end() :])
        return LogLine(
            int(found[1] or found[3]),
            int(found[2] or found[4]),
            named.get("loss"),
            has_loss="loss" in named,
            ms_per_step=milliseconds(named.get("batch_cost") or named.get("avg_batch_cost")),
            throughput=None if _TOKENS.search(line) else named.get("ips") or named.get("avg_ips"),
            at=line_time(line),
        )
    if found := _PADDLE_EVAL.match(line):
        return LogLine(accuracy=named_numbers(line[found.end() :]).get("top1"), at=line_time(line))
    return None


_ITER = re.compile(rf"Iter #{COUNT}:\s*{NUMBER} img/sec per \w+")
_MEAN = re.compile(rf"Img/sec per \w+:\s*{NUMBER}")
_TOTAL = re.compile(rf"Total img/sec on \d+ \w+\(s\):\s*{NUMBER}")


def _horovod(line: str) -> LogLine | None:
    if found := _ITER.match(line):
        return LogLine(step=int(found[1]) + 1, throughput=finite(found[2]))
    if found := _MEAN.match(line):
        return LogLine(throughput=finite(found[1]), final=True)
    if found := _TOTAL.match(line):
        return LogLine(total=finite(found[1]), final=True)
    return None


_EPOCH = re.compile(rf"Epoch {COUNT}/\d+\s*\Z")
_STEPS = re.compile(rf"(?:step )?{COUNT}/\d+ (?=[-\[━]|\d)")
_PER_STEP = re.compile(r"(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)(us|µs|ms|s)/(step|sample)")
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def _keras(line: str) -> LogLine | None:
    """Keras 2 and 3, whose fields are in another order; also Paddle's `Model.fit`."""
    if found := _EPOCH.match(line):
        return LogLine(int(found[1]), 0)
    found = _STEPS.match(line)
    if not found:
        return None
    named, took = named_numbers(line[found.end() :]), _PER_STEP.search(line)
    if "loss" not in named and not took:
        return None
    ms = float(took[1]) * _MS[took[2]] if took else None
    by_sample = bool(took and took[3] == "sample")  # Keras before 2.3
    return LogLine(
        step=int(found[1]),
        loss=named.get("loss"),
        has_loss="loss" in named,
        ms_per_step=None if by_sample else ms,
        throughput=1000 / ms if by_sample and ms else None,
        accuracy=named.get("val_accuracy", named.get("val_acc", named.get("val_sparse_categorical_accuracy"))),
    )


MLLOG = ":::MLLOG"
MOST_EPOCHS = 100_000  # BERT counts samples where others count epochs


def parse_event(line: str) -> dict[str, Any] | None:
    """The event of a line of MLPerf's log, wherever it begins."""
    at = line.find(MLLOG)
    if at < 0:
        return None
    try:
        found = json.loads(line[at + len(MLLOG) :])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("key"), str) else None


def _mlperf(line: str) -> LogLine | None:
    found = parse_event(line)
    if found is None:
        return None
    key, value, metadata = found["key"], found.get("value"), found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if key in {"epoch_start", "block_start"}:
        number = finite_number(metadata.get("epoch_num", metadata.get("first_epoch_num")))
        return LogLine(max(1, int(number)), 0) if number is not None and 0 <= number < MOST_EPOCHS else None
    time = finite_number(found.get("time_ms"))
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


def _step(metadata: Mapping[str, Any]) -> int | None:
    number = finite_number(metadata.get("step", metadata.get("step_num", metadata.get("samples_count"))))
    return int(number) if number is not None and 0 <= number < 1e15 else None


READERS: Mapping[str, Reader] = {
    "mindspore": _mindspore,
    "bert": _bert,
    "aisbench": _aisbench,
    "paddle": _paddle,
    "horovod": _horovod,
    "keras": _keras,
    "torch": read_torch_line,
    "mlperf": _mlperf,
}


def finite_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None


# -- How far a training is, read from what it prints.

_LATEST_COUNTS = ("ms_per_step", "throughput", "total", "accuracy")  # of these the last that was told counts


@dataclass(frozen=True)
class Progress:
    """What a log told so far; None until it was told. A loss that is no finite number is None again.

    Give `ranks` at the start: how many write to this log. Each prints the same epochs, and only with their number can
    a rank that lags be told from a training that began again, as `Model.train(1)` in a loop does.
    """

    epoch: int = 0  # counted from 1, over all restarts
    step: int = 0  # as it was printed: of the epoch, or of the whole training
    loss: float | None = None
    ms_per_step: float | None = None
    lines: int = 0
    throughput: float | None = None  # of the rank that told it last
    accuracy: float | None = None
    ranks: int = 1
    total: float | None = None  # throughput of the whole job, where the log tells that instead
    # Where the reader stands.
    rest: str = ""  # of a line that is not complete yet
    rank: str = ""  # the one that is followed, where lines say whose they are
    restarted: int = 0  # epochs before the last restart
    arrived: int = 0  # ranks that printed the newest epoch and step


def read_progress(progress: Progress, text: str) -> Progress:
    """The progress after more of the log, which may end in the middle of a line."""
    for after, _ in progress_by_line(progress, text):
        progress = after
    return progress


def progress_by_line(progress: Progress, text: str) -> Iterator[tuple[Progress, LogLine | None]]:
    """The progress after each line that says something of the rank that is followed, and what; at last, after all."""
    *whole, rest = text.split("\n")
    if not whole:
        yield replace(progress, rest=unfinished(progress.rest + rest)), None
        return
    whole[0] = progress.rest + whole[0]
    lines = progress.lines + len(whole)
    for line in whole:
        rank, told = read_line(line) or ("", None)
        if told is None:
            continue
        # What is said once at the end may be said by any rank; all else by the one that is followed.
        if progress.rank and rank != progress.rank and not told.final:
            if told.accuracy is None:
                continue
            told = LogLine(accuracy=told.accuracy)
        progress = _after_line(progress, rank, told)
        yield progress, told
    yield replace(progress, lines=lines, rest=unfinished(rest)), None


def _after_line(progress: Progress, rank: str, told: LogLine) -> Progress:
    if told.epoch is not None and told.step is None:  # the epoch goes on, or is the next
        reached = max(progress.epoch, progress.restarted + told.epoch)
        progress = replace(progress, epoch=reached, loss=told.loss if told.has_loss else progress.loss, rank=rank)
    elif told.epoch is not None:
        progress = _after_training_line(progress, rank, told, told.epoch)
    elif told.step is not None and told.step >= progress.step:  # an evaluation counts its own steps, from 1 again
        progress = replace(progress, step=told.step, loss=told.loss if told.has_loss else progress.loss, rank=rank)
    elif told.step is not None and told.total is None and told.throughput is None:
        return progress if told.accuracy is None else replace(progress, accuracy=told.accuracy)
    elif told.has_loss:
        progress = replace(progress, loss=told.loss)
    news = {name: value for name in _LATEST_COUNTS if (value := getattr(told, name)) is not None}
    return replace(progress, **news) if news else progress


def _after_training_line(progress: Progress, rank: str, told: LogLine, epoch: int) -> Progress:
    step = told.step or 0
    now, last = (epoch, step), (progress.epoch - progress.restarted, progress.step)
    ranks = 1 if rank else progress.ranks
    arrived, restarted = progress.arrived + 1, progress.restarted
    if now > last:
        arrived = 1
    elif progress.arrived >= ranks:  # everybody was there: going back is a beginning
        arrived, restarted = 1, progress.epoch
    elif now < last:
        return progress  # a rank that lags
    return replace(
        progress,
        epoch=restarted + epoch,
        step=step,
        loss=told.loss if told.has_loss else progress.loss,
        rank=rank,
        restarted=restarted,
        arrived=arrived,
    )
