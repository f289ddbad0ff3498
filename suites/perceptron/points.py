"""A data set to learn: points of 32 numbers in 16 classes.

A point of a class is its pattern, or the negative of it, under noise. A linear model sees nothing of it, since the mean
of every class is the same. A rank holds only the points of its own classes: to know the others it needs what other
ranks have learnt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from training import streams_of

if TYPE_CHECKING:
    from contract import Job
    from layers import Array
    from training import Samples

FEATURES, CLASSES, NOISE = 32, 16, 0.7
PER_STREAM, HELD_OUT = 60, 64


def points(seed: list[int], kind: int, count: int) -> Array:
    """Of one class, (count, FEATURES)."""
    pattern = np.random.default_rng([7, kind]).choice([-1.0, 1.0], FEATURES)
    rng = np.random.default_rng(seed)
    sides = rng.choice([-1.0, 1.0], (count, 1))
    drawn: Array = (sides * pattern + rng.normal(0, NOISE, (count, FEATURES))).astype(np.float32)
    return drawn


def shard(job: Job) -> Samples:
    """What this rank trains on, (stream, sample, …): a step takes one sample of each stream."""
    kinds = [stream * CLASSES // job.arguments.batch_size for stream in streams_of(job)]
    streams = zip(streams_of(job), kinds)
    inputs = np.stack([points([job.arguments.seed, 1, stream], kind, PER_STREAM) for stream, kind in streams])
    return inputs, np.repeat(np.array(kinds)[:, None], PER_STREAM, axis=1)


def held_out(job: Job) -> Samples:
    """What the network is judged by."""
    inputs = np.concatenate([points([job.arguments.seed, 2, kind], kind, HELD_OUT) for kind in range(CLASSES)])
    return inputs, np.arange(CLASSES).repeat(HELD_OUT)
