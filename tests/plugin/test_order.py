"""Ready first: a test runs when its job has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cloud_client import CloudClient
from yard import SCRIPT, Yard

pytestmark = pytest.mark.slow

FIXTURES = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[1])


@pytest.fixture(scope="module")
def module():
    print("<module {name}>")
    yield
    print("</module {name}>")


def test_trains(trial, module, whole):
    trial.verdict.require()
"""
WHOLE = """import pytest


@pytest.fixture(scope="session")
def whole():
    with open("whole", "a") as file:
        file.write("set up\\n")
    yield
"""


def slow(seconds: float) -> str:
    return f"import time\ntime.sleep({seconds})\n{SCRIPT}"


def test_the_one_whose_job_ends_first_is_judged_first(yard: Yard) -> None:
    yard.suite("a", script=slow(4))
    yard.suite("b")
    ended = yard.pytest("suites", "--nodes", "1", "-v", "--aisbench-max-jobs", "2")
    assert ended.code == 0, ended.out
    lines = [line for line in ended.out.splitlines() if "PASSED" in line and "::" in line]
    assert "test_b.py" in lines[0]
    assert "test_a.py" in lines[1]


def test_x_stops_when_a_job_fails_and_not_when_its_turn_comes(yard: Yard) -> None:
    yard.suite("a", script="import time\ntime.sleep(600)\n")
    yard.suite("b", script="raise SystemExit(3)")
    ended = yard.pytest("suites", "--nodes", "1", "-x", "--aisbench-max-jobs", "2")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"a-1x2": None, "b-1x2": "FAILED"}


def test_fixtures_live_as_long_as_they_are_needed(yard: Yard) -> None:
    (yard.folder / "conftest.py").write_text(WHOLE)
    for name, seconds in (("a", 2), ("b", 0), ("c", 1)):
        yard.suite(name, script=slow(seconds), test=FIXTURES)
    ended = yard.pytest("suites", "--nodes", "1", "-s", "--aisbench-max-jobs", "3")
    assert ended.code == 0, ended.out
    assert (yard.folder / "whole").read_text() == "set up\n"
    for name in "abc":
        assert ended.out.count(f"<module {name}>") == ended.out.count(f"</module {name}>") == 1


def test_ordinary_tests_do_not_wait_for_jobs(yard: Yard) -> None:
    yard.suite("a", script=slow(3))
    (yard.folder / "suites" / "test_z.py").write_text("def test_ordinary():\n    pass\n")
    ended = yard.pytest("suites", "--nodes", "1", "-v")
    lines = [line for line in ended.out.splitlines() if "PASSED" in line and "::" in line]
    assert "test_z.py" in lines[0]


def test_what_lasted_longest_before_goes_first(yard: Yard, card: Path) -> None:
    """By the ledger's history: neither suite says what it expects."""
    yard.suite("a")
    yard.suite("b", script=slow(2))
    for order in (["a", "b"], ["b", "a"]):
        ended = yard.pytest("suites", "--nodes", "1", "--aisbench-max-jobs", "1")
        assert ended.code == 0, ended.out
        with CloudClient(json.loads(card.read_text())) as cloud:
            _, books = cloud.control("GET", "books")
        mine = [job["name"] for job in books["jobs"] if ended.results["run"] in job["name"]]
        assert [name.partition("-")[0] for name in mine] == order


def test_phases_that_come_out_of_order_end_well(yard: Yard, card: Path) -> None:
    yard.suite("flips", script=slow(2))
    rule = {"name": "^flips-", "phases": ["Running", "Pending", "Running", "Creating"]}
    with CloudClient(json.loads(card.read_text())) as cloud:
        assert cloud.control("PUT", "faults", [rule])[0] == 200
        ended = yard.pytest("suites", "--nodes", "1")
        cloud.control("DELETE", "faults")
    assert (ended.code, ended.verdicts) == (0, {"flips-1x2": "PASSED"}), ended.out
    assert len(ended.results["cases"][0]["trials"]) == 1
