"""Who runs again, who does not and why, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.engine.budget import Budget, Estimate
from pytest_aisbench.engine.fleet import Fleet, TrialTable
from pytest_aisbench.engine.scheduler import Threads
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import Tools, VerdictStep, why_another_trial, without_another_trial
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.errors import Blame
from pytest_aisbench.judge.comparison import family_key, traits_key
from pytest_aisbench.judge.evaluate import Rules
from pytest_aisbench.ledger import history
from pytest_aisbench.ledger.history import History
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.metric import Measurement
from pytest_aisbench.model.trial import Fault, Step, Trial, TrialRecord
from pytest_aisbench.model.verdict import Finding, Outcome, Ruling, Threshold, Verdict

Make = Callable[..., Any]
TRAITS = {"code": "c0de"}
SPEED = Threshold("throughput", "images/s", at_least=49.0)  # a healthy job does 50 at 2x2
LEARNT = Threshold("accuracy", at_least=0.9)
OPEN = Finding("throughput", Outcome.UNDECIDED, 50.0, ">= 49 images/s", "throughput is not decided")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin("now", {}, 0.0)
        yield ledger


@pytest.fixture
def fleet_on(ledger: Ledger, tmp_path: Path) -> Iterator[Make]:
    fleets: list[Fleet] = []

    def make(platform: Any, budget: Budget | None = None, max_jobs: int = 8) -> Fleet:
        clock, verdict_step = SystemClock(), VerdictStep(Rules(3), History(ledger.database))
        tools = Tools(platform, clock, Limits(60.0, 60.0), tmp_path / "run", budget, verdict_step=verdict_step)

        def begin(case: Case, number: int) -> Trial:
            return replace(new_trial("now", case, clock.now(), number), traits=TRAITS)

        fleet = Fleet(tools, ledger, begin, max_jobs=max_jobs, max_trials=3)
        fleet.start()
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.close()


def remember(ledger: Ledger, case: Case, deviation: float) -> None:
    for at in range(30):
        speed = 50.0 + deviation * (at % 3 - 1)
        made = TrialRecord(
            f"r{at}/1",
            f"r{at}",
            case.id,
            "toy",
            str(case.shape),
            "cluster",
            traits_key(TRAITS),
            family_key(TRAITS),
            at,
            speed,
            0.95,
        )
        history.add_record(ledger.database, made, TRAITS)


def test_a_case_that_noise_leaves_open_runs_again_until_it_is_decided(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    case = replace(case, thresholds=(SPEED, LEARNT))
    remember(ledger, case, 0.3)
    platform = healthy()
    last = fleet_on(platform).reached(case, Step.DONE)
    assert (last.number, last.verdict.ruling, last.another_trial) == (2, Ruling.PASSED, "")
    assert len(platform.jobs) == 2
    first, second = ledger.trials("now")
    assert first.verdict.ruling is Ruling.INCONCLUSIVE
    assert second == last
    assert second.notes[0] == f"tried again: {first.another_trial}"
    assert [found.counts for found in History(ledger.database).all(case.id) if found.run == "now"] == [True, True]


def test_a_case_that_stays_open_says_so_after_the_last(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    case = replace(case, thresholds=(SPEED, LEARNT))
    remember(ledger, case, 5.0)
    last = fleet_on(healthy()).reached(case, Step.DONE)
    assert (last.number, last.verdict.ruling) == (3, Ruling.INCONCLUSIVE)
    assert "undecided after 3 of at most 3 trials" in last.verdict.reason


def test_no_money_for_another_trial_leaves_it_open_and_says_why(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    case = replace(case, thresholds=(SPEED, LEARNT))
    remember(ledger, case, 0.5)
    budget = Budget(1.0, {case.id: Estimate(case, 3600.0, "expected")})  # 4 card-hours
    platform = healthy()
    last = fleet_on(platform, budget).reached(case, Step.DONE)
    assert (last.number, last.verdict.ruling, len(platform.jobs)) == (1, Ruling.INCONCLUSIVE, 1)
    assert "another trial of toy-2x2 would cost 4 (expected)" in last.verdict.reason
    assert "; no further trial: " in last.verdict.findings[0].text


def test_a_trial_lost_among_them_leaves_fewer_to_decide(
    healthy: Make, fleet_on: Make, case: Case, ledger: Ledger
) -> None:
    case = replace(case, thresholds=(SPEED, LEARNT))
    remember(ledger, case, 5.0)
    platform = healthy(Phase.RUNNING, Phase.LOST)
    platform.after_loss = [Phase.RUNNING, Phase.SUCCEEDED]
    last = fleet_on(platform).reached(case, Step.DONE)
    assert (last.number, last.verdict.ruling, len(platform.jobs)) == (3, Ruling.INCONCLUSIVE, 3)
    assert last.verdict.reason.endswith("no further trial: 1 of 3 trials were lost")


def test_a_shape_waits_for_its_base_with_one_place_for_both(healthy: Make, fleet_on: Make, case: Case) -> None:
    scaling = Threshold("scaling", at_least=0.9, base="1x2")
    wide = replace(case, thresholds=(replace(SPEED, at_least=40.0), LEARNT, scaling))
    narrow = replace(case, shape=Shape(1, 2), thresholds=(replace(SPEED, at_least=1.0), LEARNT))
    fleet = fleet_on(healthy(), max_jobs=1)
    fleet.want(wide, Step.DONE)
    fleet.want(narrow, Step.DONE)
    told = fleet.reached(wide, Step.DONE).verdict
    assert "12.5 images/s at 1x2 (this run)" in told.reason


def undecided(case: Case, number: int = 1) -> Trial:
    verdict = Verdict(Ruling.INCONCLUSIVE, OPEN.text, (OPEN, replace(OPEN, metric="accuracy", outcome=Outcome.MET)))
    return new_trial("now", case, 0.0, number).moved(
        Step.DONE, 1.0, judged=verdict, another_trial="more is to be known"
    )


def roster(*wants: tuple[Case, Step]) -> TrialTable:
    made = TrialTable(Threads(1), lambda case, number: new_trial("now", case, 0.0, number), lambda _: "", 8, 3)
    for case, until in wants:
        made.want(case, until)
    return made


def test_a_run_that_ends_begins_nothing_more(case: Case) -> None:
    (kept,) = roster((case, Step.DONE)).put(undecided(case), last=True)
    assert kept.verdict.reason == "throughput is not decided; no further trial: the run is ending"
    assert [found.text.endswith("the run is ending") for found in kept.verdict.findings] == [True, False]
    assert kept.another_trial == ""


def test_the_last_that_is_allowed_is_not_followed(case: Case) -> None:
    assert why_another_trial(undecided(case, 2), 3) == "tried again: more is to be known"
    assert why_another_trial(undecided(case, 3), 3) == ""
    lost = new_trial("now", case, 0.0).moved(Step.DONE, 1.0, fault=Fault(Blame.PLATFORM, "lost", transient=True))
    assert without_another_trial(lost, "no money").notes == ("not tried again: no money",)


@pytest.fixture
def pair(case: Case) -> tuple[Case, Case]:
    """A shape, and the base of its claim."""
    claims = (*case.thresholds, Threshold("scaling", at_least=0.9, base="1x2"))
    return replace(case, thresholds=claims), replace(case, shape=Shape(1, 2))


def waits(made: TrialTable, wide: Case, base: Trial | None) -> bool:
    made.put(replace(new_trial("now", wide, 0.0), step=Step.JUDGE), last=False)
    if base:
        made.put(base, last=False)
    return made.movable(wide.id) is None


def test_a_verdict_waits_while_its_base_will_be_measured(pair: tuple[Case, Case]) -> None:
    wide, narrow = pair
    for step in (Step.STAGE, Step.SUBMIT, Step.WATCH, Step.HARVEST):
        base = replace(new_trial("now", narrow, 0.0), step=step)
        assert waits(roster((wide, Step.DONE), (narrow, Step.DONE)), wide, base)


def test_a_verdict_waits_neither_for_another_verdict_nor_for_what_will_not_be(pair: tuple[Case, Case]) -> None:
    wide, narrow = pair
    both = (wide, Step.DONE), (narrow, Step.DONE)
    fresh = new_trial("now", narrow, 0.0)
    assert not waits(roster(*both), wide, replace(fresh, step=Step.JUDGE))  # measured, and not judged
    broken = replace(fresh, step=Step.DONE, fault=Fault(Blame.PLATFORM, "out of cards"))
    assert not waits(roster(*both), wide, broken)
    assert not waits(roster((wide, Step.DONE), (narrow, Step.SUBMIT)), wide, None)  # only staged
    assert not waits(roster((wide, Step.DONE), (narrow, Step.HARVEST)), wide, None)  # only run
    assert not waits(roster((wide, Step.DONE)), wide, None)  # not in this run
    measured = (Measurement("throughput", 1.0, "images/s", "", 0),)
    again = replace(undecided(narrow), measurements=measured)  # its second trial has begun
    assert not waits(roster(*both), wide, again)


def test_two_that_are_each_others_base_wait_for_no_verdict(pair: tuple[Case, Case]) -> None:
    wide, narrow = pair
    claims = (*narrow.thresholds, Threshold("scaling", at_least=0.9, base="2x2"))
    narrow = replace(narrow, thresholds=claims)
    made = roster((wide, Step.DONE), (narrow, Step.DONE))
    for case in (wide, narrow):
        made.put(replace(new_trial("now", case, 0.0), step=Step.JUDGE, job=Job("j", Phase.SUCCEEDED, "")), last=False)
    assert made.movable(wide.id)
    assert made.movable(narrow.id)
