"""The end of a run: what we started and nobody will judge is stopped."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from pytest_aisbench.domain.job import Job
from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.errors import AisbenchError, Crashed, GivenUp, LedgerError
from pytest_aisbench.services import watch
from pytest_aisbench.services.harvest import gather
from pytest_aisbench.services.trial import Tools

_HANDS = 8
_LONGEST_REST = 1.0  # seconds; somebody waits for the prompt


def recall(trials: Iterable[Trial], tools: Tools, keep: Callable[[Trial], None]) -> None:
    """Ask for the end of every job and wait for the platform to confirm.

    One that does not stays in flight for the ledger, where `aisbench jobs` and `aisbench stop` find it.
    """
    platform, clock = tools.platform, tools.clock
    ended = GivenUp("the run ended before the job did")

    def save(trial: Trial) -> None:
        # The ledger may be why the run ends: then it has failed before, and somebody has been told.
        with contextlib.suppress(LedgerError):
            keep(trial)

    before = list(trials)
    found = _each(lambda trial: _reconciled(trial, tools), before)
    for trial, known in zip(found, before, strict=True):
        if trial is not known:
            save(trial)
    running = [trial for trial in found if trial.step is Step.WATCH]
    running = [trial if trial.fault else watch.stop(trial, ended, clock.now()) for trial in running]
    for trial in running:
        save(trial)
    deadline = clock.now() + tools.limits.stop_s
    while running:
        running = _each(lambda trial: watch.ask(trial, platform, clock.now()), running)
        looked = _looked(running, tools)
        running = [trial for trial in looked if trial.step is Step.WATCH]
        for trial in _each(lambda trial: _home(trial, tools), [each for each in looked if each.step is not Step.WATCH]):
            save(trial)
        if running and clock.now() > deadline:
            break
        if running:
            clock.sleep(min(platform.poll_s, _LONGEST_REST))
    for trial in running:
        word = trial.job.platform_phase if trial.job else "unseen"
        save(trial.noted(message("may run", job=str(trial.job_id), phase=word)))


def unstopped(trials: Iterable[Trial]) -> list[str]:
    """What may still run, or cost, after the run: one line for each job."""
    lines = []
    for trial in trials:
        if trial.may_run and trial.job_id:
            lines.append(f"job {trial.job_id} ({trial.case.id}) may still run: aisbench stop {trial.job_id}")
        elif trial.step is Step.SUBMIT and trial.attempts:
            lines.append(f"job {trial.name} ({trial.case.id}) may have been created: aisbench stop {trial.name}")
    return lines


def _looked(running: list[Trial], tools: Tools) -> list[Trial]:
    """Each as the platform has it now; those that ended, at their next step."""
    try:
        jobs = tools.platform.inspect([trial.job_id or "" for trial in running])
        return [_after(trial, jobs[trial.job_id or ""], tools.clock.now()) for trial in running]
    except Exception as deaf:  # noqa: BLE001 - of any platform: what is left is still to be recorded
        return [trial.noted(message("untold stop", why=Crashed.of(deaf).message)) for trial in running]


def _after(trial: Trial, job: Job, now: float) -> Trial:
    seen = replace(trial, job=job, times={**trial.times, job.phase.value.lower(): now})
    return seen.moved(Step.HARVEST, now) if job.phase.is_final else replace(trial, job=job)


def _home(trial: Trial, tools: Tools) -> Trial:
    """With its logs: what a job said before it was stopped has been paid for."""
    try:
        return gather(trial, tools.platform.store, tools.folder)
    except (AisbenchError, OSError) as error:
        return trial.noted(message("no logs", why=str(error)))


def _reconciled(trial: Trial, tools: Tools) -> Trial:
    """A trial whose submission had no answer, at the step where its job is, if there is one."""
    if trial.step is not Step.SUBMIT or not trial.attempts or trial.request is None:
        return trial
    try:
        job_id = tools.platform.find(trial.request)
    except AisbenchError as deaf:
        return trial.noted(message("unknown job", job=trial.name, why=str(deaf)))
    return replace(trial, attempts=0) if job_id is None else trial.moved(Step.WATCH, tools.clock.now(), job_id=job_id)


def _each(step: Callable[[Trial], Trial], trials: Iterable[Trial]) -> list[Trial]:
    """Several at once, by daemons: a platform that is gone must not keep the process when it ends."""
    found = list(trials)
    waiting = iter(range(len(found)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            with contextlib.suppress(Exception):  # a hand that one job breaks would be missed by all that wait
                found[index] = step(found[index])

    hands = [threading.Thread(target=work, name="aisbench-recall", daemon=True) for _ in found[:_HANDS]]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    return found
