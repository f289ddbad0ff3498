"""Keeps all jobs of a run in flight at once.

One thread looks at the jobs: it asks the platform about all of them together, so that a thousand jobs cost little more
than one. Up to eight worker threads do the slow steps (staging, submitting, collecting); one thread owns a trial at a
time. Tests wait in `Fleet.reached` for the trial of their case. The scheduler has the threads and the clock.

Nothing here searches all trials for what to do next: each change of a trial is followed by what it makes possible. So
a job costs the same whether ten or ten thousand are in flight.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from pytest_aisbench.engine import watch
from pytest_aisbench.engine.cancel import WORKERS, cancel_unfinished
from pytest_aisbench.engine.scheduler import Action, Scheduler, Threads
from pytest_aisbench.engine.trial import Tools, advance, taken_by_another_run, why_another_trial, without_another_trial
from pytest_aisbench.errors import BudgetSpent, Crashed, GivenUp, LedgerError
from pytest_aisbench.judge.scaling import base_case_id
from pytest_aisbench.ledger.journal import Journal
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Phase
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.trial import Step, Trial

_LOG = get_logger("fleet")
NewTrial = Callable[[Case, int], Trial]  # makes the trial of a case with this number
WhyRefused = Callable[[Case], str]  # why the case gets no other trial; empty if it may get one
_REST_FACTOR = 4  # after a look at the jobs, the next follows at the earliest after four times as long as it took
_CPU_SHARE = (
    0.015  # of a core, that looks may take: a thousand jobs on the local cloud are looked at every other second
)
_BUDGET_S = 0.25  # how often the cost of what runs is added up
_LAST_REQUEST_S = 30.0  # beyond the time to stop: for a request that is under way


class Fleet:
    """Runs one trial per case at a time, however many tests ask for it, and at most `max_jobs` jobs at once."""

    def __init__(
        self,
        tools: Tools,
        ledger: Ledger,
        new_trial: NewTrial,
        *,
        max_jobs: int,
        max_trials: int,
        saved: Callable[[Trial], None] = lambda _: None,
        journal: Journal | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        """`saved` is called with every intent to submit a job once the ledger has it on disk, and again where the
        platform sent another request than the intent has. The journal records trials once the ledger fails."""
        self._ledger = ledger
        self._saved = saved
        self._journal = journal
        self._scheduler = scheduler or Threads(WORKERS)
        self._table = TrialTable(self._scheduler, new_trial, self._why_refused, max_jobs, max_trials)
        self._tools = replace(tools, others=self._table.trials_of_workload, holds=self._holds)
        self._due: dict[str, float] = {}  # by trial: its next step, or look at its job, begins then at the earliest
        self._look_at: float | None = None  # when the next look is planned
        self._next_look = 0.0  # no look before that
        self._closing = False
        self._leaving = False
        self._ended = True  # nothing was started yet
        self._crash: BaseException | None = None

    def start(self) -> None:
        self._ended = False
        if self._tools.budget and self._tools.budget.limit is not None:
            self._scheduler.at(self._scheduler.now(), self._guarded(self._refresh_budget))

    def adopt(self, trial: Trial) -> None:
        """Continue a trial that another run began; it does not move before `want` names its case."""
        _LOG.info("%s: taken over at %s, job %s", trial.name, trial.step.name, trial.job_id)
        self._table.adopt(trial)
        self._keep(trial)

    def want(self, case: Case, until: Step) -> None:
        """Let the case's trial go as far as `until`; asking again only ever moves that further."""
        self.want_all([(case, until)])

    def want_all(self, wants: Iterable[tuple[Case, Step]]) -> None:
        """The same for many cases at once: of those, the longest expected job goes first."""
        with self._scheduler:
            for case_id in [case.id for case, until in wants if self._table.want(case, until)]:
                self._consider(case_id)
            self._fill_slots()

    def reached(self, case: Case, until: Step) -> Trial:
        """Wait until the case's trial reaches the step `until`, and return it."""
        self.want(case, until)
        with self._scheduler:
            while True:
                if trial := self._table.reached(case, until):
                    return trial
                if self._crash:
                    raise Crashed.of(self._crash)
                if self._closing:
                    raise GivenUp(f"{case.id} was given up: the run is ending")
                self._scheduler.wait(0.5)  # a bound, so that signals are seen

    def is_ready(self, case: Case, until: Step) -> bool:
        """True if `reached` would return, or raise, at once."""
        return not self._table.knows(case) or self._closing or self._table.reached(case, until) is not None

    @property
    def closing(self) -> bool:
        """True if the Fleet begins no more trials: `reached` raises for all that have not come far enough."""
        return self._closing

    def wait(self, seconds: float) -> set[str]:
        """Wait until trials change, or for so long; the cases that changed since the last call."""
        with self._scheduler:
            if not self._table.changed_cases and not self._closing:
                self._scheduler.wait(seconds)
            changed, self._table.changed_cases = self._table.changed_cases, set()
            return changed

    def trials(self) -> list[Trial]:
        """All trials of the run; those of one case in their order."""
        return self._table.trials()

    def watched(self) -> list[Trial]:
        """The trials whose jobs are looked at."""
        return self._table.watched()

    def trials_of(self, case_id: str) -> list[Trial]:
        return self._table.trials_of(case_id)

    def trials_of_workload(self, name: str) -> list[Trial]:
        return self._table.trials_of_workload(name)

    def remark(self, trial: Trial, text: str) -> None:
        """Add a note to a trial; the ledger gets it with the trial's next change."""
        self.amend(trial, lambda latest: latest.noted(text))

    def amend(self, trial: Trial, change: Callable[[Trial], Trial]) -> None:
        """Add to a trial what no step of it learns; the ledger gets it with the trial's next change."""
        self._table.amend(trial, change)

    @property
    def crash(self) -> BaseException | None:
        """The error that ended the Fleet, if one did."""
        return self._crash

    def give_up(self) -> None:
        """Begin no more trials and wake all waiting tests; returns at once, while the jobs are being cancelled."""
        with self._scheduler:
            if not self._closing:
                _LOG.info("the Fleet begins no more trials")
                self._closing = True
                if not self._ended:
                    self._scheduler.at(self._scheduler.now(), self._wind_up)
            self._scheduler.notify()

    def close(self) -> None:
        """Cancel every job of ours that still runs, and wait for the platform to confirm."""
        self.give_up()
        # Bounded: a dead platform must not hold a person who pressed Ctrl-C. The ledger names the jobs that remain.
        deadline = self._scheduler.now() + self._tools.limits.stop_s + _LAST_REQUEST_S
        with self._scheduler:
            while not self._ended and (left := deadline - self._scheduler.now()) > 0:
                self._scheduler.wait(min(left, 0.5))  # a bound, so that signals are seen
        self._scheduler.close()

    def leave(self) -> None:
        """Stop watching and let the jobs run; the next run finds them in the ledger."""
        _LOG.info("the jobs that run are left to the next run")
        self._leaving = True
        self.close()
        for trial in self.trials():
            if trial.step is Step.WATCH:
                self._keep(trial.noted(message("left running")))

    # What happens next. The caller has the scheduler's lock.

    def _consider(self, case_id: str) -> None:
        """Begin, or plan, the next step of the case's trial; nothing if it is far enough, or must wait for another."""
        trial = None if self._closing else self._table.movable(case_id)
        if trial is None:
            return
        due = self._due.get(trial.id, 0.0)
        if trial.step is Step.WATCH:
            self._plan_look(due)
        elif due > self._scheduler.now():
            self._scheduler.at(due, self._guarded(partial(self._reconsider, case_id)))
        elif self._table.needs_slot(trial):
            self._table.queue(trial)
        else:
            self._hand_out(trial)

    def _reconsider(self, case_id: str) -> None:
        with self._scheduler:
            self._consider(case_id)
            self._fill_slots()

    def _fill_slots(self) -> None:
        """Begin trials that wait for a slot, as many as there are free ones."""
        while not self._closing and (trial := self._table.take_queued()):
            self._hand_out(trial)

    def _hand_out(self, trial: Trial) -> None:
        _LOG.debug("%s: %s begins", trial.name, trial.step.name)
        self._table.take(trial)
        self._scheduler.soon(self._guarded(partial(self._do_step, trial)))

    def _plan_look(self, due: float) -> None:
        at = max(due, self._next_look, self._scheduler.now())
        if self._look_at is None or at < self._look_at:
            self._look_at = at
            self._scheduler.at(at, self._guarded(partial(self._look, at)))

    # The thread that has the time.

    def _look(self, planned: float) -> None:
        """When one job is due, ask about all jobs: one request costs the same for all."""
        with self._scheduler:
            if self._look_at != planned or self._closing:
                return  # an earlier look was planned meanwhile
        self._ledger.database.raise_failure()  # jobs may run for hours before the next change is saved
        begun, cpu, tools = self._scheduler.now(), self._scheduler.cpu(), self._tools
        watched = []
        for trial in self._table.watched():
            if watch.may_ask(trial, tools.clock.now()):
                watched.append(trial)
            else:
                self._due[trial.id] = begun + self._pause_s(trial)
        inspect = watch.inspect_together(tools.platform, [trial.job_id or "" for trial in watched])
        tools = replace(tools, inspect=inspect)
        spent = tools.budget is not None and tools.budget.is_spent
        for trial in watched:
            if spent or not watch.is_as_before(trial, inspect, tools.clock.now(), tools.limits):
                self._keep_if_changed(trial, advance(trial, tools))
            else:
                self._due[trial.id] = self._scheduler.now() + self._pause_s(trial)
        ended = self._scheduler.now()
        _LOG.debug("asked about %d jobs in %.3f s", len(watched), ended - begun)
        with self._scheduler:
            rest = max(_REST_FACTOR * (ended - begun), (self._scheduler.cpu() - cpu) / _CPU_SHARE)
            self._look_at, self._next_look = None, ended + rest
            dues = [self._due.get(trial.id, 0.0) for trial in self._table.watched()]
            if dues and not self._closing:
                self._plan_look(min(dues))

    def _refresh_budget(self) -> None:
        assert self._tools.budget
        self._tools.budget.refresh(self.trials(), self._tools.clock.now())
        if not self._closing:
            self._scheduler.at(self._scheduler.now() + _BUDGET_S, self._guarded(self._refresh_budget))

    def _wind_up(self) -> None:
        try:
            self._await_workers()
            self._sync_or_use_journal()
            if not self._leaving:
                cancel_unfinished(self.trials(), self._tools, self._keep)
            for trial in self._table.unjudged():
                self._keep(trial.moved(Step.DONE, self._tools.clock.now()))
        except BaseException as crash:  # noqa: BLE001 - the thread that closes the Fleet must not wait for ever
            self._failed(crash)
        finally:
            with self._scheduler:
                self._ended = True
                self._scheduler.notify()

    def _sync_or_use_journal(self) -> None:
        """See that the ledger takes what is about to be recorded of the jobs' ends."""
        try:
            self._ledger.sync()
        except LedgerError as error:
            log_ignored(_LOG, error, "the ledger, at the end of the run", level=logging.WARNING)
            self._use_journal()

    # The worker threads.

    def _do_step(self, trial: Trial) -> None:
        after = trial
        try:
            if not self._closing:
                after = advance(trial, self._tools)
                self._keep_if_changed(trial, after)
        finally:
            with self._scheduler:
                self._table.give_back(trial)
                self._consider(trial.case.id)
                self._fill_slots()

    def _await_workers(self) -> None:
        """Wait for the workers' last steps: a submission under way would leave a job that the ledger does not have."""
        deadline = self._scheduler.now() + self._tools.limits.stop_s
        with self._scheduler:
            while self._table.busy and (left := deadline - self._scheduler.now()) > 0:
                self._scheduler.wait(min(left, 0.5))

    def _guarded(self, action: Action) -> Action:
        """The action; an error in it ends the Fleet, since waiting tests would wait for ever."""

        def guarded() -> None:
            try:
                action()
            except BaseException as crash:  # noqa: BLE001 - the tests that wait get the error
                self._failed(crash)

        return guarded

    def _failed(self, crash: BaseException) -> None:
        _LOG.error("the Fleet ends by an error", exc_info=crash)
        self._crash = self._crash or crash
        if isinstance(crash, LedgerError):
            self._use_journal()
        self.give_up()

    def fail(self, error: LedgerError) -> None:
        """End the run because its ledger is lost: cancel the jobs, and record that in the journal."""
        self._failed(error)

    def _use_journal(self) -> None:
        if self._journal and not self._journal.used:
            _LOG.warning("the ledger fails: from now on trials are recorded in the journal")
            self._ledger.save_elsewhere(self._journal.add)
            for trial in self.trials():  # also what the ledger did not take before it was known to fail
                self._journal.add(trial, self._tools.clock.now())

    # Changes of trials.

    def _keep_if_changed(self, before: Trial, after: Trial) -> None:
        # A trial that stayed at its step (an answer was lost, or its job runs) is looked at again after a pause.
        pause = self._pause_s(after) if after.step is before.step else 0.0
        self._due[after.id] = self._scheduler.now() + pause
        _log_change(before, after, pause)
        if watch.is_news(before, after):
            self._keep(after)
        if after.request is not before.request and after.job_id:
            self._saved(after)

    def _pause_s(self, trial: Trial) -> float:
        return watch.pause_s(trial, self._tools.clock.now(), self._tools.platform.poll_s)

    def _why_refused(self, case: Case) -> str:
        try:
            if self._tools.budget:
                self._tools.budget.check_another(case)
        except BudgetSpent as refusal:
            return refusal.message
        return ""

    def _keep(self, trial: Trial) -> bool:
        """Store a changed trial in the table and the ledger, and begin what that makes possible.

        Returns True if another run has taken it over, as far as the ledger says so at once.
        """
        now, verdict, taken = self._tools.clock.now(), trial.step is Step.DONE, False
        try:
            # A verdict counts if the ledger takes it: another run may have taken the job over meanwhile.
            if verdict and not self._ledger.save_trial(trial, now):
                trial = self._given_away(trial)
        finally:
            # Even if the ledger fails: that must not hide a job which runs, nor one which has ended.
            kept = self._table.put(trial, last=self._closing)
        for each in kept:
            if verdict and each is trial:
                continue
            if not _is_intent(each):
                self._ledger.save_trial_soon(each, now, self._lost)
            elif not self._ledger.save_trial(each, now):
                taken = True
                self._lost(each)
            elif each.step is Step.SUBMIT:
                self._saved(each)
        with self._scheduler:
            for case_id in self._table.affected_by(trial.case.id):
                self._consider(case_id)
            self._fill_slots()
        return taken

    def _holds(self, trial: Trial) -> bool:
        """True unless the ledger says that another process has taken the trial. A ledger that fails says nothing."""
        with ignored(_LOG, LedgerError, "%s: whether it is still this run's", trial.name, level=logging.WARNING):
            return self._ledger.holds(trial)
        return True

    def _lost(self, trial: Trial) -> None:
        """End a trial that the ledger did not take. The ledger calls this inside its transaction, so that the table is
        changed elsewhere: another thread may have the table's lock and wait for the ledger's."""

        self._scheduler.soon(self._guarded(lambda: self._end_given_away(trial)))

    def _end_given_away(self, trial: Trial) -> None:
        self._table.put(self._given_away(trial), last=True)

    def _given_away(self, trial: Trial) -> Trial:
        # Our lease expired, perhaps while the machine slept: the job is now the other run's.
        _LOG.warning("%s: another run has taken it over", trial.name)
        return taken_by_another_run(trial, self._tools.clock.now())


def _is_intent(trial: Trial) -> bool:
    """True if the trial is about to submit or to cancel a job: the ledger must have that on disk before the request."""
    return trial.step is Step.SUBMIT or (trial.step is Step.WATCH and trial.fault is not None)


def _log_change(before: Trial, after: Trial, pause: float) -> None:
    """Decisions at INFO; a look that found nothing new at DEBUG."""
    if not _LOG.isEnabledFor(logging.INFO):
        return
    job, name = after.job, after.name
    if job and (before.job is None or before.job.phase is not job.phase):
        _LOG.info("%s: job %s is %s (%s)", name, after.job_id, job.phase.value, job.platform_phase)
    if after.step is not before.step:
        _LOG.info("%s: %s -> %s", name, before.step.name, after.step.name)
    else:
        _LOG.debug("%s: stays at %s, next look in %.1f s", name, after.step.name, pause)
    if after.fault and after.fault != before.fault:
        _LOG.info("%s: given up, %s is to blame: %s", name, after.fault.blame.value, after.fault.text)
    for note in after.notes[len(before.notes) :]:
        _LOG.info("%s: %s", name, note)
    if after.judged and after.judged != before.judged:
        _LOG.info("%s: %s: %s", name, after.judged.ruling.value, after.judged.reason)


class TrialTable:
    """The trials of every case, the step that each is wanted to reach, and which wait for a worker or a slot."""

    def __init__(
        self, scheduler: Scheduler, new_trial: NewTrial, why_refused: WhyRefused, max_jobs: int, max_trials: int
    ) -> None:
        """The scheduler's lock guards the table; every change of a step notifies the threads that wait."""
        self._scheduler = scheduler
        self._new_trial = new_trial
        self._why_refused = why_refused
        self._max_jobs = max_jobs
        self._max_trials = max_trials
        self._latest: dict[str, Trial] = {}
        self._past: dict[str, list[Trial]] = {}  # by case: trials that another followed
        self._workloads: dict[str, list[str]] = {}  # the cases of each workload
        self._until: dict[str, Step] = {}
        self._busy: set[str] = set()  # cases whose trial a worker has
        self._holding: set[str] = set()  # cases that have a slot
        self._watched: set[str] = set()  # cases whose jobs are looked at
        self._queued: list[tuple[float, int, str]] = []  # a heap: cases that wait for a slot, the longest first
        self._order = itertools.count()
        self._parked: dict[str, set[str]] = {}  # by the case that is their base: cases that wait for its measurements
        # By trial what was added to it; a worker that has the trial does not know that.
        self._changes: dict[str, list[Callable[[Trial], Trial]]] = {}
        self.changed_cases: set[str] = set()  # whose trial has another step since the main thread last looked

    def want(self, case: Case, until: Step) -> bool:
        """Let the case's trial go as far as `until`; False if it may already go that far."""
        with self._scheduler:
            if case.id not in self._latest:
                begun = self._new_trial(case, 1)
                _LOG.info("%s: begins, trial 1 of %s", begun.name, case.id)
                self._set(begun)
            elif case.id in self._until and self._until[case.id] >= until:
                return False
            self._until[case.id] = max(until, self._until.get(case.id, Step.STAGE))
            self._count(case.id)
            return True

    def adopt(self, trial: Trial) -> None:
        with self._scheduler:
            self._until[trial.case.id] = Step.STAGE
            self._set(trial)

    def put(self, trial: Trial, *, last: bool) -> list[Trial]:
        """Store a changed trial; begin another if it does not decide its case and the run is not ending (`last`).

        Both happen under one lock: otherwise a waiting test could take the first trial for the end of the case.
        """
        with self._scheduler:
            for change in self._changes.get(trial.id, ()):
                trial = change(trial)
            why = "" if last and not trial.another_trial else why_another_trial(trial, self._max_trials)
            refusal = ("the run is ending" if last else self._why_refused(trial.case)) if why else ""
            kept = [without_another_trial(trial, refusal) if refusal else trial]
            if refusal:
                _LOG.info("%s: no other trial, though one is due (%s): %s", trial.name, why, refusal)
            elif why:
                self._past.setdefault(trial.case.id, []).append(trial)
                kept.append(self._new_trial(trial.case, trial.number + 1).noted(why))
                _LOG.info("%s: begins, trial %d of %s: %s", kept[-1].name, kept[-1].number, trial.case.id, why)
            self._set(kept[-1])
            return kept

    def _set(self, trial: Trial) -> None:
        case_id = trial.case.id
        before = self._latest.get(case_id)
        self._latest[case_id] = trial
        self._count(case_id)
        if before is None:
            self._workloads.setdefault(trial.case.workload.name, []).append(case_id)
        if before is None or before.step is not trial.step or before.id != trial.id:
            self.changed_cases.add(case_id)
            self._scheduler.notify()

    def _count(self, case_id: str) -> None:
        """Keep the sets of cases that have a slot, and whose jobs are looked at."""
        trial, until = self._latest[case_id], self._until.get(case_id, Step.STAGE)
        begun = trial.step is not Step.STAGE or case_id in self._busy
        _set_member(self._holding, case_id, until is not Step.SUBMIT and begun and trial.step < Step.HARVEST)
        _set_member(self._watched, case_id, trial.step is Step.WATCH and trial.step < _goal(trial, until))

    def amend(self, trial: Trial, change: Callable[[Trial], Trial]) -> None:
        """Change a trial, even if a worker does so at the same time."""
        with self._scheduler:
            self._changes.setdefault(trial.id, []).append(change)
            latest = self._latest[trial.case.id]
            if latest.id == trial.id:
                self._latest[trial.case.id] = change(latest)

    def reached(self, case: Case, until: Step) -> Trial | None:
        """The case's trial if it has reached that step, else None."""
        trial = self._latest.get(case.id)
        return trial if trial and trial.step >= _goal(trial, until) else None

    def unjudged(self) -> list[Trial]:
        """Trials that are as far as any test wanted them, whose results no test wants judged: their run ends them, and
        no other run takes them over."""
        with self._scheduler:
            return [
                trial
                for case_id, trial in self._latest.items()
                if trial.step is not Step.DONE and trial.step is self._until.get(case_id) and not trial.attempts
            ]

    def knows(self, case: Case) -> bool:
        return case.id in self._latest

    def trials(self) -> list[Trial]:
        """All trials; those of one case in their order."""
        with self._scheduler:
            return [*itertools.chain.from_iterable(self._past.values()), *self._latest.values()]

    def trials_of(self, case_id: str) -> list[Trial]:
        with self._scheduler:
            past = self._past.get(case_id, [])
            return [*past, self._latest[case_id]] if case_id in self._latest else [*past]

    def trials_of_workload(self, name: str) -> list[Trial]:
        with self._scheduler:
            return [trial for case_id in self._workloads.get(name, ()) for trial in self.trials_of(case_id)]

    def watched(self) -> list[Trial]:
        """The trials whose jobs are looked at."""
        with self._scheduler:
            return [self._latest[case_id] for case_id in self._watched]

    def movable(self, case_id: str) -> Trial | None:
        """The case's trial if it is wanted further, no worker has it, and it waits for no other case."""
        trial, until = self._latest[case_id], self._until.get(case_id, Step.STAGE)
        if case_id in self._busy or trial.step >= _goal(trial, until) or self._waits(trial):
            return None
        return trial

    def _waits(self, trial: Trial) -> bool:
        """True until the base of its scaling threshold has been measured, if this run measures it.

        The trial waits for measurements, never for a verdict, so that no two cases wait for each other.
        """
        base = self._latest.get(base_case_id(trial.case)) if trial.step is Step.JUDGE else None
        if base is None or base.step >= Step.JUDGE or self._until[base.case.id] < Step.JUDGE:
            return False
        if any(past.measurements for past in self._past.get(base.case.id, ())):
            return False
        self._parked.setdefault(base.case.id, set()).add(trial.case.id)
        return True

    def affected_by(self, case_id: str) -> list[str]:
        """The case, and those that waited for it."""
        return [case_id, *self._parked.pop(case_id, ())]

    def needs_slot(self, trial: Trial) -> bool:
        """True if the trial has no job yet and will get one."""
        return trial.step is Step.STAGE and self._until[trial.case.id] is not Step.SUBMIT

    def queue(self, trial: Trial) -> None:
        """Let the trial wait for a slot."""
        heapq.heappush(self._queued, (-trial.expected_s, next(self._order), trial.case.id))

    def take_queued(self) -> Trial | None:
        """The next trial that waited for a slot, if there is a free one."""
        while self._queued and len(self._holding) < self._max_jobs:
            _, _, case_id = heapq.heappop(self._queued)
            trial = self._latest[case_id]
            if case_id not in self._busy and self.needs_slot(trial):  # else it was queued twice
                return trial
        return None

    def take(self, trial: Trial) -> None:
        self._busy.add(trial.case.id)
        self._count(trial.case.id)

    def give_back(self, trial: Trial) -> None:
        self._busy.discard(trial.case.id)
        self._count(trial.case.id)
        if not self._busy:
            self._scheduler.notify()

    @property
    def busy(self) -> bool:
        return bool(self._busy)


def _set_member(members: set[str], member: str, belongs: bool) -> None:  # noqa: FBT001
    if belongs:
        members.add(member)
    else:
        members.discard(member)


def _goal(trial: Trial, until: Step) -> Step:
    """The step to reach before a waiting test gets the trial: a lost job goes on to DONE, where a retry may follow."""
    lost = trial.job is not None and trial.job.phase is Phase.LOST
    return Step.DONE if lost and until > Step.WATCH else until
