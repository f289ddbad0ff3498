"""The story: a case is staged, submitted, watched, harvested and judged.

Nothing here sleeps or waits for a job. A driver calls `advance` and the ledger remembers what it returned, so that
one process can hold a thousand trials and another can go on with them. SUBMIT in the ledger is the intent: name and
request are on record before the request leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aisbench.domain.job import Job
from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.ports import Clock, Platform
from pytest_aisbench.domain.trial import Fault, Step, Trial
from pytest_aisbench.domain.verdict import Ruling, Verdict
from pytest_aisbench.errors import AisbenchError, Blame, PlatformError
from pytest_aisbench.logs import get_logger
from pytest_aisbench.services import cancel, submission, watch
from pytest_aisbench.services.budget import Budget
from pytest_aisbench.services.clock import day
from pytest_aisbench.services.harvest import gather
from pytest_aisbench.services.sampling import Meter, sampled
from pytest_aisbench.services.verdict_step import VerdictStep, with_last_words

_LOG = get_logger("fleet")


@dataclass(frozen=True)
class Tools:
    """What a trial is advanced with."""

    platform: Platform
    clock: Clock
    limits: watch.Limits
    folder: Path  # of the run's reports; logs come home below it
    budget: Budget | None = None
    inspect: Callable[[str], Job] | None = None  # an answer that is known already, for all jobs at once
    verdict_step: VerdictStep = field(default_factory=VerdictStep)
    others: Callable[[], Iterable[Trial]] = tuple  # all trials of the run
    meter: Meter = field(default_factory=lambda: Meter({}))


def advance(trial: Trial, tools: Tools) -> Trial:
    """One step nearer to a verdict; an error ends the trial, blaming whom the error blames, and no other trial."""
    try:
        return _STEPS[trial.step](trial, tools)
    except AisbenchError as known:
        error = known
        _LOG.info("%s: %s ends it: %s", trial.name, trial.step.name, error)
    except Exception as surprise:  # noqa: BLE001 - a full disk or a bug: hundreds of other jobs go on
        error = PlatformError(f"{type(surprise).__name__} on this machine: {surprise}")
        _LOG.warning("%s: %s ends it", trial.name, trial.step.name, exc_info=surprise)
    if trial.step is Step.WATCH and not trial.fault:
        return cancel.begin(trial, Fault.of(error), tools.clock.now())
    return _ended(trial, trial.fault or Fault.of(error), tools)


def _stage(trial: Trial, tools: Tools) -> Trial:
    _require_means(tools)
    stage = submission.stage(trial, tools.platform)
    request = tools.platform.render(submission.spec(trial, stage, tools.limits.run_s))
    return trial.moved(Step.SUBMIT, tools.clock.now(), stage=stage, request=request)


def _submit(trial: Trial, tools: Tools) -> Trial:
    now = tools.clock.now()
    if not trial.attempts:
        _require_means(tools)
    sent = submission.send(trial, tools.platform, now, tools.limits)
    return sent.moved(Step.WATCH, now) if sent.job_id else sent


def _watch(trial: Trial, tools: Tools) -> Trial:
    seen = watch.look(trial, tools.platform, tools.clock, tools.limits, tools.inspect)
    if seen.step is Step.WATCH and not seen.fault:
        _require_means(tools)  # after the look: a job that has just succeeded is paid for
    return seen


def _harvest(trial: Trial, tools: Tools) -> Trial:
    now = tools.clock.now()
    try:
        home = gather(trial, tools.platform.store, tools.folder)
        return (sampled(home, tools.platform, tools.meter) if home.measurements else home).moved(Step.JUDGE, now)
    except AisbenchError as error:
        # What has been paid for is worth waiting for; but a private cloud that is gone does not come back.
        if not error.retryable or not tools.platform.place:
            raise
        return watch.endure(trial, error, now, tools.limits)


def _judge(trial: Trial, tools: Tools) -> Trial:
    if fault := trial.fault or watch.fault_of(trial, tools.folder):
        return _ended(with_last_words(trial, tools.platform, tools.folder), fault, tools)
    trial = tools.verdict_step.judge(trial, tools.others(), day(tools.clock.now()))
    if not trial.verdict.passed and not trial.another_trial:
        trial = with_last_words(trial, tools.platform, tools.folder)
    return trial.moved(Step.DONE, tools.clock.now())


def given_away(trial: Trial, now: float) -> Trial:
    fault = Fault(Blame.PLATFORM, message("given away"))
    return trial.moved(Step.DONE, now, job=None, fault=fault, judged=Verdict(Ruling.BROKEN, fault.text))


def _require_means(tools: Tools) -> None:
    if tools.budget:
        tools.budget.check()


def _ended(trial: Trial, fault: Fault, tools: Tools) -> Trial:
    ruling = Ruling.BROKEN if fault.blame is Blame.PLATFORM else Ruling.FAILED
    return trial.moved(Step.DONE, tools.clock.now(), fault=fault, judged=Verdict(ruling, fault.text))


_STEPS = {Step.STAGE: _stage, Step.SUBMIT: _submit, Step.WATCH: _watch, Step.HARVEST: _harvest, Step.JUDGE: _judge}
