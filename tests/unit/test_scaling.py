"""Scaling claims, and results that are too good or too alike."""

from __future__ import annotations

import math
import random

import pytest
from factories import case_values
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.judge.evaluate import Evidence, evaluate
from pytest_aisbench.judge.noise_test import ALPHA, Noise, pooled_noise
from pytest_aisbench.judge.scaling import Speed, decide_scaling, efficiencies, efficiency, waived_finding
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.verdict import Outcome, Ruling, Threshold, Verdict

CLAIM = Threshold("scaling", at_least=0.9, base="1x8")
ONE, TWO = Shape(1, 8), Shape(2, 8)
BASE = Speed(ONE, 16_000.0)
QUIET = Noise(80.0, 10)  # half a percent of the base
MOST = 3


def case_at(shape: Shape) -> Case:
    return case_values([CLAIM], {}, shape=shape).case


@pytest.mark.parametrize(("value", "outcome"), [(28_800.0, Outcome.MET), (28_799.0, Outcome.MISSED)])
def test_a_card_keeps_its_speed_or_not(value: float, outcome: Outcome) -> None:
    """Where the workload says that there is no noise, the plain limit decides."""
    finding = decide_scaling(CLAIM, Speed(TWO, value), BASE, MOST, "images/s", assumed=0.0).finding
    assert finding.outcome is outcome
    assert finding.measured == value / 32_000


@pytest.mark.parametrize(
    ("noise", "of_base", "unknown"), [(None, QUIET, "2x8"), (QUIET, None, "1x8"), (None, None, "2x8 and 1x8")]
)
def test_a_noise_that_is_not_known_is_assumed_and_the_text_says_so(
    noise: Noise | None, of_base: Noise | None, unknown: str
) -> None:
    base = Speed(ONE, 16_000.0, "history: run r7", noise=of_base)
    decision = decide_scaling(CLAIM, Speed(TWO, 30_400.0, noise=noise), base, MOST, "images/s")
    assert decision.needs_another_trial
    assert f"; the noise of {unknown} is unknown, and assumed to be 2% of the mean; " in decision.text
    assert decide_scaling(CLAIM, Speed(TWO, 32_000.0, noise=noise), base, MOST).outcome is Outcome.MET


def test_the_noise_of_both_is_in_one_line_that_can_be_checked_by_hand() -> None:
    base = Speed(ONE, 16_000.0, "history: 10 trials up to run r9", 10, QUIET)
    decision = decide_scaling(CLAIM, Speed(TWO, 29_120.0, count=2, noise=Noise(291.2, 4)), base, MOST, "images/s")
    assert decision.text == (
        "scaling 0.91, 1820 images/s per card at 2x8 and 2000 images/s at 1x8 (history: 10 trials up to run r9),"
        " wanted >= 0.9: the interval 0.888991 .. 0.931009 crosses the limit: undecided after 2 of at most 3 trials"
        " (± 0.02101 = 0.91 × t 3.186 × √(0.01² / 2 + 0.005² / 10); s / mean and trials of 2x8 and 1x8;"
        " t at 1 - 0.05 × 3/9 with 4 degrees of freedom)"
    )
    assert 0.91 * 3.186 * math.sqrt(0.01**2 / 2 + 0.005**2 / 10) == pytest.approx(0.02101, rel=1e-3)
    assert decision.needs_another_trial


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [(0.95, Outcome.MET), (0.91, Outcome.UNDECIDED), (0.89, Outcome.UNDECIDED), (0.85, Outcome.MISSED)],
)
def test_a_ratio_is_decided_where_its_interval_does_not_reach_across_the_limit(ratio: float, outcome: Outcome) -> None:
    base = Speed(ONE, 16_000.0, count=10, noise=QUIET)
    speed = Speed(TWO, 32_000.0 * ratio, noise=Noise(160.0, 10))
    first = decide_scaling(CLAIM, speed, base, MOST)
    assert (first.outcome, first.needs_another_trial) == (outcome, outcome is Outcome.UNDECIDED)
    last = decide_scaling(CLAIM, Speed(TWO, speed.value, count=3, noise=Noise(700.0, 10)), base, MOST)
    assert (last.outcome, last.needs_another_trial) == (outcome, False)


def test_nobody_pays_for_trials_that_cannot_decide() -> None:
    """What is not known of the base does not get less by trials of another shape."""
    rough = Speed(ONE, 16_000.0, noise=Noise(800.0, 10))
    decision = decide_scaling(CLAIM, Speed(TWO, 29_500.0, noise=Noise(160.0, 10)), rough, MOST)
    assert (decision.outcome, decision.needs_another_trial) == (Outcome.UNDECIDED, False)
    assert decision.text.endswith("; no further trial: the uncertainty of 1x8 alone is ± 0.1246")
    assert decide_scaling(
        CLAIM, Speed(TWO, 29_500.0, noise=Noise(1600.0, 10)), rough, MOST
    ).needs_another_trial  # its own noise is as large


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.04])
@pytest.mark.parametrize(("ratio", "wrong"), [(0.9, Outcome.MET), (0.9, Outcome.MISSED), (0.88, Outcome.MET)])
def test_a_ratio_is_judged_wrongly_as_seldom_as_a_speed(noise: float, ratio: float, wrong: Outcome) -> None:
    """The plain limit would be wrong in half of the cases that sit on it."""
    rounds, counted = 400, 0
    dice = random.Random(f"{noise} {ratio}")

    def some(mean: float, count: int) -> list[float]:
        return [dice.gauss(mean, mean * noise) for _ in range(count)]

    for _ in range(rounds):
        before, wide_before = some(8.0, 10), some(14.0, 10)
        base = some(8.0, 1)
        known = Speed(ONE, base[0], count=1, noise=pooled_noise(before, base))
        trials: list[float] = []
        again = True
        while again:
            trials += some(16.0 * ratio, 1)
            mean = sum(trials) / len(trials)
            speed = Speed(TWO, mean, count=len(trials), noise=pooled_noise(wide_before, trials))
            decision = decide_scaling(CLAIM, speed, known, MOST)
            again = decision.needs_another_trial
        counted += decision.outcome is wrong
    assert counted <= rounds * ALPHA + 3 * math.sqrt(rounds * ALPHA * (1 - ALPHA))


noises = st.none() | st.builds(Noise, st.floats(0.001, 1e5), st.integers(2, 40))
speeds = st.builds(Speed, st.just(TWO), st.floats(-1.0, 1e6), count=st.integers(1, 4), noise=noises)
bases = st.builds(Speed, st.just(ONE), st.floats(0.1, 1e6), count=st.integers(1, 10), noise=noises)


@given(speeds, bases, st.lists(st.floats(0.01, 2.0), min_size=2, max_size=2))
def test_a_tighter_limit_never_passes_what_a_looser_one_does_not(
    speed: Speed, base: Speed, limits: list[float]
) -> None:
    loose, tight = (
        decide_scaling(Threshold("scaling", at_least=limit, base="1x8"), speed, base, MOST).outcome
        for limit in sorted(limits)
    )
    assert loose is Outcome.MET or tight is not Outcome.MET
    assert tight is Outcome.MISSED or loose is not Outcome.MISSED


@given(speeds, bases, st.floats(0.01, 2.0))
def test_noise_never_makes_green_what_the_plain_limit_does_not(speed: Speed, base: Speed, limit: float) -> None:
    decision = decide_scaling(Threshold("scaling", at_least=limit, base="1x8"), speed, base, MOST)
    if decision.outcome is Outcome.MET:
        assert speed.is_measured
        assert efficiency(speed, base) >= limit
    assert not decision.needs_another_trial or speed.count < MOST
    assert "\n" not in decision.text


@pytest.mark.parametrize(
    "base", [None, Speed(ONE, math.nan), Speed(ONE, math.inf), Speed(ONE, 0.0), Speed(Shape(1, 4), 16_000.0)]
)
def test_without_its_base_the_claim_is_waived_and_says_so(base: Speed | None) -> None:
    finding = waived_finding(CLAIM, case_at(TWO), base)
    assert finding
    assert finding.outcome is Outcome.WAIVED
    assert finding.text == "scaling: waived, the base 1x8 was measured neither in this run nor in its history"
    assert waived_finding(CLAIM, case_at(TWO), BASE) is None


def test_the_base_is_not_held_against_itself() -> None:
    finding = waived_finding(CLAIM, case_at(ONE), BASE)
    assert finding
    assert finding.text == "scaling: waived, 1x8 is the base itself"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_what_was_not_measured_does_not_scale(value: float) -> None:
    assert decide_scaling(CLAIM, Speed(TWO, value), BASE, MOST).finding.outcome is Outcome.UNMEASURED
    assert (
        decide_scaling(Threshold("scaling", base="1x8"), Speed(TWO, 32_000.0), BASE, MOST).outcome is Outcome.UNMEASURED
    )


def test_a_missed_efficiency_fails_the_case() -> None:
    claims = (Threshold(THROUGHPUT, at_least=1.0), Threshold(ACCURACY, at_least=0.5), CLAIM)

    def judged(speed: float) -> Verdict:
        measured = case_values(claims, {THROUGHPUT: speed, ACCURACY: 0.9}, shape=TWO)
        return evaluate(measured, Evidence(base=BASE)).verdict

    slow = judged(20_000.0)
    assert slow.ruling is Ruling.FAILED
    assert slow.reason.startswith("scaling 0.625, ")
    assert judged(32_000.0).passed


@given(st.integers(1, 64), st.integers(1, 16), st.floats(0.1, 1e6))
def test_ideal_scaling_is_one_at_every_shape(nodes: int, devices: int, per_card: float) -> None:
    shape = Shape(nodes, devices)
    assert efficiency(Speed(shape, per_card * shape.world), Speed(ONE, per_card * 8)) == pytest.approx(1.0)


def test_the_chart_goes_from_few_cards_to_many() -> None:
    speeds = [Speed(Shape(4, 8), 57_600.0), Speed(ONE, 16_000.0), Speed(Shape(1, 1), 2_100.0)]
    assert list(efficiencies(speeds, BASE).items()) == [
        (Shape(1, 1), pytest.approx(1.05)),
        (Shape(1, 8), 1.0),
        (Shape(4, 8), pytest.approx(0.9)),
    ]
    assert efficiencies(speeds, Speed(ONE, 0.0)) == {}
    assert efficiencies(speeds, Speed(ONE, 1e-308)) == {}
