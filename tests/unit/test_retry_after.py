"""A run waits as long as a platform asks, and its jobs go on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.engine import watch
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.errors import AisbenchError, Garbled, Refused, Throttled, Unreachable
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Phase
from pytest_aisbench.model.trial import Step, Trial

if TYPE_CHECKING:
    from tests.unit.conftest import StandingClock

Make = Callable[..., Any]
LIMITS = watch.Limits(queue_s=60.0, run_s=600.0)


@pytest.fixture
def trial(case: Case, clock: StandingClock) -> Trial:
    return new_trial("run", case, clock.now()).moved(Step.WATCH, clock.now(), job_id="job-1")


@pytest.mark.parametrize(("asked", "left_alone"), [(0.0, 5.0), (40.0, 40.0), (1.0, 5.0), (1e9, LIMITS.outage_s)])
def test_the_next_look_comes_when_the_platform_wants_it(
    healthy: Make, trial: Trial, clock: StandingClock, asked: float, left_alone: float
) -> None:
    platform = healthy(Throttled("too many requests", pause_s=asked), Phase.RUNNING)
    trial = watch.watch_job(trial, platform, clock, LIMITS)
    assert watch.pause_s(trial, clock.now(), 5.0) == left_alone
    clock.sleep(0.5)  # somebody looks before that, and is answered
    trial = watch.watch_job(trial, platform, clock, LIMITS)
    assert trial.job
    assert trial.job.phase is Phase.RUNNING
    assert watch.pause_s(trial, clock.now(), 5.0) == 5.0
    assert not any(at > clock.now() for at in trial.times.values())


@pytest.mark.parametrize("error", [Refused("keys"), Unreachable("503"), Throttled("429", pause_s=9.0), Garbled("page")])
def test_no_job_is_stopped_for_a_platform_that_is_not_well_for_a_while(
    healthy: Make, trial: Trial, clock: StandingClock, error: AisbenchError
) -> None:
    platform = healthy(error, error, Phase.RUNNING)
    for _ in range(3):
        trial = watch.watch_job(trial, platform, clock, LIMITS)
        clock.sleep(LIMITS.outage_s / 2)
    assert (trial.step, trial.fault, platform.cancelled) == (Step.WATCH, None, [])


def test_what_was_asked_for_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(Throttled("slow", advice="wait", trail="HTTP 429", pause_s=7.0)))
    assert (type(error), str(error), error.pause_s) == (Throttled, "slow (HTTP 429); wait", 7.0)
