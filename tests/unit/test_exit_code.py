"""The first exit code that applies, decided by the ledger and not by the colour of a test."""

from __future__ import annotations

import pytest

from pytest_aisbench.judge.exit_code import Tally
from pytest_aisbench.model.verdict import Ruling

P, F, B, I = Ruling.PASSED, Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE  # noqa: E741


@pytest.mark.parametrize(
    ("tally", "status", "rulings", "code"),
    [
        (Tally(), 0, [P, P], 0),
        (Tally(failures=1), 1, [P, B], 12),
        (Tally(failures=1), 1, [P, I], 13),
        (Tally(failures=2), 1, [B, I], 12),
        (Tally(failed=1, failures=3), 1, [F, B, I], 1),
        (Tally(failed=1, failures=1), 1, [P], 1),  # an ordinary test, or one that failed after its verdict
        (Tally(), 0, [P, F], 1),  # an expected failure is not a case that passed
        (Tally(), 0, [P, B], 12),
        (Tally(), 0, [], 5),  # all skipped: nothing was judged
        (Tally(skipped={"0": ""}), 0, [], 5),
        (Tally(skipped={"1": ""}), 0, [P], 0),  # one was skipped, the other passed
        (Tally(), 0, [P], 2),  # one was neither judged nor skipped
        (Tally(), 5, [], 5),
        (Tally(stopped={"1": "stopped by a"}), 0, [P], 2),
        (Tally(stopped={"0": "stopped by a", "1": "stopped by a"}), 0, [], 2),  # before 5
        (Tally(stopped={"1": "stopped by a"}, failures=1), 1, [B], 12),
        (Tally(stopped={"1": "stopped by a"}, failures=1), 1, [I], 13),
        (Tally(stopped={"1": "stopped by a"}, required=("1",)), 0, [P], 11),
        (Tally(stopped={"1": "stopped by a"}, failed=1, failures=1), 1, [F], 1),
        (Tally(required=("0", "1")), 0, [P, P], 0),
        (Tally(required=("9",)), 0, [P, P], 11),
        (Tally(required=("9",)), 5, [], 11),  # nothing was collected at all
        (Tally(required=("9",), failures=1), 1, [P, B], 11),
        (Tally(required=("9",), failures=1), 1, [P, I], 11),
        (Tally(required=("9",), failed=1, failures=1), 1, [P, P], 1),
        (Tally(required=("9",)), 1, [P, P], 1),  # pytest saw a failure that we did not
        (Tally(required=("9",)), 2, [P], 2),
        (Tally(required=("9",)), 4, [], 4),
        (Tally(required=("0", "1"), failures=2), 1, [B, I], 12),  # both were judged
        (Tally(undelivered=1), 1, [P, P], 1),
        (Tally(), 1, [P, P], 1),  # pytest saw a failure that we did not
        (Tally(failed=1), 2, [P, F], 2),
        (Tally(failed=1, stopped_early=True), 2, [F], 1),  # -x under xdist
        (Tally(stopped_early=True), 2, [B], 12),
        (Tally(unrecorded="disk full"), 0, [P, P], 3),
        (Tally(failed=1, unrecorded="disk full"), 1, [F], 3),
        (Tally(failed=1, terminated=True), 2, [F], 143),
        (Tally(failed=1), 3, [F], 3),
        (Tally(failed=1), 4, [F], 4),
    ],
)
def test_first_that_applies(tally: Tally, status: int, rulings: list[Ruling], code: int) -> None:
    tally.expected = {"0", "1"}
    assert tally.code(status, {str(number): ruling for number, ruling in enumerate(rulings)}) == code


def test_a_run_that_was_to_judge_nothing_is_as_pytest_says() -> None:
    assert Tally().code(0, {}) == 0
    assert Tally(unmatched=True).code(0, {}) == 5  # but --nodes wanted a case


def test_a_missing_case_says_why() -> None:
    tally = Tally(required=("judged", "late", "skipped", "mute", "ended", "staged", "left", "never"))
    tally.selected = {"judged", "late", "skipped", "mute", "staged"}
    tally.expected = {"judged", "late", "skipped", "mute"}
    tally.skipped = {"skipped": "no cards", "mute": ""}
    tally.stopped = {"ended": "stopped by somebody"}
    tally.deselected = {"left"}

    assert tally.missing(["judged", "another"]) == {
        "late": "the run ended before it was judged",
        "skipped": "skipped: no cards",
        "mute": "skipped",
        "ended": "stopped by somebody",
        "staged": "no selected test judges it",
        "left": "deselected",
        "never": "not collected",
    }
