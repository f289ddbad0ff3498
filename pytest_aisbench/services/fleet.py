"""All jobs of a run, held by one process at once.

One thread watches: it asks about all jobs that are due in one request, so that a thousand cost little more than one.
What takes its time, staging, submitting, harvesting, is done by a few hands beside it, never two at one trial.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.job import Job
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.errors import AisbenchError, GivenUp
from pytest_aisbench.services import watch
from pytest_aisbench.services.ledger import Ledger
from pytest_aisbench.services.recall import recall
from pytest_aisbench.services.submission import first_trial
from pytest_aisbench.services.takeover import fingerprint
from pytest_aisbench.services.trial import Tools, advance

_HANDS = 8
_LONGEST_REST = 0.25  # seconds; what is wanted while the thread looks around is seen then at the latest
_LAST_CALL = 30.0  # seconds beyond the time to stop: a request that is under way


class Fleet:
    """Keeps one trial per case, however many tests ask for it, and never more jobs in flight than allowed."""

    def __init__(self, run: str, tools: Tools, ledger: Ledger, max_jobs: int, saved: Callable[[Trial], None]) -> None:
        self._run = run
        self._tools = tools
        self._ledger = ledger
        self._max_jobs = max_jobs
        self._saved = saved  # told of every trial that changed
        self._trials: dict[str, Trial] = {}
        self._until: dict[str, Step] = {}
        self._looks: dict[str, float] = {}  # when each watched trial is due
        self._busy: set[str] = set()  # cases that a hand is at work on
        self._work: queue.Queue[Trial] = queue.Queue()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._leaving = False
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="aisbench-fleet", daemon=True)

    def start(self) -> None:
        # Daemons: a hand that waits for a platform which is gone must not keep the process.
        for number in range(_HANDS):
            threading.Thread(target=self._labour, name=f"aisbench-hand-{number}", daemon=True).start()
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

    def is_ready(self, case: Case, until: Step) -> bool:
        """Whether `reached` would return, or raise, at once."""
        trial = self._trials.get(case.id)
        return trial is None or trial.step >= until or self._closing.is_set()

    def wait(self, seconds: float) -> None:
        """Until something changes, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def trials(self) -> list[Trial]:
        with self._changed:
            return list(self._trials.values())

    @property
    def crash(self) -> BaseException | None:
        """What ended the Fleet before its time."""
        return self._crash

    def give_up(self) -> None:
        """Begin no more, wait for nothing more; returns at once, while the jobs are being stopped."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop every job of ours that still runs, and wait for the platform to confirm."""
        self.give_up()
        if self._thread.is_alive():
            # Bounded: a platform that is gone must not keep anybody who pressed Ctrl-C. The ledger names what is left.
            self._thread.join(self._tools.limits.stop_s + _LAST_CALL)

    def leave(self) -> None:
        """Stop watching and let the jobs run; the ledger has them for the next run."""
        self._leaving = True
        self.close()
        for trial in self.trials():
            if trial.step is Step.WATCH:
                self._keep(trial.noted("left running; the next run takes it over"))

    # The watching thread.

    def _watch(self) -> None:
        try:
            while not self._closing.is_set():
                self._hand_out()
                self._look()
                self._rest()
        except BaseException as crash:  # noqa: BLE001 - whoever waits must hear of it, or waits for ever
            self._failed(crash)
        finally:
            self.give_up()
            self._await_hands()
            if not self._leaving:
                recall(self.trials(), self._tools, self._keep)
            with self._changed:
                self._changed.notify_all()

    def _rest(self) -> None:
        with self._changed:
            due = [self._looks[trial.case.id] for trial in self._open() if trial.case.id in self._looks]
            if not self._closing.is_set():
                seconds = min(due, default=float("inf")) - self._tools.clock.now()
                self._changed.wait(min(max(seconds, 0.0), _LONGEST_REST))

    def _open(self) -> list[Trial]:
        """Trials that somebody wants further and no hand is at, longest expected first."""
        with self._changed:
            found = [
                trial for key, trial in self._trials.items() if trial.step < self._until[key] and key not in self._busy
            ]
        return sorted(found, key=lambda trial: -trial.case.workload.expected_s)

    def _hand_out(self) -> None:
        """Give the hands what is due; a trial that has no job yet waits for a free place."""
        for trial in self._open():
            until = self._until[trial.case.id]
            waits = trial.step is Step.STAGE and until is not Step.SUBMIT and self._places() <= 0
            if trial.step is not Step.WATCH and not waits and self._is_due(trial):
                with self._changed:
                    self._busy.add(trial.case.id)
                self._work.put(trial)

    def _places(self) -> int:
        with self._changed:
            taken = [
                key
                for key, trial in self._trials.items()
                if self._until[key] is not Step.SUBMIT
                and (Step.STAGE < trial.step < Step.HARVEST or (trial.step is Step.STAGE and key in self._busy))
            ]
        return self._max_jobs - len(taken)

    def _is_due(self, trial: Trial) -> bool:
        return self._looks.get(trial.case.id, 0.0) <= self._tools.clock.now()

    def _look(self) -> None:
        """Ask about all jobs that are due at once."""
        watched = [trial for trial in self._open() if trial.step is Step.WATCH and self._is_due(trial)]
        if not watched:
            return
        answer = self._asked([trial.job_id or "" for trial in watched])
        for trial in watched:
            self._keep_if_changed(trial, advance(trial, replace(self._tools, inspect=answer)))

    def _asked(self, job_ids: list[str]) -> Callable[[str], Job]:
        try:
            jobs = self._tools.platform.inspect(job_ids)
        except AisbenchError as error:
            failure = error
        else:
            return lambda job_id: jobs[job_id]

        def fail(_: str) -> Job:
            raise failure

        return fail

    # The hands.

    def _labour(self) -> None:
        while True:
            trial = self._work.get()
            try:
                if not self._closing.is_set():
                    self._keep_if_changed(trial, advance(trial, self._tools))
            except BaseException as crash:  # noqa: BLE001 - as in the watching thread
                self._failed(crash)
            finally:
                with self._changed:
                    self._busy.discard(trial.case.id)
                    self._changed.notify_all()

    def _await_hands(self) -> None:
        """A submission under way would leave a job that nobody knows."""
        deadline = self._tools.clock.now() + self._tools.limits.stop_s
        with self._changed:
            while self._busy and self._tools.clock.now() < deadline:
                self._changed.wait(0.5)

    def _failed(self, crash: BaseException) -> None:
        self._crash = self._crash or crash
        self.give_up()

    def _keep_if_changed(self, before: Trial, after: Trial) -> None:
        now = self._tools.clock.now()
        # A step that stayed where it was, a lost answer or a job that runs, is looked at again after a while.
        pause = watch.pause(after, now, self._tools.platform.poll_s) if after.step is before.step else 0.0
        self._looks[after.case.id] = now + pause
        if after != before:
            self._keep(after)

    def _keep(self, trial: Trial) -> None:
        with self._changed:
            self._trials[trial.case.id] = trial  # first: a ledger that fails must not hide a job that runs
        self._ledger.save_trial(trial, self._tools.clock.now())
        self._saved(trial)
        with self._changed:
            self._changed.notify_all()
