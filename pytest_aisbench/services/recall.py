"""The end of a run: what we started and nobody will judge is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.errors import AisbenchError, GivenUp, LedgerError
from pytest_aisbench.services import watch
from pytest_aisbench.services.trial import Tools


def recall(trials: Iterable[Trial], tools: Tools, keep: Callable[[Trial], None]) -> None:
    """Ask for the end of every job and wait for the platform to confirm; one that does not is named in its notes."""
    platform, clock = tools.platform, tools.clock
    ended = GivenUp("the run ended before the job did")
    found = [_reconciled(trial, tools) for trial in trials]
    running = [trial for trial in found if trial.step is Step.WATCH]
    running = [trial if trial.fault else watch.stop(trial, ended, platform, clock.now()) for trial in running]
    # The ledger may be why the run ends: then it has failed before, and somebody has been told.
    with contextlib.suppress(LedgerError):
        for trial in found:
            if trial.step is Step.SUBMIT and trial.attempts:
                keep(trial)
    while running:
        after = [_looked(trial, tools) for trial in running]
        running = [trial for trial in after if trial.step is Step.WATCH]
        with contextlib.suppress(LedgerError):
            for trial in after:
                if trial.step is not Step.WATCH:
                    keep(trial)
        if running:
            clock.sleep(min(platform.poll_s, 1.0))


def _looked(trial: Trial, tools: Tools) -> Trial:
    try:
        return watch.look(trial, tools.platform, tools.clock, tools.limits)
    except AisbenchError as deaf:
        left = f"nobody knows whether job {trial.job_id} stopped: {deaf}"
        return trial.noted(left).moved(Step.HARVEST, tools.clock.now())


def _reconciled(trial: Trial, tools: Tools) -> Trial:
    """A trial whose submission had no answer, at the step where its job is, if there is one."""
    if trial.step is not Step.SUBMIT or not trial.attempts:
        return trial
    try:
        job_id = tools.platform.find(trial.name)
    except AisbenchError as deaf:
        return trial.noted(f"nobody knows whether job {trial.name} was created: {deaf}")
    return trial if job_id is None else trial.moved(Step.WATCH, tools.clock.now(), job_id=job_id)
