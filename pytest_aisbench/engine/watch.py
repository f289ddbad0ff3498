"""Watches running jobs: until each has ended, how far it is, and whether it stands still.

`watch_job` is the trial's step WATCH. It keeps two clocks, one for the queue and one for the run, sits out outages of
the platform, and says why a job ended. `LogMonitor` reads the logs of running jobs, for progress bars and warnings
about stalled jobs. `stream_log` yields one log as it grows, for `aisbench logs`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_aisbench.engine import cancel
from pytest_aisbench.engine.failure_log import why_it_failed
from pytest_aisbench.errors import AisbenchError, Blame, JobOverdue, PlatformError, QueueOverdue, Throttled, Unreachable
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.job import Job, LogPart, Phase
from pytest_aisbench.model.messages import message, plain
from pytest_aisbench.model.ports import Clock, HasEndpoints, Platform
from pytest_aisbench.model.trial import Fault, Step, Trial
from pytest_aisbench.traininglog.activity import JobActivity, epochs_of, with_log, with_stall, with_usage
from pytest_aisbench.traininglog.curve import Progress

_LOG = get_logger("fleet")
_MONITOR_LOG = get_logger("monitor")
OUTAGE_S = 900.0  # after so long we stop waiting for a platform that does not answer
_LONGEST_INTERVAL = 6.0  # times the platform's own interval
_LOST_AFTER_POLLS = 6  # a job is lost if it is missing for so many intervals: half a minute on ModelArts
TAKEN = "taken"  # the time at which this run took the trial over, until it has seen the job
UNSETTLED = frozenset({"silent", "retry_after", "missed", TAKEN})  # times that end when the platform shows the job
_SHORTEST_ROUND_S = 0.75  # between two rounds of reading logs: at 0.5 they took more CPU than the looks at all jobs
_JOBS_PER_ROUND = 6  # however many run
_LONGEST_READ_S = 60.0  # between two readings of one large log
_BYTES_PER_S = 100_000  # a platform may send the whole log, up to 5 MB, for one new line
_CLOSE_S = 2.0


@dataclass(frozen=True)
class Limits:
    """The longest times that we accept, in seconds."""

    queue_s: float
    run_s: float
    outage_s: float = OUTAGE_S  # without an answer about a running job
    stop_s: float = cancel.CONFIRM_S  # until the platform confirms that it cancelled a job


def watch_job(
    trial: Trial,
    platform: Platform,
    clock: Clock,
    limits: Limits,
    inspect: Callable[[str], Job] | None = None,
    *,
    stopped_by: Callable[[str], str] = lambda _: "",
    holds: Callable[[Trial], bool] = lambda _: True,
) -> Trial:
    """The trial after one look at its job: at HARVEST if the job has ended, or does not end after a cancel.

    `stopped_by` returns who used `aisbench stop` on a job, or an empty text; `holds` is False once another process has
    taken the trial.
    """
    now = clock.now()
    trial = cancel.request_for(trial, platform, now) if trial.fault else trial
    assert trial.job_id is not None
    try:
        job = inspect(trial.job_id) if inspect else platform.inspect([trial.job_id])[trial.job_id]
    except AisbenchError as error:
        # One garbled answer, or keys refused for a minute, must not end a job that has run for hours.
        if trial.fault and cancel.is_unconfirmed(trial, now, limits.stop_s):
            left = message("unknown stop", job=trial.job_id, why=str(error))
            return trial.noted(left).moved(Step.HARVEST, now)
        return sit_out_outage(trial, error, now, limits)
    if job.phase is Phase.LOST and not _is_surely_lost(trial, now, platform.poll_s):
        return _with_time(trial, "missed", trial.times.get("missed", now))
    unseen = TAKEN in trial.times
    trial = _with_job(trial, job, now)
    if job.phase is Phase.CANCELLED and not trial.fault:
        trial = replace(trial, fault=_stop_fault(job, limits.run_s, stopped_by(job.id), unseen=unseen))
    if job.phase.is_final:
        # If the lost job turns up again, it must not run beside the next trial's job.
        if job.phase is Phase.LOST and holds(trial):
            trial = cancel.request_for(trial, platform, now)
        return trial.moved(Step.HARVEST, now)
    if trial.fault:
        if not cancel.is_unconfirmed(trial, now, limits.stop_s):
            return trial
        left = message("still there", job=str(trial.job_id), phase=job.platform_phase)
        return trial.noted(left).moved(Step.HARVEST, now)
    overdue = _overdue_error(trial, job, now, limits)
    return cancel.begin(trial, Fault.of(overdue), now) if overdue else trial


def inspect_together(platform: Platform, job_ids: Iterable[str]) -> Callable[[str], Job]:
    """Ask the platform about all jobs in one request; the function returned gives each job, or raises the error."""
    try:
        jobs = platform.inspect(job_ids)
    except AisbenchError as error:
        failure = error
        _LOG.info("the platform tells nothing of the jobs: %s", error)
    except Exception as surprise:  # noqa: BLE001 - a bug of a third party's platform is sat out like an outage
        failure = PlatformError(f"{type(surprise).__name__}: {surprise}")
        _LOG.warning("the platform tells nothing of the jobs", exc_info=surprise)
    else:
        return lambda job_id: jobs[job_id]

    def fail(_: str) -> Job:
        raise failure

    return fail


def sit_out_outage(trial: Trial, error: AisbenchError, now: float, limits: Limits) -> Trial:
    """Leave the trial where it is while the platform does not answer; raise the error if that lasts too long."""
    since = trial.times.get("silent", now)
    if now - since > limits.outage_s:
        raise error
    if "silent" not in trial.times:  # one note per outage: each error has another request id
        trial = trial.noted(message("no answer", why=str(error)))
    return postpone(_with_time(trial, "silent", since), error, now, limits)


def silent_since(trial: Trial) -> float | None:
    """Since when the platform gives no answer about the trial's job, or to its submission; None if it answers."""
    if trial.step is Step.SUBMIT and trial.attempts:
        return trial.times.get("submit")
    return trial.times.get("silent") if trial.step is not Step.DONE else None


def postpone(trial: Trial, error: AisbenchError, now: float, limits: Limits) -> Trial:
    """The trial with the time before which the platform wants no further request, if it named one."""
    return _with_time(trial, "retry_after", now + min(error.pause_s, limits.outage_s)) if error.pause_s else trial


def may_ask(trial: Trial, now: float) -> bool:
    """True if the platform may be asked about the trial's job now."""
    return trial.step is Step.WATCH and not _asked_to_wait_s(trial, now)


def _asked_to_wait_s(trial: Trial, now: float) -> float:
    """How much longer the platform wants no request. We obey for `OUTAGE_S` at most, so a longer time only shows that
    the clock was set back."""
    rest = trial.times.get("retry_after", now) - now
    return rest if 0 < rest <= OUTAGE_S else 0.0


def pause_s(trial: Trial, now: float, shortest: float) -> float:
    """Seconds until the next look: the platform's own interval near the expected end, up to six times that in the
    queue and far from the end, and never less than the platform asked for."""
    return max(_interval(trial, now, shortest), _asked_to_wait_s(trial, now))


def _interval(trial: Trial, now: float, shortest: float) -> float:
    job, expected = trial.job, trial.expected_s
    if job is None or trial.step is not Step.WATCH or trial.fault:
        return shortest
    lasted = now - trial.times.get(job.phase.value.lower(), now)
    near = expected and lasted > 0.8 * expected
    if job.phase is Phase.RUNNING and (near or not expected):
        return shortest
    return shortest * min(_LONGEST_INTERVAL, 1 + lasted / 10)


def is_as_before(trial: Trial, inspect: Callable[[str], Job], now: float, limits: Limits) -> bool:
    """True if a look at the trial's job changes nothing but the elapsed time: so it is with most looks."""
    before = trial.job
    if before is None or trial.fault or not trial.times.keys().isdisjoint(UNSETTLED):
        return False
    try:
        job = inspect(trial.job_id or "")
    except AisbenchError:  # `watch_job` meets it too, and deals with it
        return False
    same = job.phase is before.phase and replace(job, ran_s=before.ran_s) == before
    return same and not job.phase.is_final and _overdue_error(trial, job, now, limits) is None


def is_news(before: Trial, after: Trial) -> bool:
    """True if anything but the elapsed time changed."""
    if before.job and after.job:
        after = replace(after, job=replace(after.job, ran_s=before.job.ran_s))
    return before != after


def fault_of(trial: Trial, folder: Path) -> Fault | None:
    """Why the ended job has no results to judge; None if it succeeded."""
    job = trial.job
    if job is None or job.phase is Phase.LOST:
        reason = job.reason if job else message("never seen")
        return Fault(Blame.PLATFORM, message("lost", why=reason), transient=True)
    if job.phase is Phase.CANCELLED:
        return _stop_fault(job)
    if job.phase is Phase.FAILED:
        text = message("failed") if job.exit_code is None else message("failed with", code=str(job.exit_code))
        name, line = why_it_failed(trial, folder)
        why = message("in log", line=line, log=name) if line else job.reason
        return Fault(Blame.WORKLOAD, text + message("because", why=why) if why else text)
    return None


def _stop_fault(job: Job, run_s: float = math.inf, who: str = "", *, unseen: bool = False) -> Fault:
    """Why a job was stopped that we did not stop: the platform's own limit (`auto_stop`) is ours, all else a person.

    `unseen`: that was before this run took the job over. Perhaps its former run did, and could not record it; whoever
    it was did not mean this run.
    """
    if job.ran_s is not None and job.ran_s >= run_s:
        return Fault.of(JobOverdue(f"the platform stopped the job, which ran longer than {run_s:g} s"))
    if who:
        return Fault(Blame.PERSON, message("stopped by command", who=who))
    if unseen:
        return Fault(Blame.PLATFORM, message("stopped before", job=job.id), transient=True)
    return Fault(Blame.PERSON, message("stopped", why=job.reason or job.platform_phase))


def _is_surely_lost(trial: Trial, now: float, poll_s: float) -> bool:
    """True if the job has been missing for a while: a list that lags behind must not end hours of training."""
    return now - trial.times.get("missed", now) >= _LOST_AFTER_POLLS * poll_s


def _with_job(trial: Trial, job: Job, now: float) -> Trial:
    times = {key: at for key, at in trial.times.items() if key not in UNSETTLED}
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
        # A platform that restarts a job again and again resets both clocks each time.
        return PlatformError(f"the job was started again and again, and did not end in {longest:g} s")
    if job.phase is Phase.PENDING and job.stuck:
        advice = "change what it asks for: no time in the queue helps"
        return QueueOverdue(f"the job can never start: {job.stuck}", advice=advice)
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


# Logs of running jobs.


def stream_log(platform: Platform, clock: Clock, job_id: str, node: int = 0) -> Iterator[str]:
    """The text of a node's log from its beginning, as it grows, until the job has ended."""
    since, answered_at, final = 0, clock.now(), False
    while True:
        # The platform may show the last lines after the job's end: read until one reading after it finds nothing.
        last = final
        try:
            final = final or platform.inspect([job_id])[job_id].phase.is_final
            part = platform.logs(job_id, node, since)
        except (Unreachable, Throttled) as error:
            if clock.now() - answered_at > OUTAGE_S:
                raise
            log_ignored(_MONITOR_LOG, error, "one look at the log of job %s", job_id)
        else:
            since, answered_at = part.next, clock.now()
            if part.text:
                yield part.text
            elif last:
                return
        clock.sleep(platform.poll_s)


def with_endpoints(trial: Trial, platform: Platform) -> Trial:
    """The trial with the ways into its job that it asked for. An error changes nothing: they are for people."""
    if not isinstance(platform, HasEndpoints) or trial.request is None or not trial.job_id:
        return trial
    if trial.endpoints and all(trial.endpoints.values()):
        return trial
    with ignored(_LOG, Exception, "%s: the endpoints of its job", trial.name):
        asked, before = platform.job_endpoints(trial.request, trial.job_id), trial.endpoints
        return replace(trial, endpoints={name: address or before.get(name, "") for name, address in asked.items()})
    return trial


@dataclass
class _Monitored:
    """What the monitor knows of one job, and when it reads the job's log next."""

    activity: JobActivity
    due: float = 0.0
    other_reads: int = 0  # readings of logs of other nodes than the first
    usage_requests: int = 0
    usage_requested_at: float = 0.0


class LogMonitor:
    """Reads the logs of all running jobs in one thread; the more jobs run, the less often it reads each."""

    def __init__(
        self,
        platform: Platform,
        clock: Clock,
        trials: Callable[[], Iterable[Trial]],
        stall_s: float,
        *,
        say: Callable[[str], None],
        note: Callable[[Trial, str], None],
        amend: Callable[[Trial, Callable[[Trial], Trial]], None] = lambda *_: None,
        keep: Callable[[Trial, int, LogPart], None] = lambda *_: None,
    ) -> None:
        """`say` prints a line, `note` adds a note to a trial, `amend` changes it, `keep` stores a part of a log."""
        self._platform = platform
        self._clock = clock
        self._trials = trials
        self._stall_s = stall_s
        self._say = say
        self._note = note
        self._amend = amend
        self._keep = keep
        self._rest = max(platform.poll_s, _SHORTEST_ROUND_S)
        self._watched: dict[str, _Monitored] = {}  # by trial
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aisbench-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)  # a daemon thread: a platform that does not answer must not delay the end

    def activity(self, trial: Trial) -> JobActivity | None:
        """What the trial's job shows of itself; None if it is not running."""
        watched = self._watched.get(trial.id)
        return watched.activity if watched else None

    def _run(self) -> None:
        while not self._closing.wait(self._rest):
            with ignored(_MONITOR_LOG, Exception, "one round of reading logs"):
                self.round()

    def round(self) -> None:
        """Read the logs of the few jobs that have waited longest."""
        now = self._clock.now()
        running = {trial.id: trial for trial in self._trials() if _is_running(trial)}
        self._watched = {
            key: self._watched.get(key) or _Monitored(JobActivity(now, Progress(ranks=trial.case.shape.devices)))
            for key, trial in running.items()
        }
        due = sorted((watched.due, key) for key, watched in self._watched.items() if watched.due <= now)
        for _, key in due[:_JOBS_PER_ROUND]:
            if self._closing.is_set():
                return
            self._watched[key].due = now + self._rest
            # Any error of the platform: `watch_job` deals with outages.
            with ignored(_MONITOR_LOG, Exception, "%s: one reading of its log", running[key].name):
                self._read(running[key], self._watched[key])

    def _read(self, trial: Trial, watched: _Monitored) -> None:
        before, nodes = watched.activity, trial.case.shape.nodes
        self._find_endpoints(trial)
        after = self._log(trial, before, 0)
        # The first node's log matters most: without the others the monitor still works.
        with ignored(_MONITOR_LOG, Exception, "%s: one look at its other nodes", trial.name):
            if nodes > 1:
                watched.other_reads += 1
                after = self._log(trial, after, watched.other_reads % (nodes - 1) + 1)
            if self._is_silent(after, watched):
                watched.usage_requested_at, watched.usage_requests = self._clock.now(), watched.usage_requests + 1
                node = watched.usage_requests % nodes
                usage = self._platform.usage(trial.job_id or "", node)
                after = with_usage(after, node, usage, watched.usage_requested_at)
        now = self._clock.now()
        watched.activity = after = with_stall(after, now, self._stall_s)
        watched.due = now + max(self._rest, min(_LONGEST_READ_S, after.sizes[0] / _BYTES_PER_S))
        if after.stalled != before.stalled:
            self._report_stall(trial, before, after)

    def _find_endpoints(self, trial: Trial) -> None:
        """Print the address of each way into the job as soon as the platform has opened it: it closes with the job."""
        endpoints = with_endpoints(trial, self._platform).endpoints
        new = {name: address for name, address in endpoints.items() if address and not trial.endpoints.get(name)}
        if new:
            self._amend(trial, lambda latest: replace(latest, endpoints=endpoints))
            for name, address in new.items():
                self._say(f"{trial.case.id}: {name}: {address}")

    def _log(self, trial: Trial, before: JobActivity, node: int) -> JobActivity:
        part = self._platform.logs(trial.job_id or "", node, before.sizes.get(node, 0))
        with ignored(_MONITOR_LOG, OSError, "%s: a part of its log on disk", trial.name):  # a full disk shows elsewhere
            self._keep(trial, node, part)
        return with_log(before, node, part, self._clock.now())

    def _is_silent(self, activity: JobActivity, watched: _Monitored) -> bool:
        """True if it is time to ask how busy a node is, because the log does not grow."""
        now = self._clock.now()
        silent = now - activity.alive_at > self._stall_s / 3
        return silent and now - watched.usage_requested_at >= self._stall_s / 6

    def _report_stall(self, trial: Trial, before: JobActivity, after: JobActivity) -> None:
        if after.stalled:
            where = training_position(trial, after)
            local = local_time(after.alive_at)
            self._say(
                f"{trial.case.id} stalls: job {trial.job_id} has shown no sign of life since {local}"
                f"{where and f', at {where}'}; see `aisbench logs {trial.job_id}`"
            )
            since = _utc_time(after.alive_at)
            self._note(trial, message("silent at", when=since, where=where) if where else message("silent", when=since))
        else:
            self._say(
                f"{trial.case.id} goes on: job {trial.job_id} had stood still since {local_time(before.alive_at)}"
            )
            self._note(trial, message("went on", when=_utc_time(after.alive_at)))


def training_position(trial: Trial, activity: JobActivity) -> str:
    """The epoch and step that the log shows, or else its last line."""
    progress, total = activity.progress, epochs_of(trial.case)
    step = f"step {progress.step}{f'/{progress.steps}' if progress.steps else ''}"
    if progress.epoch:
        return f"epoch {progress.epoch}{f'/{total}' if total else ''}, {step}"
    if progress.steps:
        return step
    return plain(activity.last_line.strip(), 80)


def _is_running(trial: Trial) -> bool:
    running = trial.job is not None and trial.job.phase is Phase.RUNNING
    return running and trial.step is Step.WATCH and trial.fault is None


def local_time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _utc_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))
