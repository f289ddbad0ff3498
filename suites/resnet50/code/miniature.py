"""ResNet-50 in miniature: a residual network learns to tell textures apart.

A rank holds only the images of its own classes: to know the others it needs what other ranks have learnt.
"""

# ruff: noqa: E402 (numpy reads the environment when it is imported)

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # many ranks share few cores
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import numpy as np
from contract import Job, run
from residual import ResidualNet
from textures import CLASSES, textures
from training import arguments, streams_of, train

PER_STREAM, HELD_OUT = 60, 32


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
