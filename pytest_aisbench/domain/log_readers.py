"""What one line of a training's log says, by whichever framework printed it: a registry of readers.

A reader takes a line and returns what it understood, or None. It takes any line: a job may print what it likes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.domain.stamp import moment

LONGEST = 4096  # characters of a line that are looked at; a job may print a gigabyte without a line's end
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf)"
_COUNT = r"(\d{1,12})"
# mpirun's `[1,0]<stdout>:`, horovodrun's `[0]<stdout>:`, torchrun's `[rank0]:` and `[default0]:`, srun's ` 0: `
_PREFIX = re.compile(
    r"\s*(?:\[(\d+(?:,\d+)?)\]<std(?:out|err)>:|\[?rank[ _]?(\d+)\]?:|\[[a-z_]{1,32}(\d{1,6})\]:|(\d+):(?=\s))\s*",
    re.IGNORECASE,
)
# A word that every line has which some reader knows: most lines of a log are another's, and there may be millions.
_HINTS = ("epoch", "loss", "/step", "/sample", "img/sec", "train done", "eval ckpt", "accuracy is", ":::mllog")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]|\x08+")


@dataclass(frozen=True)
class Told:
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


Reader = Callable[[str], "Told | None"]


def tell(line: str) -> tuple[str, Told] | None:
    """Whose line it is, where it says so, and what it says."""
    line = line[:LONGEST]
    lowered = line.lower()
    if not any(hint in lowered for hint in _HINTS):
        return None
    line = _COLOUR.sub("", line)
    prefix = _PREFIX.match(line)
    rest = line[prefix.end() :] if prefix else line.lstrip()
    if "\r" in rest:  # a bar that was drawn over itself: the last counts
        rest = next((part.lstrip() for part in reversed(rest.split("\r")) if part.strip()), "")
    for reader in READERS.values():
        if told := reader(rest):
            return next(filter(None, prefix.groups())) if prefix else "", told
    return None


_LOSS = re.compile(rf"epoch:\s*{_COUNT},?\s*step:\s*{_COUNT},\s*loss(?: is|:)\s*{_NUMBER}", re.IGNORECASE)
_TIME = re.compile(rf"(?:train )?epoch time:\s*{_NUMBER}(?: ms)?,\s*per step time:\s*{_NUMBER}", re.IGNORECASE)


def _mindspore(line: str) -> Told | None:
    if found := _LOSS.match(line):
        return Told(int(found[1]), int(found[2]), _finite(found[3]), has_loss=True)
    if found := _TIME.match(line):
        return Told(ms_per_step=_finite(found[2]))
    return None


_OUTPUTS = re.compile(
    rf"epoch:\s*{_COUNT}(?:\.\d*)?,\s*current epoch percent:\s*[\d.]+,\s*step:\s*{_COUNT},\s*outputs are\s*"
    rf"\(?(?:Tensor\(shape=\[[^\]]*\],\s*dtype=\w+,\s*(?:value=)?)?[\s\[]*{_NUMBER}",
    re.IGNORECASE,
)


def _bert(line: str) -> Told | None:
    found = _OUTPUTS.match(line)  # the callback that prints the percentage counts epochs from 0
    return Told(int(found[1]) + 1, int(found[2]), _finite(found[3]), has_loss=True) if found else None


_DONE = re.compile(rf"train done\b.*\bsingle_throughput_rate:\s*{_NUMBER}")
_BATCH = re.compile(rf"\bbatchsize:\s*{_COUNT}")
_ACCURACY = re.compile(rf"(?:eval ckpt result:|Accuracy is:)\s*(?:\{{[^:]*:)?\s*{_NUMBER}")
_EVALUATION = re.compile(rf"eval epoch:\s*{_COUNT},\s*accuracy:\s*{_NUMBER},\s*elapsed:\s*{_NUMBER}\s*s\b")


def _aisbench(line: str) -> Told | None:
    """What AIS-Bench's own scripts print, and the line of an evaluation that we ask of a script."""
    if found := _DONE.match(line):
        batch = _BATCH.search(line)
        return Told(
            throughput=_finite(found[1]), final=True, batch=int(batch[1]) if batch else None, window=_window(line)
        )
    if found := _ACCURACY.match(line):
        return Told(accuracy=_finite(found[1]))
    if found := _EVALUATION.match(line):
        return Told(accuracy=_finite(found[2]), elapsed=_finite(found[3]))
    return None


_DOOMSDAY = 1e11  # seconds since the epoch; no calendar goes much further
_WINDOW = re.compile(rf"\bstarttime:\s*{_NUMBER} endtime:\s*{_NUMBER} ")


def _window(line: str) -> tuple[float, float] | None:
    found = _WINDOW.search(line)
    start, end = (_finite(found[1]), _finite(found[2])) if found else (None, None)
    return (start, end) if start is not None and end is not None and 0 < start < end < _DOOMSDAY else None


_PADDLE = re.compile(
    rf"(?:\[\d{{4}}[^\]]*\]\s*)?(?:[\w.]+\s+INFO:\s*)?"
    rf"(?:\[Train\]\[Epoch {_COUNT}/\d+\]\[Iter:\s*{_COUNT}/\d+\]|\[Epoch {_COUNT}, iter:\s*{_COUNT}\])"
)
_PADDLE_EVAL = re.compile(rf"(?:\[\d{{4}}[^\]]*\]\s*)?(?:[\w.]+\s+INFO:\s*)?\[Eval\]\[Epoch {_COUNT}\]\[Avg\]")
_FIELD = re.compile(rf"(?<![\w@])([A-Za-z][\w@]{{0,40}}):\s*{_NUMBER}(?![\d/])")


def _paddle(line: str) -> Told | None:
    if found := _PADDLE.match(line):
        fields = _fields(line[found.end() :])
        cost = fields.get("batch_cost") or fields.get("avg_batch_cost")
        return Told(
            int(found[1] or found[3]),
            int(found[2] or found[4]),
            fields.get("loss"),
            has_loss="loss" in fields,
            ms_per_step=cost * 1000 if cost and math.isfinite(cost * 1000) else None,
            throughput=fields.get("ips") or fields.get("avg_ips"),
            at=moment(line),
        )
    if found := _PADDLE_EVAL.match(line):
        return Told(accuracy=_fields(line[found.end() :]).get("top1"), at=moment(line))
    return None


_ITER = re.compile(rf"Iter #{_COUNT}:\s*{_NUMBER} img/sec per \w+")
_TOTAL = re.compile(rf"Total img/sec on \d+ \w+\(s\):\s*{_NUMBER}")


def _horovod(line: str) -> Told | None:
    if found := _ITER.match(line):
        return Told(step=int(found[1]) + 1, throughput=_finite(found[2]))
    if found := _TOTAL.match(line):
        return Told(total=_finite(found[1]), final=True)
    return None


_EPOCH = re.compile(rf"Epoch {_COUNT}/\d+\s*\Z")
_STEPS = re.compile(rf"(?:step )?{_COUNT}/\d+ (?=[-\[━]|\d)")
_PER_STEP = re.compile(r"(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)(us|µs|ms|s)/(?:step|sample)")
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def _keras(line: str) -> Told | None:
    """Keras 2 and 3, whose fields are in another order; also Paddle's `Model.fit`."""
    if found := _EPOCH.match(line):
        return Told(int(found[1]), 0)
    found = _STEPS.match(line)
    if not found:
        return None
    fields, took = _fields(line[found.end() :]), _PER_STEP.search(line)
    if "loss" not in fields and not took:
        return None
    return Told(
        step=int(found[1]),
        loss=fields.get("loss"),
        has_loss="loss" in fields,
        ms_per_step=float(took[1]) * _MS[took[2]] if took else None,
        accuracy=fields.get("val_accuracy", fields.get("val_acc", fields.get("val_sparse_categorical_accuracy"))),
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
    "mlperf": _mlperf,
}


def _fields(text: str) -> dict[str, float | None]:
    """`loss: 4.6, ips: 40.6 images/sec` by name; the last of a name counts."""
    return {found[1]: _finite(found[2]) for found in _FIELD.finditer(text)}


def _finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None
