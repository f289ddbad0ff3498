"""Claims from history: what is proposed, what is not, and how a claim would have judged the past."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench import places
from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.references import FEWEST, propose, replay
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.revision import revised

SPEED = Threshold("throughput", "images/s", reference=900.0, lower=-0.05)
RATIO = Threshold("accuracy", at_least=0.7)
TWO = Shape(2, 8)


def noisy(mean: float, cv: float, count: int, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(mean, mean * cv) for _ in range(count)]


def test_a_quiet_history_makes_a_tight_claim() -> None:
    found = propose(SPEED, TWO, noisy(1000.0, 0.001, 20))
    assert found.claim
    assert found.claim.reference == pytest.approx(1000, rel=0.001)
    assert found.claim.lower == -0.01
    assert found.evidence
    assert found.evidence.count == 20


def test_a_noisy_history_makes_a_wider_one_that_its_own_values_meet() -> None:
    values = noisy(1000.0, 0.01, 30)
    found = propose(SPEED, TWO, values)
    assert found.claim
    assert found.claim.lower
    assert -0.06 < found.claim.lower < -0.03
    low, _ = found.claim.band(TWO)
    assert all(value >= low for value in values)


def test_a_claim_per_node_stays_one() -> None:
    found = propose(Threshold("throughput", "images/s", reference=1.0, lower=-0.1, per="node"), TWO, [1000.0, 1001] * 5)
    assert found.claim
    assert found.claim.per == "node"
    assert found.claim.reference == pytest.approx(500.25)


def test_a_bare_ratio_stays_bare_and_below_what_was_measured() -> None:
    found = propose(RATIO, TWO, [0.7601, 0.7612, 0.7606, 0.7609, 0.7604])
    assert found.claim
    assert found.claim.reference is None
    assert found.claim.at_least
    assert 0.74 < found.claim.at_least < 0.7601


def test_values_before_the_last_change_of_level_do_not_count() -> None:
    found = propose(SPEED, TWO, [*noisy(2000.0, 0.002, 15), *noisy(1000.0, 0.002, 10, seed=2)])
    assert found.evidence
    assert found.evidence.since == 15
    assert found.claim
    assert found.claim.reference == pytest.approx(1000, rel=0.01)


def test_too_few_values_are_none() -> None:
    found = propose(SPEED, TWO, [1000.0] * (FEWEST - 1))
    assert found.claim is None
    assert f"{FEWEST} are needed" in found.why_not


def test_noise_that_would_hide_everything_is_no_reference() -> None:
    found = propose(SPEED, TWO, noisy(1000.0, 0.06, 20))
    assert found.claim is None
    assert "CV" in found.why_not


@given(st.lists(st.floats(1, 1e6), min_size=FEWEST, max_size=40))
def test_what_is_proposed_lets_the_mean_pass_and_claims_something(values: list[float]) -> None:
    found = propose(SPEED, TWO, values)
    if found.claim:
        assert found.evidence
        low, _ = found.claim.band(TWO)
        assert 0 < low < found.evidence.mean


def test_the_past_is_judged_trial_by_trial() -> None:
    values = [*noisy(1000.0, 0.002, 20), 900.0, 1001.0]
    claim = Threshold("throughput", "images/s", reference=1000.0, lower=-0.05)
    found = replay(claim, TWO, values, 3, gated=True)
    assert (found.met, found.missed, found.undecided) == (21, 1, 0)
    assert found.first_missed == 20
    assert found.worst == 900.0


def test_a_claim_from_above_names_the_largest() -> None:
    found = replay(Threshold("time", "s", at_most=10.0), TWO, [8.0, 12.0, 9.0], 3, gated=False)
    assert (found.met, found.missed, found.worst) == (2, 1, 12.0)


def document(tmp_path: Path, text: str) -> places.Document:
    file = tmp_path / "thresholds.toml"
    file.write_text(text, encoding="utf-8")
    return places.read(file)


ROW = {"reference": 1000.5, "lower": -0.01, "unit": "images/s"}


def test_a_claim_changes_its_own_line_alone(tmp_path: Path) -> None:
    text = '# why\n[local."2x8"]\nthroughput = { at_least = 1 }  # a floor\naccuracy = { at_least = 0.9 }\n\n[x."*"]\n'
    new = revised(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "20 trials")})
    assert new == (
        '# why\n[local."2x8"]\n# From history: 20 trials\n'
        'throughput = { reference = 1000.5, lower = -0.01, unit = "images/s" }\n'
        'accuracy = { at_least = 0.9 }\n\n[x."*"]\n'
    )
    again = revised(document(tmp_path, new), ("local", "2x8"), {"throughput": (ROW, "30 trials")})
    assert again == new.replace("20 trials", "30 trials")


def test_a_scope_that_is_not_there_is_added_at_the_end(tmp_path: Path) -> None:
    text = '[local."*"]\nthroughput = { at_least = 1 }\n'
    new = revised(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "20 trials")})
    assert new.startswith(text)
    assert '\n[local."2x8"]\n# From history: 20 trials\nthroughput = {' in new


def test_a_date_survives(tmp_path: Path) -> None:
    row = {**ROW, "expected_failure": {"reason": "a slow switch", "until": date(2027, 1, 31)}}
    new = revised(document(tmp_path, ""), ("local", "2x8"), {"throughput": (row, "")})
    assert places.parse(new)["local"]["2x8"]["throughput"] == row


def test_what_the_edit_does_not_understand_is_refused(tmp_path: Path) -> None:
    text = '[local]\n"2x8" = { throughput = { at_least = 1 } }\n'
    with pytest.raises(UsageFault, match="cannot be changed safely"):
        revised(document(tmp_path, text), ("local", "2x8"), {"throughput": (ROW, "")})
