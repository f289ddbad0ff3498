"""Following a job to its end: two clocks, outages, words nobody knows, and why it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_aisbench.domain.job import Job, Phase
from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.ports import Clock, Platform
from pytest_aisbench.domain.trial import Fault, Step, Trial
from pytest_aisbench.errors import AisbenchError, Blame, JobOverdue, PlatformError, QueueOverdue
from pytest_aisbench.logs import get_logger
from pytest_aisbench.services import cancel
from pytest_aisbench.services.logs import last_lines

_LOG = get_logger("fleet")
_SLOWEST = 6.0
_SURE = 6  # intervals for which a job must be missing: half a minute on ModelArts


@dataclass(frozen=True)
class Limits:
    """How long is too long, in seconds."""

    queue_s: float
    run_s: float
    outage_s: float = 900.0  # a platform that does not answer about a running job
    stop_s: float = cancel.CONFIRM_S  # a platform that was asked to stop a job


def asked(platform: Platform, job_ids: Iterable[str]) -> Callable[[str], Job]:
    """What the platform says of all of them, asked once: each answer by itself, or the error that all have met."""
    try:
        jobs = platform.inspect(job_ids)
    except AisbenchError as error:
        failure = error
        _LOG.info("the platform tells nothing of the jobs: %s", error)
    except Exception as surprise:  # noqa: BLE001 - of a platform that is not ours: sat out like an outage
        failure = PlatformError(f"{type(surprise).__name__}: {surprise}")
        _LOG.warning("the platform tells nothing of the jobs", exc_info=surprise)
    else:
        return lambda job_id: jobs[job_id]

    def fail(_: str) -> Job:
        raise failure

    return fail


def look(
    trial: Trial,
    platform: Platform,
    clock: Clock,
    limits: Limits,
    inspect: Callable[[str], Job] | None = None,
) -> Trial:
    """What the platform says now; moves on when the job is final, or is not going to be."""
    now = clock.now()
    trial = cancel.request_for(trial, platform, now) if trial.fault else trial
    assert trial.job_id is not None
    try:
        job = inspect(trial.job_id) if inspect else platform.inspect([trial.job_id])[trial.job_id]
    except AisbenchError as error:
        # A garbled answer, or keys refused for a minute, are no reason to stop a job that has run for hours.
        if trial.fault and cancel.is_unconfirmed(trial, now, limits.stop_s):
            left = message("unknown stop", job=trial.job_id, why=str(error))
            return trial.noted(left).moved(Step.HARVEST, now)
        return endure(trial, error, now, limits)
    if job.phase is Phase.LOST and not _surely_lost(trial, now, platform.poll_s):
        return _timed(trial, "missed", trial.times.get("missed", now))
    trial = _seen(trial, job, now)
    if job.phase.is_final:
        # A job that turns up again after all must not run beside the one that follows it.
        return (cancel.request_for(trial, platform, now) if job.phase is Phase.LOST else trial).moved(Step.HARVEST, now)
    if trial.fault:
        if not cancel.is_unconfirmed(trial, now, limits.stop_s):
            return trial
        left = message("still there", job=str(trial.job_id), phase=job.platform_phase)
        return trial.noted(left).moved(Step.HARVEST, now)
    overdue = _overdue(trial, job, now, limits)
    return cancel.begin(trial, Fault.of(overdue), now) if overdue else trial


def endure(trial: Trial, error: AisbenchError, now: float, limits: Limits) -> Trial:
    """Sit out an outage: the trial stays where it is and is looked at again, until the outage has lasted too long."""
    since = trial.times.get("silent", now)
    if now - since > limits.outage_s:
        raise error
    if "silent" not in trial.times:  # once for each outage: every answer has another request id
        trial = trial.noted(message("no answer", why=str(error)))
    return postpone(_timed(trial, "silent", since), error, now, limits)


def postpone(trial: Trial, error: AisbenchError, now: float, limits: Limits) -> Trial:
    """The trial with the time until which the platform asked to be left alone, if it did."""
    return _timed(trial, "retry_after", now + min(error.pause_s, limits.outage_s)) if error.pause_s else trial


def may_ask(trial: Trial, now: float) -> bool:
    """Whether its job may be asked about: the platform did not ask to be left alone."""
    return trial.step is Step.WATCH and trial.times.get("retry_after", now) <= now


def pause(trial: Trial, now: float, shortest: float) -> float:
    """How long to leave a trial alone: the platform's own interval near the expected end, up to six times that
    in the queue and far from the end; and never less than the platform asked for."""
    return max(_interval(trial, now, shortest), trial.times.get("retry_after", now) - now)


def _interval(trial: Trial, now: float, shortest: float) -> float:
    job, expected = trial.job, trial.expected_s
    if job is None or trial.step is not Step.WATCH or trial.fault:
        return shortest
    lasted = now - trial.times.get(job.phase.value.lower(), now)
    near = expected and lasted > 0.8 * expected
    if job.phase is Phase.RUNNING and (near or not expected):
        return shortest
    return shortest * min(_SLOWEST, 1 + lasted / 10)


def news(before: Trial, after: Trial) -> bool:
    """Whether the ledger must hear of it: a running job's age is none."""
    if before.job and after.job:
        after = replace(after, job=replace(after.job, ran_s=before.job.ran_s))
    return before != after


def fault_of(trial: Trial, folder: Path) -> Fault | None:
    """Why a job that ended has nothing to judge; None when it succeeded."""
    job = trial.job
    if job is None or job.phase is Phase.LOST:
        reason = job.reason if job else message("never seen")
        return Fault(Blame.PLATFORM, message("lost", why=reason), transient=True)
    if job.phase is Phase.CANCELLED:
        return Fault(Blame.PLATFORM, message("stopped", why=job.reason or job.platform_phase))
    if job.phase is Phase.FAILED:
        told = message("failed") if job.exit_code is None else message("failed with", code=str(job.exit_code))
        name, lines = last_lines(trial, folder, 1)
        said = message("in log", line=lines[0].strip(), log=name) if lines else job.reason
        return Fault(Blame.WORKLOAD, told + message("because", why=said) if said else told)
    return None


def _surely_lost(trial: Trial, now: float, poll_s: float) -> bool:
    """A list that lags behind, or one bad answer, are no reason to give up hours of training."""
    return now - trial.times.get("missed", now) >= _SURE * poll_s


def _seen(trial: Trial, job: Job, now: float) -> Trial:
    times = {key: at for key, at in trial.times.items() if key not in {"silent", "retry_after", "missed"}}
    if not trial.job or trial.job.phase is not job.phase:
        times[job.phase.value.lower()] = now
    trial = replace(trial, job=job, times=times)
    if not job.known:
        trial = trial.noted(message("strange phase", phase=repr(job.platform_phase)))
    return trial


def _overdue(trial: Trial, job: Job, now: float, limits: Limits) -> AisbenchError | None:
    lasted = now - trial.times[job.phase.value.lower()]
    longest = limits.queue_s + limits.run_s + limits.outage_s
    if now - trial.times.get("watch", now) > longest:
        # A platform that starts a job again and again sets both clocks back each time.
        return PlatformError(f"the job was started again and again, and did not end in {longest:g} s")
    if job.phase is Phase.PENDING and lasted > limits.queue_s:
        advice = "raise --aisbench-queue-timeout, or ask for fewer nodes"
        return QueueOverdue(f"the job waited longer than {limits.queue_s:g} s for its nodes", advice=advice)
    if job.phase is Phase.RUNNING and lasted > limits.run_s:
        if not job.known:
            return PlatformError(
                f"the job stayed {job.platform_phase!r}, a word we do not know, for {limits.run_s:g} s"
            )
        advice = "raise --aisbench-run-timeout, or see where its log stands still"
        return JobOverdue(f"the job ran longer than {limits.run_s:g} s", advice=advice)
    return None


def _timed(trial: Trial, key: str, at: float) -> Trial:
    return replace(trial, times={**trial.times, key: at})
