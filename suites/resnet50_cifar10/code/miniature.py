"""ResNet-50 on CIFAR-10 in miniature: a residual network on files of CIFAR-10's binary format.

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
from cifar10 import decode, eval_records, generate, train_records
from contract import ContractError, Job, positive, run
from looks import CLASSES
from residual import ResidualNet
from training import arguments, streams_of, train

if TYPE_CHECKING:
    from training import Samples

PER_FILE = 640


def load(job: Job, folder: Path) -> tuple[Samples, Samples]:
    """This rank's shard of the train set, as (stream, sample, …), and the eval set."""
    records = train_records(folder)
    batch = job.arguments.batch_size
    steps = min(len(records), job.arguments.samples) // batch
    if not steps:
        raise ContractError(f"{folder} holds {len(records)} images, too few for a batch of {batch}")
    by_class = np.argsort(records[:, 0], kind="stable")
    starts = [stream * len(records) // batch for stream in streams_of(job)]
    shard = np.stack([records[by_class[start : start + steps]] for start in starts])
    return decode(shard), decode(eval_records(folder))


def main(job: Job) -> None:
    seed = job.arguments.seed
    if job.arguments.data_url:
        shard, held_out = load(job, Path(job.arguments.data_url))
    else:
        with TemporaryDirectory(prefix="cifar10-") as folder:  # a copy per card, as on /cache of a real node
            generate(Path(folder), seed, PER_FILE)
            shard, held_out = load(job, Path(folder))
    network = ResidualNet(np.random.default_rng([seed, job.rank]), patch=4, width=16, classes=CLASSES)
    train(job, network, shard, held_out)


if __name__ == "__main__":
    parser = arguments(epochs=3, learning_rate=0.15)
    parser.add_argument("--samples", type=positive, default=64 * 50, help="at most so many images in an epoch")
    run(parser, main)
