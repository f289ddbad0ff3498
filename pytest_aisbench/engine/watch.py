"""Following a job to its end: two clocks, outages, words nobody knows, and why it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_aisbench.engine import cancel
from pytest_aisbench.engine.collect import last_lines
from pytest_aisbench.errors import AisbenchError, Blame, JobOverdue, PlatformError, QueueOverdue, Throttled, Unreachable
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.job import Job, LogPart, Phase
from pytest_aisbench.model.messages import message, plain
from pytest_aisbench.model.ports import Clock, Platform
from pytest_aisbench.model.trial import Fault, Step, Trial
from pytest_aisbench.traininglog.activity import JobActivity, epochs, with_log, with_stall, with_usage
from pytest_aisbench.traininglog.readers import Progress

_LOG = get_logger("fleet")
_MONITOR_LOG = get_logger("monitor")

# -- Listening to the jobs that run: how far each is, and which of them stands still.

_QUICKEST = 0.5  # seconds between two rounds
_ROUND = 6  # jobs of one round, however many run
_SLOWEST_READ = 60.0  # seconds between two readings of one log because of its size
_BYTES_PER_S = 100_000  # a platform may send the whole log, up to 5 MB, for the sake of one line
_END_S = 2.0


@dataclass
class _Monitored:
    """Where the listening to one job stands."""

    activity: JobActivity
    due: float = 0.0
    looked: int = 0  # how often another node than the first had its turn
    asked: int = 0  # how often the use of a node was asked for
    asked_at: float = 0.0


class LogMonitor:
    """One thread for all jobs; the more they are, the less often each is heard."""

    def __init__(
        self,
        platform: Platform,
        clock: Clock,
        trials: Callable[[], Iterable[Trial]],
        stall_s: float,
        *,
        say: Callable[[str], None],
        note: Callable[[Trial, str], None],
        keep: Callable[[Trial, int, LogPart], None] = lambda *_: None,
    ) -> None:
        """`say` takes lines for whoever waits, `note` what the report keeps of a trial, `keep` what a node said."""
        self._platform = platform
        self._clock = clock
        self._trials = trials
        self._stall_s = stall_s
        self._say = say
        self._note = note
        self._keep = keep
        self._rest = max(platform.poll_s, _QUICKEST)
        self._watched: dict[str, _Monitored] = {}  # by trial
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aisbench-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)  # a daemon: a platform that does not answer keeps nobody

    def activity(self, trial: Trial) -> JobActivity | None:
        watched = self._watched.get(trial.id)
        return watched.activity if watched else None

    def _run(self) -> None:
        while not self._closing.wait(self._rest):
            with ignored(_MONITOR_LOG, Exception, "one round of reading logs"):
                self.round()

    def round(self) -> None:
        """Hear the few that have waited longest."""
        now = self._clock.now()
        running = {trial.id: trial for trial in self._trials() if _is_running(trial)}
        self._watched = {
            key: self._watched.get(key) or _Monitored(JobActivity(now, Progress(ranks=trial.case.shape.devices)))
            for key, trial in running.items()
        }
        due = sorted((watched.due, key) for key, watched in self._watched.items() if watched.due <= now)
        for _, key in due[:_ROUND]:
            if self._closing.is_set():
                return
            self._watched[key].due = now + self._rest
            # Whatever a platform raises: the watch deals with its outages.
            with ignored(_MONITOR_LOG, Exception, "%s: one reading of its log", running[key].name):
                self._hear(running[key], self._watched[key])

    def _hear(self, trial: Trial, watched: _Monitored) -> None:
        before, nodes = watched.activity, trial.case.shape.nodes
        after = self._log(trial, before, 0)
        # Less is known then, and it is less that matters.
        with ignored(_MONITOR_LOG, Exception, "%s: one look at its other nodes", trial.name):
            if nodes > 1:
                watched.looked += 1
                after = self._log(trial, after, watched.looked % (nodes - 1) + 1)
            if self._is_silent(after, watched):
                watched.asked_at, watched.asked = self._clock.now(), watched.asked + 1
                node = watched.asked % nodes
                usage = self._platform.usage(trial.job_id or "", node)
                after = with_usage(after, node, usage, watched.asked_at)
        now = self._clock.now()
        watched.activity = after = with_stall(after, now, self._stall_s)
        watched.due = now + max(self._rest, min(_SLOWEST_READ, after.sizes[0] / _BYTES_PER_S))
        if after.stalled != before.stalled:
            self._tell(trial, before, after)

    def _log(self, trial: Trial, known: JobActivity, node: int) -> JobActivity:
        part = self._platform.logs(trial.job_id or "", node, known.sizes.get(node, 0))
        with ignored(_MONITOR_LOG, OSError, "%s: a part of its log on disk", trial.name):  # a full disk shows elsewhere
            self._keep(trial, node, part)
        return with_log(known, node, part, self._clock.now())

    def _is_silent(self, known: JobActivity, watched: _Monitored) -> bool:
        """The use of a node is asked for where its log says nothing: most jobs speak."""
        now = self._clock.now()
        return now - known.moved > self._stall_s / 3 and now - watched.asked_at >= self._stall_s / 6

    def _tell(self, trial: Trial, before: JobActivity, after: JobActivity) -> None:
        if after.stalled:
            where = training_position(trial, after)
            self._say(
                f"{trial.case.id} stalls: job {trial.job_id} has shown no sign of life since {_local_time(after.moved)}"
                f"{where and f', at {where}'}; see `aisbench logs {trial.job_id}`"
            )
            since = _utc_time(after.moved)
            self._note(trial, message("silent at", when=since, where=where) if where else message("silent", when=since))
        else:
            self._say(f"{trial.case.id} goes on: job {trial.job_id} had stood still since {_local_time(before.moved)}")
            self._note(trial, message("went on", when=_utc_time(after.moved)))


def training_position(trial: Trial, told: JobActivity) -> str:
    """Where its training stands, as far as its log tells."""
    progress, total = told.progress, epochs(trial.case)
    if progress.epoch:
        return f"epoch {progress.epoch}{f'/{total}' if total else ''}, step {progress.step}"
    return plain(told.said.strip(), 80)


def _is_running(trial: Trial) -> bool:
    running = trial.job is not None and trial.job.phase is Phase.RUNNING
    return running and trial.step is Step.WATCH and trial.fault is None


def _local_time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _utc_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


# -- A node's log, as it grows.
OUTAGE_S = 900.0  # a platform that does not answer for so long is not waited for any more


def stream_log(platform: Platform, clock: Clock, job_id: str, node: int = 0) -> Iterator[str]:
    """Its text from the beginning, each piece once, until the job is final and all was said."""
    since, heard, final = 0, clock.now(), False
    while True:
        # What a job says last may be shown after its end: once it is final, one reading more must find nothing.
        last = final
        try:
            final = final or platform.inspect([job_id])[job_id].phase.is_final
            part = platform.logs(job_id, node, since)
        except (Unreachable, Throttled) as error:
            if clock.now() - heard > OUTAGE_S:
                raise
            log_ignored(_MONITOR_LOG, error, "one look at the log of job %s", job_id)
        else:
            since, heard = part.next, clock.now()
            if part.text:
                yield part.text
            elif last:
                return
        clock.sleep(platform.poll_s)


_LONGEST_INTERVAL = 6.0
_LOST_AFTER_POLLS = 6  # intervals for which a job must be missing: half a minute on ModelArts


@dataclass(frozen=True)
class Limits:
    """How long is too long, in seconds."""

    queue_s: float
    run_s: float
    outage_s: float = 900.0  # a platform that does not answer about a running job
    stop_s: float = cancel.CONFIRM_S  # a platform that was asked to stop a job


def inspect_together(platform: Platform, job_ids: Iterable[str]) -> Callable[[str], Job]:
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


def watch_job(
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
        return sit_out_outage(trial, error, now, limits)
    if job.phase is Phase.LOST and not _is_surely_lost(trial, now, platform.poll_s):
        return _with_time(trial, "missed", trial.times.get("missed", now))
    trial = _with_job(trial, job, now)
    if job.phase.is_final:
        # A job that turns up again after all must not run beside the one that follows it.
        return (cancel.request_for(trial, platform, now) if job.phase is Phase.LOST else trial).moved(Step.HARVEST, now)
    if trial.fault:
        if not cancel.is_unconfirmed(trial, now, limits.stop_s):
            return trial
        left = message("still there", job=str(trial.job_id), phase=job.platform_phase)
        return trial.noted(left).moved(Step.HARVEST, now)
    overdue = _overdue_error(trial, job, now, limits)
    return cancel.begin(trial, Fault.of(overdue), now) if overdue else trial


def sit_out_outage(trial: Trial, error: AisbenchError, now: float, limits: Limits) -> Trial:
    """Sit out an outage: the trial stays where it is and is looked at again, until the outage has lasted too long."""
    since = trial.times.get("silent", now)
    if now - since > limits.outage_s:
        raise error
    if "silent" not in trial.times:  # once for each outage: every answer has another request id
        trial = trial.noted(message("no answer", why=str(error)))
    return postpone(_with_time(trial, "silent", since), error, now, limits)


def postpone(trial: Trial, error: AisbenchError, now: float, limits: Limits) -> Trial:
    """The trial with the time until which the platform asked to be left alone, if it did."""
    return _with_time(trial, "retry_after", now + min(error.pause_s, limits.outage_s)) if error.pause_s else trial


def may_ask(trial: Trial, now: float) -> bool:
    """Whether its job may be asked about: the platform did not ask to be left alone."""
    return trial.step is Step.WATCH and trial.times.get("retry_after", now) <= now


def pause_s(trial: Trial, now: float, shortest: float) -> float:
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
    return shortest * min(_LONGEST_INTERVAL, 1 + lasted / 10)


def is_news(before: Trial, after: Trial) -> bool:
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


def _is_surely_lost(trial: Trial, now: float, poll_s: float) -> bool:
    """A list that lags behind, or one bad answer, are no reason to give up hours of training."""
    return now - trial.times.get("missed", now) >= _LOST_AFTER_POLLS * poll_s


def _with_job(trial: Trial, job: Job, now: float) -> Trial:
    times = {key: at for key, at in trial.times.items() if key not in {"silent", "retry_after", "missed"}}
    if not trial.job or trial.job.phase is not job.phase:
        times[job.phase.value.lower()] = now
    trial = replace(trial, job=job, times=times)
    if not job.known:
        trial = trial.noted(message("strange phase", phase=repr(job.platform_phase)))
    return trial


def _overdue_error(trial: Trial, job: Job, now: float, limits: Limits) -> AisbenchError | None:
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


def _with_time(trial: Trial, key: str, at: float) -> Trial:
    return replace(trial, times={**trial.times, key: at})
