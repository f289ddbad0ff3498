"""The first exit code that applies."""

from __future__ import annotations

import pytest

from pytest_aisbench.domain.exitcode import Tally


@pytest.mark.parametrize(
    ("tally", "status", "code"),
    [
        (Tally(passed=3), 0, 0),
        (Tally(passed=3, broken=1), 1, 12),
        (Tally(passed=3, inconclusive=1), 1, 13),
        (Tally(broken=1, inconclusive=1), 1, 12),
        (Tally(failed=1, broken=1, inconclusive=1), 1, 1),
        (Tally(), 0, 5),  # all skipped: nothing was judged
        (Tally(), 5, 5),
        (Tally(), 1, 1),  # pytest saw a failure that we did not
        (Tally(passed=1, failed=1), 2, 2),
        (Tally(failed=1, stopped_early=True), 2, 1),  # -x under xdist
        (Tally(broken=1, stopped_early=True), 2, 12),
        (Tally(passed=1, unrecorded="disk full"), 0, 3),
        (Tally(failed=1, unrecorded="disk full"), 1, 3),
        (Tally(failed=1), 143, 143),
        (Tally(failed=1), 3, 3),
        (Tally(failed=1), 4, 4),
    ],
)
def test_first_that_applies(tally: Tally, status: int, code: int) -> None:
    assert tally.code(status) == code
