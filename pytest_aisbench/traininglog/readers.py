"""Reads the lines of a training log, whichever framework printed them: epoch, step, loss, speed, accuracy.

`read_line` asks the readers of `READERS`, one per framework, in turn. A reader takes any line, since a job may print
anything, and returns a `LogLine`, or None where the line is not its framework's. Most are tables of
`linetable.py`, one for each line that a framework prints; a function reads what no table can. `curve.py` reads whole
logs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_aisbench.model.metric import TOKENS_PER_S
from pytest_aisbench.traininglog.linetable import (
    ACCURACY,
    COUNT,
    EPOCH,
    LOSS,
    MS,
    NUMBER,
    SECONDS,
    SPEED,
    STEP,
    STEPS,
    TOTAL,
    Field,
    FieldTable,
    LineTable,
    LogLine,
    Reader,
    any_of,
    barred_cells,
    closed_cells,
    finite,
    finite_number,
    group,
    line_time,
    milliseconds,
    named_numbers,
    spaced_cells,
)

MOST_CHARACTERS = 4096  # of a line that we read; a job may print a gigabyte without a line end
MLLOG = ":::MLLOG"
MOST_EPOCHS = 100_000  # BERT counts samples where others count epochs


# One line

# mpirun's `[1,0]<stdout>:`, horovodrun's `[0]<stdout>:`, torchrun's `[rank0]:` and `[default0]:`, srun's ` 0: `
_PREFIX = re.compile(
    r"[ \t]{0,8}(?:\[(\d+(?:,\d+)?)\]<std(?:out|err)>:|\[?rank[ _]?(\d+)\]?:|\[[a-z_]{1,32}(\d{1,6})\]:|(\d+):(?=\s))",
    re.IGNORECASE,
)
_OF_NODE, _BARE = 3, 4  # groups of the prefix: one counts the ranks of its node, one is srun's bare number
# Every line that a reader understands has one of these words: skip the others at once, a log may have millions.
_HINTS = (
    "epoch", "loss", "/step", "/sample", "img/sec", "train done", "eval ckpt", "accuracy is", "@1 ", ":::mllog",
    "per iteration (ms)", "step time : ",
)  # fmt: skip
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


def plain_line(line: str) -> str:
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


# Python's logging writes this before a line, as the model zoo of MindSpore has it.
_LOGGER = r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}:INFO:\s{0,8})?"

_MINDSPORE = (
    LineTable(rf"epoch:\s*{EPOCH},?\s*step:\s*{STEP},\s*loss(?: is|:)\s*{LOSS}", flags=re.IGNORECASE),
    LineTable(rf"(?:train )?epoch time:\s*{NUMBER}(?: ms)?,\s*per step time:\s*{MS}", flags=re.IGNORECASE),
    # `epoch: [1/90] step: [10/312], loss: 2.3, lr: 0.1, per step time: 105.2 ms, fps: 304.2 img/s`. Networks order the
    # fields differently, and their `fps` is of a card or of all cards.
    LineTable(
        rf"{_LOGGER}epoch:\s?\[\s{{0,8}}{EPOCH}/\s{{0,8}}\d+\],?\s{{0,8}}step:\s?\[\s{{0,8}}{STEP}/\s{{0,8}}\d+\]"
        rf"(?=(?:.{{0,200}}?\bloss(?: is|\s?:)\s{{0,8}}{LOSS})?)(?=(?:.{{0,200}}?\bper step time:\s{{0,8}}{MS} ?ms)?)"
    ),
    # The callback that prints the percentage is BERT's, and counts epochs from 0.
    LineTable(
        rf"epoch:\s*{EPOCH}(?:\.\d*)?,\s*current epoch percent:\s*[\d.]+,\s*step:\s*{STEP},\s*outputs are\s{{0,8}}"
        rf"\(?(?:Tensor\(shape=\[[^\]]*\],\s*dtype=\w+,\s{{0,8}}(?:value=)?)?[\s\[]{{0,16}}{LOSS}",
        first={"epoch": 0},
        flags=re.IGNORECASE,
    ),
)

# AIS-Bench

_DONE = re.compile(rf"train done\b.*\bsingle_throughput_rate:\s*{NUMBER}")
_BATCH = re.compile(rf"\bbatchsize:\s*{COUNT}")
_DOOMSDAY = 1e11  # seconds since the epoch; no calendar goes much further
_WINDOW = re.compile(rf"\bstarttime:\s*{NUMBER} endtime:\s*{NUMBER} ")


def _train_done(line: str) -> LogLine | None:
    if match := _DONE.match(line):
        batch = _BATCH.search(line)
        return LogLine(
            throughput=finite(match[1]), final=True, batch=int(batch[1]) if batch else None, window=_window(line)
        )
    return None


def _window(line: str) -> tuple[float, float] | None:
    match = _WINDOW.search(line)
    start, end = (finite(match[1]), finite(match[2])) if match else (None, None)
    return (start, end) if start is not None and end is not None and 0 < start < end < _DOOMSDAY else None


_AISBENCH = (
    _train_done,
    LineTable(rf"(?:eval ckpt result:|Accuracy is:)\s*(?:\{{[^:]*:)?\s*{ACCURACY}"),
    # what we ask a script of one's own to print
    LineTable(rf"eval epoch:\s*{COUNT},\s*accuracy:\s*{ACCURACY},\s*elapsed:\s*{group('elapsed')}\s*s\b"),
)


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

_HOROVOD = (
    LineTable(rf"Iter #{STEP}:\s*{SPEED} img/sec per \w+", first={"step": 0}),
    LineTable(rf"Img/sec per \w+:\s*{SPEED}", final=True),
    LineTable(rf"Total img/sec on \d+ \w+\(s\):\s*{TOTAL}", final=True),
)


# Keras 2 and 3, Paddle's `Model.fit`

_EPOCH_BEGINS = re.compile(rf"Epoch {COUNT}/\d+\s*\Z")
_STEPS = re.compile(rf"(?:step )?{COUNT}/\d+ (?=[-\[━]|\d)")
_PER_STEP = re.compile(r"(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)(us|µs|ms|s)/(step|sample)")
_MS_OF = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def _keras(line: str) -> LogLine | None:
    """Reads Keras 2 and 3, which order their fields differently; also Paddle's `Model.fit`."""
    if match := _EPOCH_BEGINS.match(line):
        return LogLine(int(match[1]), 0)
    match = _STEPS.match(line)
    if not match:
        return None
    named, took = named_numbers(line[match.end() :]), _PER_STEP.search(line)
    if "loss" not in named and not took:
        return None
    ms = float(took[1]) * _MS_OF[took[2]] if took else None
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
# `{'loss': 10.61, 'epoch': 0.5}`, with quotes around the numbers since Transformers 5.
_LOGGED = re.compile(r"\{'(?:loss|eval_\w{1,40}|train_runtime)': ")
_ITEM = re.compile(rf"'(\w{{1,40}})': '?{NUMBER}(?=['}},])")


def _torch(line: str) -> LogLine | None:
    if match := _TORCH_BATCH.match(line):
        return _batch(int(match[1]) + 1, int(match[2]), line[match.end() :])
    if match := _LOGGED.search(line):  # two ranks may write on one line
        return _logged({item[1]: finite(item[2]) for item in _ITEM.finditer(line, match.start())})
    return None


_TORCH = (
    _torch,
    LineTable(rf"(?:\*|Test:)\s{{0,8}}(?:\w+\s{{0,8}})?(?:Acc|Prec)@1\s{{1,8}}{ACCURACY} ", scale=0.01),
    LineTable(rf"Train Epoch: {EPOCH} \[{STEP}/\d+ \(\s*\d+%\)\]\s{{1,8}}Loss: {LOSS}"),
    LineTable(rf"Test set: Average loss: \S+ Accuracy: {group('accuracy', COUNT)}/{group('of', COUNT)} "),
)


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
    number = items.get("epoch")
    epoch = max(1, math.ceil(number)) if number is not None and 0 <= number < MOST_EPOCHS else None
    logged = LogLine(epoch, loss=items["loss"], has_loss=True) if "loss" in items else LogLine()
    if "train_runtime" in items:  # at the end; beside a loss, so far: the speed is a mean since the start in both
        if (tokens := items.get("train_tokens_per_second")) is not None:
            return replace(logged, total=tokens, unit=TOKENS_PER_S, final=True)
        return replace(logged, total=items.get("train_samples_per_second"), final=True)
    return logged if logged.has_loss else LogLine(accuracy=items.get("eval_accuracy"))


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


# Language models. What a framework reckons its FLOP/s and MFU to be we do not read: each has its own convention.

_LOGGED_BEFORE = r"(?:.{0,200}?[-:\])>|]\s{1,4})?"  # times, ranks, levels and files, as loggers write them
_IN_TOKENS_OF_RANK, _IN_TOKENS_OF_JOB = Field("throughput", TOKENS_PER_S), Field("total", TOKENS_PER_S)

# `step: 530  loss:  5.9866  …  tps: 21,734  …`, in tokens of one device; `validate step:` is none of the training.
_TORCHTITAN = FieldTable(
    "tps: ",
    rf"{_LOGGED_BEFORE}step:\s{{1,8}}{STEP}(?=\s\s)",
    spaced_cells,
    {
        "loss": Field("loss"),
        "tps": _IN_TOKENS_OF_RANK,
        "elapsed_time_per_step": Field("ms_per_step", suffix="s", scale=1000),  # on NPUs
    },
)

# `iteration 1/ 24000 | … | elapsed time per iteration (ms): 271607.0 | … | lm loss: 1.192634E+01 | …`, printed by the
# last rank alone: Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge, MindSpeed-LLM (ModelLink), AscendSpeed, MindSpeed's
# FSDP2, and Megatron as ROCm has it. A loss that is not finite is left out.
_MEGATRON = FieldTable(
    "elapsed time per iteration (ms)",
    rf"{_LOGGED_BEFORE}iteration\s{{1,12}}{STEP}/\s{{0,12}}{STEPS}\s{{0,4}}\|",
    closed_cells,
    {
        "lm loss": Field("loss"),
        "loss": Field("loss"),
        "elapsed time per iteration (ms)": Field("ms_per_step"),
        "tokens per GPU (tokens/s/GPU)": _IN_TOKENS_OF_RANK,
        "tokens/s/GPU inst/harmonic mean": _IN_TOKENS_OF_RANK,
        "tokens per gpu per second (tgs)": _IN_TOKENS_OF_RANK,
        "tokens/s": _IN_TOKENS_OF_JOB,
        "samples per second": Field("total"),
        "global batch size": Field("batch of job"),
        "number of skipped iterations": Field("skipped"),
        "number of nan iterations": Field("nans"),
    },
    leaves_out_nan=True,
)
# What Megatron-Bridge prints before that line.
_MEGATRON_BRIDGE = LineTable(rf"Step Time : {SECONDS}s GPU utilization: ")

# `Training epoch 0, iteration 45/99 | … | reduced_train_loss: 11.96 | train_step_timing in s: 6.08 | …`
_NEMO = FieldTable(
    "Training epoch ",
    rf"{_LOGGED_BEFORE}Training epoch {EPOCH}, iteration {STEP}/{STEPS} \|",
    barred_cells,
    {
        "reduced_train_loss": Field("loss"),
        "train_step_timing in s": Field("ms_per_step", scale=1000),
        "global_batch_size": Field("batch of job"),
    },
    first={"epoch": 0, "step": 0, "steps": 0},
)

READERS: Mapping[str, Reader] = {
    "mindspore": any_of(*_MINDSPORE),
    "aisbench": any_of(*_AISBENCH),
    "paddle": _paddle,
    "horovod": any_of(*_HOROVOD),
    "keras": _keras,
    "torch": any_of(*_TORCH),
    "mlperf": _mlperf,
    "megatron": any_of(_MEGATRON, _MEGATRON_BRIDGE),
    "torchtitan": _TORCHTITAN.read,
    "nemo": _NEMO.read,
}
