"""A verdict that is not green says whose turn it is, and what to look at; one on speed also since when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from factories import UNIT, make_case, make_case_entry, make_measurements, make_trial, make_trial_entry

from pytest_aisbench.i18n import language
from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.judge.evaluate import Evidence, evaluate
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.model.trial import TrialRecord
from pytest_aisbench.model.verdict import Finding, Outcome, Ruling, Threshold
from pytest_aisbench.report.text import what_to_do

CLAIMS = (Threshold(THROUGHPUT, UNIT, at_least=390.0), Threshold(ACCURACY, at_least=0.9))


def judged(speeds: list[float], accuracy: float = 0.95, *past: float, changed: tuple[str, ...] = ()) -> CaseEntry:
    """The entry of a case on 2x2 whose cards ran at these speeds, after runs with these throughputs."""
    case = make_case("2x2", *CLAIMS)
    trial = make_trial(case, measurements=make_measurements(case, speeds, accuracy), job_id="job-1")
    records = [
        TrialRecord(f"{at}", f"run-{at}", case.id, "toy", "2x2", "cluster", "key", "family", float(at), value, 0.95)
        for at, value in enumerate(past)
    ]
    evaluation = evaluate(case_values(trial), Evidence(history=tuple(records), changed=changed))
    trial = replace(trial, judged=evaluation.verdict, background=evaluation.background)
    return case_entry(case, (trial,), evaluation.verdict)


@pytest.mark.parametrize(
    ("speeds", "todo"),
    [
        (
            [100.0, 100.0, 100.0, 40.0],
            "the operator of the cluster acts: examine node 1 card 1; at the pace of the others the claim would be met",
        ),
        (
            [80.0, 80.0, 80.0, 60.0],
            "the operator of the cluster acts: examine node 1 card 1; even at the pace of the others the claim would",
        ),
        ([100.0, 100.0, 70.0, 70.0], "the operator of the cluster acts: examine node 1; at the pace of the others"),
        ([80.0, 80.0, 80.0, 80.0], "no card stands out: compare with the last run that met the claim; the operator"),
    ],
)
def test_a_speed_names_slow_cards_and_who_acts(speeds: list[float], todo: str) -> None:
    case = judged(speeds)
    assert case.verdict is Ruling.FAILED
    assert what_to_do(case).startswith(todo)
    assert f"wanted >= 390 {UNIT} ({1 - sum(speeds) / 390:.1%} below)" in case.reason
    assert "log" not in what_to_do(case)


def test_a_speed_says_since_when_it_is_missed() -> None:
    slow = [80.0] * 4
    assert "since" not in judged(slow).reason
    assert "; the last comparable run, run-2, met it" in judged(slow, 0.95, 400.0, 320.0, 401.0).reason
    assert "; missed in every run since run-1, 2 before this one" in judged(slow, 0.95, 400.0, 321.0, 320.0).reason
    assert "run-" not in judged([100.0] * 4, 0.95, 400.0, 401.0, 402.0).reason


def test_what_changed_is_named_beside_it() -> None:
    case = judged([80.0] * 4, changed=("driver: 23.0 -> 24.1",))
    assert what_to_do(case).endswith("code, data and versions; changed: driver: 23.0 -> 24.1")


def test_a_model_that_did_not_learn_is_its_owners_even_if_it_is_slow_too() -> None:
    assert what_to_do(judged([80.0] * 4, 0.2)).startswith("the owner of the workload acts: compare curve, code, data")


@pytest.mark.parametrize(
    ("fields", "todo"),
    [
        ({"findings": (Finding(THROUGHPUT, Outcome.UNMEASURED, None, "", "is missing"),)}, "the owner of the training"),
        ({}, "the workload is to blame: read the job's log"),
        ({"trials": ()}, "no job ran"),
        ({"verdict": Ruling.BROKEN}, "the platform is to blame"),
        ({"verdict": Ruling.INCONCLUSIVE}, "the noise is larger than the margin"),
        ({"verdict": Ruling.PASSED}, ""),
        ({"verdict": None}, ""),
    ],
)
def test_every_other_verdict_has_an_actor_too(fields: dict[str, Any], todo: str) -> None:
    case = make_case_entry(**{"verdict": Ruling.FAILED, "trials": (make_trial_entry(),), **fields})
    assert what_to_do(case).startswith(todo)
    assert bool(what_to_do(case)) == bool(todo)


def test_it_is_said_in_chinese() -> None:
    chinese = language("zh")
    assert what_to_do(judged([100.0, 100.0, 100.0, 40.0]), chinese) == (
        "由集群运维处理：检查节点 1 卡 1；若与其他卡同速，即可达到要求"
    )
