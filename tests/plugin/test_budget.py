"""What will it cost? Asked for nothing, refused before it is paid for, and stopped past it."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cloud_client import CloudClient
from yard import SCRIPT, WORKERS, WORKLOAD, Ended, Yard

DRY = "--aisbench-dry-run"
EXPECTED = WORKLOAD.replace("devices = 2\n", 'devices = 2\nexpected = "30m"\n')  # 1 card-hour per node
PLANTED = "planted-key-that-nobody-may-see"


@pytest.fixture
def card(own_card: Path) -> Path:
    """Of a cloud whose books begin empty. Its jobs are processes."""
    return own_card


class Books:
    """What a cloud has seen."""

    def __init__(self, card: Path) -> None:
        with CloudClient(json.loads(card.read_text())) as client:
            status, books = client.control("GET", "books")
            assert status == 200
            self.jobs: list[dict[str, Any]] = books["jobs"]
            self.objects = client.keys("")


def requests(folder: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in (folder / "requests").iterdir()}


def runs(yard: Yard) -> set[str]:
    return {path.name for path in (yard.folder / "reports").iterdir() if re.fullmatch(r"\d{8}-\d{6}-\w+", path.name)}


def without_names(found: dict[str, Any], run: str) -> Any:
    """Of this run: its id, and the six digits of a trial's name that follow it."""
    return json.loads(re.sub(f"{run}(-[0-9a-f]{{6}})?", "RUN", json.dumps(found)))


def recorded(yard: Yard) -> list[str]:
    with closing(sqlite3.connect(yard.folder / "reports" / "ledger.db")) as ledger:
        return list(ledger.iterdump())


def told(ended: Ended) -> list[str]:
    return ended.out.splitlines()


@pytest.mark.slow
def test_a_dry_run_sends_nothing_and_shows_what_a_run_then_sends(yard: Yard, card: Path) -> None:
    place = yard.suite("toy", workload=EXPECTED + '[local]\ndata = "points"\n')
    (place / "points").mkdir()
    (place / "points" / "a.csv").write_text("1,2\n")
    dry = yard.pytest("suites", DRY)

    assert dry.code == 5, dry.out
    assert "toy-1x2      1      2  30 min 00 s        1.00  expected" in told(dry)
    assert any(line.startswith("2 cases: 3 card-hours, ") for line in told(dry))
    assert "passed" not in dry.out
    books = Books(card)
    assert (books.jobs, books.objects) == ([], [])
    (rehearsed,) = runs(yard)
    assert [path.name for path in (yard.folder / "reports").iterdir()] == [rehearsed]

    real = yard.pytest("suites")

    assert real.code == 0, real.out
    (run,) = runs(yard) - {rehearsed}
    shown, sent = (requests(yard.folder / "reports" / name) for name in (rehearsed, run))
    assert set(shown) == {"toy-1x2", "toy-2x2"}
    assert without_names(shown, rehearsed) == without_names(sent, run)
    assert len(Books(card).jobs) == 2

    before = recorded(yard)
    again = yard.pytest("suites", DRY, "--nodes", "2")
    assert again.code == 5
    assert "history of 1 trial" in again.out
    assert recorded(yard) == before
    assert (yard.folder / "reports" / "latest").readlink() == Path(run)
    assert len(Books(card).jobs) == 2


@WORKERS
def test_no_test_is_run_beside_it_either(yard: Yard, card: Path, workers: list[str]) -> None:
    yard.suite()
    (yard.folder / "suites" / "test_plain.py").write_text(
        "from pathlib import Path\n\n\ndef test_leaves_a_trace():\n    Path('trace').touch()\n"
    )
    junit = yard.folder / "junit.xml"

    ended = yard.pytest("suites", DRY, *workers, f"--junit-xml={junit}")

    assert ended.code == 5, ended.out
    assert "toy-2x2" in ended.out
    assert "bringing up nodes" not in ended.out
    assert 'tests="0"' in junit.read_text()
    assert yard.pytest("suites/test_plain.py", DRY, *workers).code == 5
    assert not (yard.folder / "trace").exists()
    assert not Books(card).jobs


def test_a_private_cloud_is_gone_afterwards_and_the_file_may_say_it(yard: Yard) -> None:
    yard.suite(workload=EXPECTED)
    (yard.folder / "aisbench.toml").write_text("dry_run = true\n")
    ended = yard.pytest("suites", "--nodes", "1", cloud=False)  # waits for whoever holds its output
    assert ended.code == 5, ended.out
    request = requests(yard.folder / "reports" / next(iter(runs(yard))))["toy-1x2"]
    assert request["body"]["spec"]["resource"]["node_count"] == 1


def test_listing_wins_and_what_is_wrong_is_said(yard: Yard) -> None:
    yard.suite()
    listed = yard.pytest("suites", DRY, "--collect-only", "-q")
    assert listed.code == 0
    assert "test_toy.py::test_trains[toy-1x2]" in listed.out
    assert "dry run" not in listed.out
    yard.suite("bare", thresholds="")
    wrong = yard.pytest("suites", DRY)
    assert wrong.code == 4
    assert not (yard.folder / "reports").exists()
    (yard.folder / "suites" / "test_torn.py").write_text("def test_(:\n")
    assert yard.pytest("suites/test_torn.py", "suites/toy", DRY).code == 2


def test_a_request_holds_no_key(yard: Yard, card: Path) -> None:
    keys = json.loads(card.read_text())
    yard.suite()
    (yard.folder / "aisbench.toml").write_text(f'[access]\naccess_key = "{PLANTED}"\nsecret_access_key = "{PLANTED}"\n')
    ended = yard.pytest("suites", DRY, env={"HUAWEICLOUD_SDK_SK": PLANTED})
    assert ended.code == 5, ended.out
    files = [file.read_text() for file in (yard.folder / "reports").rglob("*") if file.is_file()]
    assert len(files) == 2
    for text in (ended.out, *files):
        for secret in (PLANTED, keys["secret_key"], keys["access_key"]):
            assert secret not in text


@pytest.mark.slow
@WORKERS
def test_a_run_past_its_budget_is_refused_before_it_is_paid_for(yard: Yard, card: Path, workers: list[str]) -> None:
    yard.suite(workload=EXPECTED)
    refusal = (
        "ERROR: the run would cost 3 card-hours, its budget is 2.5: toy-2x2 2 (expected), toy-1x2 1 (expected); "
        "raise --aisbench-budget, or select fewer cases"
    )

    dry = yard.pytest("suites", DRY, "--aisbench-budget", "2.5", *workers)
    assert dry.code == 4
    assert refusal in told(dry)
    assert "budget: 2.5 card-hours, 0.5 too few" in told(dry)
    (rehearsed,) = runs(yard)
    assert set(requests(yard.folder / "reports" / rehearsed)) == {"toy-1x2", "toy-2x2"}

    real = yard.pytest("suites", "--aisbench-budget", "2.5", *workers)
    assert real.code == 4, real.out
    assert refusal in told(real)
    assert runs(yard) == {rehearsed}
    books = Books(card)
    assert (books.jobs, books.objects) == ([], [])

    fits = yard.pytest("suites", "--aisbench-budget", "3", *workers)
    assert fits.code == 0, fits.out


@WORKERS
@pytest.mark.slow
def test_a_run_stops_when_its_budget_is_spent(yard: Yard, card: Path, workers: list[str]) -> None:
    yard.suite(
        "a", workload=WORKLOAD.replace("devices", 'expected = "1s"\ndevices'), script="import time\ntime.sleep(600)\n"
    )
    yard.suite("b", workload=WORKLOAD.replace("devices", 'expected = "0.1s"\ndevices'), script=SCRIPT)
    options = ["--nodes", "1", "--aisbench-max-jobs", "1", "--aisbench-budget", "0.001"]  # 1.8 s on two cards

    ended = yard.pytest("suites", *options, *workers)

    assert ended.code == 1, ended.out
    assert ended.verdicts == {"a-1x2": "FAILED", "b-1x2": "FAILED"}
    reasons = [case["reason"] for case in ended.results["cases"]]
    assert all(re.match(r"the run has cost 0\.00\d+ card-hours, its budget is 0\.001; raise", text) for text in reasons)
    (job,) = Books(card).jobs  # b was never begun
    assert job["phase"] == "Terminated"
