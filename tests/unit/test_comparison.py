"""What a run says of the run before it, and which run that is."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_case_entry

from pytest_aisbench.judge.comparison import RunDifference, SpeedChange, VerdictChange, compare_runs
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.results import Before, Brief, CaseEntry, Value
from pytest_aisbench.model.verdict import Ruling

PASSED, FAILED = Ruling.PASSED, Ruling.FAILED


def test_what_came_went_turned_and_moved_is_told() -> None:
    before = Before(
        "run-1",
        "2026-01-01T00:00:00Z",
        (
            Brief("kept", PASSED, 100.0, "images/s"),
            Brief("slower", PASSED, 100.0, "images/s"),
            Brief("gone", PASSED, 1.0, "images/s"),
            Brief("renamed", PASSED, 100.0, "samples/s"),
            Brief("mended", None, None, "images/s"),
        ),
    )
    now = [
        Brief("kept", PASSED, 101.0, "images/s"),
        Brief("slower", FAILED, 50.0, "images/s"),
        Brief("new", PASSED, 5.0, "images/s"),
        Brief("renamed", PASSED, 200.0, "images/s"),
        Brief("mended", PASSED, 7.0, "images/s"),
    ]

    found = compare_runs(before, now)

    assert found == RunDifference(
        new=("new",),
        gone=("gone",),
        turned=(VerdictChange("slower", PASSED, FAILED), VerdictChange("mended", None, PASSED)),
        moved=(SpeedChange("slower", 100.0, 50.0, "images/s"), SpeedChange("kept", 100.0, 101.0, "images/s")),
    )
    assert found.moved[0].share == pytest.approx(-0.5)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), None])
def test_what_is_no_speed_has_not_moved(value: float | None) -> None:
    before = Before("run-1", "", (Brief("a", PASSED, value, ""),))

    assert compare_runs(before, [Brief("a", PASSED, 1.0, "")]).moved == ()


def entry(verdict: Ruling | None) -> CaseEntry:
    return make_case_entry("1x1", "a", verdict=verdict, metrics={"throughput": Value(12.5, "images/s")})


def test_the_last_run_that_ended_with_a_verdict_on_the_same_platform_is_the_one_before(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    here, elsewhere = {"platform": "local", "region": ""}, {"platform": "modelarts", "region": "cn-north-4"}
    for at, (run, settings, verdict, ended) in enumerate(
        [
            ("oldest", here, PASSED, True),
            ("the one", here, FAILED, True),
            ("elsewhere", elsewhere, PASSED, True),
            ("unjudged", here, None, True),
            ("killed", here, PASSED, False),
            ("now", here, PASSED, False),
            ("later", here, PASSED, True),
        ]
    ):
        ledger.begin(run, settings, 1000.0 + at)
        ledger.save_case(run, 0, entry(verdict))
        if ended:
            ledger.finish(run, 0, 2000.0 + at)

    found = ledger.entry("now").before
    first, alone = ledger.previous("oldest"), ledger.previous("elsewhere")
    ledger.close()

    assert found == Before("the one", "1970-01-01T00:16:41.000Z", (Brief("a-1x1", FAILED, 12.5, "images/s"),))
    assert first is None
    assert alone is None
