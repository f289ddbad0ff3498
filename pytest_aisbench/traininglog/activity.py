"""What a running job shows of itself: its log, how busy its nodes are, and when either last moved."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_aisbench.model.case import Case
from pytest_aisbench.model.curve import Curve
from pytest_aisbench.model.job import LogPart
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.traininglog.curve import extended
from pytest_aisbench.traininglog.readers import LONGEST, Progress

_AT_WORK = ("cpu", "npu", "gpu")  # memory is held by a job that hangs, too
_IDLE = 1.0  # percent: what an operating system needs for itself
_UNCHANGED = 0.1  # percent: what rounding may differ by

Newest = tuple[int, float, float]  # how many samples there are, and the last two


@dataclass(frozen=True)
class JobActivity:
    """A value: each reading returns the next one."""

    moved: float  # when there was last a sign of life, or when we began to listen
    progress: Progress = field(default_factory=Progress)
    curve: Curve = field(default_factory=Curve)
    advanced: float = 0.0  # when its epoch last changed
    said: str = ""  # the last line of node 0
    stalled: bool = False
    sizes: Mapping[int, int] = field(default_factory=dict)  # of the log, by node
    busy: Mapping[int, Mapping[str, Newest]] = field(default_factory=dict)  # by node


def with_log(heard: JobActivity, node: int, part: LogPart, now: float) -> JobActivity:
    """After a node's log was read from where it ended before."""
    first = node not in heard.sizes  # it had time to grow while nobody looked
    grown = part.next > heard.sizes.get(node, 0) and not (first and node)
    heard = replace(heard, sizes={**heard.sizes, node: part.next}, moved=now if grown else heard.moved)
    if node or not part.text:
        return heard
    lines = [line for line in part.text.splitlines() if line.strip()]
    curve, progress = extended(heard.curve, heard.progress, part.text)
    advanced = now if progress.epoch != heard.progress.epoch else heard.advanced
    said = lines[-1] if lines else heard.said
    return replace(heard, progress=progress, curve=curve, advanced=advanced, said=said)


def with_usage(heard: JobActivity, node: int, usage: Mapping[str, Sequence[float]], now: float) -> JobActivity:
    """After a node's samples were read. New ones are a sign of life if it works, and not always the same."""
    newest = {name: _newest(usage[name]) for name in _AT_WORK if usage.get(name)}
    before = heard.busy.get(node, {})
    alive = any(
        sample != before.get(name) and sample[2] > _IDLE and abs(sample[2] - sample[1]) > _UNCHANGED
        for name, sample in newest.items()
    )
    return replace(heard, busy={**heard.busy, node: newest}, moved=now if alive else heard.moved)


def with_stall(heard: JobActivity, now: float, stall_s: float) -> JobActivity:
    """Whether a job that shows no sign of life has done so for too long."""
    return replace(heard, stalled=now - heard.moved >= stall_s)


def _newest(samples: Sequence[float]) -> Newest:
    return len(samples), samples[-2] if len(samples) > 1 else 0.0, samples[-1]


# -- How far a job is, how fast, and when all will be over: roughly, from what is known.

_EPOCHS = ("epoch_size", "epochs")  # what workloads call the number of their epochs
_BATCH = "batch_size"  # of one rank
_NEARLY = 0.99
_OVERDUE = 0.1  # of the expected time: what is still granted to a job that should have ended


def epochs(case: Case) -> int | None:
    """How many the workload's parameters ask for."""
    told = next(filter(None, map(case.workload.parameters.get, _EPOCHS)), "")
    return int(told) if told.isdecimal() and int(told) else None


def ran(trial: Trial, now: float) -> float:
    """Seconds since the job was first seen in its phase."""
    phase = trial.job.phase.value.lower() if trial.job else ""
    return max(0.0, now - trial.times.get(phase, trial.times.get(trial.step.name.lower(), now)))


def share(trial: Trial, heard: JobActivity | None, now: float) -> float | None:
    """How much of a running job is done, from 0 to 1; by its epochs, or else by the time it should take."""
    total, epoch = epochs(trial.case), heard.progress.epoch if heard else 0
    if total and epoch:
        return min(1.0, epoch / total)
    if not trial.expected_s:
        return None
    return min(ran(trial, now) / trial.expected_s, 1 / total if total else _NEARLY)


def remaining(trial: Trial, heard: JobActivity | None, now: float) -> float | None:
    """Seconds that a running job still needs, at the pace of its epochs so far, or as expected."""
    total, lasted = epochs(trial.case), ran(trial, now)
    if total and heard and heard.progress.epoch:
        reached = lasted - (now - heard.advanced)
        return max(0.0, reached * max(1.0, total / heard.progress.epoch) - lasted)
    return max(trial.expected_s - lasted, trial.expected_s * _OVERDUE) if trial.expected_s else None


def throughput(case: Case, progress: Progress) -> float | None:
    """Of all ranks, if the others are as fast as the one that tells."""
    if progress.total is not None:
        return progress.total
    if progress.throughput is not None:
        return progress.throughput * case.shape.world
    batch = case.workload.parameters.get(_BATCH, "")
    if batch.isdecimal() and progress.ms_per_step:
        return int(batch) * 1000 / progress.ms_per_step * case.shape.world
    return None


def until_all(running: Sequence[float | None], waiting: Sequence[float | None], max_jobs: int) -> float | None:
    """Seconds until the last of them ends, with so many at once: the longest of those that wait goes first, and
    the next wherever a place is free. None where nobody knows how long any of them takes."""
    known = [seconds for seconds in (*running, *waiting) if seconds is not None]
    if not known:
        return None if running or waiting else 0.0
    usual = sum(known) / len(known)
    places = [usual if seconds is None else seconds for seconds in running]
    places += [0.0] * (max_jobs - len(places))
    heapq.heapify(places)
    for seconds in sorted((usual if told is None else told for told in waiting), reverse=True):
        heapq.heapreplace(places, places[0] + seconds)
    return max(places)


# -- Which software trained, as far as a log tells it: CANN, the driver, the framework.

_VERSION = r"v?(\d{1,4}(?:\.(?:\d{1,4}|[a-zA-Z]{1,8}\d{0,4}|\d{1,4}(?:a|b|rc)\d{1,4})){1,4}(?:[-+][\w.]{1,20})?)"
_END = r"(?![\w.]*\w)"  # a version that goes on in another way is none that we know
# Words that every telling line has: of a log's millions of lines most are not looked at twice.
_HINTS = ("version", "cann", "ascend-toolkit", "npu-smi", "horovod v")

_SAYINGS: tuple[tuple[str, str], ...] = (
    # the folder that a toolkit is installed in, and the engines of ModelArts
    ("cann", rf"/Ascend/(?:ascend-toolkit/|cann-){_VERSION}(?=/|\s|$|['\":])"),
    ("cann", rf"\bcann_{_VERSION.replace('[-+]', '[+]')}(?=-py_)"),
    ("cann", rf"\bCANN(?: toolkit)?(?: version)?\s*(?:is|[:=])\s*{_VERSION}{_END}"),
    # `npu-smi info`, whose version is the driver's; `npu-smi info -t board`; nvidia-smi
    ("driver", rf"\|\s*npu-smi\s+\S+\s+Version:\s*{_VERSION}\s*\|"),
    ("driver", rf"^\s*Software Version\s*:\s*{_VERSION}\s*$"),
    ("driver", rf"\b(?:NPU |Ascend )?driver version\s*(?:is|[:=])\s*{_VERSION}{_END}"),
    ("firmware", rf"\bfirmware version\s*(?:is|[:=])\s*{_VERSION}{_END}"),
    # MindSpore's own check of what it runs on, and `mindspore.run_check()`
    ("ascend package", rf"\bAscend AI software package(?: \([^)]{{1,40}}\))?\s*version {_VERSION} does not match"),
    ("mindspore", rf"\bMindSpore version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("mindspore", rf"\bmindspore_{_VERSION.replace('[-+]', '[+]')}(?=-cann_)"),
    ("paddle", rf"\bPaddle(?:Paddle)? version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("tensorflow", rf"\b(?:TensorFlow|TF) version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("torch", rf"\b(?:PyTorch|torch) version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    # `horovodrun --check-build` begins so
    ("horovod", rf"\bHorovod v{_VERSION.removeprefix('v?')}:"),
    ("horovod", rf"\bHorovod version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("cuda", rf"\bCUDA Version\s*:\s*{_VERSION}{_END}"),
)
_READERS = tuple((name, re.compile(saying, re.IGNORECASE)) for name, saying in _SAYINGS)


def versions(text: str) -> Mapping[str, str]:
    """By name. Where nodes or lines tell several, all of them, in order: such a job is comparable to no other."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        lowered = line[:LONGEST].lower()
        if not any(hint in lowered for hint in _HINTS):
            continue
        for name, reader in _READERS:
            for told in reader.finditer(line[:LONGEST]):
                found.setdefault(name, set()).add(told[1])
    return {name: ", ".join(sorted(told)) for name, told in sorted(found.items())}
