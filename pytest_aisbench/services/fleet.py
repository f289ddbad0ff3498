"""All jobs of a run, held by one process at once: a thread that advances whatever is due."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.errors import AisbenchError, GivenUp, LedgerError
from pytest_aisbench.services import watch
from pytest_aisbench.services.ledger import Ledger
from pytest_aisbench.services.submission import first_trial
from pytest_aisbench.services.takeover import fingerprint
from pytest_aisbench.services.trial import Tools, advance

_LAST_CALL = 30.0  # seconds beyond the time to stop: a request that is under way


class Fleet:
    """Keeps one trial per case, however many tests ask for it, and never more jobs in flight than allowed.

    Waiting is the callers' part: `reached` blocks its caller, the Fleet's own thread blocks on nothing but the
    platform's answers.
    """

    def __init__(self, run: str, tools: Tools, ledger: Ledger, max_jobs: int, saved: Callable[[Trial], None]) -> None:
        self._run = run
        self._tools = tools
        self._ledger = ledger
        self._max_jobs = max_jobs
        self._saved = saved  # told of every trial that changed, on the Fleet's thread
        self._trials: dict[str, Trial] = {}
        self._until: dict[str, Step] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._leaving = False
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="aisbench-fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def adopt(self, trial: Trial) -> None:
        """Go on with a trial that another run began; nothing moves before somebody wants it."""
        self._until[trial.case.id] = Step.STAGE
        self._keep(trial)

    def want(self, case: Case, until: Step) -> None:
        """Let the case's trial go as far as `until`; asking again only ever moves that further."""
        with self._changed:
            if case.id not in self._trials:
                trial = first_trial(self._run, case, self._tools.clock.now())
                place = self._tools.platform.place
                self._trials[case.id] = replace(trial, place=place, fingerprint=fingerprint(case) if place else "")
            self._until[case.id] = max(until, self._until.get(case.id, Step.STAGE))
            self._changed.notify_all()

    def reached(self, case: Case, until: Step) -> Trial:
        """The case's trial once it is as far as `until`; blocks until then."""
        self.want(case, until)
        with self._changed:
            while True:
                trial = self._trials[case.id]
                if trial.step >= until:
                    return trial
                if self._crash:
                    raise self._crash
                if self._closing.is_set():
                    raise GivenUp(f"{case.id} was given up: the run is ending")
                self._changed.wait(0.5)  # a bound, so that signals are seen

    def trials(self) -> list[Trial]:
        with self._changed:
            return list(self._trials.values())

    def give_up(self) -> None:
        """Begin no more, wait for nothing more; returns at once, while the jobs are being stopped."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop every job of ours that still runs, and wait for the platform to confirm."""
        self.give_up()
        self._join()

    def leave(self) -> None:
        """Stop watching and let the jobs run; the ledger has them for the next run."""
        self._leaving = True
        self.give_up()
        self._join()

    def _join(self) -> None:
        if self._thread.is_alive():
            # Bounded: a platform that is gone must not keep anybody who pressed Ctrl-C. The ledger names what is left.
            self._thread.join(self._tools.limits.stop_s + _LAST_CALL)

    @property
    def crash(self) -> BaseException | None:
        """What ended the Fleet before its time."""
        return self._crash

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                moved = [self._advance(trial) for trial in self._due()]
                with self._changed:
                    if not self._closing.is_set() and not any(moved):
                        self._changed.wait(self._tools.platform.poll_s)
            if not self._leaving:
                self._stop_all()
        except BaseException as crash:  # noqa: BLE001 - whoever waits must hear of it, or waits for ever
            self._crash = crash
            self._stop_all()
        finally:
            with self._changed:
                self._closing.set()
                self._changed.notify_all()

    def _due(self) -> list[Trial]:
        """Longest expected first; one that has no job yet waits for a free place."""
        with self._changed:
            open_trials = [trial for key, trial in self._trials.items() if trial.step < self._until[key]]
        places = self._max_jobs - sum(Step.STAGE < trial.step < Step.HARVEST for trial in open_trials)
        due: list[Trial] = []
        for trial in sorted(open_trials, key=lambda trial: -trial.case.workload.expected_s):
            if trial.step is not Step.STAGE:
                due.append(trial)
            elif places > 0 or self._until[trial.case.id] is Step.SUBMIT:
                places -= 1
                due.append(trial)
        return due

    def _advance(self, trial: Trial) -> bool:
        """True when the trial went on to another step and may go on at once."""
        if self._closing.is_set():
            return False
        after = advance(trial, self._tools)
        if after != trial:
            self._keep(after)
        return after.step is not trial.step

    def _keep(self, trial: Trial) -> None:
        with self._changed:
            self._trials[trial.case.id] = trial  # first: a ledger that fails must not hide a job that runs
        self._ledger.save_trial(trial, self._tools.clock.now())
        self._saved(trial)
        with self._changed:
            self._changed.notify_all()

    def _stop_all(self) -> None:
        """What we started and nobody will judge is stopped; a job that does not confirm is named in its notes."""
        platform, clock = self._tools.platform, self._tools.clock
        ended = GivenUp("the run ended before the job did")
        found = [self._reconciled(trial) for trial in self.trials()]
        running = [trial for trial in found if trial.step is Step.WATCH and trial.job_id]
        running = [trial if trial.fault else watch.stop(trial, ended, platform, clock.now()) for trial in running]
        while running:
            later = []
            for trial in running:
                try:
                    after = watch.look(trial, platform, clock, self._tools.limits)
                except AisbenchError as deaf:
                    after = trial.noted(f"nobody knows whether job {trial.job_id} stopped: {deaf}")
                    after = after.moved(Step.HARVEST, clock.now())
                if after.step is Step.WATCH:
                    later.append(after)
                else:
                    with contextlib.suppress(LedgerError):  # it failed before, or the run would not be ending
                        self._keep(after)
            running = later
            if running:
                clock.sleep(min(platform.poll_s, 1.0))

    def _reconciled(self, trial: Trial) -> Trial:
        """A trial whose submission had no answer, at the step where its job is, if there is one."""
        if trial.step is not Step.SUBMIT or not trial.attempts:
            return trial
        try:
            job_id = self._tools.platform.find(trial.name)
        except AisbenchError as deaf:
            after = trial.noted(f"nobody knows whether job {trial.name} was created: {deaf}")
        else:
            after = trial if job_id is None else trial.moved(Step.WATCH, self._tools.clock.now(), job_id=job_id)
        if after != trial:
            with contextlib.suppress(LedgerError):
                self._keep(after)
        return after
