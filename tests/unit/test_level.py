"""Which part of a history tells the noise."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.judge.noise_test import ALPHA, decide
from pytest_aisbench.judge.trend import Level, newest_level
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.verdict import Outcome, Threshold

CLAIM = Threshold("throughput", "images/s", reference=100.0, lower=-0.05)
ONE = Shape(1, 1)
QUIET = (99.8, 100.1, 100.0, 99.9, 100.2, 100.0, 99.7, 100.3, 100.1)


def test_a_fault_that_was_is_left_out_wherever_it_is() -> None:
    for at in range(len(QUIET) + 1):
        assert newest_level([*QUIET[:at], 70.0, *QUIET[at:]]) == Level(QUIET, (70.0,))
    assert newest_level([*QUIET, 140.0]).left_out == (140.0,)


def test_what_happens_more_often_than_one_time_in_ten_is_how_the_machine_is() -> None:
    twice = (70.0, *QUIET, 71.0)
    assert newest_level(twice) == Level(twice)
    assert newest_level([70.0, *QUIET, *QUIET, 71.0]).left_out == (70.0, 71.0)


def test_of_few_values_nobody_knows_which_is_the_fault() -> None:
    assert newest_level([*QUIET[:8], 70.0]).left_out == ()
    assert newest_level([]) == Level(())


def test_what_hardly_matters_is_noise() -> None:
    assert newest_level([*[100.0] * 12, 101.9]).left_out == ()
    assert newest_level([*[100.0] * 12, 102.1]).left_out == (102.1,)


def test_a_step_that_once_was_is_passed_over() -> None:
    stepped = newest_level([*(value * 1.3 for value in QUIET), *QUIET])
    assert stepped == Level(QUIET)


@given(st.lists(st.floats(0.1, 1e6), max_size=40))
def test_nothing_is_added_and_at_most_a_tenth_is_left_out(history: list[float]) -> None:
    level = newest_level(history)
    assert not Counter(level.values) + Counter(level.left_out) - Counter(history)
    assert len(level.left_out) * 10 <= len(level.values) + len(level.left_out)
    assert bool(level.values) == bool(history)


@pytest.mark.parametrize("known", [10, 40])
@pytest.mark.parametrize(("tails", "promise"), [(0, ALPHA), (4, 0.07)])
def test_choosing_values_keeps_the_promise_of_the_gate(known: int, tails: int, promise: float) -> None:
    """On the limit; with heavy tails (Student's t with 4 degrees), whose far values are noise, nearly so."""
    rounds, dice = 1000, random.Random(f"{known} {tails}")
    counted: Counter[Outcome] = Counter()

    def draw(mean: float) -> float:
        wide = (sum(dice.gauss(0, 1) ** 2 for _ in range(tails)) / 2) ** 0.5 if tails else 1.0
        return mean + dice.gauss(0, 2.0) / wide

    for _ in range(rounds):
        level = newest_level([draw(100.0) for _ in range(known)]).values
        trials: list[float] = []
        again = True
        while again:
            trials.append(draw(95.0))
            decision = decide(CLAIM, ONE, level, trials, 3)
            again = decision.needs_another_trial
        counted[decision.outcome] += 1
    allowed = rounds * promise + 3 * (rounds * promise * (1 - promise)) ** 0.5
    assert counted[Outcome.MET] <= allowed
    assert counted[Outcome.MISSED] <= allowed
