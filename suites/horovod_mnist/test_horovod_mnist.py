"""MNIST with Keras and Horovod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_aisbench import Trial

pytestmark = pytest.mark.workload("horovod_mnist", nodes=[1, 2])


def test_trains(trial: Trial) -> None:
    trial.verdict.require()
