"""Who takes part in a run: the trials of every case, how far each is wanted, and which a hand is at work on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.job import Phase
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.judge.scaling import base_case_id
from pytest_aisbench.logs import get_logger
from pytest_aisbench.services.verdict_step import why_another_trial, without_another_trial

_LOG = get_logger("fleet")
Begin = Callable[[Case, int], Trial]  # a case's trial of this number
Refuse = Callable[[Case], str]  # why there must not be another; empty if there may


class Roster:
    """Every change is told to whoever waits on `changed`, the one lock of the Fleet."""

    def __init__(self, begin: Begin, refuse: Refuse, max_jobs: int, max_trials: int) -> None:
        self.changed = threading.Condition()
        self._begin = begin
        self._refuse = refuse
        self._max_jobs = max_jobs
        self._max_trials = max_trials
        self._latest: dict[str, Trial] = {}
        self._past: list[Trial] = []  # those that another trial of their case followed
        self._until: dict[str, Step] = {}
        self._busy: set[str] = set()  # cases
        self._remarks: dict[str, list[str]] = {}  # by trial: said while somebody else was at work on it

    def want(self, case: Case, until: Step) -> None:
        """Let the case's trial go as far as `until`; asking again only ever moves that further."""
        with self.changed:
            if case.id not in self._latest:
                self._latest[case.id] = begun = self._begin(case, 1)
                _LOG.info("%s: begins, trial 1 of %s", begun.name, case.id)
            self._until[case.id] = max(until, self._until.get(case.id, Step.STAGE))
            self.changed.notify_all()

    def adopt(self, trial: Trial) -> None:
        with self.changed:
            self._until[trial.case.id] = Step.STAGE
            self._latest[trial.case.id] = trial

    def put(self, trial: Trial, *, last: bool) -> list[Trial]:
        """Keep what became of a trial, and begin another where it does not decide its case; unless it is the last.

        Both in one stroke: nobody may take the first for the case's end.
        """
        with self.changed:
            for text in self._remarks.get(trial.id, ()):
                trial = trial.noted(text)
            why = "" if last and not trial.another_trial else why_another_trial(trial, self._max_trials)
            refusal = ("the run is ending" if last else self._refuse(trial.case)) if why else ""
            kept = [without_another_trial(trial, refusal) if refusal else trial]
            if refusal:
                _LOG.info("%s: no other trial, though one is due (%s): %s", trial.name, why, refusal)
            elif why:
                self._past.append(trial)
                kept.append(self._begin(trial.case, trial.number + 1).noted(why))
                _LOG.info("%s: begins, trial %d of %s: %s", kept[-1].name, kept[-1].number, trial.case.id, why)
            self._latest[trial.case.id] = kept[-1]
            self.changed.notify_all()
        return kept

    def remark(self, trial: Trial, text: str) -> None:
        """Let a trial carry a note, whatever becomes of it meanwhile."""
        with self.changed:
            self._remarks.setdefault(trial.id, []).append(text)
            latest = self._latest[trial.case.id]
            if latest.id == trial.id:
                self._latest[trial.case.id] = latest.noted(text)

    def reached(self, case: Case, until: Step) -> Trial | None:
        """The case's trial, if it is as far as that."""
        trial = self._latest.get(case.id)
        return trial if trial and trial.step >= _goal(trial, until) else None

    def knows(self, case: Case) -> bool:
        return case.id in self._latest

    def trials(self) -> list[Trial]:
        """All, those of one case in their order."""
        with self.changed:
            return [*self._past, *self._latest.values()]

    def trials_of(self, case_id: str) -> list[Trial]:
        with self.changed:
            past = [trial for trial in self._past if trial.case.id == case_id]
            return [*past, self._latest[case_id]] if case_id in self._latest else past

    def open(self) -> list[Trial]:
        """Trials that somebody wants further and no hand is at, longest expected first."""
        with self.changed:
            found = [
                trial
                for key, trial in self._latest.items()
                if key not in self._busy and trial.step < _goal(trial, self._until[key]) and not self._waits(trial)
            ]
        return sorted(found, key=lambda trial: -trial.expected_s)

    def _waits(self, trial: Trial) -> bool:
        """Until the base of its claim on scaling has been measured, if it ever will be; nobody waits for a verdict."""
        base = self._latest.get(base_case_id(trial.case)) if trial.step is Step.JUDGE else None
        if base is None or base.step >= Step.JUDGE or self._until[base.case.id] < Step.JUDGE:
            return False
        return not any(past.case.id == base.case.id and past.measurements for past in self._past)

    def needs_place(self, trial: Trial) -> bool:
        """It has no job yet, and will have one."""
        return trial.step is Step.STAGE and self._until[trial.case.id] is not Step.SUBMIT

    def places(self) -> int:
        """How many more jobs may be begun."""
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
    """A lost job goes on to its end before anybody hears of it: another trial may follow."""
    lost = trial.job is not None and trial.job.phase is Phase.LOST
    return Step.DONE if lost and until > Step.WATCH else until
