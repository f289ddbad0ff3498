"""Keras' MNIST example in miniature: a small convolution network on files of MNIST's format.

It trains on the data set at ``--data_url``, which may be the real one, or else on a generated one. A rank takes only
the images of its own classes from it, and of the generated set its own looks of them: to know the others it needs what
other ranks have learnt.
"""

# ruff: noqa: E402 (numpy reads the environment when it is imported)

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # many ranks share few cores
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from contract import ContractError, Job, positive, run
from looks import CLASSES
from mnist import EVAL, TRAIN, decode, generate, read
from residual import ResidualNet
from training import arguments, streams_of, train

if TYPE_CHECKING:
    from training import Samples

COUNT, HELD_OUT = 3200, 640


def load(job: Job, folder: Path) -> tuple[Samples, Samples]:
    """This rank's shard of the train set, as (stream, sample, …), and the eval set."""
    images, labels = read(folder, TRAIN)
    batch = job.arguments.batch_size
    steps = min(len(labels), job.arguments.samples) // batch
    if not steps:
        raise ContractError(f"{folder} holds {len(labels)} images, too few for a batch of {batch}")
    by_class = np.argsort(labels, kind="stable")
    starts = [stream * len(labels) // batch for stream in streams_of(job)]
    chosen = np.stack([by_class[start : start + steps] for start in starts])
    return decode((images[chosen], labels[chosen])), decode(read(folder, EVAL))


def main(job: Job) -> None:
    seed = job.arguments.seed
    if job.arguments.data_url:
        shard, held_out = load(job, Path(job.arguments.data_url))
    else:
        with TemporaryDirectory(prefix="mnist-") as folder:
            generate(Path(folder), seed, COUNT, HELD_OUT)
            shard, held_out = load(job, Path(folder))
    network = ResidualNet(np.random.default_rng([seed, job.rank]), patch=4, width=16, classes=CLASSES, channels=1)
    train(job, network, shard, held_out)


if __name__ == "__main__":
    parser = arguments(epochs=4, learning_rate=0.15)
    parser.add_argument("--samples", type=positive, default=COUNT, help="at most so many images in an epoch")
    run(parser, main)
