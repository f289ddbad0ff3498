"""Going on with what a killed run left behind, instead of paying for it twice."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_aisbench.engine.staging import code_tree, read_tree
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.judge.comparison import traits_of
from pytest_aisbench.ledger.ledger import Ledger, LeftTrial, is_held
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case, Workload
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.ports import Clock
from pytest_aisbench.model.trial import Step, Trial

_LOG = get_logger("takeover")
_STALE_S = 86400.0  # results that are older are not judged any more


class Fingerprints:
    """Of everything that decides what a case's job does; its thresholds do not. Each tree is read once."""

    def __init__(self, platform: object) -> None:
        self._platform = platform
        self._trees: dict[str, tuple[str, str]] = {}

    def digests(self, workload: Workload) -> tuple[str, str]:
        """Of its code, and of its data where that is staged."""
        key = json.dumps(codec.dump(workload), sort_keys=True)
        if key not in self._trees:
            self._trees[key] = code_tree(workload, self._platform).digest, _data_digest(workload)
        return self._trees[key]

    def of(self, case: Case) -> str:
        written = codec.dump(case.workload)
        told = {
            **written,
            "folder": "",
            "expected_s": 0,
            "data_contains": [],
            "shape": str(case.shape),
            "mode": case.mode.value,
        }
        told["tree"] = "".join(self.digests(case.workload))
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _data_digest(workload: Workload) -> str:
    """Of a data set that is staged with the suite; one that lies in the Store is known by its url."""
    if not workload.data or "://" in workload.data:
        return ""
    return read_tree("data", [Path(workload.folder) / workload.data]).digest


@dataclass(frozen=True)
class Takeover:
    """How this run comes by trials of others: `say` tells whoever waits what is taken, and what is not."""

    run: str
    platform_id: str  # trials of other platforms are left alone
    ledger: Ledger
    clock: Clock
    fingerprint: Callable[[Case], str]
    inspect: Callable[[str], Job]  # what the platform says of a job, by its id
    cancel: Callable[[str], None]
    say: Callable[[str], None]
    _alive: dict[str, bool] = field(default_factory=dict)  # runs that were waited for

    def of(self, case: Case) -> Trial | None:
        """The trial to go on with, now this run's; None where there is none, or where all are somebody else's.

        Whatever else of the case may still run, and nobody holds, is stopped.
        """
        taken: Trial | None = None
        for left in self.ledger.left_trials(case.id, self.platform_id, self.run):
            trial = left.trial
            if trial.step is Step.STAGE or not self._is_released(left) or self._ended_unseen(left):
                _LOG.debug("%s: not taken over at %s", trial.name, trial.step.name)
                continue
            if taken is None and _is_useful(left, self.clock.now()):
                taken = self._taken(case, left)
                if taken:
                    continue
            else:
                why = "another was" if taken else "its job left nothing to judge, or left it on another day"
                _LOG.debug("%s: not taken over at %s: %s", trial.name, trial.step.name, why)
            if trial.may_run and trial.job_id and (trial.fault or taken):
                self._stop(left)
        return taken

    def _taken(self, case: Case, left: LeftTrial) -> Trial | None:
        trial = left.trial
        job, now = trial.job_id or trial.name, self.clock.now()
        if trial.fingerprint != self.fingerprint(case):
            how = f"; aisbench stop {job}" if trial.may_run else ""
            self.say(f"{case.id}: job {job} of run {trial.run} is not taken over: the workload has changed{how}")
            return None
        # Results and logs come home again, to this run's folder; a submission may have had no answer.
        step = min(trial.step, Step.HARVEST)
        attempts = max(trial.attempts, 1) if step is Step.SUBMIT else trial.attempts
        times = {**trial.times, step.name.lower(): now} if step is Step.SUBMIT else trial.times
        taken = replace(trial, run=self.run, case=case, step=step, attempts=attempts, times=times)
        taken = replace(
            taken, judged=None, another_trial="", fault=None, missing_results=(), measurements=(), background=None
        )
        taken = taken.noted(message("taken over", run=trial.run))
        if not self.ledger.swap_trial(taken, now, left.record):
            self.say(f"{case.id}: job {job} of run {trial.run} was taken over by another run")
            return None
        self.say(f"{case.id}: taken over from run {trial.run} (job {job})")
        return taken

    def _ended_unseen(self, left: LeftTrial) -> bool:
        """Whether its job, which nobody watched, was over long ago: the ledger then has that, and nobody judges it.

        It ended as soon after it was last seen as it can have.
        """
        trial, now = left.trial, self.clock.now()
        if trial.step is not Step.WATCH or now - trial.times["watch"] <= _STALE_S:
            return False
        try:
            job = self.inspect(trial.job_id or "")
        except AisbenchError as error:
            log_ignored(_LOG, error, "%s: whether its job ended on another day", trial.name)
            return False  # whoever watches it asks again
        ended = trial.times.get("running", trial.times["watch"] + (job.queued_s or 0.0)) + (job.ran_s or 0.0)
        if not job.phase.is_final or now - ended <= _STALE_S:
            return False
        # It could have been harvested then: by that the next run knows, too, how old its results are.
        over = replace(trial, job=job, times={**trial.times, "harvest": ended}).moved(Step.DONE, now)
        over = over.noted(message("another day"))
        self.ledger.swap_trial(over, now, left.record)
        self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} is not taken over: it ended on another day")
        return True

    def _stop(self, left: LeftTrial) -> None:
        """Its run was stopping the job when it was killed, or could not stop it, or another took its place."""
        trial, now = left.trial, self.clock.now()
        try:
            self.cancel(trial.job_id or "")
        except AisbenchError as deaf:
            self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} could not be stopped: {deaf}")
            return
        job = replace(trial.job, phase=Phase.CANCELLED) if trial.job else None
        over = replace(trial, job=job).moved(Step.DONE, now).noted(message("stopped by run", run=self.run))
        self.ledger.swap_trial(over, now, left.record)
        self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} was to be stopped, and is now")

    def _is_released(self, left: LeftTrial) -> bool:
        """Whether nobody holds it any more; a run that may live is waited for once, whatever it has."""
        run = left.trial.run
        if not is_held(left.owner, left.lease, self.clock.now()):
            return True
        if run not in self._alive:
            rest = left.lease - self.clock.now()
            self.say(f"{left.trial.case.id}: run {run} may be alive; waiting {rest:.0f} s for its lease to expire")
            self.clock.sleep(rest + 0.1)
            self._alive[run] = self.ledger.lease(run) > self.clock.now()
        if self._alive[run]:
            self.say(f"{left.trial.case.id}: run {run} is alive and keeps its job; another one is submitted")
        return not self._alive[run]


def _is_useful(left: LeftTrial, now: float) -> bool:
    """Its job waits or runs, or has left results that nobody judged: a killed run judged nothing for good.

    Results of another day are no proof that the cluster works today.
    """
    trial = left.trial
    if trial.step in {Step.SUBMIT, Step.WATCH}:
        return not trial.fault
    if now - trial.times.get("harvest", now) > _STALE_S:
        return False
    unjudged = trial.step < Step.DONE or left.killed
    return unjudged and _ran_to_its_end(trial)


def _ran_to_its_end(trial: Trial) -> bool:
    """Nobody stopped its job: a workload that failed is judged again from its logs, and not paid for twice."""
    ended = trial.job is not None and trial.job.phase in {Phase.SUCCEEDED, Phase.FAILED}
    return ended and "stopping" not in trial.times


# -- Where a trial runs and what it runs, by name: what history must share to be compared.
_HOST = re.compile(r"https?://(?:[^/\s@]*@)?([^/\s]+)")
_LOOPBACK = re.compile(r"(?:127\.[\d.]+|localhost|\[::1\])(?::\d+)?\Z")


class Traits:
    """Of the cases of one platform."""

    def __init__(self, platform: str, platform_id: str, fingerprints: Fingerprints) -> None:
        self._platform = platform
        self._where = address_of(platform_id)
        self._fingerprints = fingerprints

    def of(self, case: Case) -> Mapping[str, str]:
        code, data = self._fingerprints.digests(case.workload)
        return traits_of(case, platform=self._platform, place=self._where, code=code, data=data)


def address_of(platform_id: str) -> str:
    """The address of a platform; of one on this machine, whose ports and buckets mean nothing, the machine."""
    found = _HOST.search(platform_id)
    address = found[1] if found else platform_id
    return address if address and not _LOOPBACK.match(address) else f"{socket.gethostname()}, {os.cpu_count()} cores"
