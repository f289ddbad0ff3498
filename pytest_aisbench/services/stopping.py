"""Stopping jobs from another shell: ours, unless a live run holds them; a stranger's only by force.

Before the platform is asked, the ledger says that the trial is being stopped, so that no run takes it over meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pytest_aisbench.domain.job import Job, Phase
from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.ports import Clock, Platform
from pytest_aisbench.domain.trial import Fault, Step, Trial
from pytest_aisbench.errors import AisbenchError, Blame
from pytest_aisbench.services.jobs import Held, Holder, JobLedger

STOP_S = 60.0  # for the platform to confirm
_STOPPED = Fault(Blame.USER, message("stopped by hand"))


@dataclass(frozen=True)
class Answer:
    """What became of one job; `settled` when nothing is left to do about it. As far as the platform tells: what it is
    called, the platform's word for it before it was asked to stop, and how long it ran."""

    job: str
    text: str
    settled: bool = False
    name: str = ""
    before: str = ""
    ran_s: float | None = None


@dataclass(frozen=True)
class _Target:
    """A job to be stopped; one without a trial is a stranger's, and one whose `claim` is None is left to its run."""

    id: str
    held: Held | None
    claim: Held | None = None
    before: Job | None = None  # as it was when it was asked to stop


@dataclass(frozen=True)
class Stopping:
    """`force` stops what a live run holds, and strangers' jobs that are named."""

    ledger: JobLedger
    platform: Platform
    clock: Clock
    force: bool = False

    def named(self, jobs: Iterable[str]) -> Iterator[Answer]:
        """By id or by name; of several with one name, and of the versions that a job of V1 has, the newest."""
        targets: dict[str, _Target] = {}
        for job in dict.fromkeys(jobs):
            found = self._known(job)
            if isinstance(found, Answer):
                yield found
            else:
                targets.setdefault(found.id, found)
        yield from self._stop(list(targets.values()))

    def all_mine(self) -> Iterator[Answer]:
        """Every job of the ledger that no live run holds; by force those too."""
        targets: list[_Target] = []
        for held in self.ledger.in_flight(self.clock.now()):
            if held.holder is Holder.ALIVE and not self.force:
                yield Answer(_job(held), f"left to run {held.trial.run}, which is alive ({held.owner})", settled=True)
                continue
            found = self._target(held)
            if isinstance(found, Answer):
                yield found
            else:
                targets.append(found)
        yield from self._stop(targets)

    def _known(self, job: str) -> _Target | Answer:
        """The ledger is asked first, then the platform: by its own name for a job, which may be another than ours."""
        held, there = self.ledger.named(job, self.clock.now()), None
        if held is None:
            try:
                there = self.platform.named(job)
            except AisbenchError as deaf:
                return Answer(job, f"could not be looked up: {deaf}")
            held = self.ledger.named(there, self.clock.now()) if there else None
        if held:
            return self._target(held)
        if self.force:
            return _Target(there or job, None)
        return Answer(job, f"not a job of {self.ledger.path}; --force stops it all the same")

    def _target(self, held: Held) -> _Target | Answer:
        """The job that a trial of the ledger has on this platform, or why there is none to stop."""
        trial, job, alive = held.trial, _job(held), held.holder is Holder.ALIVE
        if trial.place != self.platform.place:
            where = f"on {trial.place!r}" if trial.place else "on a private cloud of its run"
            return Answer(job, f"is {where}, not on {self.platform.place!r}")
        if held.in_flight and alive and not self.force:
            text = f"held by run {trial.run}, which is alive ({held.owner}); --force stops it all the same"
            return Answer(job, text)
        if trial.job_id:
            return _Target(trial.job_id, held)
        try:
            found = self.platform.find(trial.request) if trial.request else None
        except AisbenchError as deaf:
            return Answer(job, f"nobody knows whether it was created: {deaf}")
        if found:
            return _Target(found, held)
        if alive:
            return Answer(job, "is just being submitted; ask again")
        if held.in_flight:
            self.ledger.amend(held, self._over(trial, None), self.clock.now())
        return Answer(job, "was never created", settled=True)

    def _stop(self, targets: list[_Target]) -> Iterator[Answer]:
        try:
            jobs = self.platform.inspect([target.id for target in targets]) if targets else {}
        except AisbenchError as deaf:
            yield from (Answer(target.id, f"could not be stopped: {deaf}") for target in targets)
            return
        waiting: list[_Target] = []
        for target in targets:
            job = jobs[target.id]
            asked = self._before(target, job) if job.phase.is_final else self._ask(replace(target, before=job))
            if isinstance(asked, Answer):
                yield asked
            else:
                waiting.append(asked)
        yield from self._confirmed(waiting)

    def _before(self, target: _Target, job: Job) -> Answer:
        """A job that was over before it could be stopped."""
        held = target.held
        if job.phase is Phase.LOST and held is None:
            return Answer(job.id, f"the platform does not know it: {job.reason}".rstrip(": "))
        word = job.platform_phase or job.phase.value
        if held and held.in_flight and held.holder is not Holder.ALIVE:
            if job.phase in {Phase.SUCCEEDED, Phase.FAILED}:
                text = f"was over before ({word}); the next run judges it"
                return Answer(job.id, text, settled=True, name=job.name, ran_s=job.ran_s)
            self.ledger.amend(held, self._over(held.trial, job), self.clock.now())
        return Answer(job.id, f"was over before ({word})", settled=True, name=job.name, ran_s=job.ran_s)

    def _ask(self, target: _Target) -> _Target | Answer:
        held, claim, now = target.held, None, self.clock.now()
        # A live run records itself what becomes of its job, and one that was judged stays as it was judged.
        if held and held.in_flight and held.holder is not Holder.ALIVE:
            stopping = replace(held.trial, fault=_STOPPED, times={**held.trial.times, "stopping": now})
            claim = self.ledger.amend(held, replace(stopping, job_id=target.id), now)
            if claim is None:
                return Answer(target.id, "a run has just taken it over; ask again")
        try:
            self.platform.cancel(target.id)
        except AisbenchError as deaf:
            if held and claim:
                self.ledger.amend(claim, held.trial, now)
            return Answer(target.id, f"could not be stopped: {deaf}")
        return replace(target, claim=claim)

    def _confirmed(self, waiting: list[_Target]) -> Iterator[Answer]:
        """Each job once the platform says that it is over, or the time is up; its claim stands then."""
        deadline = self.clock.now() + STOP_S
        while waiting:
            jobs, silence = self._inspected(waiting)
            for target in list(waiting):
                job = jobs.get(target.id)
                if job and job.phase.is_final:
                    waiting.remove(target)
                    yield self._settle(target, job)
            if self.clock.now() >= deadline:
                for target in waiting:
                    seen = jobs.get(target.id)
                    text = f"was asked to stop and is still {seen.platform_phase}" if seen else silence
                    yield Answer(target.id, text)
                return
            if waiting:
                self.clock.sleep(min(self.platform.poll_s, 1.0))

    def _inspected(self, waiting: list[_Target]) -> tuple[dict[str, Job], str]:
        try:
            return dict(self.platform.inspect([target.id for target in waiting])), ""
        except AisbenchError as deaf:
            return {}, f"nobody knows whether it stopped: {deaf}"

    def _settle(self, target: _Target, job: Job) -> Answer:
        itself = job.phase in {Phase.SUCCEEDED, Phase.FAILED}
        if target.held and target.claim:
            # What ended by itself meanwhile has results, or a reason, that the next run can judge.
            trial = replace(target.held.trial, job_id=job.id) if itself else self._over(target.claim.trial, job)
            self.ledger.amend(target.claim, trial, self.clock.now())
        word = job.platform_phase or job.phase.value
        return Answer(
            job.id,
            f"ended by itself ({word})" if itself else f"stopped ({word})",
            settled=True,
            name=job.name,
            before=target.before.platform_phase if target.before else "",
            ran_s=job.ran_s,
        )

    def _over(self, trial: Trial, job: Job | None) -> Trial:
        return replace(trial, job=job or trial.job, fault=_STOPPED).moved(Step.HARVEST, self.clock.now())


def _job(held: Held) -> str:
    return held.trial.job_id or held.trial.name
