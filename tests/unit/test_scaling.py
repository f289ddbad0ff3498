"""Scaling claims, and results that are too good or too alike."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.domain.scaling import Base, efficiencies, efficiency, scaled
from pytest_aisbench.domain.suspicion import identical, suspicions, too_good
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.domain.verdict import Outcome, Ruling, judge

CLAIM = Threshold("scaling", at_least=0.9, base="1x8")
BASE = Base(Shape(1, 8), 16_000.0)
TWO = Shape(2, 8)


@pytest.mark.parametrize(("value", "outcome"), [(28_800.0, Outcome.MET), (28_799.0, Outcome.MISSED)])
def test_a_card_keeps_its_speed_or_not(value: float, outcome: Outcome) -> None:
    finding = scaled(CLAIM, TWO, value, BASE, "images/s")
    assert finding.outcome is outcome
    assert finding.measured == value / 32_000


def test_efficiency_in_one_line() -> None:
    assert scaled(CLAIM, TWO, 30_400.0, Base(Shape(1, 8), 16_000.0, "history of 4 trials"), "images/s").text == (
        "scaling 0.95, 1900 images/s per card at 2x8 and 2000 images/s at 1x8 (history of 4 trials), wanted >= 0.9"
    )


@pytest.mark.parametrize(
    "base",
    [
        None,
        Base(Shape(1, 8), math.nan),
        Base(Shape(1, 8), math.inf),
        Base(Shape(1, 8), 0.0),
        Base(Shape(1, 4), 16_000.0),
    ],
)
def test_without_its_base_the_claim_is_waived_and_says_so(base: Base | None) -> None:
    finding = scaled(CLAIM, TWO, 30_000.0, base)
    assert finding.outcome is Outcome.WAIVED
    assert finding.text == "scaling: waived, the base 1x8 was measured neither in this run nor in its history"


def test_the_base_is_not_held_against_itself() -> None:
    assert scaled(CLAIM, Shape(1, 8), 16_000.0, BASE).text == "scaling: waived, 1x8 is the base itself"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -1.0, 0.0])
def test_what_was_not_measured_does_not_scale(value: float | None) -> None:
    assert scaled(CLAIM, TWO, value, BASE).outcome is Outcome.UNMEASURED


def test_a_missed_efficiency_fails_the_case() -> None:
    claims = (Threshold(THROUGHPUT, at_least=1.0), Threshold(ACCURACY, at_least=0.5), CLAIM)
    measured = {THROUGHPUT: 20_000.0, ACCURACY: 0.9}
    judged = judge(claims, measured, (), TWO, settled=[scaled(CLAIM, TWO, 20_000.0, BASE)])
    assert judged.ruling is Ruling.FAILED
    assert judged.reason.startswith("scaling 0.625")
    judged = judge(claims, measured, (), TWO, settled=[scaled(CLAIM, TWO, 32_000.0, BASE)])
    assert judged.ruling is Ruling.PASSED


@given(st.integers(1, 64), st.integers(1, 16), st.floats(0.1, 1e6))
def test_ideal_scaling_is_one_at_every_shape(nodes: int, devices: int, per_card: float) -> None:
    shape = Shape(nodes, devices)
    assert efficiency(per_card * shape.world, shape, Base(Shape(1, 8), per_card * 8)) == pytest.approx(1.0)


def test_the_chart_goes_from_few_cards_to_many() -> None:
    values = {Shape(4, 8): 57_600.0, Shape(1, 8): 16_000.0, Shape(1, 1): 2_100.0}
    assert list(efficiencies(values, BASE).items()) == [
        (Shape(1, 1), pytest.approx(1.05)),
        (Shape(1, 8), 1.0),
        (Shape(4, 8), pytest.approx(0.9)),
    ]
    assert efficiencies(values, Base(Shape(1, 8), 0.0)) == {}


def test_trials_that_agree_to_all_digits_are_worth_a_look() -> None:
    assert identical(ACCURACY, [0.77062] * 3) == (
        "accuracy is 0.77062 in all of 3 trials, identical to all digits:"
        " does each of them train, and with a seed of its own?"
    )
    assert identical(ACCURACY, [0.77062, 0.77062, 0.77061]) == ""
    assert identical(ACCURACY, [0.77062] * 2) == ""
    assert identical(ACCURACY, [math.inf] * 3) == ""
    assert identical(ACCURACY, []) == ""


def test_a_result_far_above_history_is_worth_a_look() -> None:
    history = [0.7705, 0.7706, 0.7707, 0.7706]
    assert too_good(ACCURACY, 0.81, history) == (
        "accuracy 0.81 is 5.1% above the mean 0.7706 of 4 trials before it:"
        " is the measurement right, and the data the same?"
    )
    assert too_good(ACCURACY, 0.775, history) == ""  # beyond its noise, and no matter
    assert too_good(ACCURACY, 0.70, history) == ""  # that is the verdict's business
    assert too_good(ACCURACY, 0.81, history[:2]) == ""
    assert too_good(ACCURACY, 0.81, [0.6, 0.7, 0.8]) == ""  # its history is as wild
    assert too_good(ACCURACY, math.nan, history) == ""
    speeds = [14_147.0, 14_155.0, 14_151.0]
    assert "above the mean 14151 images/s of 3 trials" in too_good(THROUGHPUT, 15_500.0, speeds, "images/s")
    assert too_good(THROUGHPUT, 14_600.0, speeds) == ""


def test_each_suspicion_is_told_once() -> None:
    told = suspicions(ACCURACY, [0.9] * 3, [0.70, 0.71, 0.70])
    assert len(told) == 2
    assert suspicions(ACCURACY, [0.71, 0.70], [0.70, 0.71, 0.70]) == []
