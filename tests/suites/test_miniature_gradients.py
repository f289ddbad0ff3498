"""The miniatures' hand-written backward passes against the slopes of their losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import run_python

SUITES = Path(__file__).parents[2] / "suites"

# For every parameter: the length of its gradient, then the slope of the loss along a direction, claimed and measured.
# The direction is half the gradient and half chance, so that neither a wrong nor a missing part goes unseen.
GRADIENTS = """
import numpy as np
from layers import flatten
rng = np.random.default_rng(3)
{}
for p in network.parameters():
    p.value = p.value + 0.3 * rng.standard_normal(p.value.shape)
weights, gradients = flatten(network.parameters())
network.step(inputs, labels)
claimed = [p.grad.copy() for p in network.parameters()]
for p, gradient in zip(network.parameters(), claimed):
    chance = rng.standard_normal(p.value.shape)
    length = np.linalg.norm(gradient)
    direction = gradient / length + chance / np.linalg.norm(chance)
    losses = []
    for stride in (1e-3, -2e-3):
        p.value += stride * direction
        losses.append(network.step(inputs, labels))
    p.value += 1e-3 * direction
    print(length, (gradient * direction).sum(), (losses[0] - losses[1]) / 2e-3)
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
PERCEPTRON = """
from miniature import Perceptron
network = Perceptron(rng, 5, 7, 4)
inputs, labels = rng.standard_normal((6, 5), dtype=np.float32), np.array([0, 1, 2, 3, 1, 2])
"""


@pytest.mark.parametrize(
    ("folder", "network", "parameters"),
    [("resnet50/code", RESIDUAL, 20), ("bert/code", ENCODER, 20), ("perceptron", PERCEPTRON, 6)],
    ids=["residual", "encoder", "perceptron"],
)
def test_gradients_are_the_slopes_of_the_loss(folder: str, network: str, parameters: int) -> None:
    done = run_python([SUITES / "miniature", SUITES / folder], "-B", "-c", GRADIENTS.format(network))
    assert done.returncode == 0, done.stderr
    rows = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(rows) >= parameters
    for length, claimed, measured in rows:
        assert length > 0
        assert claimed == pytest.approx(measured, rel=0.01, abs=0.01 * length)
