"""Claims from history: what is proposed, what is not, and how a claim would have judged the past."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from factories import make_case
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.config import toml_document
from pytest_aisbench.engine.references import CaseHistory, edited, proposals
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.references import FEWEST, is_baseline, looser_by, propose, replay, replay_scaling
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.trial import TrialRecord
from pytest_aisbench.model.verdict import Ruling, Threshold

SPEED = Threshold("throughput", "images/s", reference=900.0, lower=-0.05)
RATIO = Threshold("accuracy", at_least=0.7)
TWO = Shape(2, 8)


def noisy(mean: float, cv: float, count: int, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(mean, mean * cv) for _ in range(count)]


def test_a_quiet_history_makes_a_tight_claim() -> None:
    found = propose(SPEED, TWO, noisy(1000.0, 0.001, 20))
    assert found.threshold
    assert found.threshold.reference == pytest.approx(1000, rel=0.001)
    assert found.threshold.lower == -0.01
    assert found.basis
    assert found.basis.count == 20


def test_a_noisy_history_makes_a_wider_one_that_its_own_values_meet() -> None:
    values = noisy(1000.0, 0.01, 30)
    found = propose(SPEED, TWO, values)
    assert found.threshold
    assert found.threshold.lower
    assert -0.06 < found.threshold.lower < -0.03
    low, _ = found.threshold.band(TWO)
    assert all(value >= low for value in values)


def test_a_claim_per_node_stays_one() -> None:
    found = propose(Threshold("throughput", "images/s", reference=1.0, lower=-0.1, per="node"), TWO, [1000.0, 1001] * 5)
    assert found.threshold
    assert found.threshold.per == "node"
    assert found.threshold.reference == pytest.approx(500.25)


def test_a_bare_ratio_stays_bare_and_below_what_was_measured() -> None:
    found = propose(RATIO, TWO, [0.7601, 0.7612, 0.7606, 0.7609, 0.7604])
    assert found.threshold
    assert found.threshold.reference is None
    assert found.threshold.at_least
    assert 0.74 < found.threshold.at_least < 0.7601


def test_values_before_the_last_change_of_level_do_not_count() -> None:
    found = propose(SPEED, TWO, [*noisy(2000.0, 0.002, 15), *noisy(1000.0, 0.002, 10, seed=2)])
    assert found.basis
    assert found.basis.since == 15
    assert found.threshold
    assert found.threshold.reference == pytest.approx(1000, rel=0.01)


def test_a_fault_that_was_repaired_is_no_evidence() -> None:
    values = noisy(1000.0, 0.002, 20)
    values[7] = 700.0
    found = propose(SPEED, TWO, values)
    assert found.basis
    assert (found.basis.count, found.basis.left_out) == (19, 1)
    assert found.threshold
    assert found.threshold.reference == pytest.approx(1000, rel=0.002)
    assert found.threshold.lower == -0.01


def test_too_few_values_are_none() -> None:
    found = propose(SPEED, TWO, [1000.0] * (FEWEST - 1))
    assert found.threshold is None
    assert f"{FEWEST} are needed" in found.why_not


def test_noise_that_would_hide_everything_is_no_reference() -> None:
    found = propose(SPEED, TWO, noisy(1000.0, 0.06, 20))
    assert found.threshold is None
    assert "CV" in found.why_not


@given(st.lists(st.floats(1, 1e6), min_size=FEWEST, max_size=40))
def test_what_is_proposed_lets_the_mean_pass_and_claims_something(values: list[float]) -> None:
    found = propose(SPEED, TWO, values)
    if found.threshold:
        assert found.basis
        low, _ = found.threshold.band(TWO)
        assert 0 < low < found.basis.mean


@pytest.mark.parametrize(
    "claim",
    [Threshold("time_to_accuracy", "s", at_most=700.0), Threshold("time_to_accuracy", "s", reference=600.0, upper=0.2)],
)
def test_a_time_is_bounded_from_above_as_before(claim: Threshold) -> None:
    values = noisy(500.0, 0.005, 20)
    found = propose(claim, TWO, values).threshold
    assert found
    assert found.reference == pytest.approx(500, rel=0.01)
    assert (found.lower, found.at_least) == (None, None)
    low, high = found.band(TWO)
    assert low == -math.inf
    assert max(values) < high < 530


def test_a_bare_limit_from_above_stays_bare_and_above_what_was_measured() -> None:
    found = propose(Threshold("loss", at_most=0.4), TWO, [0.2101, 0.2112, 0.2106, 0.2109, 0.2104]).threshold
    assert found
    assert (found.reference, found.at_least) == (None, None)
    assert found.at_most
    assert 0.2112 < found.at_most < 0.22


def past(*speeds: float, run: str = "run", accuracy: float = 0.9, counts: bool = True) -> list[TrialRecord]:
    """A run for each value, or one for all of them."""
    return [
        TrialRecord(
            f"{run}{at}",
            run if run != "run" else f"run-{at:02}",
            "toy-2x8",
            "toy",
            "2x8",
            "cluster",
            "k",
            "f",
            float(at),
            speed,
            accuracy,
            counts=counts,
        )
        for at, speed in enumerate(speeds)
    ]


def test_the_past_is_judged_run_by_run() -> None:
    claim = Threshold("throughput", "images/s", reference=1000.0, lower=-0.05)
    found = replay(claim, TWO, past(*noisy(1000.0, 0.002, 20), 900.0, 1001.0), 3)
    assert (found.met, found.missed, found.undecided, found.count) == (21, 1, 0, 22)
    assert found.first_missed == "run-20"
    assert found.worst == 900.0


def test_trials_of_one_run_are_judged_together_as_its_verdict_was() -> None:
    claim = Threshold("throughput", "images/s", at_least=980.0)
    before = past(*noisy(1000.0, 0.01, 20))
    alone, again = past(1000.0, run="now"), past(1000.0, 1001.0, 999.0, 1000.0, run="now")
    assert replay(claim, TWO, [*before, *alone], 5).undecided - replay(claim, TWO, before, 5).undecided == 1
    assert replay(claim, TWO, [*before, *again], 5).undecided == replay(claim, TWO, before, 5).undecided


def test_an_accuracy_that_missed_is_not_forgotten_though_its_speed_does_not_count() -> None:
    told = [*past(*noisy(1000.0, 0.002, 10)), *past(100.0, run="bad", accuracy=0.2, counts=False)]
    found = replay(RATIO, TWO, told, 3)
    assert (found.met, found.missed, found.first_missed, found.worst) == (10, 1, "bad", 0.2)
    speed = replay(replace(SPEED, reference=1000.0), TWO, [*told, *past(999.0, run="after")], 3)
    assert (speed.met, speed.missed) == (11, 1)


def test_a_claim_from_above_names_the_largest() -> None:
    told = [replace(each, metrics={"loss": each.throughput}) for each in past(0.3, 0.5, 0.35)]
    found = replay(Threshold("loss", at_most=0.4), TWO, told, 3)
    assert (found.met, found.missed, found.worst) == (2, 1, 0.5)


SCALING = Threshold("scaling", at_least=0.9, base="1x8")


def test_a_claim_on_scaling_is_replayed_against_the_base_of_its_run_or_the_trials_before() -> None:
    case = make_case("2x8", SCALING)
    own = past(1900.0, 1900.0, 1500.0, 1900.0)
    base = [replace(each, shape="1x8", at=each.at - 0.5) for each in past(0.0, 1000.0, 1000.0)[1:]]
    found = replay_scaling(SCALING, case, own, base, 1)
    assert (found.waived, found.met, found.missed, found.undecided) == (1, 2, 1, 0)
    assert found.first_missed == "run-02"
    assert found.worst == pytest.approx(0.75)
    assert found.count == 4


@pytest.mark.parametrize(
    ("old", "new", "share"),
    [
        (Threshold("t", at_least=1000.0), Threshold("t", at_least=900.0), 0.1),
        (Threshold("t", at_least=1000.0), Threshold("t", at_least=1001.0), 0.0),
        (Threshold("t", at_least=1000.0, at_most=2000.0), Threshold("t", at_least=1000.0, at_most=2200.0), 0.1),
        (Threshold("t", at_most=100.0), Threshold("t", reference=100.0, upper=0.05), 0.05),
        (Threshold("t", at_least=1.0), Threshold("t", reference=100.0, lower=-0.05), 0.0),
        (Threshold("t", reference=1000.0, lower=-0.05), Threshold("t", reference=1000.0, lower=-0.05, upper=0.1), 0.0),
        (
            Threshold("t", reference=1000.0, lower=-0.05, upper=0.1),
            Threshold("t", reference=1000.0, lower=-0.05),
            math.inf,
        ),
    ],
)
def test_a_claim_that_allows_more_is_looser(old: Threshold, new: Threshold, share: float) -> None:
    assert looser_by(old, new, TWO) == pytest.approx(share)


def test_what_failed_or_had_a_slow_card_supports_no_reference() -> None:
    (fine,) = past(1000.0)
    assert is_baseline(fine, "throughput", {"another"})
    assert not is_baseline(fine, "throughput", {fine.trial})
    assert is_baseline(fine, "accuracy", {fine.trial})
    assert not is_baseline(replace(fine, ruling=Ruling.FAILED), "accuracy", ())
    assert not is_baseline(fine, "loss", ())


def history_of(case: Case, folder: Path, records: Sequence[TrialRecord], slow: Collection[str] = ()) -> CaseHistory:
    file = folder / "thresholds.toml"
    file.write_text('[local."2x8"]\nthroughput = { reference = 1900, lower = -0.05, unit = "images/s" }\n')
    return CaseHistory(case, file, ("local", "2x8"), "k", tuple(records), slow=frozenset(slow))


CLAIMED = Threshold("throughput", "images/s", reference=1900.0, lower=-0.05)


def test_a_looser_claim_is_marked_and_kept_out_of_the_diff_until_it_is_asked_for(tmp_path: Path) -> None:
    each = history_of(make_case("2x8", CLAIMED), tmp_path, past(*noisy(1600.0, 0.002, 12)))
    (review,), texts = proposals([each])
    assert (review.looser, review.withheld, texts) == (True, True, {})
    assert "LOOSER than today's claim by 12." in review.text
    assert "the mean is -15.8% from its reference 1900" in review.text
    assert "--allow-looser" in review.text
    (review,), texts = proposals([each], allow_looser=True)
    assert (review.looser, review.withheld) == (True, False)
    assert "; looser than >= 1805 images/s\nthroughput = { reference = 1599.6" in texts[each.file]


def test_a_fault_does_not_become_the_rule(tmp_path: Path) -> None:
    """Twelve trials with a card at 70 % and twelve that failed do not lower a claim that eight healthy ones meet."""
    slow, healthy = past(*noisy(1547.0, 0.002, 12), run="slow"), past(*noisy(1900.0, 0.002, 8), run="fine")
    failed = [replace(each, ruling=Ruling.FAILED) for each in past(*noisy(1547.0, 0.002, 12), run="failed")]
    records = [*healthy, *slow, *failed]
    each = history_of(make_case("2x8", CLAIMED), tmp_path, records, [record.trial for record in slow])
    (review,), _ = proposals([each], allow_looser=True)
    assert review.basis
    assert review.basis.mean == pytest.approx(1900, rel=0.01)
    assert not review.looser
    assert "not counted: 12 that failed, 12 with a slow card or node" in review.text
    each = replace(each, past=(*slow, *failed))
    (review,), texts = proposals([each], allow_looser=True)
    assert (review.new, texts) == ("", {})
    assert review.text.startswith("0 comparable trials, and 5 are needed; not counted: 12 that failed, 12 with")


def document(tmp_path: Path, text: str) -> toml_document.Document:
    file = tmp_path / "thresholds.toml"
    file.write_text(text, encoding="utf-8")
    return toml_document.read(file)


ROW: dict[str, object] = {"reference": 1000.5, "lower": -0.01, "unit": "images/s"}


def test_a_claim_changes_its_own_line_alone(tmp_path: Path) -> None:
    text = '# why\n[local."2x8"]\nthroughput = { at_least = 1 }  # a floor\naccuracy = { at_least = 0.9 }\n\n[x."*"]\n'
    new = edited(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "20 trials")})
    assert new == (
        '# why\n[local."2x8"]\n# From history: 20 trials\n'
        'throughput = { reference = 1000.5, lower = -0.01, unit = "images/s" }  # a floor\n'
        'accuracy = { at_least = 0.9 }\n\n[x."*"]\n'
    )
    again = edited(document(tmp_path, new), ("local", "2x8"), {"throughput": (ROW, "30 trials")})
    assert again == new.replace("20 trials", "30 trials")


def test_a_scope_that_is_not_there_is_added_at_the_end(tmp_path: Path) -> None:
    text = '[local."*"]\nthroughput = { at_least = 1 }\n'
    new = edited(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "20 trials")})
    assert new.startswith(text)
    assert '\n[local."2x8"]\n# From history: 20 trials\nthroughput = {' in new


def test_a_comment_behind_a_claim_stays_and_a_number_sign_in_a_text_is_none(tmp_path: Path) -> None:
    text = (
        '[local."2x8"]\nloss = { at_most = 1, expected_failure = { reason = "#4711", until = 2027-01-31 } } # ask Li\n'
    )
    row = {"at_most": 2, "expected_failure": {"reason": "#4711", "until": date(2027, 1, 31)}}
    new = edited(document(tmp_path, text), ("local", "2x8"), {"loss": (row, "20 trials")})
    assert new.splitlines()[2].endswith('reason = "#4711", until = 2027-01-31 } } # ask Li')


def test_a_date_in_another_line_keeps_its_blank(tmp_path: Path) -> None:
    late = "accuracy = { at_least = 0.9, expected_failure = { reason = 'no data', until = 2027-01-31 } }\n"
    text = f'[local."2x8"]\nthroughput = {{ at_least = 1 }}\n{late}[x."*"]\n{late}'
    new = edited(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "20")})
    assert new.count(late) == 2


def test_a_claim_that_is_new_in_its_table_comes_last(tmp_path: Path) -> None:
    text = '[local."2x8"]\naccuracy = { at_least = 0.9 }\n\n# of the other\n[x."*"]\n'
    new = edited(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "20"), "loss": ({"at_most": 1}, "5")})
    lines = new.splitlines()
    assert [line.partition(" = ")[0] for line in lines[1:6]] == [
        "accuracy",
        "# From history: 20",
        "throughput",
        "# From history: 5",
        "loss",
    ]
    assert lines[6:] == ["", "# of the other", '[x."*"]']


def test_a_date_survives(tmp_path: Path) -> None:
    row = {**ROW, "expected_failure": {"reason": "a slow switch", "until": date(2027, 1, 31)}}
    new = edited(document(tmp_path, ""), ("local", "2x8"), {"throughput": (row, "")})
    assert toml_document.parse_or_empty(new)["local"]["2x8"]["throughput"] == row


NEW = '{ reference = 1000.5, lower = -0.01, unit = "images/s" }'
FORMS = {
    "inline": ('[local]\n"2x8" = { throughput = { at_least = 1 } }\n', f'[local]\n"2x8" = {{ throughput = {NEW} }}\n'),
    "a header of its own": (
        '[local."2x8".throughput]\n# why\nat_least = 1  # a floor\nunit = "images/s"\n\n[x."*"]\n',
        (
            '[local."2x8".throughput]\n# why\nunit = "images/s"\n# From history: 20\nreference = 1000.5\n'
            'lower = -0.01\n\n[x."*"]\n'
        ),
    ),
    "dotted": ('local."2x8".throughput = { at_least = 1 }\n', f'# From history: 20\nlocal."2x8".throughput = {NEW}\n'),
    "out of order": (
        '[local."2x8"]\n[x."*"]\n[local."4x8"]\nloss = { at_most = 1 }',
        f'[local."2x8"]\n# From history: 20\nthroughput = {NEW}\n[x."*"]\n[local."4x8"]\nloss = {{ at_most = 1 }}\n',
    ),
}


@pytest.mark.parametrize(("before", "after"), FORMS.values(), ids=FORMS)
def test_claims_may_be_written_in_every_way_that_toml_has(tmp_path: Path, before: str, after: str) -> None:
    assert edited(document(tmp_path, before), ("local", "2x8"), {"throughput": (ROW, "20")}) == after


def test_what_cannot_be_added_to_is_refused(tmp_path: Path) -> None:
    text = 'local = { "4x8" = { throughput = { at_least = 1 } } }\n'
    with pytest.raises(UsageFault, match="cannot be changed safely"):
        edited(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "")})
