"""BERT in miniature: a transformer encoder learns to find masked tokens in a language made for the purpose.

A rank hears only its own dialects: to read the others it needs what other ranks have learnt.
"""

# ruff: noqa: E402 (numpy reads the environment when it is imported)

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # many ranks share few cores
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import numpy as np
from contract import Job, run
from encoder import Encoder
from language import DIALECTS, LENGTH, MASK, sentences
from training import arguments, streams_of, train

PER_STREAM, HELD_OUT = 60, 32


def main(job: Job) -> None:
    seed, batch = job.arguments.seed, job.arguments.batch_size
    shard = [sentences([seed, 1, s], s * DIALECTS // batch, PER_STREAM) for s in streams_of(job)]
    held_out = [sentences([seed, 2, d], d, HELD_OUT) for d in range(DIALECTS)]
    network = Encoder(
        np.random.default_rng([seed, job.rank]), vocabulary=MASK + 1, length=LENGTH, features=32, heads=4, depth=2
    )
    train(
        job,
        network,
        (np.stack([text for text, _ in shard]), np.stack([labels for _, labels in shard])),
        (np.concatenate([text for text, _ in held_out]), np.concatenate([labels for _, labels in held_out])),
    )


if __name__ == "__main__":
    run(arguments(epochs=4, learning_rate=0.3), main)
