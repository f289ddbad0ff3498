"""Declines and changes over history: seen when they are there, and not seen when they are not."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.judge.trend import NO_DRIFT, ChangePoint, change_points, find_drift
from pytest_aisbench.model.verdict import Outcome

values = st.lists(st.floats(-1e6, 1e6), max_size=60)


def noise(count: int, level: float = 100.0, share: float = 0.003, seed: int = 1) -> list[float]:
    dice = random.Random(seed)
    return [dice.gauss(level, level * share) for _ in range(count)]


def test_the_slow_decline_that_no_comparison_with_the_run_before_sees() -> None:
    dice = random.Random(7)
    history = [100.0 * (1 - 0.0015 * run) + dice.gauss(0.0, 0.3) for run in range(30)]
    assert all(after >= before * 0.98 for before, after in itertools.pairwise(history))
    found = find_drift(history, 100.0)
    assert found
    assert found.change == pytest.approx(-0.04, abs=0.008)
    assert found.since <= 3
    assert find_drift(history)  # also against its own beginning
    seen = next(count for count in range(len(history)) if find_drift(history[:count], 100.0))
    assert seen <= 20  # long before 5 % are lost
    assert find_drift(history, 97.0) is None  # a decline that hardly matters


def test_a_drift_in_one_line() -> None:
    history = [100.0, 101.0] * 6 + [96.0, 97.0] * 4
    found = find_drift(history, 100.5)
    assert found
    assert found.text("throughput", "images/s") == (
        "throughput has drifted to 97 images/s, -3.5% from the anchor 100.5 images/s, since value 13 of 20"
        " (CUSUM 20.0 > 5, s 1.04833)"
    )
    finding = found.finding("throughput", "images/s", "run-12")
    assert (finding.outcome, finding.wanted) == (Outcome.MISSED, NO_DRIFT)
    assert finding.text == f"{found.text('throughput', 'images/s')}: from run run-12 on"


def test_one_slow_run_is_no_drift_and_two_are_none() -> None:
    assert find_drift([*noise(20), 90.0], 100.0) is None
    assert find_drift([*noise(20), 90.0, 90.0], 100.0) is None
    assert find_drift([*noise(20), 90.0, 90.0, 90.0], 100.0)


def test_a_decline_that_was_made_good_is_over() -> None:
    assert find_drift([*noise(10), *noise(6, 95.0), *noise(5)], 100.0) is None


def test_a_speed_that_grows_is_no_decline() -> None:
    assert find_drift([*noise(12), *noise(10, 105.0)], 100.0) is None


def test_too_few_values_say_nothing() -> None:
    assert find_drift([90.0 + value for value in range(7)], 100.0) is None
    assert find_drift(noise(10, 90.0) + noise(7, 80.0)) is None


@pytest.mark.parametrize("share", [0.001, 0.003, 0.01])
def test_noise_alone_hardly_ever_drifts(share: float) -> None:
    found = [find_drift(noise(60, share=share, seed=seed), 100.0) for seed in range(200)]
    assert sum(each is not None for each in found) <= 1


@given(values, st.none() | st.floats(-1e6, 1e6))
def test_a_drift_is_below_its_anchor_and_by_enough(history: list[float], anchor: float | None) -> None:
    if found := find_drift(history, anchor):
        assert found.level < found.anchor
        assert found.change <= -0.02 + 1e-9
        assert 0 <= found.since < len(history)
        assert found.text("m")


@given(st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), max_size=5), st.integers(0, 25))
def test_what_is_no_number_is_passed_over(rubbish: list[float], at: int) -> None:
    history = [*noise(15), *noise(10, 95.0)]
    mixed = [*history[:at], *rubbish, *history[at:]]
    plain, found = find_drift(history, 100.0), find_drift(mixed, 100.0)
    assert plain
    assert found
    assert found.level == plain.level
    assert [mixed[change.index] for change in change_points(mixed)] == [
        history[change.index] for change in change_points(history)
    ]


def test_a_change_is_found_where_it_is() -> None:
    (change,) = change_points([*noise(20), *noise(6, 95.0, seed=2)])
    assert change.index == 20
    assert change.share == pytest.approx(-0.05, abs=0.003)
    assert ChangePoint(20, 100.0, 95.0).text("throughput", "images/s") == (
        "throughput changed by -5.0% at value 21, from 100 to 95 images/s"
    )


def test_several_changes_are_found_in_their_order() -> None:
    history = [*noise(15), *noise(10, 90.0, seed=2), *noise(12, 100.0, seed=3), *noise(9, 110.0, seed=4)]
    assert [change.index for change in change_points(history)] == [15, 25, 37]


def test_a_change_that_does_not_matter_is_left_out() -> None:
    history = [*noise(30, share=0.001), *noise(30, 99.0, share=0.001)]
    assert change_points(history) == []
    history = [*noise(30, share=0.001), *noise(30, 97.0, share=0.001)]
    assert [change.index for change in change_points(history)] == [30]


def test_a_few_slow_runs_are_no_new_level() -> None:
    history = noise(30)
    history[12] = history[20] = history[21] = 80.0
    assert change_points(history) == []
    history[22] = 80.0
    assert [change.index for change in change_points(history)] == [20, 23]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.04])
def test_noise_alone_hardly_ever_changes(share: float) -> None:
    found = [change_points(noise(60, share=share, seed=seed)) for seed in range(200)]
    assert sum(bool(each) for each in found) <= 1


@given(values)
def test_changes_are_where_levels_differ(history: list[float]) -> None:
    found = change_points(history)
    places = [change.index for change in found]
    assert places == sorted(set(places))
    assert all(3 <= index <= len(history) - 3 for index in places)
    assert all(abs(change.share) >= 0.02 for change in found)
    for one, other in itertools.pairwise(found):
        assert one.after == other.before


def test_constant_values_neither_drift_nor_change() -> None:
    assert find_drift([100.1] * 40, 100.1) is None
    assert change_points([100.1] * 40) == []
    (step,) = change_points([100.0] * 20 + [90.0] * 5)
    assert step.index == 20
