"""What every Clock must do."""

from __future__ import annotations

import pytest

from pytest_aisbench.domain.ports import Clock


class ClockContract:
    """Needs a fixture `clock`."""

    @pytest.fixture
    def clock(self) -> Clock:
        raise AssertionError("the test class that inherits ClockContract has a fixture `clock`")

    def test_time_does_not_run_backwards(self, clock: Clock) -> None:
        times = [clock.now() for _ in range(100)]
        assert times == sorted(times)
        assert times[0] > 0

    def test_sleeping_takes_its_time(self, clock: Clock) -> None:
        before = clock.now()
        clock.sleep(0.02)
        assert clock.now() - before >= 0.019  # a clock may count in steps
