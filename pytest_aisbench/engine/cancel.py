"""Cancelling jobs, and waiting until the platform confirms that they are over.

Jobs are cancelled in three situations, and all use the first part of this module:

- A job overstays its time, or the budget is spent: `watch` marks its trial with `begin`, and asks and looks at it as
  it does at all others, without waiting.
- The run ends: `cancel_unfinished` cancels all its jobs that still run.
- A person types `aisbench stop`: `CancelCommand`.

Each time the ledger has the intent to cancel before the platform is asked, so that no other run takes the trial over
meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pytest_aisbench.engine.collect import collect
from pytest_aisbench.errors import AisbenchError, Blame, Crashed, GivenUp, LedgerError
from pytest_aisbench.ledger.runs import HeldTrial, Holder, JobLedger
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.ports import Clock, Platform
from pytest_aisbench.model.trial import Fault, Step, Trial

if TYPE_CHECKING:
    from pytest_aisbench.engine.trial import Tools

T = TypeVar("T")
CONFIRM_S = 60.0  # how long a platform may take to confirm
WORKERS = 8  # threads that talk to a platform at once
_LONGEST_PAUSE_S = 1.0  # between two looks: a person waits for the prompt
_CANCELLED_BY_COMMAND = Fault(Blame.PERSON, message("stopped by hand"))
_LOG = get_logger("fleet")


@dataclass(frozen=True)
class Cancellation:
    """One job that is being cancelled, and how far that has come."""

    job_id: str
    requested_at: float | None = None  # when the platform took the request
    job: Job | None = None  # as the platform showed it last
    refusal: AisbenchError | None = None  # why the platform did not take the request
    silence: AisbenchError | None = None  # why the platform did not show the job, the last time that it was asked

    @property
    def is_over(self) -> bool:
        return self.job is not None and self.job.phase.is_final


def request(platform: Platform, cancellation: Cancellation, now: float) -> Cancellation:
    """Ask the platform to end the job, unless it took the request before. No error of the platform is raised."""
    if cancellation.requested_at is not None:
        return cancellation
    try:
        platform.cancel(cancellation.job_id)
    except Exception as error:  # noqa: BLE001 - any error: the job may still run, so remember it
        log_ignored(_LOG, error, "the request to cancel job %s", cancellation.job_id, level=logging.INFO)
        return replace(cancellation, refusal=Crashed.of(error))
    _LOG.info("job %s: the platform took the request to cancel it", cancellation.job_id)
    return replace(cancellation, requested_at=now, refusal=None)


def confirm(
    platform: Platform, clock: Clock, cancellations: Iterable[Cancellation], confirm_s: float
) -> Iterator[list[Cancellation]]:
    """Cancel jobs and wait until the platform confirms: yields those that are over, as they end.

    A platform that did not take a request is asked again with each look. After `confirm_s` the last list has all jobs
    that are not over, as they were last seen.
    """
    waiting, deadline = list(cancellations), clock.now() + confirm_s
    while waiting:
        taken = [each for each in waiting if each.requested_at is not None]
        others = [each for each in waiting if each.requested_at is None]
        waiting = _look(platform, taken + _in_parallel(lambda each: request(platform, each, clock.now()), others))
        over = [each for each in waiting if each.is_over]
        waiting = [each for each in waiting if not each.is_over]
        if clock.now() >= deadline:
            yield over + waiting
            return
        yield over
        if waiting:
            clock.sleep(min(platform.poll_s, _LONGEST_PAUSE_S))


def _look(platform: Platform, waiting: list[Cancellation]) -> list[Cancellation]:
    try:
        jobs = platform.inspect([each.job_id for each in waiting])
        return [replace(each, job=jobs[each.job_id], silence=None) for each in waiting]
    except Exception as error:  # noqa: BLE001 - any error: the other trials must still be recorded
        log_ignored(_LOG, error, "one look at %d jobs that are cancelled", len(waiting), level=logging.INFO)
        return [replace(each, silence=Crashed.of(error)) for each in waiting]


def _in_parallel(step: Callable[[T], T], items: Iterable[T]) -> list[T]:
    """Apply `step` to every item in a few threads; an item whose step fails stays as it was.

    The threads are daemons: a dead platform must not keep the process alive.
    """
    results = list(items)
    indices = iter(range(len(results)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = next(indices, None)
            if index is None:
                return
            # An error must not end this thread: the main thread waits for it.
            with ignored(_LOG, Exception, "a step at the end of a job", level=logging.WARNING):
                results[index] = step(results[index])

    threads = [threading.Thread(target=work, name="aisbench-cancel", daemon=True) for _ in results[:WORKERS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# Trials whose jobs are cancelled: used by `watch` and at the end of a run.


def begin(trial: Trial, fault: Fault, now: float) -> Trial:
    """Mark the trial as being cancelled, with the reason; save it before asking the platform."""
    return replace(trial, fault=fault, times={**trial.times, "stopping": now})


def request_for(trial: Trial, platform: Platform, now: float) -> Trial:
    """Ask the platform once to end the trial's job; if it does not take the request, the next look asks again."""
    return _noted(trial, request(platform, _cancellation(trial), now))


def is_unconfirmed(trial: Trial, now: float, confirm_s: float) -> bool:
    """True if the platform had its time to end the trial's job; the job may then run on."""
    return now - trial.times["stopping"] > confirm_s


def _cancellation(trial: Trial) -> Cancellation:
    return Cancellation(trial.job_id or "", trial.times.get("asked"))


def _noted(trial: Trial, cancellation: Cancellation) -> Trial:
    """The trial with what became of the request."""
    if cancellation.refusal:
        why = cancellation.refusal.message
        trial = trial.noted(message("not stopped", job=str(trial.job_id), why=why))
    if cancellation.requested_at is None:
        return trial
    return replace(trial, times={**trial.times, "asked": cancellation.requested_at})


# The end of a run.


def cancel_unfinished(trials: Iterable[Trial], tools: Tools, keep: Callable[[Trial], bool | None]) -> None:
    """Cancel every job of the run that is not over, and wait until the platform confirms.

    A job that does not end stays in flight for the ledger, where `aisbench jobs` and `aisbench stop` find it. A job
    that another run has taken over is that run's: `keep` returns True for it.
    """
    platform, clock = tools.platform, tools.clock
    fault = Fault.of(GivenUp("the run ended before the job did"))

    def save(trial: Trial) -> bool:
        """Returns True if the job is another run's by now."""
        # The ledger may be why the run ends: then it has failed before, and that has been reported.
        with ignored(_LOG, LedgerError, "%s: its last change in the ledger", trial.name, level=logging.WARNING):
            return keep(trial) is True
        return False

    before = list(trials)
    reconciled = _in_parallel(lambda trial: _reconciled(trial, tools), before)
    for trial, old in zip(reconciled, before, strict=True):
        if trial is not old:
            save(trial)
    running: dict[str, Trial] = {}
    for trial in reconciled:
        if trial.step is Step.WATCH:
            cancelled = trial if trial.fault else begin(trial, fault, clock.now())
            if not save(cancelled) and tools.holds(cancelled):
                running[trial.job_id or ""] = cancelled
    _LOG.info("the run ends: %d jobs are cancelled", len(running))
    for cancellations in confirm(platform, clock, map(_cancellation, running.values()), tools.limits.stop_s):
        ended = [_after(running[each.job_id], each, clock.now()) for each in cancellations]
        for trial in _in_parallel(lambda trial: _with_logs(trial, tools), ended):
            save(trial)


def lines_of_running_jobs(trials: Iterable[Trial]) -> list[str]:
    """One line for each job that may still run, and cost, after the run."""
    lines = []
    for trial in trials:
        if trial.may_run and trial.job_id:
            lines.append(f"job {trial.job_id} ({trial.case.id}) may still run: aisbench stop {trial.job_id}")
        elif trial.step is Step.SUBMIT and trial.attempts:
            lines.append(f"job {trial.name} ({trial.case.id}) may have been created: aisbench stop {trial.name}")
    return lines


def _after(trial: Trial, cancellation: Cancellation, now: float) -> Trial:
    """The trial at its next step if its job is over, else with a note that the job may run."""
    trial, job = _noted(trial, cancellation), cancellation.job or trial.job
    if job and cancellation.is_over:
        times = {**trial.times, job.phase.value.lower(): now}
        return replace(trial, job=job, times=times).moved(Step.HARVEST, now)
    if cancellation.silence:
        trial = trial.noted(message("untold stop", why=cancellation.silence.message))
    phase = job.platform_phase if job else "unseen"
    _LOG.warning("%s: job %s may still run, it is %s", trial.name, trial.job_id, phase)
    return replace(trial, job=job).noted(message("may run", job=str(trial.job_id), phase=phase))


def _with_logs(trial: Trial, tools: Tools) -> Trial:
    """The trial with the logs that its cancelled job wrote, which were paid for."""
    if trial.step is not Step.HARVEST:
        return trial
    try:
        return collect(trial, tools.platform.store, tools.folder)
    except (AisbenchError, OSError) as error:
        log_ignored(_LOG, error, "%s: its logs", trial.name, level=logging.INFO)
        return trial.noted(message("no logs", why=str(error)))


def _reconciled(trial: Trial, tools: Tools) -> Trial:
    """A trial whose submission had no answer, at the step where its job is, if there is one."""
    if trial.step is not Step.SUBMIT or not trial.attempts or trial.request is None:
        return trial
    try:
        job_id = tools.platform.find(trial.request)
    except AisbenchError as error:
        log_ignored(_LOG, error, "%s: whether its job was created", trial.name, level=logging.INFO)
        return trial.noted(message("unknown job", job=trial.name, why=str(error)))
    return replace(trial, attempts=0) if job_id is None else trial.moved(Step.WATCH, tools.clock.now(), job_id=job_id)


# The command `aisbench stop`.


@dataclass(frozen=True)
class CancelReport:
    """What became of one job; `settled` if nothing is left to do. As far as the platform says: the job's name, its
    phase before the cancel, and how long it ran."""

    job: str
    text: str
    settled: bool = False
    name: str = ""
    before: str = ""
    ran_s: float | None = None
    after: str = ""  # its phase now, in the platform's word


@dataclass(frozen=True)
class _Target:
    """A job to be cancelled. Without `held` it is not in the ledger; without `claim` its run records what becomes of
    it."""

    id: str
    held: HeldTrial | None
    claim: HeldTrial | None = None
    before: Job | None = None  # as it was when the platform was asked to end it
    requested_at: float | None = None


@dataclass(frozen=True)
class CancelCommand:
    """Cancels jobs from another shell: ours, unless a live run holds them.

    `force` also cancels what a live run holds, and jobs that are not in the ledger but named.
    """

    ledger: JobLedger
    platform: Platform
    clock: Clock
    force: bool = False
    who: str = ""  # the person, for a live run that holds the job

    def named(self, jobs: Iterable[str]) -> Iterator[CancelReport]:
        """Cancel jobs by id or name; of several jobs, or V1 versions, with one name, the newest."""
        targets: dict[str, _Target] = {}
        for job in dict.fromkeys(jobs):
            target = self._target_named(job)
            if isinstance(target, CancelReport):
                yield target
            else:
                targets.setdefault(target.id, target)
        yield from self._cancel(list(targets.values()))

    def all_mine(self) -> Iterator[CancelReport]:
        """Cancel every job of the ledger that no live run holds; with `force`, also those that one holds."""
        targets: list[_Target] = []
        for held in self.ledger.with_holders(self.ledger.in_flight(self.clock.now()), self.clock):
            if held.holder is Holder.ALIVE and not self.force:
                text = f"left to run {held.trial.run}, which is alive ({held.owner})"
                yield CancelReport(_job(held), text, settled=True)
                continue
            target = self._target(held)
            if isinstance(target, CancelReport):
                yield target
            else:
                targets.append(target)
        yield from self._cancel(targets)

    def _target_named(self, job: str) -> _Target | CancelReport:
        """Look a job up in the ledger, then on the platform, whose id for it may not be the ledger's."""
        held, platform_job = self.ledger.named(job, self.clock.now()), None
        if held is None:
            try:
                platform_job = self.platform.named(job)
            except AisbenchError as error:
                return CancelReport(job, f"could not be looked up: {error}")
            held = self.ledger.named(platform_job, self.clock.now()) if platform_job else None
        if held:
            (held,) = self.ledger.with_holders([held] if held.in_flight else [replace(held, seen=True)], self.clock)
            return self._target(held)
        if self.force:
            return _Target(platform_job or job, None)
        return CancelReport(job, f"not a job of {self.ledger.path}; --force stops it all the same")

    def _target(self, held: HeldTrial) -> _Target | CancelReport:
        """The job that a trial of the ledger has on this platform, or why there is none to cancel."""
        trial, job, alive = held.trial, _job(held), held.holder is Holder.ALIVE
        if trial.platform_id != self.platform.platform_id:
            where = f"on {trial.platform_id!r}" if trial.platform_id else "on a private cloud of its run"
            gone = f"; if that is gone for good: aisbench jobs forget {job}"
            return CancelReport(job, f"is {where}, not on {self.platform.platform_id!r}{gone}")
        if held.in_flight and alive and not self.force:
            text = f"held by run {trial.run}, which is alive ({held.owner}); --force stops it all the same"
            return CancelReport(job, text)
        if trial.job_id:
            return _Target(trial.job_id, held)
        try:
            job_id = self.platform.find(trial.request) if trial.request else None
        except AisbenchError as error:
            return CancelReport(job, f"unknown whether it was created: {error}")
        if job_id:
            return _Target(job_id, held)
        if alive:
            return CancelReport(job, "is just being submitted; ask again")
        if held.in_flight:
            self.ledger.amend(held, self._over(trial, None), self.clock.now())
        return CancelReport(job, "was never created", settled=True)

    def _cancel(self, targets: list[_Target]) -> Iterator[CancelReport]:
        try:
            jobs = self.platform.inspect([target.id for target in targets]) if targets else {}
        except AisbenchError as error:
            yield from (CancelReport(target.id, f"could not be stopped: {error}") for target in targets)
            return
        requested: dict[str, _Target] = {}
        for target in targets:
            job = jobs[target.id]
            asked = self._over_before(target, job) if job.phase.is_final else self._ask(replace(target, before=job))
            if isinstance(asked, CancelReport):
                yield asked
            else:
                requested[asked.id] = asked
        cancellations = [Cancellation(target.id, target.requested_at) for target in requested.values()]
        for confirmed in confirm(self.platform, self.clock, cancellations, CONFIRM_S):
            for each in confirmed:
                yield self._report(requested[each.job_id], each)

    def _over_before(self, target: _Target, job: Job) -> CancelReport:
        """A job that was over before it could be cancelled."""
        held = target.held
        if job.phase is Phase.LOST and held is None:
            return CancelReport(job.id, f"the platform does not know it: {job.reason}".rstrip(": "))
        word = job.platform_phase or job.phase.value
        if held and held.in_flight and held.holder is not Holder.ALIVE:
            if job.phase in {Phase.SUCCEEDED, Phase.FAILED}:
                text = f"was over before ({word}); the next run judges it"
                return CancelReport(job.id, text, settled=True, name=job.name, ran_s=job.ran_s)
            self.ledger.amend(held, self._over(held.trial, job), self.clock.now())
        return CancelReport(job.id, f"was over before ({word})", settled=True, name=job.name, ran_s=job.ran_s)

    def _ask(self, target: _Target) -> _Target | CancelReport:
        """Claim the trial in the ledger, then ask the platform; if it does not take the request, give the claim up."""
        held, claim, now = target.held, None, self.clock.now()
        # A live run records the end of its job itself, and a judged trial stays as it was judged.
        if held and held.in_flight and held.holder is not Holder.ALIVE:
            cancelled = begin(replace(held.trial, job_id=target.id), _CANCELLED_BY_COMMAND, now)
            claim = self.ledger.amend(held, cancelled, now)
            if claim is None:
                return CancelReport(target.id, "a run has just taken it over; ask again")
        self.ledger.note_stop(target.id, self.who, now)
        asked = request(self.platform, Cancellation(target.id), now)
        if asked.refusal:
            self.ledger.note_stop(target.id, "", now)
            if held and claim:
                self.ledger.amend(claim, held.trial, now)
            return CancelReport(target.id, f"could not be stopped: {asked.refusal}")
        return replace(target, claim=claim, requested_at=asked.requested_at)

    def _report(self, target: _Target, cancellation: Cancellation) -> CancelReport:
        """How the job ended, for the person and the ledger; a job that did not end stays claimed."""
        job = cancellation.job
        if cancellation.silence or job is None:
            return CancelReport(target.id, f"unknown whether it stopped: {cancellation.silence}")
        if not cancellation.is_over:
            return CancelReport(target.id, f"was asked to stop and is still {job.platform_phase}")
        by_itself = job.phase in {Phase.SUCCEEDED, Phase.FAILED}
        if target.held and target.claim:
            # A job that ended by itself meanwhile has results, or a reason, that the next run can judge.
            trial = replace(target.held.trial, job_id=job.id) if by_itself else self._over(target.claim.trial, job)
            self.ledger.amend(target.claim, trial, self.clock.now())
        word = job.platform_phase or job.phase.value
        return CancelReport(
            job.id,
            f"ended by itself ({word})" if by_itself else f"stopped ({word})",
            settled=True,
            name=job.name,
            before=target.before.platform_phase if target.before else "",
            ran_s=job.ran_s,
            after=word,
        )

    def _over(self, trial: Trial, job: Job | None) -> Trial:
        cancelled = replace(trial, job=job or trial.job, fault=_CANCELLED_BY_COMMAND)
        return cancelled.moved(Step.HARVEST, self.clock.now())


def forget(ledger: JobLedger, clock: Clock, jobs: Iterable[str], platform_id: str, who: str) -> Iterator[CancelReport]:
    """End jobs in the ledger alone, since no platform can be asked about them any more: the named ones, and all of a
    platform. Jobs that a live run holds stay."""
    now = clock.now()
    there = ledger.in_flight(now)
    by_name = {name: held for held in there for name in (held.trial.job_id, held.trial.name) if name}
    yield from (CancelReport(job, "is no job in flight of this ledger") for job in jobs if job not in by_name)
    wanted = [held for held in there if platform_id and held.trial.platform_id == platform_id]
    wanted += [by_name[job] for job in dict.fromkeys(jobs) if job in by_name and by_name[job] not in wanted]
    for held in ledger.with_holders(wanted, clock):
        if held.holder is Holder.ALIVE:
            yield CancelReport(_job(held), f"held by run {held.trial.run}, which is alive ({held.owner})")
            continue
        fault = Fault(Blame.PERSON, message("forgotten", who=who))
        job = held.trial.job or Job(held.trial.job_id or "", Phase.LOST, "")
        over = replace(held.trial, job=replace(job, phase=Phase.LOST), fault=fault).moved(Step.DONE, clock.now())
        if ledger.amend(held, over, clock.now()):
            yield CancelReport(_job(held), f"forgotten; it was on {held.trial.platform_id!r}", settled=True)
        else:
            yield CancelReport(_job(held), "a run has just taken it over; ask again")


def _job(held: HeldTrial) -> str:
    return held.trial.job_id or held.trial.name
