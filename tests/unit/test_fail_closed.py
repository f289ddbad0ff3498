"""Nothing that is missing, infinite, mislabelled or there twice is ever green."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import factories
import pytest
from factories import UNIT, make_case, make_measurements, make_trial, make_workload, verdict_of
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.engine.collect import read_results
from pytest_aisbench.judge.entries import trial_entry
from pytest_aisbench.judge.evaluate import compare_with_band, conclude, evaluate
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.model.case import Case, Mode, Shape
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Measurement, Metric, MissingResult
from pytest_aisbench.model.verdict import ExpectedFailure, Finding, Outcome, Ruling, Threshold, Verdict

SPEED, LEARNT = 100.0, 0.9
WORKLOAD = make_workload()
CLAIMS = (Threshold(THROUGHPUT, UNIT, at_least=1.0), Threshold(ACCURACY, at_least=0.5))

shapes = st.builds(Shape, st.integers(1, 3), st.integers(1, 3))
cases = st.builds(Case, st.just(WORKLOAD), shapes, st.just(CLAIMS), st.sampled_from(Mode))
not_numbers = st.sampled_from([math.nan, math.inf, -math.inf])
days = st.sampled_from(["2026-12-31", "2027-01-31", "2027-02-01"])
numbers = st.floats(allow_nan=True, allow_infinity=True)
bounds = st.none() | numbers


def verdict(case: Case, found: Sequence[Measurement], missing: Sequence[MissingResult] = ()) -> Verdict:
    trial = make_trial(case, measurements=tuple(found), missing_results=tuple(missing))
    return evaluate(case_values(trial)).verdict


Spoil = Callable[[list[Measurement], int], list[Measurement]]


def _changed(**changes: object) -> Spoil:
    return lambda found, at: [*found[:at], replace(found[at], **changes), *found[at + 1 :]]  # type: ignore[arg-type]


SPOILS: dict[str, Spoil] = {
    "missing": lambda found, at: [*found[:at], *found[at + 1 :]],
    "twice": lambda found, at: [*found, found[at]],
    "twice, from elsewhere": lambda found, at: [*found, replace(found[at], source="elsewhere.json", value=0.1)],
    "nan": _changed(value=math.nan),
    "infinite": _changed(value=math.inf),
    "below every number": _changed(value=-math.inf),
    "of a rank that is not there": _changed(rank=99),
    "of a node that is not there": _changed(server=99),
    "of a rank below 0": _changed(rank=-1),
    "in another unit": _changed(unit="%"),
    "of another metric": _changed(metric="loss"),
    "one more, of another metric": lambda found, at: [*found, replace(found[at], metric="loss")],
    "one more": lambda found, at: [*found, replace(found[at], rank=99)],
}


@given(cases, st.randoms())
def test_a_healthy_job_passes_whatever_the_order_of_its_results(case: Case, dice: random.Random) -> None:
    found = [*make_measurements(case)]
    told = verdict(case, found)
    assert told.ruling is Ruling.PASSED
    dice.shuffle(found)
    assert verdict(case, found) == told


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@given(cases, st.data())
def test_one_spoilt_value_among_many_never_passes(spoil: Spoil, case: Case, data: st.DataObject) -> None:
    found = [*make_measurements(case)]
    at = data.draw(st.integers(0, len(found) - 1))
    spoilt = spoil(found, at)
    judged = verdict(case, spoilt)
    trial = make_trial(case, measurements=tuple(spoilt))
    assert len(trial_entry(trial).throughput_by_rank) == case.shape.world  # and a report can be written of it
    assert judged.ruling is Ruling.FAILED
    assert any(finding.outcome is Outcome.UNMEASURED for finding in judged.findings)
    assert judged.reason


def test_a_rank_that_wrote_for_another_is_told() -> None:
    case = make_case("1x2", *CLAIMS)
    twice = [replace(each, rank=0) if each.rank == 1 else each for each in make_measurements(case)]
    told = [finding.text for finding in verdict(case, twice).findings]
    assert told[:2] == ["throughput: the value of rank 0 occurs 2 times", "throughput: the value of rank 1 is missing"]


@given(
    st.dictionaries(st.sampled_from([THROUGHPUT, ACCURACY, "loss"]), numbers),
    st.lists(
        st.builds(
            Threshold,
            st.sampled_from([THROUGHPUT, ACCURACY, "scaling"]),
            reference=bounds,
            lower=bounds,
            upper=bounds,
            at_least=bounds,
            at_most=bounds,
            per=st.sampled_from([None, "node", "device"]),
            base=st.sampled_from([None, None, "1x1"]),
            expected_failure=st.none() | st.builds(ExpectedFailure, st.just("the old driver"), days),
        ),
        max_size=4,
    ),
    st.lists(
        st.builds(MissingResult, st.sampled_from([THROUGHPUT, ACCURACY, "ranks"]), st.just("is missing")), max_size=2
    ),
    shapes,
    st.just("") | days,
)
def test_whatever_passes_was_measured_and_has_met_a_bounded_claim_on_both_or_missed_it_as_expected(
    measured: dict[str, float], thresholds: list[Threshold], missing: list[MissingResult], shape: Shape, today: str
) -> None:
    judged = verdict_of(thresholds, measured, missing, shape, today)
    assert "\n" not in judged.reason
    if not judged.passed:
        return
    assert not missing
    for name in (THROUGHPUT, ACCURACY):
        assert math.isfinite(measured[name])
        claims = [each for each in thresholds if each.metric == name and not each.base]
        assert claims
        for claim in claims:
            low, high = claim.band(shape)
            assert (low, high) != (-math.inf, math.inf)
            if not low <= measured[name] <= high:
                assert claim.expected_failure
                assert today
                assert today <= claim.expected_failure.until
                assert f"missed, as expected until {claim.expected_failure.until}: the old driver" in judged.reason


OLD = ExpectedFailure("the old driver", "2027-01-31")
LATE = tuple(replace(claim, at_least=1e6, expected_failure=OLD) for claim in CLAIMS)  # nothing meets them


@pytest.mark.parametrize(
    ("claims", "measured", "missing"),
    [
        (LATE, {THROUGHPUT: SPEED}, ()),
        (LATE, {ACCURACY: LEARNT}, ()),
        (LATE, {}, ()),
        (LATE, {THROUGHPUT: SPEED, ACCURACY: math.nan}, ()),
        (LATE, {THROUGHPUT: math.inf, ACCURACY: LEARNT}, ()),
        (LATE, {THROUGHPUT: SPEED, ACCURACY: LEARNT}, (MissingResult(ACCURACY, "accuracy.json is missing"),)),
        (LATE[:1], {THROUGHPUT: SPEED, ACCURACY: LEARNT}, ()),
        ((LATE[0], replace(CLAIMS[1], at_least=1.0)), {THROUGHPUT: SPEED, ACCURACY: LEARNT}, ()),
        ((*LATE, replace(CLAIMS[1], at_least=1.0)), {THROUGHPUT: SPEED, ACCURACY: LEARNT}, ()),
        ((replace(LATE[0], at_least=None), LATE[1]), {THROUGHPUT: SPEED, ACCURACY: LEARNT}, ()),
    ],
)
def test_an_expected_failure_excuses_nothing_but_a_measured_miss_of_its_own_claim(
    claims: Sequence[Threshold], measured: dict[str, float], missing: Sequence[MissingResult]
) -> None:
    assert verdict_of(claims, measured, missing, today="2027-01-01").ruling is Ruling.FAILED
    if claims == LATE:
        assert verdict_of(LATE, {THROUGHPUT: SPEED, ACCURACY: LEARNT}, today="2027-01-01").passed


@pytest.mark.parametrize(
    ("today", "ruling"), [("2027-01-31", Ruling.PASSED), ("2027-02-01", Ruling.FAILED), ("", Ruling.FAILED)]
)
def test_the_last_day_of_an_expected_failure_is_its_date(today: str, ruling: Ruling) -> None:
    judged = verdict_of(LATE, {THROUGHPUT: SPEED, ACCURACY: LEARNT}, today=today)
    assert judged.ruling is ruling
    said = {"2027-01-31": "missed, as expected until 2027-01-31", "2027-02-01": "expired on 2027-01-31", "": "below"}
    assert said[today] in judged.reason


def test_an_undecided_threshold_is_not_excused() -> None:
    undecided = finding(LATE[0], Outcome.UNDECIDED)
    judged = concluded({LATE[0]: undecided}, claims=LATE, today="2027-01-01")
    assert judged.ruling is Ruling.INCONCLUSIVE


@pytest.mark.parametrize("late", [0, 1])
def test_what_was_missed_or_met_against_expectation_is_worth_a_line(late: int) -> None:
    claims = [
        LATE[index] if index == late else replace(claim, expected_failure=OLD) for index, claim in enumerate(CLAIMS)
    ]
    lines = evaluate(factories.case_values(claims, MEASURED), today="2027-01-01").notes
    assert ["missed, as expected" in line for line in lines] == [index == late for index in range(2)]
    assert ["remove expected_failure" in line for line in lines] == [index != late for index in range(2)]
    assert evaluate(factories.case_values(CLAIMS, MEASURED), today="2027-01-01").notes == ()
    assert evaluate(factories.case_values(claims, MEASURED), today="2030-01-01").notes == ()


@given(st.permutations(CLAIMS), st.floats(0, 2), st.floats(0, 1))
def test_the_order_of_claims_does_not_matter(claims: list[Threshold], speed: float, learnt: float) -> None:
    measured = {THROUGHPUT: speed, ACCURACY: learnt}
    judged = verdict_of(claims, measured)
    told = verdict_of(CLAIMS, measured)
    assert judged.ruling is told.ruling
    assert set(judged.findings) == set(told.findings)


@given(
    st.floats(1, 1e6),
    st.floats(0, 2e6),
    st.lists(st.floats(-1, 0), min_size=2, max_size=2),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_a_tighter_band_never_passes_what_a_looser_one_fails(
    reference: float, value: float, lowers: list[float], uppers: list[float]
) -> None:
    def ruling(lower: float, upper: float) -> Ruling:
        claims = (Threshold(THROUGHPUT, reference=reference, lower=lower, upper=upper), CLAIMS[1])
        return verdict_of(claims, {THROUGHPUT: value, ACCURACY: 1.0}).ruling

    loose, tight = ruling(min(lowers), max(uppers)), ruling(max(lowers), min(uppers))
    if loose is Ruling.FAILED:
        assert tight is Ruling.FAILED


def finding(claim: Threshold, outcome: Outcome) -> Finding:
    wanted = claim.wanted(Shape(1, 1))
    return Finding(claim.metric, outcome, 1.0, wanted, f"{claim.metric}: {outcome.value} by the noise test")


def concluded(
    findings: Mapping[Threshold, Finding],
    *,
    claims: Sequence[Threshold] = CLAIMS,
    missing: Sequence[MissingResult] = (),
    drifts: Sequence[Finding] = (),
    today: str = "",
) -> Verdict:
    """The verdict with these findings, and those of the plain band on all other claims."""
    measured = factories.case_values(claims, MEASURED, missing)
    pairs = [
        (claim, findings.get(claim) or compare_with_band(claim, MEASURED[claim.metric], Shape(1, 1)))
        for claim in claims
    ]
    return conclude(measured, pairs, drifts, today)[0]


MEASURED = {THROUGHPUT: SPEED, ACCURACY: LEARNT}


@pytest.mark.parametrize(
    ("outcome", "ruling"),
    [
        (Outcome.MET, Ruling.PASSED),
        (Outcome.MISSED, Ruling.FAILED),
        (Outcome.UNDECIDED, Ruling.INCONCLUSIVE),
        (Outcome.UNMEASURED, Ruling.FAILED),
        (Outcome.WAIVED, Ruling.FAILED),  # nobody may waive what a case is about
    ],
)
@pytest.mark.parametrize("metric", [THROUGHPUT, ACCURACY])
def test_every_finding_counts_for_the_verdict(metric: str, outcome: Outcome, ruling: Ruling) -> None:
    (claim,) = (each for each in CLAIMS if each.metric == metric)
    assert concluded({claim: finding(claim, outcome)}).ruling is ruling


def test_a_met_claim_does_not_save_a_missing_result() -> None:
    met = {claim: finding(claim, Outcome.MET) for claim in CLAIMS}
    assert concluded(met).passed
    assert not concluded(met, missing=[MissingResult(THROUGHPUT, "is missing")]).passed


@given(st.lists(st.sampled_from(Outcome), min_size=1, max_size=4))
def test_a_drift_counts_beside_the_claims(outcomes: list[Outcome]) -> None:
    drifts = [Finding("drift", outcome, 1.0, "no drift", f"drift: {outcome.value}") for outcome in outcomes]
    judged = concluded({}, drifts=drifts)
    assert judged.passed == all(outcome in {Outcome.MET, Outcome.WAIVED} for outcome in outcomes)


def test_an_undecided_accuracy_makes_nothing_fail() -> None:
    judged = concluded({CLAIMS[1]: finding(CLAIMS[1], Outcome.UNDECIDED)})
    assert judged.ruling is Ruling.INCONCLUSIVE
    assert judged.reason.startswith("accuracy")


@pytest.mark.parametrize("metric", [THROUGHPUT, ACCURACY])
def test_a_comparison_is_no_claim_on_what_a_case_is_about(metric: str) -> None:
    claims = [replace(claim, base="1x1") if claim.metric == metric else claim for claim in CLAIMS]
    judged = verdict_of(claims, MEASURED)
    assert judged.ruling is Ruling.FAILED
    assert f"{metric}: no threshold is set on it" in [finding.text for finding in judged.findings]


def test_a_bound_at_infinity_is_no_claim() -> None:
    for floor, reference in itertools.product((-math.inf, None), (-math.inf, None)):
        claim = Threshold(THROUGHPUT, UNIT, at_least=floor, reference=reference, lower=-0.05 if reference else None)
        judged = verdict_of((claim, CLAIMS[1]), MEASURED)
        assert judged.ruling is Ruling.FAILED
        assert "sets no bound" in judged.reason


ANYWHERE = (
    "throughput_-1.json",
    "sub/throughput_0.json",
    "throughput_\uff10.json",
    "Throughput_0.json",
    "a/b/accuracy_7.json",
)
ALONE = ("accuracy_2.json", "accuracy_00.json", "2/throughput_0.json", "throughput_0.json")
TOGETHER = ("accuracy_2.json", "accuracy_00.json", "throughput_2.json", "0/throughput_0.json", "throughput_00.json")


@pytest.mark.parametrize(
    ("mode", "stranger"),
    [
        *itertools.product([Mode.SINGLE_SERVER], ALONE + ANYWHERE),
        *itertools.product([Mode.CLUSTER], TOGETHER + ANYWHERE),
    ],
)
def test_a_result_that_no_rank_and_no_node_owes_is_objected_to(
    mode: Mode, stranger: str, healthy: Callable[..., Any]
) -> None:
    case = make_case("2x1", *CLAIMS, mode=mode)
    store, outputs = healthy().store, StoreUrl.parse("obs://bucket/outputs/")
    alone = {"0/throughput_0": b"100.0", "1/throughput_0": b"100.0", "accuracy_0": b"0.9", "accuracy_1": b"0.9"}
    together = {"throughput_0": b"100.0", "throughput_1": b"100.0", "accuracy": b"0.9", "ranksize": b"2"}
    together |= {"accuracy_0": b"0.8", "accuracy_1": b"0.7"}  # as scripts of ais-bench-stubs leave them beside
    fine = {"checkpoint_3": b"{}", "throughput_history": b"[]", "sub/accuracy_best": b"0.9"}
    for name, content in {**(alone if case.single_server else together), **fine}.items():
        store.write(outputs / f"{name}.json", content)
    measured, missing, _ = read_results(store, outputs, case, store.objects(outputs))
    assert missing == []
    assert verdict(case, measured).passed
    store.write(outputs / stranger, b"0.9")
    measured, missing, _ = read_results(store, outputs, case, store.objects(outputs))
    assert [stranger in each.text for each in missing] == [True]
    assert not verdict(case, measured, missing).passed


@pytest.mark.parametrize(
    ("of_nodes", "note", "why"),
    [
        (
            ("0.9", "0.9"),
            "accuracy_0.json … accuracy_1.json beside accuracy.json: not judged, since all nodes train",
            "",
        ),
        ((None, "0.9"), "accuracy_1.json beside accuracy.json: not judged, since all nodes train together", ""),
        (("0.9", "{}"), "accuracy_0.json … accuracy_1.json beside accuracy.json: not judged", ""),
        (
            ("0.85", "0.7"),
            "accuracy_1.json is 0.7, but accuracy.json is 0.9: the nodes train together and contradict",
            "",
        ),
        (
            ("0.9", "0.4"),
            "",
            "accuracy_1.json is 0.4, but accuracy.json is 0.9: the nodes train together and contradict",
        ),
        (("0.49", "nan"), "", "accuracy_1.json is nan, but accuracy.json is 0.9"),
    ],
)
def test_the_accuracy_of_a_node_beside_that_of_all_is_named_and_fails_if_a_threshold_lies_between(
    of_nodes: Sequence[str | None], note: str, why: str, healthy: Callable[..., Any]
) -> None:
    case = make_case("2x1", *CLAIMS)
    store, outputs = healthy().store, StoreUrl.parse("obs://bucket/outputs/")
    files = {"throughput_0": "100.0", "throughput_1": "100.0", "accuracy": "0.9", "ranksize": "2"}
    files |= {f"accuracy_{node}": text for node, text in enumerate(of_nodes) if text is not None}
    for name, text in files.items():
        store.write(outputs / f"{name}.json", text.encode())
    measured, missing, notes = read_results(store, outputs, case, store.objects(outputs))
    assert {each.metric: each.value for each in measured}[ACCURACY] == 0.9
    assert [note in each for each in notes] == ([True] if note else [])
    assert [why in each.text for each in missing] == ([True] if why else [])
    assert verdict(case, measured, missing).passed is not bool(why)


# Values that no machine reaches, and means that hide a node.

speeds = st.floats(1e-3, 1e5)
MANY = st.integers(2, 6)


def on_nodes(values: Sequence[float], accuracies: Sequence[float], *claims: Threshold) -> Verdict:
    """The verdict on nodes of one card that train alone."""
    case = make_case(f"{len(values)}x1", *claims, mode=Mode.SINGLE_SERVER)
    learnt = iter(accuracies)
    found = [
        replace(each, value=next(learnt)) if each.metric == ACCURACY else each
        for each in make_measurements(case, list(values))
    ]
    return verdict(case, found)


@pytest.mark.parametrize(
    ("values", "accuracies", "said"),
    [
        ((100.0, 100.0), (1.0, 0.52), "accuracy 0.76, mean of 2 nodes; node 1: accuracy 0.52, wanted >= 0.75"),
        ((198.0, 2.0), (0.9, 0.9), "throughput 100 images/s, mean of 2 nodes; node 1: throughput 2 images/s"),
        ((150.0, 1.6, 150.0), (0.9, 0.9, 0.9), "throughput 100.533 images/s, mean of 3 nodes; node 1: throughput 1.6"),
    ],
)
def test_a_mean_does_not_hide_a_broken_node(values: Sequence[float], accuracies: Sequence[float], said: str) -> None:
    claims = (Threshold(THROUGHPUT, UNIT, at_least=95.0, per="node"), Threshold(ACCURACY, at_least=0.75))
    judged = on_nodes(values, accuracies, *claims)
    assert judged.ruling is Ruling.FAILED
    assert judged.reason.startswith(said)
    measured = {finding.metric: finding.measured for finding in judged.findings}
    assert measured == {THROUGHPUT: pytest.approx(sum(values) / len(values)), ACCURACY: sum(accuracies) / len(values)}


@given(st.data(), MANY, st.floats(1, 1e6), st.sampled_from([None, "node", "device"]))
def test_nodes_that_train_alone_pass_only_if_every_one_of_them_does(
    data: st.DataObject, nodes: int, floor: float, per: str | None
) -> None:
    values = data.draw(st.lists(st.floats(floor / 5, floor * 5), min_size=nodes, max_size=nodes))
    accuracies = data.draw(st.lists(st.floats(0, 1), min_size=nodes, max_size=nodes))
    claims = (Threshold(THROUGHPUT, UNIT, at_least=floor, per=per), Threshold(ACCURACY, at_least=0.75))
    judged = on_nodes(values, accuracies, *claims)
    met = min(values) >= floor and min(accuracies) >= 0.75
    if judged.passed:
        assert met
    elif judged.ruling is Ruling.FAILED:
        assert not met
    alone = [on_nodes([value], [accuracy], *claims) for value, accuracy in zip(values, accuracies, strict=True)]
    assert judged.passed == all(each.passed for each in alone)


@given(cases, st.data(), st.floats(1e12, 1.7e308, exclude_min=True))
def test_a_value_beyond_the_limit_of_its_metric_never_passes(case: Case, data: st.DataObject, huge: float) -> None:
    found = [*make_measurements(case)]
    at = data.draw(st.integers(0, len(found) - 1))
    found[at] = replace(found[at], value=huge)
    judged = verdict(case, found)
    assert judged.ruling is Ruling.FAILED
    assert f"{found[at].source} says {huge:g}, beyond 1e+12, the limit of this metric" in judged.reason


@given(st.floats(1, 1e11), st.floats(1e-3, 1e3))
def test_the_limit_of_a_metric_is_its_own_and_holds_for_the_sum(limit: float, times: float) -> None:
    metrics = {THROUGHPUT: Metric(THROUGHPUT, UNIT, limit), ACCURACY: Metric(ACCURACY, "")}
    case = make_case("1x4", Threshold(THROUGHPUT, UNIT, at_least=limit / 1e4), CLAIMS[1], metrics=metrics)
    judged = verdict(case, make_measurements(case, speed=limit * times / 4))
    if limit * times > limit * (1 + 1e-9):
        assert judged.ruling is Ruling.FAILED
        assert "beyond" in judged.reason
    elif limit * times < limit * (1 - 1e-9):
        assert "beyond" not in judged.reason
        assert judged.passed


@given(st.integers(2, 9), st.data(), speeds, st.floats(0, 0.0099) | st.floats(101, 1e6))
def test_a_rank_far_from_all_others_never_passes(ranks: int, data: st.DataObject, speed: float, share: float) -> None:
    case = make_case(f"1x{ranks}", Threshold(THROUGHPUT, UNIT, at_least=speed / 1e3), CLAIMS[1])
    at = data.draw(st.integers(0, ranks - 1))
    values = [speed * share if rank == at else speed for rank in range(ranks)]
    assert verdict(case, make_measurements(case, [speed] * ranks)).passed
    judged = verdict(case, make_measurements(case, values))
    assert judged.ruling is Ruling.FAILED
    assert f"throughput_{at}.json says" in judged.reason or ranks == 2
    assert "the median of the other ranks" in judged.reason


def test_a_rank_that_is_almost_still_is_named() -> None:
    case = make_case("1x3", *CLAIMS)
    judged = verdict(case, make_measurements(case, [100.0, 1e-320, 100.0]))
    assert judged.reason.startswith(
        "throughput: throughput_1.json says 9.99989e-321, below 1 % of 100, the median of the other ranks"
    )
