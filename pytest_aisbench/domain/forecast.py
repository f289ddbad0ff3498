"""How far a job is, how fast, and when all will be over: roughly, from what is known."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.heard import Heard
from pytest_aisbench.domain.progress import Progress
from pytest_aisbench.domain.trial import Trial

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


def share(trial: Trial, heard: Heard | None, now: float) -> float | None:
    """How much of a running job is done, from 0 to 1; by its epochs, or else by the time it should take."""
    total, epoch = epochs(trial.case), heard.progress.epoch if heard else 0
    if total and epoch:
        return min(1.0, epoch / total)
    if not trial.expected_s:
        return None
    return min(ran(trial, now) / trial.expected_s, 1 / total if total else _NEARLY)


def remaining(trial: Trial, heard: Heard | None, now: float) -> float | None:
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
