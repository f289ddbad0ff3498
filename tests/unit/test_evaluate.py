"""A trial is judged with the others of its case, with comparable history, and with other shapes."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_case, make_measurements
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import VerdictStep
from pytest_aisbench.judge.comparison import traits_key
from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.judge.evaluate import Evaluation, Evidence, Rules, evaluate
from pytest_aisbench.judge.scaling import Speed
from pytest_aisbench.judge.values import CaseValues, case_values
from pytest_aisbench.ledger.history import History
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case, Mode, Shape
from pytest_aisbench.model.metric import Metric
from pytest_aisbench.model.trial import Step, Trial, TrialRecord
from pytest_aisbench.model.verdict import ExpectedFailure, Outcome, Ruling, Threshold, Verdict

SPEED = Threshold("throughput", "images/s", reference=100.0, lower=-0.05)
LEARNT = Threshold("accuracy", at_least=0.9)
SCALING = Threshold("scaling", at_least=0.9, base="1x1")
RULES = Rules(max_trials=3)
NOISY = [99.0, 101.0] * 9 + [98.9, 101.1]  # a standard deviation of about 1


@pytest.fixture
def one(case: Case) -> Case:
    return replace(case, shape=Shape(1, 1), thresholds=(SPEED, LEARNT))


def trial(case: Case, speed: float, learnt: float = 0.95, number: int = 1, **other: Any) -> Trial:
    """Harvested; `speed` is the whole job's."""
    found = make_measurements(case, speed / case.judged_shape.world, learnt)
    made = replace(new_trial("now", case, 0.0, number), measurements=found, step=Step.JUDGE)
    return replace(made, **{"traits": {"nodes": str(case.shape.nodes), "code": "c0de"}, **other})


def past(case: Case, speeds: Sequence[float], learnt: float = 0.95, **other: Any) -> tuple[TrialRecord, ...]:
    told = {
        "case_id": case.id,
        "workload": "toy",
        "shape": str(case.shape),
        "mode": "cluster",
        "key": "k",
        "family": "f",
    }
    return tuple(
        TrialRecord(
            **{
                "trial": f"r{at}/1",
                "run": f"r{at}",
                "at": float(at),
                "throughput": speed,
                **told,
                "accuracy": learnt,
                **other,
            }
        )
        for at, speed in enumerate(speeds)
    )


def judge(judged: Trial, evidence: Evidence | None = None, rules: Rules = RULES) -> Evaluation:
    return evaluate(case_values(judged), evidence or Evidence(), rules)


def earlier(*trials: Trial) -> tuple[CaseValues, ...]:
    return tuple(map(case_values, trials))


def test_without_history_a_noise_is_assumed_and_the_workload_may_name_it(one: Case) -> None:
    for speed, ruling in ((100.0, Ruling.PASSED), (96.0, Ruling.INCONCLUSIVE), (90.0, Ruling.FAILED)):
        evaluation = judge(trial(one, speed))
        assert evaluation.verdict.ruling is ruling
        assert bool(evaluation.another_trial) == (ruling is Ruling.INCONCLUSIVE)
        assert evaluation.background.interval
    metrics = {**one.workload.metrics, "throughput": Metric("throughput", "images/s", noise=0.001)}
    quiet = replace(one, workload=replace(one.workload, metrics=metrics))
    evaluation = judge(trial(quiet, 96.0))
    assert evaluation.verdict.passed
    assert "s is assumed to be 0.1% of the mean: no comparable earlier trials" in evaluation.findings[0].text


def test_the_noise_that_is_assumed_of_an_accuracy_is_a_tenth_of_that_of_a_speed(one: Case) -> None:
    about = replace(one, thresholds=(SPEED, Threshold("accuracy", reference=0.95, lower=-0.01)))
    assert judge(trial(about, 100.0, 0.951)).verdict.passed
    assert "assumed to be 0.2% of the mean" in judge(trial(about, 100.0, 0.951)).findings[1].text


def test_a_trial_that_noise_leaves_open_asks_for_another_and_both_decide(one: Case) -> None:
    first = trial(one, 98.0)
    evidence = Evidence(history=past(one, NOISY))
    open_ = judge(first, evidence)
    assert open_.verdict.ruling is Ruling.INCONCLUSIVE
    assert "crosses the limit: undecided after 1 of at most 3 trials" in open_.another_trial
    second = trial(one, 99.0, number=2)
    decided = judge(second, replace(evidence, earlier=earlier(first)))
    verdict = decided.verdict
    assert (verdict.ruling, decided.another_trial) == (Ruling.PASSED, "")
    assert verdict.findings[0].measured == 98.5
    assert "98.5 images/s, mean of 2 trials," in verdict.reason
    entry = case_entry(one, (first, replace(second, judged=verdict)), verdict)
    assert entry.metrics["throughput"].value == 98.5  # what was judged is what is reported


def test_trials_that_were_lost_leave_fewer_to_decide(one: Case) -> None:
    third = trial(one, 95.0, number=3)
    evaluation = judge(third, Evidence(history=past(one, NOISY)))
    assert (evaluation.verdict.ruling, evaluation.another_trial) == (Ruling.INCONCLUSIVE, "")
    assert "no further trial: 2 of 3 trials were lost" in evaluation.findings[0].text


def test_a_trial_that_was_not_accurate_is_not_forgotten(one: Case) -> None:
    """Or one would be tried again until it is lucky."""
    by_reference = replace(one, thresholds=(SPEED, Threshold("accuracy", reference=0.9, lower=-0.01)))
    evidence = Evidence(earlier(trial(by_reference, 100.0, 0.80)), past(one, NOISY))
    lucky = trial(by_reference, 100.0, 0.99, number=2)
    found = next(each for each in judge(lucky, evidence).findings if each.metric == "accuracy")
    assert found.measured == pytest.approx(0.895)


@pytest.mark.parametrize(("bad", "at"), [((0.95, 0.4), 2), ((0.4, 0.95), 1)])
def test_every_trial_must_meet_a_bare_limit(one: Case, bad: tuple[float, float], at: int) -> None:
    second = trial(one, 100.0, bad[1], number=2)
    told = judge(second, Evidence(earlier(trial(one, 100.0, bad[0])))).verdict
    assert told.ruling is Ruling.FAILED
    assert told.reason == f"accuracy 0.4 in trial {at}, wanted >= 0.9 (55.6% below)"


def test_a_step_that_once_was_is_no_noise(one: Case) -> None:
    stepped = [*(speed * 1.3 for speed in NOISY), *NOISY]
    (speed, *_) = judge(trial(one, 103.0), Evidence(history=past(one, stepped))).findings
    assert speed.outcome is Outcome.MET
    assert "20 earlier trials" in speed.text


def test_a_fault_that_was_repaired_does_not_leave_every_later_case_open(one: Case) -> None:
    repaired = [*NOISY[:7], 60.0, *NOISY[7:]]
    (speed, *_) = judge(trial(one, 103.0), Evidence(history=past(one, repaired))).findings
    assert speed.outcome is Outcome.MET
    assert speed.text.endswith("20 earlier trials, without outliers 60)")
    often = [speed if at % 5 else 60.0 for at, speed in enumerate(NOISY)]
    (speed, *_) = judge(trial(one, 100.0), Evidence(history=past(one, often))).findings
    assert speed.outcome is Outcome.UNDECIDED


def test_speeds_without_accuracy_teach_nothing(one: Case) -> None:
    fast = past(one, [500.0, 600.0, 700.0], counts=False)
    evaluation = judge(trial(one, 100.0), Evidence(history=fast))
    assert "no comparable earlier trials" in evaluation.findings[0].text
    assert evaluation.background.history == ()


def test_a_slow_decline_is_seen_against_the_reference_and_fails_only_where_asked(one: Case) -> None:
    dice = random.Random(7)
    speeds = [100.0 * (1 - 0.00075 * at) + dice.gauss(0, 0.2) for at in range(40)]
    assert max(before / after for before, after in itertools.pairwise(speeds)) < 1.02  # nobody sees it
    wide = replace(one, thresholds=(replace(SPEED, lower=-0.1), LEARNT))
    newest, evidence = trial(wide, 97.0), Evidence(history=past(wide, speeds))
    warned = judge(newest, evidence)
    assert warned.verdict.passed
    assert warned.background.warnings[0].startswith("throughput has drifted to 97")
    failed = judge(newest, evidence, replace(RULES, drift_fails=True))
    assert failed.verdict.ruling is Ruling.FAILED
    assert not any("drifted" in warning for warning in failed.background.warnings)


def test_without_a_reference_the_oldest_trials_are_the_anchor_however_long_ago(one: Case) -> None:
    bare = replace(one, thresholds=(Threshold("throughput", "images/s", at_least=1.0), LEARNT))
    dice = random.Random(3)
    level = past(bare, [95.0 + dice.gauss(0, 0.3) for _ in range(100)])  # all that is in sight is lower
    first = past(bare, [100.0 + dice.gauss(0, 0.3) for _ in range(10)])
    assert not judge(trial(bare, 95.0), Evidence(history=level)).background.warnings
    (warning,) = judge(trial(bare, 95.0), Evidence(history=level, oldest=first)).background.warnings
    assert "throughput is 95 images/s, -4.9% from 99.9133 images/s that it is held against, and was below" in warning


def test_a_new_level_is_news_for_a_while_and_names_its_run(one: Case) -> None:
    bare = replace(one, thresholds=(Threshold("throughput", "images/s", at_least=1.0), LEARNT))

    def told(newer: int) -> list[str]:
        known = Evidence(history=past(bare, [*NOISY, *[90.0, 90.5] * newer]))
        return [each for each in judge(trial(bare, 90.0), known).background.warnings if "changed" in each]

    (warning,) = told(2)
    assert warning.startswith("throughput changed by -10")
    assert warning.endswith(": run r20")
    assert told(8) == []


def test_what_is_too_good_or_too_alike_is_a_warning_and_no_verdict(one: Case) -> None:
    last = trial(one, 130.0, 0.95, number=3)
    evidence = Evidence(earlier(trial(one, 99.0), trial(one, 100.0, number=2)), past(one, NOISY, learnt=0.9501))
    evaluation = judge(last, evidence)
    assert [warning.partition(":")[0] for warning in evaluation.background.warnings] == [
        "throughput 130 images/s is 30.0% above the mean 100 images/s of 20 earlier trials",
        "accuracy is 0.95 in all 3 trials, identical in every digit",
    ]


def test_a_loss_is_told_in_the_first_run_that_has_it_unless_the_verdict_tells_it(one: Case) -> None:
    known = Evidence(history=past(one, [99.9, 100.1] * 10))
    (warning,) = judge(trial(one, 97.0), known).background.warnings
    assert warning.startswith("throughput 97 images/s is 3.0% below the mean 100 images/s of 20 earlier trials: ")
    assert judge(trial(one, 90.0), known).background.warnings == ()


def test_what_goes_with_a_verdict_is_bounded(one: Case) -> None:
    before = trial(one, 97.0, times={"done": 7.0})
    known = Evidence(earlier(before), past(one, NOISY * 5), changed=("code: a -> b",))
    told = judge(trial(one, 98.0, number=2), known).background
    assert (told.reference, told.low, told.high) == (100.0, 95.0, None)
    assert told.interval is not None
    assert told.interval[0] < 97.5 < told.interval[1]
    assert len(told.history) == 60
    assert (told.history[-1].run, told.history[-1].at, told.history[-1].value) == ("now", 7.0, 97.0)
    assert told.changed == ("code: a -> b",)


def test_scaling_is_judged_by_the_mean_of_all_trials(one: Case) -> None:
    wide = replace(one, shape=Shape(2, 1), thresholds=(replace(SPEED, per="node"), LEARNT, SCALING))
    known = Evidence(earlier(trial(wide, 196.0)), base=Speed(Shape(1, 1), 100.0))
    found = next(each for each in judge(trial(wide, 200.0, number=2), known).findings if each.metric == "scaling")
    assert found.outcome is Outcome.MET
    assert found.measured == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("shape", "base", "said"),
    [
        (Shape(2, 2), "1x2", "waived, every node trains alone, so nothing scales from 1x2 to 2x2"),
        (Shape(4, 2), "2x2", "waived, every node trains alone, so nothing scales from 2x2 to 4x2"),
        (Shape(1, 2), "1x2", "waived, 1x2 is the base itself"),
        (
            Shape(2, 2),
            "1x1",
            "scaling 0.9, 90 images/s per card at 1x2 and 100 images/s at 1x1 (this run), wanted >= 0.8",
        ),
    ],
)
def test_nodes_that_train_alone_scale_by_their_cards_only(case: Case, shape: Shape, base: str, said: str) -> None:
    claim = replace(SCALING, base=base, at_least=0.8)
    alone = replace(case, shape=shape, mode=Mode.SINGLE_SERVER, thresholds=(SPEED, LEARNT, claim))
    evaluation = judge(trial(alone, 180.0), Evidence(base=Speed(Shape(1, 1), 100.0)))
    found = next(each for each in evaluation.findings if each.metric == "scaling")
    assert said in found.text
    assert found.wanted == claim.wanted(alone.judged_shape)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for run in ("one", "two", "now"):
            ledger.begin(run, {}, 0.0)
        yield ledger


def judged(made: Trial, run: str, at: float, **other: Any) -> Trial:
    made = replace(made, id=f"{run}/{made.case.id}/{made.number}", name=f"{run}-{made.case.id}-{made.number}", run=run)
    return made.moved(Step.DONE, at, judged=Verdict(Ruling.PASSED, "well"), **other)


def test_the_base_is_of_this_run_or_else_of_history_and_so_says_the_chart(one: Case, ledger: Ledger) -> None:
    wide = replace(one, shape=Shape(2, 1), thresholds=(replace(SPEED, per="node"), LEARNT, SCALING))

    def told(*others: Trial) -> tuple[str, list[tuple[str, float, float | None, str]]]:
        evaluation, _ = VerdictStep(RULES, History(ledger.database)).evaluate(trial(wide, 180.0), others)
        found = next(each for each in evaluation.findings if each.metric == "scaling")
        return found.text, [(at.shape, at.value, at.efficiency, at.source) for at in evaluation.background.scaling]

    evaluation, _ = VerdictStep(RULES, History(ledger.database)).evaluate(trial(wide, 180.0), ())
    assert "scaling: waived, the base 1x1" in evaluation.background.warnings[-1]  # nobody shall take it for met
    nothing, chart = told()
    assert "measured neither in this run nor in its history" in nothing
    assert chart == [("2x1", 180.0, 1.0, "this run")]
    for run, at, speed in (("one", 1.0, 100.0), ("two", 2.0, 104.0)):
        ledger.save_trial(judged(trial(one, speed), run, at), at)
    remembered, chart = told()
    assert "at 1x1 (history: 2 trials up to run two)" in remembered
    assert chart == [
        ("1x1", 102.0, 1.0, "history: 2 trials up to run two"),
        ("2x1", 180.0, pytest.approx(180 / 204), "this run"),
    ]
    assert "90 images/s per card at 2x1 and 100 images/s at 1x1 (this run)" in told(trial(one, 100.0))[0]
    other = trial(one, 100.0, traits={"nodes": "1", "code": "c0de", "driver": "21.0.2"})
    assert "100 images/s at 1x1 (this run, which differs: driver: 21.0.2 -> none)" in told(other)[0]
    running = replace(trial(one, 100.0, number=2), step=Step.WATCH, traits={})  # nobody has read its log yet
    assert "100 images/s at 1x1 (this run)" in told(trial(one, 100.0), running)[0]
    # Of a base that learnt nothing, or was not harvested, nothing is known in this run.
    assert "(history: " in told(trial(one, 100.0, 0.1))[0]
    assert "(history: " in told(trial(one, 100.0, step=Step.WATCH))[0]


def test_the_noise_of_a_shape_and_of_its_base_leaves_a_ratio_open(one: Case, ledger: Ledger) -> None:
    wide = replace(one, shape=Shape(2, 1), thresholds=(replace(SPEED, lower=-0.5), LEARNT, SCALING))
    for at, (speed, twice) in enumerate(zip((99.0, 101.0, 100.0, 102.0), (196.0, 200.0, 198.0, 202.0), strict=True)):
        run = f"r{at}"
        ledger.begin(run, {}, 0.0)
        ledger.save_trial(judged(trial(one, speed), run, at), at)
        ledger.save_trial(judged(trial(wide, twice), run, at), at)
    step = VerdictStep(RULES, History(ledger.database))

    def told(speed: float, *others: Trial, number: int = 1) -> tuple[Outcome, str, str]:
        evaluation, _ = step.evaluate(trial(wide, speed, number=number), others)
        found = next(each for each in evaluation.findings if each.metric == "scaling")
        return found.outcome, found.text, evaluation.another_trial

    here, there = trial(one, 100.0), judged(trial(wide, 199.0), "now", 1.0)
    outcome, text, due = told(199.0, here)
    assert (outcome, due) == (Outcome.MET, "")
    # One trial here, s of the four in history: √(5 / 3) = 1.291, of 199 and of 100.
    assert "√(0.01297² / 1 + 0.01291² / 1); s / mean and trials of 2x1 and 1x1; t at 1 - 0.05 × 2/9 with 3 " in text
    assert "√(0.01173² / 2 + 0.01291² / 1)" in told(201.0, here, there, number=2)[1]
    outcome, text, due = told(184.0)
    assert "(history: 4 trials up to run r3)" in text
    assert outcome is Outcome.UNDECIDED
    assert due == text.partition(" (± ")[0]  # what a note quotes goes without the arithmetic
    outcome, text, due = told(182.0, here, replace(there, measurements=trial(wide, 180.0).measurements), number=2)
    assert (outcome, due) == (Outcome.UNDECIDED, "")
    assert "no further trial: the uncertainty of 1x1 alone" in text


@pytest.mark.slow
def test_a_thousand_shapes_cost_little_and_show_some(one: Case) -> None:
    wide = [replace(one, shape=Shape(nodes, 1), thresholds=(SPEED, LEARNT, SCALING)) for nodes in range(1, 1001)]
    others = [trial(each, 100.0 * each.shape.nodes) for each in wide]
    step = VerdictStep(RULES)
    points = step.scaling_chart(others[499], others)
    assert len(points) <= 26
    assert {"1x1", "500x1"} <= {point.shape for point in points}
    assert {point.efficiency for point in points} == {1.0}


def test_what_changed_since_the_last_trial_is_told_once(one: Case, ledger: Ledger) -> None:
    step = VerdictStep(RULES, History(ledger.database))
    ledger.save_trial(judged(trial(one, 50.0), "one", 1.0, traits={"nodes": "1", "code": "old"}), 1.0)
    evaluation, strange = step.evaluate(trial(one, 100.0), ())
    assert strange == "not compared with run one: code: old -> c0de"
    assert evaluation.background.changed == ("code: old -> c0de",)
    assert evaluation.background.history == ()
    ledger.save_trial(judged(trial(one, 100.0), "two", 2.0), 2.0)
    evaluation, strange = step.evaluate(trial(one, 100.0), ())
    assert strange == ""
    assert evaluation.background.changed == ("code: old -> c0de",)
    assert [known.run for known in evaluation.background.history] == ["two"]


def test_earlier_trials_of_the_run_are_trials_and_not_history(one: Case, ledger: Ledger) -> None:
    first = judged(trial(one, 97.0), "now", 1.0)
    ledger.save_trial(first, 1.0)
    assert len(History(ledger.database).of(one.id, traits_key(first.traits))) == 1
    evaluation, _ = VerdictStep(RULES, History(ledger.database)).evaluate(trial(one, 98.0, number=2), [first])
    assert "mean of 2 trials" in evaluation.findings[0].text
    assert "no comparable earlier trials" in evaluation.findings[0].text
    assert statistics.fmean([97.0, 98.0]) == evaluation.findings[0].measured


def test_two_thresholds_with_the_same_words_have_a_finding_each(one: Case) -> None:
    """One is per node, the other of the whole with a noise test: of two nodes both want the same."""
    per_node = Threshold("accuracy", at_least=0.45, per="node")
    of_the_whole = Threshold("accuracy", reference=1.0, lower=-0.1)
    two = replace(one, shape=Shape(2, 1), thresholds=(SPEED, per_node, of_the_whole))
    assert per_node.wanted(two.shape) == of_the_whole.wanted(two.shape) == ">= 0.9"
    noisy = past(two, [100.0] * 4, learnt=0.93)
    history = tuple(replace(each, accuracy=each.accuracy + at / 100) for at, each in enumerate(noisy) if each.accuracy)
    evaluation = judge(trial(two, 100.0, 0.91), Evidence(history=history))
    bare, tested = (each for each in evaluation.findings if each.metric == "accuracy")
    assert (bare.outcome, tested.outcome) == (Outcome.MET, Outcome.UNDECIDED)
    assert bare.text == "accuracy 0.91, wanted >= 0.9"
    assert "crosses the limit" in tested.text
    assert evaluation.verdict.ruling is Ruling.INCONCLUSIVE
    swapped = replace(two, thresholds=(SPEED, of_the_whole, per_node))
    again = judge(trial(swapped, 100.0, 0.91), Evidence(history=history))
    assert set(again.findings) == set(evaluation.findings)


def test_an_expected_failure_excuses_its_own_threshold_only(one: Case) -> None:
    """Another one on the same metric is missed, though its words are the same."""
    old = ExpectedFailure("the old driver", "2027-01-31")
    excused = Threshold("throughput", "images/s", at_least=60.0, per="node", expected_failure=old)
    strict = Threshold("throughput", "images/s", at_least=120.0)
    two = replace(one, shape=Shape(2, 1), thresholds=(excused, strict, LEARNT))
    evaluation = evaluate(case_values(trial(two, 100.0)), today="2027-01-01")
    assert [each.outcome for each in evaluation.findings if each.metric == "throughput"] == [
        Outcome.WAIVED,
        Outcome.MISSED,
    ]
    assert evaluation.verdict.ruling is Ruling.FAILED


speeds = st.floats(1.0, 1e4)
anything = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(speeds, min_size=1, max_size=4),
    st.lists(speeds, max_size=12),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    st.randoms(),
)
def test_the_order_of_trials_does_not_matter(
    made: list[float], history: list[float], learnt: list[float], dice: random.Random
) -> None:
    rounds = [(speed, learnt[at % len(learnt)]) for at, speed in enumerate(made)]
    told = ruled(rounds, history)
    dice.shuffle(rounds)
    again = ruled(rounds, history)
    assert (told.ruling, [found.measured for found in told.findings]) == (
        again.ruling,
        [found.measured for found in again.findings],
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(speeds, min_size=1, max_size=3), st.lists(speeds, max_size=12), st.data())
def test_one_value_that_is_none_among_all_trials_never_passes(
    made: list[float], history: list[float], data: st.DataObject
) -> None:
    rounds = [(speed, 0.95) for speed in made]
    at = data.draw(st.integers(0, len(made) - 1))
    bad = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    rounds[at] = data.draw(st.sampled_from([(bad, 0.95), (made[at], bad)]))
    assert not ruled(rounds, history).passed


@settings(deadline=None, max_examples=50)
@given(
    st.lists(speeds, min_size=1, max_size=3),
    st.lists(speeds, max_size=12),
    st.lists(st.floats(-1.0, -0.001), min_size=2, max_size=2),
    st.floats(1.0, 1e4),
)
def test_a_tighter_claim_never_passes_what_a_looser_one_does_not(
    made: list[float], history: list[float], lowers: list[float], reference: float
) -> None:
    rounds = [(speed, 0.95) for speed in made]
    loose, tight = (
        ruled(rounds, history, Threshold("throughput", "images/s", reference=reference, lower=lower))
        for lower in sorted(lowers)
    )
    assert loose.passed or not tight.passed
    assert tight.ruling is Ruling.FAILED or loose.ruling is not Ruling.FAILED


@settings(deadline=None, max_examples=50)
@given(st.lists(anything, max_size=12), speeds)
def test_whatever_is_in_history_no_speed_passes_below_its_band(history: list[float], speed: float) -> None:
    claim = Threshold("throughput", "images/s", at_least=speed * 1.01)
    assert not ruled([(speed, 0.95)], history, claim).passed


def ruled(rounds: Sequence[tuple[float, float]], history: Sequence[float], claim: Threshold = SPEED) -> Verdict:
    """Of the last of several trials, each with its speed and what it learnt."""
    case = make_case("1x1", claim, LEARNT)
    *before, last = (trial(case, *each, number=at) for at, each in enumerate(rounds, start=1))
    evidence = Evidence(tuple(map(case_values, before)), past(case, history))
    return evaluate(case_values(last), evidence, RULES).verdict
