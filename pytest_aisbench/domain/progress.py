"""How far a training is, read from what it prints: MindSpore's lines of epoch, step, loss and time, and AIS-Bench's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf)"
# mpirun's `[1,0]<stdout>:`, horovodrun's `[0]<stdout>:`, torchrun's `[rank0]:`, srun's ` 0: `
_PREFIX = re.compile(r"\s*(?:\[(\d+(?:,\d+)?)\]<std(?:out|err)>:|\[?rank[ _]?(\d+)\]?:|(\d+):(?=\s))\s*", re.IGNORECASE)
_LOSS = re.compile(rf"epoch:\s*(\d+),?\s*step:\s*(\d+),\s*loss(?: is|:)\s*{_NUMBER}", re.IGNORECASE)
_OUTPUTS = re.compile(
    r"epoch:\s*(\d+)(?:\.\d*)?,\s*current epoch percent:\s*[\d.]+,\s*step:\s*(\d+),\s*outputs are\s*"
    rf"\(?(?:Tensor\(shape=\[[^\]]*\],\s*dtype=\w+,\s*(?:value=)?)?[\s\[]*{_NUMBER}",
    re.IGNORECASE,
)
_TIME = re.compile(rf"(?:train )?epoch time:\s*{_NUMBER}(?: ms)?,\s*per step time:\s*{_NUMBER}", re.IGNORECASE)
_THROUGHPUT = re.compile(rf"train done\b.*\bsingle_throughput_rate:\s*{_NUMBER}")
_ACCURACY = re.compile(rf"(?:eval ckpt result:|Accuracy is:)\s*(?:\{{[^:]*:)?\s*{_NUMBER}")
_LONGEST = 4096  # characters of a line that are looked at; a job may print a gigabyte without a line's end


@dataclass(frozen=True)
class Progress:
    """What a log told so far; None until it was told, or once it is no finite number.

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
    # Where the reader stands.
    rest: str = ""  # of a line that is not complete yet
    rank: str = ""  # the one that is followed, where lines say whose they are
    restarted: int = 0  # epochs before the last restart
    arrived: int = 0  # ranks that printed the newest epoch and step


def read(progress: Progress, text: str) -> Progress:
    """The progress after more of the log, which may end in the middle of a line."""
    *whole, rest = text.split("\n")
    if not whole:
        return replace(progress, rest=(progress.rest + rest)[:_LONGEST])
    whole[0] = progress.rest + whole[0]
    for line in whole:
        progress = _line(replace(progress, lines=progress.lines + 1), line[:_LONGEST])
    return replace(progress, rest=rest[:_LONGEST])


def _line(progress: Progress, line: str) -> Progress:
    prefix = _PREFIX.match(line)
    told = line[prefix.end() :] if prefix else line.lstrip()
    rank = next(filter(None, prefix.groups())) if prefix else ""
    if found := _LOSS.match(told):
        return _trained(progress, rank, int(found[1]), int(found[2]), _finite(found[3]))
    if found := _OUTPUTS.match(told):  # the callback that prints the percentage counts epochs from 0
        return _trained(progress, rank, int(found[1]) + 1, int(found[2]), _finite(found[3]))
    if found := _TIME.match(told):
        return progress if _of_another(progress, rank) else replace(progress, ms_per_step=_finite(found[2]))
    if found := _THROUGHPUT.match(told):
        return replace(progress, throughput=_finite(found[1]))
    if found := _ACCURACY.match(told):
        return replace(progress, accuracy=_finite(found[1]))
    return progress


def _trained(progress: Progress, rank: str, epoch: int, step: int, loss: float | None) -> Progress:
    if _of_another(progress, rank):
        return progress
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
        progress, epoch=restarted + epoch, step=step, loss=loss, rank=rank, restarted=restarted, arrived=arrived
    )


def _of_another(progress: Progress, rank: str) -> bool:
    """A line of the same training, by a rank that is not the one we follow."""
    return bool(progress.rank) and rank != progress.rank


def _finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None
