"""What a training says at its end, as AIS-Bench's scripts do, and the results that it leaves with it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from contract import Job


def report(job: Job, began: float, wall: float, *, steps: int, batch: int, epochs: int) -> None:
    """This rank's throughput. The seconds are not rounded: of a short training, whole ones would say much more."""
    samples = steps * batch * epochs
    rate = samples / wall
    print(
        f"train done starttime:{began} endtime:{began + wall} stepsize:{steps} batchsize:{batch} "
        f"epochsize:{epochs} alldatasum:{samples} single_throughput_rate:{rate}",
        flush=True,
    )
    job.write_throughput(rate)


def tell_version(job: Job, name: str, version: str) -> None:
    """Which framework trains here; the report of a run shows it."""
    if job.rank == 0:
        print(f"{name} version: {version}", flush=True)


def tell_miniature(job: Job) -> None:
    """That no framework trains here, but numpy."""
    import numpy as np

    if job.rank == 0:
        print(f"numpy miniature, numpy version {np.__version__}", flush=True)


def tell_weights(arrays: Iterable[Any]) -> None:
    """The same on every rank, or the gradients were not exchanged."""
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(array.tobytes(), checksum)
    print(f"weights crc32:{checksum:08x}", flush=True)


def judge(job: Job, accuracy: float) -> None:
    print(f"eval ckpt result:{{'accuracy': {accuracy}}}", flush=True)
    job.write_accuracy(accuracy)
