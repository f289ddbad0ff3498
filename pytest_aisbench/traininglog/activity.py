"""How a running job is getting on: signs of life, progress, the time that is left, and the software that it uses."""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import LogPart
from pytest_aisbench.model.metric import Curve
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.traininglog.curve import Progress, extend_curve
from pytest_aisbench.traininglog.readers import MOST_CHARACTERS

_AT_WORK = ("cpu", "npu", "gpu")  # a job that hangs still holds its memory
_IDLE = 1.0  # percent: what an operating system needs for itself
_UNCHANGED = 0.1  # percent: what rounding may differ by

_EPOCHS = ("epoch_size", "epochs")  # what workloads call the number of their epochs
_BATCH = "batch_size"  # of one rank
_NEARLY = 0.99
_OVERDUE = 0.1  # of the expected time: what a job that should have ended is still granted

LastSamples = tuple[int, float, float]  # how many samples there are, and the last two


@dataclass(frozen=True)
class JobActivity:
    """What a running job has shown so far. `with_log`, `with_usage` and `with_stall` return the next value."""

    alive_at: float  # when the job last showed a sign of life, or when we began to watch it
    progress: Progress = field(default_factory=Progress)
    curve: Curve = field(default_factory=Curve)
    epoch_changed_at: float = 0.0
    last_line: str = ""  # of node 0
    stalled: bool = False
    sizes: Mapping[int, int] = field(default_factory=dict)  # of the log, by node
    usage: Mapping[int, Mapping[str, LastSamples]] = field(default_factory=dict)  # by node


def with_log(activity: JobActivity, node: int, part: LogPart, now: float) -> JobActivity:
    """The activity after we read what a node's log has gained. A log that grew is a sign of life."""
    first = node not in activity.sizes  # another node's log may have grown before we first read it
    grown = part.next > activity.sizes.get(node, 0) and not (first and node)
    sizes = {**activity.sizes, node: part.next}
    activity = replace(activity, sizes=sizes, alive_at=now if grown else activity.alive_at)
    if node or not part.text:
        return activity
    lines = [line for line in part.text.splitlines() if line.strip()]
    curve, progress = extend_curve(activity.curve, activity.progress, part.text)
    return replace(
        activity,
        progress=progress,
        curve=curve,
        epoch_changed_at=now if progress.epoch != activity.progress.epoch else activity.epoch_changed_at,
        last_line=lines[-1] if lines else activity.last_line,
    )


def with_usage(activity: JobActivity, node: int, usage: Mapping[str, Sequence[float]], now: float) -> JobActivity:
    """The activity after we read a node's usage. A new sample is a sign of life if it is above idle and changes."""
    newest = {name: _last_samples(usage[name]) for name in _AT_WORK if usage.get(name)}
    before = activity.usage.get(node, {})
    alive = any(
        sample != before.get(name) and sample[2] > _IDLE and abs(sample[2] - sample[1]) > _UNCHANGED
        for name, sample in newest.items()
    )
    alive_at = now if alive else activity.alive_at
    return replace(activity, usage={**activity.usage, node: newest}, alive_at=alive_at)


def with_stall(activity: JobActivity, now: float, stall_s: float) -> JobActivity:
    """The activity, stalled if the last sign of life is `stall_s` or more ago."""
    return replace(activity, stalled=now - activity.alive_at >= stall_s)


def _last_samples(samples: Sequence[float]) -> LastSamples:
    return len(samples), samples[-2] if len(samples) > 1 else 0.0, samples[-1]


# How far a job is, and how long it will take


def epochs_of(case: Case) -> int | None:
    """How many epochs the workload's parameters ask for."""
    text = next(filter(None, map(case.workload.parameters.get, _EPOCHS)), "")
    return int(text) if text.isdecimal() and int(text) else None


def seconds_in_phase(trial: Trial, now: float) -> float:
    """Seconds since we first saw the job in its phase."""
    phase = trial.job.phase.value.lower() if trial.job else ""
    return max(0.0, now - trial.times.get(phase, trial.times.get(trial.step.name.lower(), now)))


def share_done(trial: Trial, activity: JobActivity | None, now: float) -> float | None:
    """How much of a running job is done, from 0 to 1: by its epochs or steps, or else by the time it should take."""
    total, epoch = epochs_of(trial.case), activity.progress.epoch if activity else 0
    if total and epoch:
        return min(1.0, epoch / total)
    if activity and (steps := _all_steps(activity.progress)):
        return min(1.0, activity.progress.step / steps)
    if not trial.expected_s:
        return None
    return min(seconds_in_phase(trial, now) / trial.expected_s, 1 / total if total else _NEARLY)


def seconds_left(trial: Trial, activity: JobActivity | None, now: float) -> float | None:
    """Seconds that a running job still needs: at the pace of its epochs or steps so far, or as expected."""
    total, lasted = epochs_of(trial.case), seconds_in_phase(trial, now)
    if total and activity and activity.progress.epoch:
        at_epoch = lasted - (now - activity.epoch_changed_at)
        return max(0.0, at_epoch * max(1.0, total / activity.progress.epoch) - lasted)
    if activity and (steps := _all_steps(activity.progress)) and (ms := activity.progress.ms_per_step):
        return max(0.0, (steps - activity.progress.step) * ms / 1000)
    return max(trial.expected_s - lasted, trial.expected_s * _OVERDUE) if trial.expected_s else None


def _all_steps(progress: Progress) -> int | None:
    """How many steps the whole training has; a log that counts epochs gives the steps of one."""
    return None if progress.epoch else progress.steps


def throughput(case: Case, progress: Progress) -> float | None:
    """Throughput of all ranks in the log's unit, if the others are as fast as the rank whose lines we read."""
    if progress.total is not None:
        return progress.total
    if progress.throughput is not None:
        return progress.throughput * case.shape.world
    batch = case.workload.parameters.get(_BATCH, "")
    if batch.isdecimal() and progress.ms_per_step:
        return int(batch) * 1000 / progress.ms_per_step * case.shape.world
    return None


def seconds_until_all_end(
    running: Sequence[float | None], waiting: Sequence[float | None], max_jobs: int
) -> float | None:
    """Seconds until the last job ends if `max_jobs` run at once and the longest start first. A None duration counts
    as the mean of the others; if all are None, so is the answer."""
    durations = [seconds for seconds in (*running, *waiting) if seconds is not None]
    if not durations:
        return None if running or waiting else 0.0
    usual = sum(durations) / len(durations)
    free_at = [usual if seconds is None else seconds for seconds in running]
    free_at += [0.0] * (max_jobs - len(free_at))
    heapq.heapify(free_at)
    for seconds in sorted((usual if each is None else each for each in waiting), reverse=True):
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


# Which software trains: CANN, the driver, the framework

_VERSION = r"v?(\d{1,4}(?:\.(?:\d{1,4}|[a-zA-Z]{1,8}\d{0,4}|\d{1,4}(?:a|b|rc)\d{1,4})){1,4}(?:[-+][\w.]{1,20})?)"
_END = r"(?![\w.]*\w)"  # text that goes on after the version is not a version that we know
# Every line that names a version has one of these words: skip the others at once, a log may have millions of lines.
_HINTS = ("version", "cann", "ascend-toolkit", "npu-smi", "horovod v")

_PATTERNS: tuple[tuple[str, str], ...] = (
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


_MINIATURE = rf"\b(\w{{1,20}}) miniature, \1 version {_VERSION}{_END}"  # what a miniature of suites/ prints first
LOGGED_SOFTWARE = tuple(dict.fromkeys(name for name, _ in _PATTERNS))  # what `software_versions` may name


def miniature_software(text: str) -> tuple[str, str] | None:
    """What a miniature is written with, and its version, if the log says that a miniature trained."""
    line = next((line for line in text.splitlines() if " miniature, " in line), "")
    match = re.search(_MINIATURE, line[:MOST_CHARACTERS])
    return (match[1], match[2]) if match else None


@functools.cache  # compiled at the first line that may name a version: it takes 8 ms, and not every log has one
def _readers() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PATTERNS)


def software_versions(text: str) -> Mapping[str, str]:
    """The versions that a log names, by software. Where lines differ, all of them: such a job compares to no other."""
    versions: dict[str, set[str]] = {}
    for line in text.splitlines():
        lowered = line[:MOST_CHARACTERS].lower()
        if not any(hint in lowered for hint in _HINTS):
            continue
        for name, reader in _readers():
            for match in reader.finditer(line[:MOST_CHARACTERS]):
                versions.setdefault(name, set()).add(match[1])
    return {name: ", ".join(sorted(each)) for name, each in sorted(versions.items())}
