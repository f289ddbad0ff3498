"""Resumes the jobs of a killed run, instead of paying for them twice.

`Takeover.of` finds the trial of a case that an ended run left behind, and makes it this run's. `Fingerprints` tells
whether a job still does what the case asks for; `Traits` are what history must share to be compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_aisbench.engine.cancel import begin
from pytest_aisbench.engine.staging import code_tree, read_tree
from pytest_aisbench.engine.watch import TAKEN, UNSETTLED
from pytest_aisbench.errors import AisbenchError, Blame
from pytest_aisbench.judge.comparison import traits_of
from pytest_aisbench.ledger.lease import LEASE_S, Liveness, is_absurd, liveness, runs_with_heartbeat
from pytest_aisbench.ledger.ledger import Ledger, LeftTrial
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case, Workload
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.ports import Clock, HasLabels, Platform
from pytest_aisbench.model.trial import Fault, Step, Trial

_LOG = get_logger("takeover")
_STALE_S = 86400.0  # older results do not show that the cluster works today
_HOST = re.compile(r"https?://(?:[^/\s@]*@)?([^/\s]+)")
_LOOPBACK = re.compile(r"(?:127\.[\d.]+|localhost|\[::1\])(?::\d+)?\Z")


@dataclass(frozen=True)
class Takeover:
    """Takes trials of ended runs over; `say` prints what is taken, and what is not and why."""

    run: str
    platform_id: str  # trials of other platforms are left alone
    ledger: Ledger
    clock: Clock
    fingerprint: Callable[[Case], str]
    inspect: Callable[[str], Job]  # asks the platform about a job, by its id
    cancel: Callable[[str], None]
    say: Callable[[str], None]
    _alive: dict[str, bool] = field(default_factory=dict)  # by run, for those without an end in the ledger

    def of(self, case: Case) -> Trial | None:
        """The trial of the case to resume, now this run's; None if there is none, or other live runs hold them.

        It cancels any other job of the case that may still run and that no live run holds.
        """
        taken: Trial | None = None
        for left in self._left_trials(case):
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

    def _left_trials(self, case: Case) -> list[LeftTrial]:
        """What other runs left of the case, read when we know which of these runs are alive."""
        left = self.ledger.left_trials(case.id, self.platform_id, self.run)
        doubtful = {each.trial.run: each for each in left if self._is_doubtful(each)}
        if doubtful:
            self._watch_heartbeats(case, doubtful)
            # What was read before is old: a run that was alive may have judged its trials meanwhile.
            left = self.ledger.left_trials(case.id, self.platform_id, self.run)
        return left

    def _taken(self, case: Case, left: LeftTrial) -> Trial | None:
        trial = left.trial
        job, now = trial.job_id or trial.name, self.clock.now()
        if trial.fingerprint != self.fingerprint(case):
            how = f"; aisbench stop {job}" if trial.may_run else ""
            self.say(f"{case.id}: job {job} of run {trial.run} is not taken over: the workload has changed{how}")
            return None
        # Results and logs are downloaded again, to this run's folder. A trial at SUBMIT may have a job: look for it.
        step = min(trial.step, Step.HARVEST)
        attempts = max(trial.attempts, 1) if step is Step.SUBMIT else trial.attempts
        times = {**trial.times, step.name.lower(): now} if step is Step.SUBMIT else trial.times
        # By the clock of another machine, perhaps, when the platform was silent or wanted to be left alone.
        times = {key: at for key, at in times.items() if key not in UNSETTLED} | {TAKEN: now}
        taken = replace(trial, run=self.run, case=case, step=step, attempts=attempts, times=times)
        taken = replace(
            taken, judged=None, another_trial="", fault=None, missing_results=(), measurements=(), background=None
        )
        taken = taken.noted(message("taken over", run=trial.run))
        ours = self.ledger.swap_trial(taken, now, left)
        if ours is None:
            self.say(f"{case.id}: job {job} of run {trial.run} is not taken over: another run has it by now")
            return None
        self.say(f"{case.id}: taken over from run {trial.run} (job {job})")
        return ours

    def _ended_unseen(self, left: LeftTrial) -> bool:
        """True if the job ended more than a day ago while no run watched it; the ledger then records its end.

        The end is estimated as early as possible: from when the job was last seen, by how long it ran.
        """
        trial, now = left.trial, self.clock.now()
        if trial.step is not Step.WATCH or now - trial.times["watch"] <= _STALE_S:
            return False
        try:
            job = self.inspect(trial.job_id or "")
        except AisbenchError as error:
            log_ignored(_LOG, error, "%s: whether its job ended on another day", trial.name)
            return False  # if it is taken over, `watch_job` asks again
        ended = trial.times.get("running", trial.times["watch"] + (job.queued_s or 0.0)) + (job.ran_s or 0.0)
        if not job.phase.is_final or now - ended <= _STALE_S:
            return False
        # The time of HARVEST tells later runs how old the results are.
        over = replace(trial, job=job, times={**trial.times, "harvest": ended}).moved(Step.DONE, now)
        over = over.noted(message("another day"))
        self.ledger.swap_trial(over, now, left)
        self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} is not taken over: it ended on another day")
        return True

    def _stop(self, left: LeftTrial) -> None:
        """Cancel a job that its run was cancelling when it was killed, could not cancel, or that another replaced."""
        trial, now = left.trial, self.clock.now()
        fault = trial.fault or Fault(Blame.PLATFORM, message("stopped by run", run=self.run))
        claim = self.ledger.swap_trial(begin(replace(trial, run=self.run), fault, now), now, left)
        if claim is None:
            _LOG.info("%s: not stopped, its run is alive", trial.name)
            return
        try:
            self.cancel(trial.job_id or "")
        except AisbenchError as error:
            self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} could not be stopped: {error}")
            return
        job = replace(trial.job, phase=Phase.CANCELLED) if trial.job else None
        over = replace(claim, job=job).moved(Step.DONE, now).noted(message("stopped by run", run=self.run))
        self.ledger.save_trial(over, now)
        self.say(f"{trial.case.id}: job {trial.job_id} of run {trial.run} was to be stopped, and is now")

    def _is_doubtful(self, left: LeftTrial) -> bool:
        """True if the trial's run has no end in the ledger, and only its heartbeat can tell whether it lives."""
        run = left.trial.run
        if not left.killed or left.trial.step is Step.STAGE or run in self._alive:
            return False
        state = liveness(left.owner)
        if state is Liveness.UNKNOWN and self.clock.now() - left.lease < _STALE_S:
            return True
        self._alive[run] = state is Liveness.ALIVE
        return False

    def _watch_heartbeats(self, case: Case, doubtful: Mapping[str, LeftTrial]) -> None:
        for run, left in doubtful.items():
            if is_absurd(left.lease, self.clock.now()):
                self.say(f"{case.id}: run {run} has an impossible lease ({left.lease}); its heartbeat decides")
        runs = ", ".join(doubtful)
        self.say(f"{case.id}: another run may be alive ({runs}); waiting up to {LEASE_S:g} s for its heartbeat")
        alive = runs_with_heartbeat(self.ledger, doubtful, self.clock)
        self._alive.update({run: run in alive for run in doubtful})

    def _is_released(self, left: LeftTrial) -> bool:
        """True if no live run holds the trial."""
        run = left.trial.run
        if left.killed and self._alive.get(run, True):
            self.say(f"{left.trial.case.id}: run {run} is alive and keeps its job; another one is submitted")
            return False
        return True


def _is_useful(left: LeftTrial, now: float) -> bool:
    """True if the job waits or runs, or left results that no run judged; verdicts of a killed run do not count."""
    trial = left.trial
    if trial.step in {Step.SUBMIT, Step.WATCH}:
        return not trial.fault
    if now - trial.times.get("harvest", now) > _STALE_S:
        return False
    unjudged = trial.step < Step.DONE or left.killed
    return unjudged and _ran_to_its_end(trial)


def _ran_to_its_end(trial: Trial) -> bool:
    """True if the job ended by itself: a failed workload is judged again from its logs, and not run again."""
    ended = trial.job is not None and trial.job.phase in {Phase.SUCCEEDED, Phase.FAILED}
    return ended and "stopping" not in trial.times


# Fields that came in later, at the value that does what jobs did before: those of an older version are taken over too.
_UNCHANGED = (("urls_by", "parameter"),)


class Fingerprints:
    """Digests of everything that decides what a case's job does, without its thresholds. Reads each tree once."""

    def __init__(self, platform: object) -> None:
        self._platform = platform
        self._trees: dict[str, tuple[str, str]] = {}
        self._cases: dict[str, tuple[Workload, str]] = {}  # the digest of each case, by its id

    def digests(self, workload: Workload) -> tuple[str, str]:
        """The digest of the workload's code, and that of its data if we upload them."""
        key = json.dumps(codec.dump(workload), sort_keys=True)
        if key not in self._trees:
            self._trees[key] = code_tree(workload, self._platform).digest, _data_digest(workload)
        return self._trees[key]

    def of(self, case: Case) -> str:
        workload, digest = self._cases.get(case.id, (None, ""))
        if workload is not case.workload:
            digest = self._digest(case)
            self._cases[case.id] = case.workload, digest
        return digest

    def _digest(self, case: Case) -> str:
        workload = {key: value for key, value in codec.dump(case.workload).items() if (key, value) not in _UNCHANGED}
        facts = workload | {
            "folder": "",
            "expected_s": 0,
            "data_contains": [],  # they change nothing that the job does
            # Nor does how a metric is read and bounded.
            "metrics": {name: {"name": name, "unit": metric.unit} for name, metric in case.workload.metrics.items()},
            "shape": str(case.shape),
            "mode": case.mode.value,
            "tree": "".join(self.digests(case.workload)),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _data_digest(workload: Workload) -> str:
    """The digest of a data set that lies beside the suite; empty for one in the Store, which its url identifies."""
    if not workload.data or "://" in workload.data:
        return ""
    return read_tree("data", [Path(workload.folder) / workload.data]).digest


class Traits:
    """The traits of cases on one platform: what decides how fast they are, by name."""

    def __init__(self, platform: Platform, fingerprints: Fingerprints) -> None:
        self._platform = platform.name
        self._where = address_of(platform.platform_id)
        self._labels = platform.label_options if isinstance(platform, HasLabels) else ()
        self._fingerprints = fingerprints

    def of(self, case: Case) -> Mapping[str, str]:
        code, data = self._fingerprints.digests(case.workload)
        return traits_of(case, platform=self._platform, place=self._where, code=code, data=data, labels=self._labels)


def address_of(platform_id: str) -> str:
    """The host of a platform; for one on this machine, whose ports differ from run to run, the machine."""
    host = _HOST.search(platform_id)
    address = host[1] if host else platform_id
    return address if address and not _LOOPBACK.match(address) else f"{socket.gethostname()}, {os.cpu_count()} cores"
