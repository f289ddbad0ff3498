"""Change points, drifts, the newest level and suspicions: found when they are there, and not when they are not."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from statistics import fmean, stdev

import levels
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.judge.noise_test import ALPHA, decide
from pytest_aisbench.judge.trend import (
    NO_DRIFT,
    ChangePoint,
    Level,
    change_points,
    find_drift,
    identical,
    loss_within_margin,
    newest_level,
    suspicions,
    too_good,
)
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.verdict import Outcome, Threshold

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


@pytest.mark.parametrize("healthy", [4, 6, 9, 15])
def test_a_fall_is_measured_from_the_first_level_however_short(healthy: int) -> None:
    found = find_drift([*noise(healthy), *noise(20, 27.0, seed=2)])
    assert found
    assert found.change == pytest.approx(-0.73, abs=0.005)
    assert healthy - 4 <= found.since <= healthy


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


def test_slow_runs_that_pass_are_no_new_level() -> None:
    history = noise(30)
    history[12] = history[20] = history[21] = 80.0
    assert change_points(history) == []
    history[12], history[22] = history[13], 80.0
    assert change_points(history) == []
    assert newest_level(history).left_out == (80.0,) * 3
    history[20:] = [80.0 + value for value in noise(10, 0.0, seed=2)]
    assert [change.index for change in change_points(history)] == [20]


def test_a_level_of_ten_values_is_one() -> None:
    history = [*noise(15), *noise(10, 90.0, seed=2), *noise(15, seed=3)]
    assert [change.index for change in change_points(history)] == [15, 25]


@pytest.mark.parametrize("alike", [0.5, 0.7])
def test_noise_that_is_alike_from_value_to_value_is_no_change(alike: float) -> None:
    """Independent noise of 1 % hides nothing; the same noise, alike from run to run, looks like levels of its own."""
    alarmed = 0
    for seed in range(200):
        dice = random.Random(seed)
        wander, history = dice.gauss(0.0, 1.0), []
        for _ in range(60):
            wander = alike * wander + math.sqrt(1 - alike**2) * dice.gauss(0.0, 1.0)
            history.append(100.0 + wander)
        alarmed += bool(change_points(history))
    assert alarmed <= 10


@pytest.mark.parametrize("share", [0.001, 0.01, 0.04])
def test_noise_alone_hardly_ever_changes(share: float) -> None:
    found = [change_points(noise(60, share=share, seed=seed)) for seed in range(200)]
    assert sum(bool(each) for each in found) <= 1


def test_changes_are_told_from_noise_as_machines_have_it() -> None:
    """The windows of tests/bench/levels.py, on which a rolling t-test has an F1 of .79 and alarms 14 % of the quiet."""
    found = levels.score(levels.ours, levels.windows(600))
    assert found.f1 >= 0.80
    assert found.alarmed <= 0.05


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


@pytest.mark.parametrize("known", range(3, 10))
@pytest.mark.parametrize("share", [0.001, 0.01, 0.02])
def test_one_fault_in_a_short_history_leaves_no_later_case_undecided(known: int, share: float) -> None:
    kept = undecided = 0
    for seed in range(100):
        history = noise(known - 1, share=share, seed=seed)
        history.insert(seed % known, 70.0)
        level = newest_level(history)
        kept += level.left_out != (70.0,)
        trials = noise(3, share=share, seed=1000 + seed)
        undecided += decide(CLAIM, ONE, level.values, trials, 3).outcome is not Outcome.MET
    assert kept <= (2 if known == 3 else 0)  # two values that happen to lie far apart
    assert undecided <= (30 if share > 0.01 else 10)


def test_of_few_values_that_differ_widely_none_is_a_fault() -> None:
    laptop = (1773.0, 1476.0, 2875.0)
    assert newest_level(laptop) == Level(laptop)
    assert newest_level([100.0, 100.1, 90.0]).left_out == ()  # 10 % may be noise: three values do not tell
    assert newest_level([100.0, 70.0]).left_out == ()
    assert newest_level([]) == Level(())


def test_what_hardly_matters_is_noise() -> None:
    assert newest_level([*[100.0] * 12, 101.9]).left_out == ()
    assert newest_level([*[100.0] * 12, 102.1]).left_out == (102.1,)


def test_a_step_that_once_was_is_passed_over() -> None:
    stepped = newest_level([*(value * 1.3 for value in QUIET), *QUIET])
    assert stepped == Level(QUIET)


def wandering(seed: int) -> list[float]:
    """Around 100 with a deviation of 2, each value alike the one before (0.9)."""
    dice = random.Random(seed)
    values = [dice.gauss(100.0, 2.0)]
    while len(values) < 30:
        values.append(100 + 0.9 * (values[-1] - 100) + dice.gauss(0.0, 2 * math.sqrt(1 - 0.9**2)))
    return values


def test_what_wanders_from_level_to_level_is_as_noisy_as_it_goes_far() -> None:
    histories = [history for history in map(wandering, range(60)) if len(newest_level(history).values) < 30]
    found = [newest_level(history) for history in histories]
    assert sum(level.wander > 0 for level in found) > 0.7 * len(found)
    assert fmean(stdev(level.values) for level in found) < 1.4
    assert 1.6 < fmean(level.wander for level in found if level.wander) < 2.2
    jumped = [newest_level([value + 20 * (run < 24) for run, value in enumerate(each)]) for each in histories]
    assert sum(level.wander > 0 for level in jumped) < 0.1 * len(found)  # after a jump the machine is another one


def test_a_machine_that_changed_once_does_not_wander() -> None:
    assert newest_level([*noise(15, 110.0, 0.01), *noise(15, share=0.01)]).wander == 0
    slid = newest_level([value + max(18 - run, 0) / 3 for run, value in enumerate(noise(40, share=0.001))])
    assert 0 < slid.wander < 0.5  # its steps are small, and so is what it may wander


@given(st.lists(st.floats(0.1, 1e6), max_size=40))
def test_nothing_is_added_and_at_most_a_tenth_is_left_out(history: list[float]) -> None:
    level = newest_level(history)
    assert not Counter(level.values) + Counter(level.left_out) - Counter(history)
    assert len(level.left_out) * 10 <= max(len(level.values) + len(level.left_out), 10)
    assert bool(level.values) == bool(history)


@pytest.mark.parametrize("known", [10, 40])
@pytest.mark.parametrize(("tails", "promise"), [(0, ALPHA), (4, 0.07)])
@pytest.mark.slow
def test_choosing_values_keeps_the_promise_of_the_gate(known: int, tails: int, promise: float) -> None:
    """On the limit; with heavy tails (Student's t with 4 degrees of freedom), whose far values are noise, nearly so."""
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


def test_trials_that_agree_to_all_digits_are_worth_a_look() -> None:
    assert identical(ACCURACY, [0.77062] * 3) == (
        "accuracy is 0.77062 in all 3 trials, identical in every digit:"
        " does each trial really train, with its own seed?"
    )
    assert identical(ACCURACY, [0.77062, 0.77062, 0.77061]) == ""
    assert identical(ACCURACY, [0.77062] * 2) == ""
    assert identical(ACCURACY, [math.inf] * 3) == ""
    assert identical(ACCURACY, []) == ""


def test_runs_of_one_trial_that_agree_to_all_digits_are_told_by_the_third() -> None:
    assert identical(ACCURACY, [0.77062], [0.77, 0.77062, 0.77062]).startswith(
        "accuracy is 0.77062 in the last 3 comparable trials, identical in every digit"
    )
    assert identical(ACCURACY, [0.77062] * 2, [0.77, 0.77062])
    assert identical(ACCURACY, [0.77062], [0.77062] * 3) == ""  # it has been told
    assert identical(ACCURACY, [0.77062], [0.77062, 0.77062, 0.77]) == ""
    assert identical(ACCURACY, [0.77062, 0.77], [0.77062] * 2) == ""
    assert "in all 3 trials" in identical(ACCURACY, [0.77062] * 3, [0.77062] * 5)


def test_a_result_far_above_history_is_worth_a_look() -> None:
    history = [0.7705, 0.7706, 0.7707, 0.7706]
    assert too_good(ACCURACY, 0.81, history) == (
        "accuracy 0.81 is 5.1% above the mean 0.7706 of 4 earlier trials:"
        " is the measurement right, and the data the same?"
    )
    assert too_good(ACCURACY, 0.775, history) == ""  # beyond its noise, and no matter
    assert too_good(ACCURACY, 0.70, history) == ""  # that is the verdict's business
    assert too_good(ACCURACY, 0.81, history[:2]) == ""
    assert too_good(ACCURACY, 0.81, [0.6, 0.7, 0.8]) == ""  # its history is as wild
    assert too_good(ACCURACY, math.nan, history) == ""
    speeds = [14_147.0, 14_155.0, 14_151.0]
    assert "above the mean 14151 images/s of 3 earlier trials" in too_good(THROUGHPUT, 15_500.0, speeds, "images/s")
    assert too_good(THROUGHPUT, 14_600.0, speeds) == ""


def test_a_loss_that_a_wide_margin_lets_pass_is_worth_a_word() -> None:
    """A fixed -5 % is blind to a loss of 3 % on a quiet system."""
    quiet = [14_147.0, 14_155.0, 14_151.0, 14_149.0, 14_153.0]
    assert loss_within_margin(THROUGHPUT, 13_726.0, quiet, "images/s") == (
        "throughput 13726 images/s is 3.0% below the mean 14151 images/s of 5 earlier trials:"
        " more than noise, although the threshold allows it"
    )
    assert loss_within_margin(THROUGHPUT, 13_900.0, quiet) == ""  # beyond its noise, and no matter
    assert loss_within_margin(THROUGHPUT, 15_500.0, quiet) == ""
    assert loss_within_margin(THROUGHPUT, 13_726.0, quiet[:2]) == ""
    assert loss_within_margin(THROUGHPUT, 13_726.0, [14_000.0, 13_500.0, 14_500.0]) == ""  # its history is as wild
    assert "below the mean 0.7706" in loss_within_margin(ACCURACY, 0.76, [0.7705, 0.7706, 0.7707, 0.7706])


def test_each_suspicion_is_told_once() -> None:
    told = suspicions(ACCURACY, [0.9] * 3, [0.70, 0.71, 0.70])
    assert len(told) == 2
    assert suspicions(ACCURACY, [0.71, 0.70], [0.70, 0.71, 0.70]) == []
