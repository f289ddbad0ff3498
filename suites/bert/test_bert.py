"""BERT-Large, pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_aisbench import Trial

pytestmark = pytest.mark.workload("bert", nodes=[1, 2, 4, 8])


def test_trains(trial: Trial) -> None:
    trial.verdict.require()
