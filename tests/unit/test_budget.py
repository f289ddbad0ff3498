"""What a run will cost, what it has cost, and the line that nothing crosses."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_trial

from pytest_aisbench.engine.budget import Budget, Estimate, card_hours_spent, card_hours_text, estimate, estimates
from pytest_aisbench.engine.takeover import Fingerprints
from pytest_aisbench.errors import Blame, BudgetSpent, UsageFault
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.trial import Step, Trial

HOUR = 3600.0
FINGERPRINT = Fingerprints(None).of
DAY = 24 * HOUR


def expecting(case: Case, seconds: float, name: str = "toy") -> Case:
    return replace(case, workload=replace(case.workload, name=name, expected_s=seconds))


def trial(case: Case, job: Job | None = None, **times: float) -> Trial:
    return make_trial(case, step=Step.WATCH, job_id="j", job=job, times=times)


def ended(seconds: float | None, phase: Phase = Phase.SUCCEEDED) -> Job:
    return Job("j", phase, phase.value.title(), ran_s=seconds)


def budget(limit: float | None, *cases: Case) -> Budget:
    return Budget(limit, {case.id: estimate(case, (), DAY) for case in cases})


def test_history_knows_better_than_the_workload_and_the_workload_better_than_the_timeout(case: Case) -> None:
    expected = expecting(case, 3 * HOUR)

    assert estimate(expected, [HOUR, 5 * HOUR, 2 * HOUR], DAY) == Estimate(expected, 2 * HOUR, "history of 3 trials")
    assert estimate(expected, [HOUR], DAY).source == "history of 1 trial"
    assert estimate(expected, (), DAY) == Estimate(expected, 3 * HOUR, "expected")
    assert estimate(case, (), DAY) == Estimate(case, DAY, "run timeout")


def test_every_card_counts(case: Case) -> None:
    assert estimate(replace(case, shape=Shape(2, 8)), [1.5 * HOUR], DAY).card_hours == 24.0


def test_no_job_costs_more_than_its_timeout_allows(case: Case) -> None:
    assert estimate(expecting(case, 3 * HOUR), (), HOUR) == Estimate(expecting(case, 3 * HOUR), HOUR, "run timeout")
    assert estimate(case, [3 * HOUR], HOUR).seconds == HOUR


def test_history_is_of_the_same_code_on_the_same_platform(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    ledger = Ledger(file)
    ledger.begin("run", {}, 0.0)
    same = FINGERPRINT(case)
    known = [("here", same, 60.0), ("here", same, 90.0), ("there", same, 1.0), ("here", "other code", 1.0)]
    for number, (place, identity, seconds) in enumerate(known):
        done = replace(trial(case, ended(seconds)), id=f"run/{number}", name=f"n{number}", step=Step.DONE)
        ledger.save_trial(replace(done, platform_id=place, fingerprint=identity), float(number))
    ledger.close()

    found = estimates([(case, Step.DONE)], "here", DAY, file, FINGERPRINT)

    assert found == {case.id: Estimate(case, 75.0, "history of 2 trials")}


def test_without_a_ledger_none_is_made(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "reports" / "ledger.db"

    assert estimates([(case, Step.DONE)], "here", DAY, file, FINGERPRINT)[case.id].source == "run timeout"
    assert not file.parent.exists()


def test_what_is_only_staged_costs_nothing(case: Case, tmp_path: Path) -> None:
    other = expecting(case, HOUR, "other")

    wants = [(case, Step.SUBMIT), (other, Step.HARVEST)]

    assert list(estimates(wants, "here", DAY, tmp_path / "none", FINGERPRINT)) == [other.id]


def test_a_run_that_would_cost_too_much_is_refused_in_one_line(case: Case) -> None:
    cases = [expecting(case, hours * HOUR, name) for name, hours in (("a", 1), ("b", 3), ("c", 2), ("d", 0.5))]

    with pytest.raises(UsageFault) as caught:
        budget(25.9, *cases).require()

    assert str(caught.value) == (
        "the run would cost 26 card-hours, its budget is 25.9: b-2x2 12 (expected), c-2x2 8 (expected), "
        "a-2x2 4 (expected), and 1 more; raise --aisbench-budget, or select fewer cases"
    )
    budget(26, *cases).require()
    budget(None, *cases).require()


def test_who_has_only_a_timeout_to_go_by_is_told_how_to_say_more(case: Case) -> None:
    with pytest.raises(UsageFault, match=r"toy-2x2 96 \(run timeout\); write `expected` to workload\.toml, lower"):
        budget(1, case).require()


def test_rounding_refuses_nobody(case: Case) -> None:
    thrice = [expecting(replace(case, shape=Shape(1, 1)), 0.1 * HOUR, name) for name in "abc"]
    budget(0.3, *thrice).require()
    watched = budget(0.3)
    watched.refresh([trial(each, ended(0.1 * HOUR)) for each in thrice], 0.0)
    watched.check()


@pytest.mark.parametrize(
    ("job", "times", "seconds"),
    [
        (None, {"submit": 10.0}, 0.0),
        (Job("j", Phase.PENDING, "Pending"), {"pending": 10.0}, 0.0),
        (Job("j", Phase.RUNNING, "Running"), {"pending": 10.0, "running": 400.0}, 600.0),
        (Job("j", Phase.RUNNING, "Running", ran_s=700.0), {"running": 400.0}, 700.0),
        (ended(50.0), {"running": 400.0, "succeeded": 900.0}, 50.0),
        (ended(0.0), {"running": 400.0, "succeeded": 900.0}, 0.0),
        (ended(None, Phase.LOST), {"running": 400.0, "lost": 900.0}, 500.0),
        (ended(None, Phase.LOST), {"lost": 900.0}, 0.0),
    ],
    ids=["no job", "waits", "runs", "runs since before we saw it", "ended", "never ran", "lost", "lost unseen"],
)
def test_what_a_trial_has_cost(case: Case, job: Job | None, times: dict[str, float], seconds: float) -> None:
    assert card_hours_spent([trial(case, job, **times)], 1000.0) == pytest.approx(seconds * 4 / 3600)


def test_past_the_limit_nothing_goes_on(case: Case) -> None:
    watched = budget(2, expecting(case, HOUR))
    jobs = [trial(case, ended(0.25 * HOUR)), trial(case, Job("j", Phase.RUNNING, "Running"), running=0.0)]
    assert watched.refresh(jobs, 0.25 * HOUR) == 2.0
    watched.check()

    watched.refresh(jobs, 0.3277 * HOUR)

    with pytest.raises(BudgetSpent) as caught:
        watched.check()
    assert str(caught.value) == (
        "the run has cost 2.3108 card-hours, its budget is 2; raise --aisbench-budget, or select fewer cases"
    )
    assert caught.value.blame is Blame.USER
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_without_a_limit_everything_goes_on(case: Case) -> None:
    free = budget(None, case)
    free.refresh([trial(case, ended(1e9))], 0.0)
    free.check()
    free.check_another(case)


def test_another_trial_begins_only_where_it_fits(case: Case) -> None:
    lost = expecting(case, HOUR)
    watched = budget(8, lost)
    watched.refresh([trial(lost, ended(HOUR, Phase.LOST))], 0.0)
    watched.check_another(lost)

    watched.refresh([trial(lost, ended(1.1 * HOUR, Phase.LOST))], 0.0)

    watched.check()
    with pytest.raises(
        BudgetSpent, match=r"cost 4\.4 .* is 8, and another trial of toy-2x2 would cost 4 \(expected\);"
    ):
        watched.check_another(lost)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3.16667e-05, "0.00003167"), (0.00102, "0.00102"), (2.0, "2"), (2.310819, "2.3108"), (1e6, "1000000")],
)
def test_card_hours_have_no_exponent(value: float, text: str) -> None:
    assert card_hours_text(value) == text
