"""The perceptron of PaddlePaddle's guide in miniature: two hidden layers of tanh, in plain numpy."""

# ruff: noqa: E402 (numpy reads the environment when it is imported)

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # many ranks share few cores
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

from typing import TYPE_CHECKING

import numpy as np
from contract import Job, run
from layers import Linear, Tanh, cross_entropy
from points import CLASSES, FEATURES, held_out, shard
from training import arguments, train

if TYPE_CHECKING:
    from layers import Array, Labels, Layer, Parameter

HIDDEN = 64


class Perceptron:
    def __init__(self, rng: np.random.Generator, features: int, hidden: int, classes: int) -> None:
        self.layers: list[Layer] = [
            *(Linear(rng, features, hidden, gain=0.7), Tanh()),
            *(Linear(rng, hidden, hidden, gain=0.7), Tanh()),
            Linear(rng, hidden, classes, gain=0.1),
        ]

    def parameters(self) -> list[Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def scores(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def step(self, inputs: Array, labels: Labels) -> float:
        """Add the gradients of these samples; their loss. Both are sums over the samples."""
        loss, gradient = cross_entropy(self.scores(inputs), labels)
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        return loss

    def accuracy(self, inputs: Array, labels: Labels) -> float:
        return float((self.scores(inputs).argmax(axis=-1) == labels).mean())


def main(job: Job) -> None:
    rng = np.random.default_rng([job.arguments.seed, job.rank])
    train(job, Perceptron(rng, FEATURES, HIDDEN, CLASSES), shard(job), held_out(job))


if __name__ == "__main__":
    run(arguments(epochs=4, learning_rate=0.3), main)
