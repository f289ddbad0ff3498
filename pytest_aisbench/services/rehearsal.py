"""A dry run: everything is checked, rendered and reckoned as a run would do it, and nothing is sent.

Only the run's folder is written, with its requests. The ledger is read if there is one, `latest` stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.forecast import until_all
from pytest_aisbench.domain.job import Request
from pytest_aisbench.domain.ports import Clock, Platform
from pytest_aisbench.domain.trial import Step
from pytest_aisbench.services import folder as folders
from pytest_aisbench.services import preflight
from pytest_aisbench.services.budget import Budget, Estimate, estimates
from pytest_aisbench.services.submission import new_trial, spec, stage_of
from pytest_aisbench.services.takeover import Fingerprints
from pytest_aisbench.settings import Settings

STAGED_ONLY = "not submitted"  # its tests ask for the fixture `stage` and no further


@dataclass(frozen=True)
class Prospect:
    """What would become of one case."""

    estimate: Estimate
    request: Path

    @property
    def case(self) -> Case:
        return self.estimate.case


@dataclass(frozen=True)
class Forecast:
    """What would become of the run."""

    folder: Path
    prospects: tuple[Prospect, ...]
    budget: Budget
    max_jobs: int

    @property
    def card_hours(self) -> float:
        return self.budget.total

    @property
    def wall_s(self) -> float:
        """Queues, staging and harvest aside."""
        return until_all((), [prospect.estimate.seconds for prospect in self.prospects], self.max_jobs) or 0.0


def rehearse(settings: Settings, platform: Platform, clock: Clock, wants: Sequence[tuple[Case, Step]]) -> Forecast:
    """A UsageFault leaves nothing behind. Whether the budget allows it, is for the caller to ask of the forecast."""
    preflight.check(platform, [case for case, _ in wants], settings.run_timeout, settings.reports)
    ledger = settings.ledger_file
    budget = Budget(
        settings.budget, estimates(wants, platform.place, settings.run_timeout, ledger, Fingerprints(platform).of)
    )
    run = folders.run_id(clock.now())
    requests = {case.id: _request(run, case, platform, clock.now(), settings.run_timeout) for case, _ in wants}
    folder = folders.make(settings.reports, run)
    prospects = tuple(
        Prospect(
            budget.estimates.get(case.id, Estimate(case, 0.0, STAGED_ONLY)),
            folders.write_request(folder, case.id, requests[case.id]),
        )
        for case, _ in wants
    )
    return Forecast(folder, prospects, budget, settings.max_jobs or platform.max_jobs)


def _request(run: str, case: Case, platform: Platform, now: float, run_s: float) -> Request:
    """The first trial's, to the byte: its name is of this run, its code and data are where they would be put."""
    trial = new_trial(run, case, now)
    with preflight.naming(case.id):
        return platform.render(spec(trial, stage_of(trial, platform), run_s))
