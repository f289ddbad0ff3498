"""What a log measures by itself, claimed beside what the script wrote and never mixed with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories import UNIT, make_case, make_measurements, make_trial

from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.model.case import Mode
from pytest_aisbench.model.metric import ACCURACY, STEADY_THROUGHPUT, THROUGHPUT, TIME_TO_ACCURACY
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Outcome, Ruling, Threshold, Verdict
from pytest_aisbench.traininglog.curve import read_curve

PLAIN = (Threshold(THROUGHPUT, UNIT, at_least=100.0), Threshold(ACCURACY, at_least=0.9))
STEADY = Threshold(STEADY_THROUGHPUT, UNIT, at_least=600.0)
SOON = Threshold(TIME_TO_ACCURACY, "s", at_most=60.0)
EPOCHS = "".join(
    f"epoch: {epoch} step: 10, loss is 1.0\nTrain epoch time: 1 ms, per step time: {ms} ms\n"
    for epoch, ms in enumerate((200, 100, 100, 100, 100), start=1)
)
DONE = (
    "train done starttime:1 endtime:2 stepsize:10 batchsize:16 epochsize:5 alldatasum:800 single_throughput_rate:90\n"
)
EVALUATED = "eval epoch: 5, accuracy: 0.95, elapsed: 40 s\n"


def trial(log: str, *claims: Threshold, shape: str = "2x2", mode: Mode = Mode.CLUSTER) -> Trial:
    case = make_case(shape, *PLAIN, *claims, mode=mode)
    return make_trial(case, measurements=make_measurements(case), curve=read_curve(log) if log else None)


def judged(tried: Trial) -> Verdict:
    return evaluate(case_values(tried)).verdict


def test_steady_state_and_whole_run_are_judged_apart_and_named() -> None:
    verdict = judged(trial(EPOCHS + DONE, STEADY))
    assert verdict.passed
    limit = "t at 1 - 0.05 of the normal distribution; s is assumed to be 2% of the mean: no comparable earlier trials)"
    inside = "is inside the limits"
    how = "steady state, from the log of one rank × 4, without a warm-up of 1 point"
    assert [finding.text for finding in verdict.findings] == [
        (
            f"throughput 400 images/s, wanted >= 100 images/s: the interval 386.841 .. 413.159 {inside}"
            f" (± 13.16 = t 1.645 × s 8; {limit}; over the whole run"
        ),
        "accuracy 0.95, wanted >= 0.9",
        (
            f"steady_throughput 640 images/s, wanted >= 600 images/s: the interval 618.946 .. 661.054 {inside}"
            f" (± 21.05 = t 1.645 × s 12.8; {limit}; {how}"
        ),
    ]
    slow = judged(trial(EPOCHS + DONE, replace(STEADY, at_least=680.0)))
    assert slow.ruling is Ruling.FAILED
    assert slow.reason.startswith("steady_throughput 640 images/s, wanted >= 680 images/s (5.9% below)")


def test_a_good_steady_state_saves_no_slow_run() -> None:
    tried = trial(EPOCHS + DONE, STEADY)
    slow = replace(tried, case=replace(tried.case, thresholds=(replace(PLAIN[0], at_least=500.0), PLAIN[1], STEADY)))
    assert judged(slow).ruling is Ruling.FAILED
    assert judged(slow).reason.startswith("throughput 400 images/s")


def test_the_speed_of_a_whole_job_is_taken_as_it_is() -> None:
    lines = "".join(
        f':::MLLOG {{"time_ms": 1, "key": "throughput", "value": {speed}}}\n' for speed in (50, 700, 700, 700)
    )
    assert case_values(trial(lines)).values[STEADY_THROUGHPUT] == 700.0


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("", "the log shows no speed"),
        (EPOCHS, "the log shows steps/s, but not how many samples a step has"),
        (DONE, "the log shows too few speeds to separate the steady state from the warm-up"),
        ("step: 1  loss:  5.9  tps: 829  mfu: 2.34%\n", "the log shows tokens/s, but the throughput is in images/s"),
    ],
)
def test_a_steady_state_that_the_log_does_not_tell_is_unmeasured(log: str, why: str) -> None:
    verdict = judged(trial(log, STEADY))
    assert verdict.ruling is Ruling.FAILED
    assert verdict.reason == f"steady_throughput: not measured: {why}"
    assert judged(trial(log)).passed  # nobody asked


def test_time_to_accuracy_is_judged_where_the_log_tells_it() -> None:
    verdict = judged(trial(EPOCHS + EVALUATED, SOON))
    assert verdict.passed
    assert (
        verdict.findings[-1].text == "time_to_accuracy 40 s, wanted <= 60 s; until the first evaluation at 0.9 or more"
    )
    assert judged(trial(EVALUATED, replace(SOON, at_most=39.0))).ruling is Ruling.FAILED


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("", "the log shows no evaluation"),
        ("eval ckpt result:{'accuracy': 0.95}\n", "the log does not show when its evaluations happened"),
        ("eval epoch: 5, accuracy: 0.85, elapsed: 40 s\n", "no evaluation in the log reached 0.9; the best is 0.85"),
        (
            "eval epoch: 5, accuracy: 85, elapsed: 40 s\n",
            "the log's evaluations are not ratios between 0 and 1, but the accuracy is",
        ),
    ],
)
def test_an_accuracy_that_was_not_seen_to_be_reached_has_no_time(log: str, why: str) -> None:
    tried = trial(log, SOON)
    [finding] = [each for each in judged(tried).findings if each.metric == TIME_TO_ACCURACY]
    assert (finding.outcome, finding.text) == (Outcome.UNMEASURED, f"time_to_accuracy: not measured: {why}")
    assert judged(tried).ruling is Ruling.FAILED


def test_there_is_no_time_to_an_accuracy_that_nobody_claims() -> None:
    tried = trial(EVALUATED)
    upper = replace(tried, case=replace(tried.case, thresholds=(PLAIN[0], Threshold(ACCURACY, at_most=0.99))))
    assert TIME_TO_ACCURACY in case_values(tried).values
    assert TIME_TO_ACCURACY not in case_values(upper).values
    claimed = replace(upper, case=replace(upper.case, thresholds=(*upper.case.thresholds, SOON)))
    assert [each.text for each in case_values(claimed).missing] == [
        "not measured: the threshold on accuracy has no lower bound to reach"
    ]


def test_nodes_that_train_alone_have_one_log_each_and_one_is_read() -> None:
    log = EPOCHS + DONE + EVALUATED
    alone = trial(log, STEADY, SOON, mode=Mode.SINGLE_SERVER)
    assert judged(alone).ruling is Ruling.FAILED
    assert {each.metric for each in case_values(alone).missing} == {STEADY_THROUGHPUT, TIME_TO_ACCURACY}
    one = trial(log, replace(STEADY, at_least=300.0), SOON, shape="1x2", mode=Mode.SINGLE_SERVER)
    assert judged(one).passed
    assert case_values(one).values[STEADY_THROUGHPUT] == 320.0


def test_the_metrics_of_a_case_are_the_workloads_own() -> None:
    tried = trial(EPOCHS + DONE, STEADY)
    assert set(case_entry(tried.case, (tried,), judged(tried)).metrics) == {THROUGHPUT, ACCURACY}
