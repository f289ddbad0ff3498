"""Going on with what a killed run left behind, instead of paying for it twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_aisbench.domain import codec
from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.job import Phase
from pytest_aisbench.domain.ports import Clock
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.services.code import code_tree
from pytest_aisbench.services.lease import is_dead
from pytest_aisbench.services.ledger import Ledger, Left


class Fingerprints:
    """Of everything that decides what a case's job does; its thresholds do not. Each tree is read once."""

    def __init__(self) -> None:
        self._trees: dict[str, str] = {}

    def of(self, case: Case) -> str:
        workload = case.workload
        written = codec.dump(workload)
        key = json.dumps(written, sort_keys=True)
        if key not in self._trees:
            self._trees[key] = code_tree(workload).digest
        told = {
            **written,
            "folder": "",
            "expected_s": 0,
            "data_contains": [],
            "shape": str(case.shape),
            "mode": case.mode.value,
        }
        told["tree"] = self._trees[key]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def fingerprint(case: Case) -> str:
    return Fingerprints().of(case)


@dataclass(frozen=True)
class Takeover:
    """How this run comes by trials of others: `say` tells whoever waits what is taken, and what is not."""

    run: str
    place: str  # of the platform; trials of other platforms do not concern us
    ledger: Ledger
    clock: Clock
    fingerprint: Callable[[Case], str]
    cancel: Callable[[str], None]  # a job, by its id
    say: Callable[[str], None]

    def of(self, case: Case) -> Trial | None:
        """The trial to go on with, now this run's; None where there is none, or where it is somebody else's."""
        left = self._released(case)
        if left is None or left.trial.step is Step.STAGE:
            return None
        trial = left.trial
        job = trial.job_id or trial.name
        if trial.step is Step.WATCH and trial.fault:
            self._stop(trial)
            return None
        if trial.fingerprint != self.fingerprint(case):
            self.say(f"{case.id}: job {job} of run {trial.run} is not taken over: the workload has changed")
            return None
        self.say(f"{case.id}: taken over from run {trial.run} (job {job})")
        # Results and logs come home again, to this run's folder; a submission may have had no answer.
        step = min(trial.step, Step.HARVEST)
        attempts = max(trial.attempts, 1) if step is Step.SUBMIT else trial.attempts
        taken = replace(trial, run=self.run, case=case, step=step, attempts=attempts)
        taken = replace(taken, judged=None, fault=None, flaws=(), measurements=())
        return taken.noted(f"taken over from run {trial.run}")

    def _stop(self, trial: Trial) -> None:
        """Its run was stopping the job when it was killed itself, or could not stop it: nobody will judge it."""
        now = self.clock.now()
        try:
            self.cancel(trial.job_id or "")
        except AisbenchError as deaf:
            self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} could not be stopped: {deaf}")
            return
        self.ledger.save_trial(trial.moved(Step.DONE, now).noted(f"stopped by run {self.run}"), now)
        self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} was to be stopped, and is now")

    def _released(self, case: Case) -> Left | None:
        """What was left, once nobody holds it any more; None if somebody still does."""
        left = self._left(case)
        rest = left.lease - self.clock.now() if left else 0.0
        if left is None or rest <= 0 or is_dead(left.owner):
            return left
        self.say(f"{case.id}: run {left.trial.run} may be alive; waiting {rest:.0f} s for its lease to expire")
        self.clock.sleep(rest + 0.1)
        again = self._left(case)
        if again and again.lease > self.clock.now():
            self.say(f"{case.id}: run {left.trial.run} is alive and keeps its job; another one is submitted")
            return None
        return again

    def _left(self, case: Case) -> Left | None:
        """A run that ended left what it says it left; a killed one left everything."""
        left = self.ledger.left(case.id, self.place, self.run)
        if left is None:
            return None
        if left.trial.step in {Step.SUBMIT, Step.WATCH}:
            return left
        return left if left.killed and (not left.trial.fault or _ran_to_its_end(left.trial)) else None


def _ran_to_its_end(trial: Trial) -> bool:
    """Nobody stopped its job: a workload that failed is judged again from its logs, and not paid for twice."""
    ended = trial.job is not None and trial.job.phase in {Phase.SUCCEEDED, Phase.FAILED}
    return ended and "stopping" not in trial.times
