"""Judging: examples to check by hand, and properties that hold for every input."""

from __future__ import annotations

import math

import pytest
from factories import verdict_of
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.errors import NotPassed
from pytest_aisbench.judge.values import total
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Measurement, MissingResult
from pytest_aisbench.model.verdict import Outcome, Ruling, Threshold, number

SHAPE = Shape(2, 8)
CLAIMS = (
    Threshold(THROUGHPUT, "images/s", reference=1000.0, lower=-0.05, per="node"),
    Threshold(ACCURACY, at_least=0.75),
)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.parametrize(
    ("threshold", "band"),
    [
        (Threshold("m", reference=100.0, lower=-0.05), (95.0, math.inf)),
        (Threshold("m", reference=100.0, upper=0.1), (-math.inf, 110.0)),
        (Threshold("m", reference=100.0, lower=-0.1, upper=0.1, per="node"), (180.0, 220.0)),
        (Threshold("m", reference=100.0, lower=-0.1, per="device"), (1440.0, math.inf)),
        (Threshold("m", reference=-100.0, lower=-0.05, upper=0.05), (-105.0, -95.0)),
        (Threshold("m", reference=0.0, lower=-1.0, upper=2.0), (-1.0, 2.0)),
        (Threshold("m", at_least=3.0, at_most=4.0), (3.0, 4.0)),
    ],
)
def test_bands(threshold: Threshold, band: tuple[float, float]) -> None:
    assert threshold.band(SHAPE) == pytest.approx(band)


def test_a_verdict_can_be_checked_by_hand() -> None:
    verdict = verdict_of(CLAIMS, {THROUGHPUT: 1800.0, ACCURACY: 0.76}, [], SHAPE)
    assert verdict.ruling is Ruling.FAILED
    assert verdict.reason == (
        "throughput 1800 images/s, wanted >= 1900 images/s (5.3% below): the interval 1740.79 .. 1859.21 is outside"
        " the limits"
    )
    assert verdict.findings[0].text == (
        f"{verdict.reason} (± 59.21 = t 1.645 × s 36; t at 1 - 0.05 of the normal distribution; s is assumed to be 2%"
        " of the mean: no comparable earlier trials)"
    )
    with pytest.raises(NotPassed, match=r"missed     throughput 1800"):
        verdict.require()
    verdict_of(CLAIMS, {THROUGHPUT: 1970.0, ACCURACY: 0.75}, [], SHAPE).require()


def test_speed_does_not_count_where_nothing_was_learnt() -> None:
    verdict = verdict_of(CLAIMS, {THROUGHPUT: 5000.0, ACCURACY: 0.1}, [], SHAPE)
    assert verdict.reason.startswith("accuracy 0.1")
    assert {finding.metric: finding.outcome for finding in verdict.findings} == {
        ACCURACY: Outcome.MISSED,
        THROUGHPUT: Outcome.UNDECIDED,
    }


def test_a_claim_on_nothing_is_never_passed() -> None:
    assert verdict_of((), {THROUGHPUT: 1.0, ACCURACY: 1.0}, [], SHAPE).ruling is Ruling.FAILED
    assert verdict_of(CLAIMS[:1], {THROUGHPUT: 9e9, ACCURACY: 1.0}, [], SHAPE).ruling is Ruling.FAILED
    assert verdict_of(CLAIMS, {}, [], SHAPE).ruling is Ruling.FAILED


def test_scaling_without_its_base_is_waived_and_says_so() -> None:
    claims = (*CLAIMS, Threshold("scaling", at_least=0.9, base="1x8"))
    verdict = verdict_of(claims, {THROUGHPUT: 5000.0, ACCURACY: 0.9}, [], SHAPE)
    assert verdict.ruling is Ruling.PASSED
    assert verdict.findings[-1].outcome is Outcome.WAIVED
    assert "1x8" in verdict.findings[-1].text


@given(st.sampled_from([THROUGHPUT, ACCURACY]), st.sampled_from([math.nan, math.inf, -math.inf, None]))
def test_a_value_that_is_no_number_never_passes(metric: str, value: float | None) -> None:
    measured = {THROUGHPUT: 1e9, ACCURACY: 0.9}
    if value is None:
        del measured[metric]
    else:
        measured[metric] = value
    assert verdict_of(CLAIMS, measured, [], SHAPE).ruling is Ruling.FAILED


@given(finite, finite)
def test_a_missing_result_never_passes(throughput: float, accuracy: float) -> None:
    missing = [MissingResult(THROUGHPUT, "throughput_3.json is missing")]
    verdict = verdict_of(CLAIMS, {THROUGHPUT: throughput, ACCURACY: accuracy}, missing, SHAPE)
    assert verdict.ruling is Ruling.FAILED
    assert any("throughput_3.json" in finding.text for finding in verdict.findings)


@given(finite, finite, finite)
def test_a_tighter_threshold_never_passes_what_a_looser_one_fails(value: float, one: float, other: float) -> None:
    loose, tight = sorted((one, other))

    def ruling(floor: float) -> Ruling:
        claims = (Threshold(THROUGHPUT, at_least=floor), Threshold(ACCURACY, at_least=0.0))
        return verdict_of(claims, {THROUGHPUT: value, ACCURACY: 1.0}, [], SHAPE).ruling

    if ruling(loose) is Ruling.FAILED:
        assert ruling(tight) is Ruling.FAILED


@given(st.lists(finite, min_size=1, max_size=40), st.randoms())
def test_the_order_of_ranks_does_not_matter(values: list[float], random: object) -> None:
    ranks = [Measurement(THROUGHPUT, value, "", "f", rank) for rank, value in enumerate(values)]
    shuffled = list(ranks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert total(ranks) == total(shuffled)


@pytest.mark.parametrize(
    ("value", "text"), [(14151.18, "14151.2"), (1234567.0, "1234567"), (0.7706, "0.7706"), (1e-9, "1e-09")]
)
def test_numbers_as_a_person_writes_them(value: float, text: str) -> None:
    assert number(value) == text
