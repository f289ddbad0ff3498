"""A perceptron, trained by PyTorch in an image of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_aisbench import Trial

pytestmark = pytest.mark.workload("torch_mlp", shapes=["1x1", "1x8", "2x8"])


def test_trains(trial: Trial) -> None:
    trial.verdict.require()
