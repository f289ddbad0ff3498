"""ResNet-50 in miniature: a residual network learns to tell textures apart.

A texture is a wave of its own direction, length and colour, at a random phase and under noise: no pixel says anything
by itself, so a linear model sees nothing. A rank holds only the images of its own classes: to know the others it needs
what other ranks have learnt.
"""

# ruff: noqa: E402 (numpy reads the environment when it is imported)

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # many ranks share few cores
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

from typing import TYPE_CHECKING

import numpy as np
from contract import Job, run
from residual import ResidualNet
from training import arguments, streams_of, train

if TYPE_CHECKING:
    from layers import Array

CLASSES, SIZE, NOISE = 16, 16, 0.7
PER_STREAM, HELD_OUT = 60, 32


def textures(seed: list[int], kind: int, count: int, noise: float = NOISE) -> Array:
    """Images of one class, (count, SIZE, SIZE, 3)."""
    angle, length = np.pi * kind / CLASSES, (6.0, 3.6)[kind % 2]
    colour = np.random.default_rng([7, kind]).standard_normal(3)
    colour /= np.linalg.norm(colour)
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE]
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    wave = np.sin(2 * np.pi / length * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    grain = rng.normal(0, noise, (count, SIZE, SIZE, 3))
    images: Array = (wave[..., None] * colour + grain).astype(np.float32)
    return images


def main(job: Job) -> None:
    seed, streams = job.arguments.seed, streams_of(job)
    kinds = [s * CLASSES // job.arguments.batch_size for s in streams]
    images = np.stack([textures([seed, 1, s], kind, PER_STREAM) for s, kind in zip(streams, kinds, strict=True)])
    labels = np.repeat(np.array(kinds)[:, None], PER_STREAM, axis=1)
    held_out = np.concatenate([textures([seed, 2, kind], kind, HELD_OUT) for kind in range(CLASSES)])
    network = ResidualNet(np.random.default_rng([seed, job.rank]), patch=4, width=16, classes=CLASSES)
    train(job, network, (images, labels), (held_out, np.arange(CLASSES).repeat(HELD_OUT)))


if __name__ == "__main__":
    run(arguments(epochs=4, learning_rate=0.15), main)
