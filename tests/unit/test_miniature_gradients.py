"""The miniatures' hand-written backward passes against the slopes of their losses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parents[2] / "suites"

GRADIENTS = """
import numpy as np
from layers import flatten
rng = np.random.default_rng(3)
{}
weights, gradients = flatten(network.parameters())
weights += rng.standard_normal(weights.shape, dtype=np.float32) * np.float32(0.05)
for _ in range(5):
    direction = rng.standard_normal(weights.shape, dtype=np.float32)
    direction *= np.float32(0.02) / np.linalg.norm(direction)
    gradients[:] = 0
    network.step(inputs, labels)
    slope, losses = float(gradients @ direction), []
    for sign in (1, -2):
        weights += np.float32(sign) * direction
        losses.append(network.step(inputs, labels))
    weights += direction
    print(slope, (losses[0] - losses[1]) / 2)
"""
RESIDUAL = """
from residual import ResidualNet
network = ResidualNet(rng, patch=2, width=8, classes=4)
inputs, labels = rng.standard_normal((6, 8, 8, 3), dtype=np.float32), np.array([0, 1, 2, 3, 1, 2])
"""
ENCODER = """
from encoder import Encoder
network = Encoder(rng, vocabulary=9, length=5, features=8, heads=2, depth=2)
inputs, labels = rng.integers(9, size=(6, 5)), np.full((6, 5), -1)
labels[:, 1], labels[:, 3] = rng.integers(9, size=(2, 6))
"""


@pytest.mark.parametrize(("suite", "network"), [("resnet50", RESIDUAL), ("bert", ENCODER)], ids=["residual", "encoder"])
def test_gradients_are_the_slopes_of_the_loss(suite: str, network: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUITES / "miniature"), str(SUITES / suite / "code")]),
    }
    command = [sys.executable, "-B", "-c", GRADIENTS.format(network)]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    pairs = [tuple(map(float, line.split())) for line in run.stdout.splitlines()]
    assert len(pairs) == 5
    for claimed, measured in pairs:
        assert claimed == pytest.approx(measured, rel=0.03, abs=0.002)
