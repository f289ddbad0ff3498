"""Verdicts that know noise, by real runs: another trial where one does not decide, history, other shapes, drifts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from past import remember, spread
from yard import WORKERS, WORKLOAD, Ended, Yard

from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = pytest.mark.slow

# Two ranks of 12.5: every trial of 1x2 measures exactly 25 images/s, and only history knows noise.
FAST = WORKLOAD + '\n[local]\nparameters = { seconds = "0.1", throughput = "12.5" }\n'
CLAIMS = """[local."*"]
throughput = { at_least = 23 }
accuracy = { at_least = 0.5 }
"""
SCALING = CLAIMS + '[local."2x2"]\nscaling = { at_least = 0.9, base = "1x2" }\n'


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with LocalCloud(engine="simulated") as cloud:
        card = tmp_path_factory.mktemp("simulated") / "card.json"
        card.write_text(json.dumps(cloud.card()))
        yield card


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, simulated: Path) -> Ended:
    """A case that was measured once."""
    yard = Yard(tmp_path_factory.mktemp("measured"), simulated)
    yard.suite(workload=FAST, thresholds=CLAIMS)
    return yard.pytest("suites", "--nodes", "1")


@pytest.fixture
def yard(tmp_path: Path, simulated: Path, measured: Ended) -> Yard:
    shutil.copytree(measured.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Yard(tmp_path, simulated)


def ledger(yard: Yard) -> Path:
    return yard.folder / "reports" / "ledger.db"


def entry(yard: Yard, run: str) -> Any:
    with closing(Ledger(ledger(yard))) as book:
        return book.entry(run)


def case(ended: Ended, case_id: str = "toy-1x2") -> Any:
    return next(case for case in ended.results["cases"] if case["id"] == case_id)


def finding(ended: Ended, metric: str, case_id: str = "toy-1x2") -> Any:
    return next(found for found in case(ended, case_id)["findings"] if found["metric"] == metric)


@WORKERS
def test_noise_that_one_trial_cannot_rule_out_gets_another(yard: Yard, measured: Ended, workers: list[str]) -> None:
    assert measured.code == 0, measured.out
    assert "assumed to be 2% of the mean: no comparable earlier trials" in finding(measured, "throughput")["text"]
    assert len(case(measured)["trials"]) == 1
    remember(ledger(yard), "toy-1x2", spread(25.0, 0.4, 30))
    second = yard.pytest("suites", "--nodes", "1", *workers)
    assert second.code == 0, second.out
    assert case(second)["verdict"] == "PASSED"
    assert [trial["trial"] for trial in case(second)["trials"]] == [1, 2]
    assert finding(second, "throughput")["text"] == (
        "throughput 25 images/s, mean of 2 trials, wanted >= 23 images/s: the interval 23.389 .. 26.611 is inside the"
        " limits (± 1.611 = t 5.339 × s 0.4068 / √1.818; t at 1 - 0.05 × 3/9 with 2 degrees of freedom; 2 trials count"
        " as 1.818, since successive ones correlate by 0.1; 30 earlier trials)"
    )
    learnt = "accuracy 0.9, mean of 2 trials, at worst 0.9 in trial 1, wanted >= 0.5"
    assert finding(second, "accuracy")["text"] == learnt


def test_noise_that_no_trial_rules_out_leaves_a_case_open(yard: Yard) -> None:
    remember(ledger(yard), "toy-1x2", spread(25.0, 1.0, 30))
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == ended.results["exit_code"] == 13, ended.out
    assert case(ended)["verdict"] == "INCONCLUSIVE"
    assert len(case(ended)["trials"]) == 3
    assert case(ended)["metrics"]["throughput"]["value"] == finding(ended, "throughput")["measured"] == 25.0
    assert "undecided after 3 of at most 3 trials" in finding(ended, "throughput")["text"]


def test_a_shape_is_held_against_its_base_in_this_run_or_in_history_or_says_that_there_is_none(yard: Yard) -> None:
    yard.suite(workload=FAST, thresholds=SCALING)
    alone = yard.pytest("suites", "--nodes", "2", "--aisbench-ledger", "reports/another.db")
    assert alone.code == 0, alone.out
    assert finding(alone, "scaling", "toy-2x2") == {
        "metric": "scaling",
        "outcome": "waived",
        "measured": None,
        "wanted": ">= 0.9",
        "text": "scaling: waived, the base 1x2 was measured neither in this run nor in its history",
    }
    assert "scaling: waived, the base 1x2" in alone.out
    together = yard.pytest("suites")
    assert together.code == 0, together.out
    run = together.results["run"]
    for each in entry(yard, run).cases:
        assert [(at.shape, at.source) for at in each.background.scaling] == [("1x2", "this run"), ("2x2", "this run")]
    told = finding(together, "scaling", "toy-2x2")
    assert (told["outcome"], told["measured"]) == ("met", 1.0)
    assert "12.5 images/s per card at 2x2 and 12.5 images/s at 1x2 (this run), wanted >= 0.9" in told["text"]
    assert "the noise of 2x2 and 1x2 is unknown, and assumed to be 2% of the mean" in told["text"]
    remember(ledger(yard), "toy-1x2", spread(25.0, 0.25, 30))
    remember(ledger(yard), "toy-2x2", spread(50.0, 2.5, 30))
    later = yard.pytest("suites", "--nodes", "2")
    assert later.code == 0, later.out
    told = finding(later, "scaling", "toy-2x2")
    assert (told["outcome"], told["measured"]) == ("met", 1.0)
    assert "at 1x2 (history: 10 trials up to run run-0029), wanted >= 0.9: the interval 0.9" in told["text"]
    assert "× √(0.05² / 2 + 0.01017² / 10); s / mean and trials of 2x2 and 1x2; " in told["text"]
    assert len(case(later, "toy-2x2")["trials"]) == 2  # by itself, since the noise of the first left it open


def test_a_decline_that_no_two_runs_show_is_told_and_may_fail(yard: Yard) -> None:
    yard.suite(workload=FAST, thresholds=CLAIMS.replace("23", "20"))
    slowly = [25.0 * 1.0025 ** (40 - number) for number in range(40)]  # a quarter of a percent from run to run
    remember(ledger(yard), "toy-1x2", slowly)
    warned = yard.pytest("suites", "--nodes", "1")
    assert warned.code == 0, warned.out
    assert warned.out.count("throughput has drifted to 25") == 1
    remember(ledger(yard), "toy-1x2", slowly)
    failed = yard.pytest("suites", "--nodes", "1", "--aisbench-drift", "fail")
    assert failed.code == 1, failed.out
    assert case(failed)["reason"].startswith("throughput has drifted to 25")
    assert case(failed)["reason"].endswith(": from run run-0010 on")
    told = [found["outcome"] for found in case(failed)["findings"] if found["metric"] == "throughput"]
    assert told == ["met", "missed"]


def test_what_changed_is_told_and_history_is_not_mixed(yard: Yard) -> None:
    remember(ledger(yard), "toy-1x2", spread(25.0, 1.0, 30))
    yard.suite(workload=FAST.replace('"12.5"', '"12.6"'), thresholds=CLAIMS)
    after = yard.pytest("suites", "--nodes", "1")
    assert after.code == 0, after.out
    assert len(case(after)["trials"]) == 1
    assert "no comparable earlier trials" in finding(after, "throughput")["text"]
    assert "not compared with run run-0029: parameter throughput: 12.5 -> 12.6" in after.out
