"""What a run will cost in card-hours, what it has cost so far, and the user's limit; and the dry run.

A card-hour is one card for one hour of a running job; waiting in a queue is free.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.engine import preflight
from pytest_aisbench.engine.submit import job_spec, new_trial, planned_stage
from pytest_aisbench.engine.takeover import Fingerprints
from pytest_aisbench.errors import AisbenchError, BudgetSpent, UsageFault
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.runs import make_folder, run_id, write_request
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Request
from pytest_aisbench.model.ports import Clock, Platform, RewritesRequests
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import number
from pytest_aisbench.traininglog.activity import seconds_until_all_end

_LOG = get_logger("fleet")
RUN_TIMEOUT = "run timeout"
_NAMED = 3  # the costliest cases, which a refusal names
_ADVICE = "raise --aisbench-budget, or select fewer cases"
STAGED_ONLY = "not submitted"  # the case's tests use the fixture `stage` and none that needs a job


@dataclass(frozen=True)
class Estimate:
    """How long a trial of the case will run, and where that figure is from."""

    case: Case
    seconds: float
    source: str

    @property
    def card_hours(self) -> float:
        return self.seconds * self.case.shape.world / 3600


def estimate(case: Case, lasted: Sequence[float], run_s: float) -> Estimate:
    """The median of earlier durations, else what the workload expects; no job runs longer than `run_s`."""
    if lasted:
        trials = f"{len(lasted)} trial{'s' if len(lasted) > 1 else ''}"
        seconds, source = statistics.median(lasted), f"history of {trials}"
    elif case.workload.expected_s:
        seconds, source = case.workload.expected_s, "expected"
    else:
        seconds, source = run_s, RUN_TIMEOUT
    return Estimate(case, seconds, source) if seconds <= run_s else Estimate(case, run_s, RUN_TIMEOUT)


def estimates(
    wants: Iterable[tuple[Case, Step]], platform_id: str, run_s: float, ledger: Path, identify: Callable[[Case], str]
) -> dict[str, Estimate]:
    """An estimate for each case that will be submitted, by case id; the ledger need not exist yet.

    A resumed trial counts in full, as in `results.json`: what its job ran under an earlier run is part of what `Budget`
    will see spent.
    """
    cases = [case for case, until in wants if until > Step.SUBMIT]
    if not ledger.is_file():
        return {case.id: estimate(case, (), run_s) for case in cases}
    history = Ledger(ledger)
    try:
        return {
            case.id: estimate(case, history.past_durations(case.id, platform_id, identify(case)), run_s)
            for case in cases
        }
    finally:
        history.close()


class Budget:
    """The limit of a run's cost. Many threads read one number, which the Fleet's thread refreshes."""

    def __init__(self, limit: float | None, estimates: Mapping[str, Estimate]) -> None:
        """Without a `limit` it refuses nothing."""
        self.limit = limit
        self.estimates = dict(estimates)
        self._spent = 0.0

    @property
    def total(self) -> float:
        return math.fsum(each.card_hours for each in self.estimates.values())

    def require(self) -> None:
        """Raise UsageFault if the whole run would cost too much; before anything is uploaded."""
        for each in self.estimates.values():
            _LOG.debug("%s should cost %.4g card-hours (%s)", each.case.id, each.card_hours, each.source)
        limit = "without a budget" if self.limit is None else f"of a budget of {card_hours_text(self.limit)}"
        _LOG.info("the run should cost %s card-hours, %s", card_hours_text(self.total), limit)
        if not self.is_exceeded(self.total):
            return
        costly = sorted(self.estimates.values(), key=lambda each: -each.card_hours)
        names = [f"{each.case.id} {card_hours_text(each.card_hours)} ({each.source})" for each in costly[:_NAMED]]
        if len(costly) > _NAMED:
            names.append(f"and {len(costly) - _NAMED} more")
        advice = _ADVICE
        if costly[0].source == RUN_TIMEOUT:
            expected = "" if costly[0].case.workload.names else "write `expected` to workload.toml, "
            advice = f"{expected}lower --aisbench-run-timeout, {_ADVICE}"
        total, budget = card_hours_text(self.total), card_hours_text(self.limit or 0.0)
        cost = f"the run would cost {total} card-hours, its budget is {budget}"
        raise UsageFault(f"{cost}: {', '.join(names)}", advice=advice)

    def expected_s(self, case: Case) -> float:
        """How long the case's job should run; 0 if only the timeout is known."""
        expected = self.estimates.get(case.id) or estimate(case, (), math.inf)
        return 0.0 if expected.source == RUN_TIMEOUT else expected.seconds

    def refresh(self, trials: Iterable[Trial], now: float) -> float:
        """Compute what all trials of the run, also the ended ones, have cost until now."""
        self._spent = card_hours_spent(trials, now)
        return self._spent

    def check(self) -> None:
        """Raise BudgetSpent once the run has cost more than it may, as of the last `refresh`."""
        if self.is_spent:
            raise BudgetSpent(self._cost, advice=_ADVICE)

    @property
    def is_spent(self) -> bool:
        return self.is_exceeded(self._spent)

    def check_another(self, case: Case) -> None:
        """Raise BudgetSpent unless one more trial of the case still fits."""
        self.check()
        expected = self.estimates.get(case.id)
        if expected and self.is_exceeded(self._spent + expected.card_hours):
            more = f"another trial of {case.id} would cost {card_hours_text(expected.card_hours)} ({expected.source})"
            raise BudgetSpent(f"{self._cost}, and {more}", advice=_ADVICE)

    @property
    def _cost(self) -> str:
        spent, limit = card_hours_text(self._spent), card_hours_text(self.limit or 0.0)
        return f"the run has cost {spent} card-hours, its budget is {limit}"

    def is_exceeded(self, cost: float) -> bool:
        """Without a limit, never."""
        # Three times 0.1 is a hair more than 0.3.
        return self.limit is not None and cost > self.limit * (1 + 1e-9)


def card_hours_spent(trials: Iterable[Trial], now: float) -> float:
    """Card-hours of all jobs, including running ones."""
    return math.fsum(_ran_s(trial, now) * trial.case.shape.world / 3600 for trial in trials)


def _ran_s(trial: Trial, now: float) -> float:
    """Seconds that the trial's job has run: by the platform's own figure, or else as we saw it."""
    job = trial.job
    if job is None:
        return 0.0
    if job.phase.is_final and job.ran_s is not None:
        return job.ran_s
    end = trial.times.get(job.phase.value.lower(), now) if job.phase.is_final else now
    seen = end - trial.times["running"] if "running" in trial.times else 0.0
    return max(seen, job.ran_s or 0.0)


def card_hours_text(value: float) -> str:
    """Card-hours without an exponent, also the tiny ones of a laptop."""
    if value >= 0.01:
        return number(round(value, 4))
    return f"{float(f'{value:.4g}'):.9f}".rstrip("0").rstrip(".")


# The dry run.


@dataclass(frozen=True)
class PlannedCase:
    """One case of a dry run: its cost, and the file with its request."""

    estimate: Estimate
    request: Path

    @property
    def case(self) -> Case:
        return self.estimate.case


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run."""

    folder: Path
    cases: tuple[PlannedCase, ...]
    budget: Budget
    max_jobs: int

    @property
    def card_hours(self) -> float:
        return self.budget.total

    @property
    def wall_s(self) -> float:
        """How long the jobs take, without queues, staging and collecting."""
        return seconds_until_all_end((), [case.estimate.seconds for case in self.cases], self.max_jobs) or 0.0


def dry_run(settings: Settings, platform: Platform, clock: Clock, wants: Sequence[tuple[Case, Step]]) -> DryRun:
    """Check, render and estimate everything as a run would, and send nothing. A UsageFault leaves nothing behind.

    The caller asks the result whether the budget allows the run.
    """
    preflight.require_checks(platform, [case for case, _ in wants], settings.run_timeout, settings.reports)
    ledger = settings.ledger_file
    budget = Budget(
        settings.budget, estimates(wants, platform.platform_id, settings.run_timeout, ledger, Fingerprints(platform).of)
    )
    run = run_id(clock.now())
    requests = {case.id: _request(run, case, platform, clock.now(), settings.run_timeout) for case, _ in wants}
    folder = make_folder(settings.reports, run)
    cases = tuple(
        PlannedCase(
            budget.estimates.get(case.id, Estimate(case, 0.0, STAGED_ONLY)),
            write_request(folder, case.id, requests[case.id]),
        )
        for case, _ in wants
    )
    return DryRun(folder, cases, budget, settings.max_jobs or platform.max_jobs)


def _request(run: str, case: Case, platform: Platform, now: float, run_s: float) -> Request:
    """The request of the case's first trial, byte for byte as this run would send it."""
    trial = new_trial(run, case, now)
    with preflight.naming_case(case.id):
        request = platform.render(job_spec(trial, planned_stage(trial, platform), run_s))
    if isinstance(platform, RewritesRequests):
        with ignored(_LOG, AisbenchError, "%s: its request as the platform would get it", case.id):
            return platform.to_send(request)
    return request
