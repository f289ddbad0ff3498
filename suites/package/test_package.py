"""An unpacked ais-bench package, named with --aisbench-package; without that option there is nothing to test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_aisbench import Trial

pytestmark = pytest.mark.workload(package=True)


def test_trains(trial: Trial) -> None:
    trial.verdict.require()
