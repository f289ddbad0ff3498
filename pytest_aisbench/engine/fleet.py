"""The scheduler: keeps all jobs of a run in flight at once.

One thread watches the jobs: it asks the platform about all of them in one request, so that a thousand jobs cost little
more than one. Eight worker threads do the slow steps (staging, submitting, collecting); one thread owns a trial at a
time. Tests wait in `Fleet.reached` for the trial of their case.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace

from pytest_aisbench.engine import watch
from pytest_aisbench.engine.cancel import WORKERS, cancel_unfinished
from pytest_aisbench.engine.trial import Tools, advance, taken_by_another_run, why_another_trial, without_another_trial
from pytest_aisbench.errors import BudgetSpent, Crashed, GivenUp
from pytest_aisbench.judge.scaling import base_case_id
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.logs import get_logger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Phase
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.trial import Step, Trial

_LOG = get_logger("fleet")
NewTrial = Callable[[Case, int], Trial]  # makes the trial of a case with this number
WhyRefused = Callable[[Case], str]  # why the case gets no other trial; empty if it may get one
_REST_FACTOR = 4  # the watching thread rests four times as long as it worked: a thousand jobs take no whole core
_LONGEST_REST_S = 0.25  # after that the watching thread sees new wishes at the latest
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
    ) -> None:
        """`saved` is called with every changed trial once the ledger has it."""
        self._ledger = ledger
        self._saved = saved
        self._table = TrialTable(new_trial, self._why_refused, max_jobs, max_trials)
        self._tools = replace(tools, others=self._table.trials)
        self._changed = self._table.changed
        self._looks: dict[str, float] = {}  # when each trial is due
        self._next_look = 0.0
        self._work: queue.Queue[Trial] = queue.Queue()
        self._closing = threading.Event()
        self._leaving = False
        self._waiting = 0  # trials without a free slot, when last counted
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="aisbench-fleet", daemon=True)

    def start(self) -> None:
        # Daemon threads: a worker that waits for a dead platform must not keep the process alive.
        for number in range(WORKERS):
            threading.Thread(target=self._do_steps, name=f"aisbench-worker-{number}", daemon=True).start()
        self._thread.start()

    def adopt(self, trial: Trial) -> None:
        """Continue a trial that another run began; it does not move before `want` names its case."""
        _LOG.info("%s: taken over at %s, job %s", trial.name, trial.step.name, trial.job_id)
        self._table.adopt(trial)
        self._keep(trial)

    def want(self, case: Case, until: Step) -> None:
        """Let the case's trial go as far as `until`; asking again only ever moves that further."""
        self._table.want(case, until)

    def reached(self, case: Case, until: Step) -> Trial:
        """Wait until the case's trial reaches the step `until`, and return it."""
        self.want(case, until)
        with self._changed:
            while True:
                if trial := self._table.reached(case, until):
                    return trial
                if self._crash:
                    raise Crashed.of(self._crash)
                if self._closing.is_set():
                    raise GivenUp(f"{case.id} was given up: the run is ending")
                self._changed.wait(0.5)  # a bound, so that signals are seen

    def is_ready(self, case: Case, until: Step) -> bool:
        """True if `reached` would return, or raise, at once."""
        return not self._table.knows(case) or self._closing.is_set() or self._table.reached(case, until) is not None

    def wait(self, seconds: float) -> None:
        """Wait until a trial changes, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def trials(self) -> list[Trial]:
        """All trials of the run; those of one case in their order."""
        return self._table.trials()

    def trials_of(self, case_id: str) -> list[Trial]:
        return self._table.trials_of(case_id)

    def remark(self, trial: Trial, text: str) -> None:
        """Add a note to a trial; the ledger gets it with the trial's next change."""
        self._table.remark(trial, text)

    @property
    def crash(self) -> BaseException | None:
        """The error that ended the Fleet, if one did."""
        return self._crash

    def give_up(self) -> None:
        """Begin no more trials and wake all waiting tests; returns at once, while the jobs are being cancelled."""
        with self._changed:
            if not self._closing.is_set():
                _LOG.info("the Fleet begins no more trials")
            self._closing.set()
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel every job of ours that still runs, and wait for the platform to confirm."""
        self.give_up()
        if self._thread.is_alive():
            # Bounded: a dead platform must not hold a person who pressed Ctrl-C. The ledger names the jobs that remain.
            self._thread.join(self._tools.limits.stop_s + _LAST_REQUEST_S)

    def leave(self) -> None:
        """Stop watching and let the jobs run; the next run finds them in the ledger."""
        _LOG.info("the jobs that run are left to the next run")
        self._leaving = True
        self.close()
        for trial in self.trials():
            if trial.step is Step.WATCH:
                self._keep(trial.noted(message("left running")))

    # The watching thread.

    def _watch(self) -> None:
        try:
            while not self._closing.is_set():
                begun = self._tools.clock.now()
                if self._tools.budget:
                    self._tools.budget.refresh(self.trials(), self._tools.clock.now())
                self._hand_out()
                took = self._tools.clock.now() - begun
                self._look()
                self._closing.wait(min(_REST_FACTOR * took, _LONGEST_REST_S))
                self._rest()
        except BaseException as crash:  # noqa: BLE001 - waiting tests must get the error, or they wait for ever
            self._failed(crash)
        finally:
            self.give_up()
            self._await_workers()
            if not self._leaving:
                cancel_unfinished(self.trials(), self._tools, self._keep)
            with self._changed:
                self._changed.notify_all()

    def _rest(self) -> None:
        with self._changed:
            due = [self._looks[trial.id] for trial in self._table.open() if trial.id in self._looks]
            if not self._closing.is_set():
                seconds = max(min(due, default=float("inf")), self._next_look) - self._tools.clock.now()
                self._changed.wait(min(max(seconds, 0.0), _LONGEST_REST_S))

    def _hand_out(self) -> None:
        """Give the due trials to the workers; a trial without a job waits for a free slot."""
        slots, waiting = self._table.free_slots(), 0
        for trial in self._table.open():
            if trial.step is Step.WATCH or not self._is_due(trial):
                continue
            if self._table.needs_slot(trial):
                if slots <= 0:
                    waiting += 1
                    continue
                slots -= 1
            _LOG.debug("%s: %s begins", trial.name, trial.step.name)
            self._table.take(trial)
            self._work.put(trial)
        if waiting != self._waiting:
            _LOG.info("%d trials wait until one of the jobs in flight ends", waiting)
            self._waiting = waiting

    def _is_due(self, trial: Trial) -> bool:
        return self._looks.get(trial.id, 0.0) <= self._tools.clock.now()

    def _look(self) -> None:
        """When one job is due, ask about all jobs: one request costs the same for all."""
        begun = self._tools.clock.now()
        watched = [trial for trial in self._table.open() if watch.may_ask(trial, begun)]
        if begun < self._next_look or not any(map(self._is_due, watched)):
            return
        inspect = watch.inspect_together(self._tools.platform, [trial.job_id or "" for trial in watched])
        tools = replace(self._tools, inspect=inspect)
        for trial in watched:
            self._keep_if_changed(trial, advance(trial, tools))
        ended = self._tools.clock.now()
        _LOG.debug("asked about %d jobs in %.3f s", len(watched), ended - begun)
        self._next_look = ended + _REST_FACTOR * (ended - begun)

    # The worker threads.

    def _do_steps(self) -> None:
        while True:
            trial = self._work.get()
            try:
                if not self._closing.is_set():
                    self._keep_if_changed(trial, advance(trial, self._tools))
            except BaseException as crash:  # noqa: BLE001 - as in the watching thread
                self._failed(crash)
            finally:
                self._table.give_back(trial)

    def _await_workers(self) -> None:
        """Wait for the workers' last steps: a submission under way would leave a job that the ledger does not have."""
        deadline = self._tools.clock.now() + self._tools.limits.stop_s
        with self._changed:
            while self._table.busy and self._tools.clock.now() < deadline:
                self._changed.wait(0.5)

    def _failed(self, crash: BaseException) -> None:
        _LOG.error("the Fleet ends by an error", exc_info=crash)
        self._crash = self._crash or crash
        self.give_up()

    def _keep_if_changed(self, before: Trial, after: Trial) -> None:
        now = self._tools.clock.now()
        # A trial that stayed at its step (an answer was lost, or its job runs) is looked at again after a pause.
        pause = watch.pause_s(after, now, self._tools.platform.poll_s) if after.step is before.step else 0.0
        self._looks[after.id] = now + pause
        _log_change(before, after, pause)
        if watch.is_news(before, after):
            self._keep(after)

    def _why_refused(self, case: Case) -> str:
        try:
            if self._tools.budget:
                self._tools.budget.check_another(case)
        except BudgetSpent as refusal:
            return refusal.message
        return ""

    def _keep(self, trial: Trial) -> None:
        # The table before the ledger: a failing ledger must not hide a running job.
        for kept in self._table.put(trial, last=self._closing.is_set()):
            if self._ledger.save_trial(kept, self._tools.clock.now()):
                self._saved(kept)
            else:
                # Our lease expired, perhaps while the machine slept: the job is now the other run's.
                _LOG.warning("%s: another run has taken it over", kept.name)
                self._table.put(taken_by_another_run(kept, self._tools.clock.now()), last=True)


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
    """The trials of every case, the step that each is wanted to reach, and which of them a worker has.

    `changed` is the one lock of the Fleet; every change of the table notifies the threads that wait on it.
    """

    def __init__(self, new_trial: NewTrial, why_refused: WhyRefused, max_jobs: int, max_trials: int) -> None:
        self.changed = threading.Condition()
        self._new_trial = new_trial
        self._why_refused = why_refused
        self._max_jobs = max_jobs
        self._max_trials = max_trials
        self._latest: dict[str, Trial] = {}
        self._past: list[Trial] = []  # trials that another trial of their case followed
        self._until: dict[str, Step] = {}
        self._busy: set[str] = set()  # cases whose trial a worker has
        self._remarks: dict[str, list[str]] = {}  # by trial; a worker that has the trial does not know them

    def want(self, case: Case, until: Step) -> None:
        """Let the case's trial go as far as `until`; asking again only ever moves that further."""
        with self.changed:
            if case.id not in self._latest:
                self._latest[case.id] = begun = self._new_trial(case, 1)
                _LOG.info("%s: begins, trial 1 of %s", begun.name, case.id)
            self._until[case.id] = max(until, self._until.get(case.id, Step.STAGE))
            self.changed.notify_all()

    def adopt(self, trial: Trial) -> None:
        with self.changed:
            self._until[trial.case.id] = Step.STAGE
            self._latest[trial.case.id] = trial

    def put(self, trial: Trial, *, last: bool) -> list[Trial]:
        """Store a changed trial; begin another if it does not decide its case and the run is not ending (`last`).

        Both happen under one lock: otherwise a waiting test could take the first trial for the end of the case.
        """
        with self.changed:
            for text in self._remarks.get(trial.id, ()):
                trial = trial.noted(text)
            why = "" if last and not trial.another_trial else why_another_trial(trial, self._max_trials)
            refusal = ("the run is ending" if last else self._why_refused(trial.case)) if why else ""
            kept = [without_another_trial(trial, refusal) if refusal else trial]
            if refusal:
                _LOG.info("%s: no other trial, though one is due (%s): %s", trial.name, why, refusal)
            elif why:
                self._past.append(trial)
                kept.append(self._new_trial(trial.case, trial.number + 1).noted(why))
                _LOG.info("%s: begins, trial %d of %s: %s", kept[-1].name, kept[-1].number, trial.case.id, why)
            self._latest[trial.case.id] = kept[-1]
            self.changed.notify_all()
        return kept

    def remark(self, trial: Trial, text: str) -> None:
        """Add a note to a trial, even if a worker changes the trial at the same time."""
        with self.changed:
            self._remarks.setdefault(trial.id, []).append(text)
            latest = self._latest[trial.case.id]
            if latest.id == trial.id:
                self._latest[trial.case.id] = latest.noted(text)

    def reached(self, case: Case, until: Step) -> Trial | None:
        """The case's trial if it has reached that step, else None."""
        trial = self._latest.get(case.id)
        return trial if trial and trial.step >= _goal(trial, until) else None

    def knows(self, case: Case) -> bool:
        return case.id in self._latest

    def trials(self) -> list[Trial]:
        """All trials; those of one case in their order."""
        with self.changed:
            return [*self._past, *self._latest.values()]

    def trials_of(self, case_id: str) -> list[Trial]:
        with self.changed:
            past = [trial for trial in self._past if trial.case.id == case_id]
            return [*past, self._latest[case_id]] if case_id in self._latest else past

    def open(self) -> list[Trial]:
        """The trials that are wanted further and that no worker has; the longest expected job first."""
        with self.changed:
            wanted = [
                trial
                for key, trial in self._latest.items()
                if key not in self._busy and trial.step < _goal(trial, self._until[key]) and not self._waits(trial)
            ]
        return sorted(wanted, key=lambda trial: -trial.expected_s)

    def _waits(self, trial: Trial) -> bool:
        """True until the base of its scaling threshold has been measured, if this run measures it.

        The trial waits for measurements, never for a verdict, so that no two cases wait for each other.
        """
        base = self._latest.get(base_case_id(trial.case)) if trial.step is Step.JUDGE else None
        if base is None or base.step >= Step.JUDGE or self._until[base.case.id] < Step.JUDGE:
            return False
        return not any(past.case.id == base.case.id and past.measurements for past in self._past)

    def needs_slot(self, trial: Trial) -> bool:
        """True if the trial has no job yet and will get one."""
        return trial.step is Step.STAGE and self._until[trial.case.id] is not Step.SUBMIT

    def free_slots(self) -> int:
        """How many more jobs may be started."""
        with self.changed:
            taken = sum(
                Step.STAGE < trial.step < Step.HARVEST or (trial.step is Step.STAGE and key in self._busy)
                for key, trial in self._latest.items()
                if self._until[key] is not Step.SUBMIT
            )
        return self._max_jobs - taken

    def take(self, trial: Trial) -> None:
        with self.changed:
            self._busy.add(trial.case.id)

    def give_back(self, trial: Trial) -> None:
        with self.changed:
            self._busy.discard(trial.case.id)
            self.changed.notify_all()

    @property
    def busy(self) -> bool:
        return bool(self._busy)


def _goal(trial: Trial, until: Step) -> Step:
    """The step to reach before a waiting test gets the trial: a lost job goes on to DONE, where a retry may follow."""
    lost = trial.job is not None and trial.job.phase is Phase.LOST
    return Step.DONE if lost and until > Step.WATCH else until
