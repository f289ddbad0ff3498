"""What one line of a training's log says, by whichever framework printed it: a registry of readers.

A reader takes a line and returns what it understood, or None. It takes any line: a job may print what it likes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pytest_aisbench.domain import torch_lines
from pytest_aisbench.domain.stamp import moment
from pytest_aisbench.domain.told import COUNT, NUMBER, Told, fields, finite, milliseconds

LONGEST = 4096  # characters of a line that are looked at; a job may print a gigabyte without a line's end
# mpirun's `[1,0]<stdout>:`, horovodrun's `[0]<stdout>:`, torchrun's `[rank0]:` and `[default0]:`, srun's ` 0: `
_PREFIX = re.compile(
    r"[ \t]{0,8}(?:\[(\d+(?:,\d+)?)\]<std(?:out|err)>:|\[?rank[ _]?(\d+)\]?:|\[[a-z_]{1,32}(\d{1,6})\]:|(\d+):(?=\s))",
    re.IGNORECASE,
)
# A word that every line has which some reader knows: most lines of a log are another's, and there may be millions.
_HINTS = ("epoch", "loss", "/step", "/sample", "img/sec", "train done", "eval ckpt", "accuracy is", "@1 ", ":::mllog")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]|\x08+")

Reader = Callable[[str], Told | None]


def tell(line: str) -> tuple[str, Told] | None:
    """Whose line it is, where it says so, and what it says."""
    line = last_drawn(line)[:LONGEST]
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


def pending(line: str) -> str:
    """As much of a line that is not complete yet as its reader will need."""
    line = last_drawn(line)
    body = line.rstrip()
    gap = line[len(body) :]
    return body[:LONGEST] + ("\r" if "\r" in gap else gap[:LONGEST])


_LOSS = re.compile(rf"epoch:\s*{COUNT},?\s*step:\s*{COUNT},\s*loss(?: is|:)\s*{NUMBER}", re.IGNORECASE)
_TIME = re.compile(rf"(?:train )?epoch time:\s*{NUMBER}(?: ms)?,\s*per step time:\s*{NUMBER}", re.IGNORECASE)


def _mindspore(line: str) -> Told | None:
    if found := _LOSS.match(line):
        return Told(int(found[1]), int(found[2]), finite(found[3]), has_loss=True)
    if found := _TIME.match(line):
        return Told(ms_per_step=finite(found[2]))
    return None


_OUTPUTS = re.compile(
    rf"epoch:\s*{COUNT}(?:\.\d*)?,\s*current epoch percent:\s*[\d.]+,\s*step:\s*{COUNT},\s*outputs are\s{{0,8}}"
    rf"\(?(?:Tensor\(shape=\[[^\]]*\],\s*dtype=\w+,\s{{0,8}}(?:value=)?)?[\s\[]{{0,16}}{NUMBER}",
    re.IGNORECASE,
)


def _bert(line: str) -> Told | None:
    found = _OUTPUTS.match(line)  # the callback that prints the percentage counts epochs from 0
    return Told(int(found[1]) + 1, int(found[2]), finite(found[3]), has_loss=True) if found else None


_DONE = re.compile(rf"train done\b.*\bsingle_throughput_rate:\s*{NUMBER}")
_BATCH = re.compile(rf"\bbatchsize:\s*{COUNT}")
_ACCURACY = re.compile(rf"(?:eval ckpt result:|Accuracy is:)\s*(?:\{{[^:]*:)?\s*{NUMBER}")
_EVALUATION = re.compile(rf"eval epoch:\s*{COUNT},\s*accuracy:\s*{NUMBER},\s*elapsed:\s*{NUMBER}\s*s\b")


def _aisbench(line: str) -> Told | None:
    """What AIS-Bench's own scripts print, and the line of an evaluation that we ask of a script."""
    if found := _DONE.match(line):
        batch = _BATCH.search(line)
        return Told(
            throughput=finite(found[1]), final=True, batch=int(batch[1]) if batch else None, window=_window(line)
        )
    if found := _ACCURACY.match(line):
        return Told(accuracy=finite(found[1]))
    if found := _EVALUATION.match(line):
        return Told(accuracy=finite(found[2]), elapsed=finite(found[3]))
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


def _paddle(line: str) -> Told | None:
    if found := _PADDLE.match(line):
        named = fields(line[found.end() :])
        return Told(
            int(found[1] or found[3]),
            int(found[2] or found[4]),
            named.get("loss"),
            has_loss="loss" in named,
            ms_per_step=milliseconds(named.get("batch_cost") or named.get("avg_batch_cost")),
            throughput=None if _TOKENS.search(line) else named.get("ips") or named.get("avg_ips"),
            at=moment(line),
        )
    if found := _PADDLE_EVAL.match(line):
        return Told(accuracy=fields(line[found.end() :]).get("top1"), at=moment(line))
    return None


_ITER = re.compile(rf"Iter #{COUNT}:\s*{NUMBER} img/sec per \w+")
_MEAN = re.compile(rf"Img/sec per \w+:\s*{NUMBER}")
_TOTAL = re.compile(rf"Total img/sec on \d+ \w+\(s\):\s*{NUMBER}")


def _horovod(line: str) -> Told | None:
    if found := _ITER.match(line):
        return Told(step=int(found[1]) + 1, throughput=finite(found[2]))
    if found := _MEAN.match(line):
        return Told(throughput=finite(found[1]), final=True)
    if found := _TOTAL.match(line):
        return Told(total=finite(found[1]), final=True)
    return None


_EPOCH = re.compile(rf"Epoch {COUNT}/\d+\s*\Z")
_STEPS = re.compile(rf"(?:step )?{COUNT}/\d+ (?=[-\[━]|\d)")
_PER_STEP = re.compile(r"(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)(us|µs|ms|s)/(step|sample)")
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def _keras(line: str) -> Told | None:
    """Keras 2 and 3, whose fields are in another order; also Paddle's `Model.fit`."""
    if found := _EPOCH.match(line):
        return Told(int(found[1]), 0)
    found = _STEPS.match(line)
    if not found:
        return None
    named, took = fields(line[found.end() :]), _PER_STEP.search(line)
    if "loss" not in named and not took:
        return None
    ms = float(took[1]) * _MS[took[2]] if took else None
    by_sample = bool(took and took[3] == "sample")  # Keras before 2.3
    return Told(
        step=int(found[1]),
        loss=named.get("loss"),
        has_loss="loss" in named,
        ms_per_step=None if by_sample else ms,
        throughput=1000 / ms if by_sample and ms else None,
        accuracy=named.get("val_accuracy", named.get("val_acc", named.get("val_sparse_categorical_accuracy"))),
    )


MLLOG = ":::MLLOG"
_MOST_EPOCHS = 100_000  # BERT counts samples where others count epochs


def event(line: str) -> dict[str, Any] | None:
    """The event of a line of MLPerf's log, wherever it begins."""
    at = line.find(MLLOG)
    if at < 0:
        return None
    try:
        found = json.loads(line[at + len(MLLOG) :])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("key"), str) else None


def _mlperf(line: str) -> Told | None:
    found = event(line)
    if found is None:
        return None
    key, value, metadata = found["key"], found.get("value"), found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if key in {"epoch_start", "block_start"}:
        number = _real(metadata.get("epoch_num", metadata.get("first_epoch_num")))
        return Told(max(1, int(number)), 0) if number is not None and 0 <= number < _MOST_EPOCHS else None
    time = _real(found.get("time_ms"))
    if key == "eval_accuracy":
        return Told(accuracy=_real(value), at=None if time is None else time / 1000)
    if key == "run_start":
        return None if time is None else Told(at=time / 1000)
    if key in {"train_loss", "loss"}:
        return Told(step=_step(metadata), loss=_real(value), has_loss=True)
    if key in {"tracked_stats", "throughput"}:
        stats: Mapping[str, Any] = value if isinstance(value, dict) else {"throughput": value}
        loss = stats.get("train_loss", stats.get("loss"))
        step = _step(metadata)
        return Told(step=step, loss=_real(loss), has_loss=loss is not None, total=_real(stats.get("throughput")))
    return None


def _step(metadata: Mapping[str, Any]) -> int | None:
    number = _real(metadata.get("step", metadata.get("step_num", metadata.get("samples_count"))))
    return int(number) if number is not None and 0 <= number < 1e15 else None


READERS: Mapping[str, Reader] = {
    "mindspore": _mindspore,
    "bert": _bert,
    "aisbench": _aisbench,
    "paddle": _paddle,
    "horovod": _horovod,
    "keras": _keras,
    "torch": torch_lines.read,
    "mlperf": _mlperf,
}


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None
