"""Pipelines of images, by the names that MindSpore has for their steps, before version 2 and since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore
import mindspore.dataset as ds

if TYPE_CHECKING:
    from contract import Job

__all__ = ["batches", "normalized", "shard", "slices", "transforms", "vision"]

try:
    from mindspore.dataset import transforms, vision
    from mindspore.dataset.vision import Normalize as _  # noqa: F401
except ImportError:  # before version 2
    from mindspore.dataset.transforms import c_transforms as transforms
    from mindspore.dataset.vision import c_transforms as vision


def shard(job: Job, *, alone: bool = False) -> dict[str, int]:
    """The part of a data set that is this rank's. ``alone``: all of it, where one rank judges for all."""
    return {} if alone or job.size == 1 else {"num_shards": job.size, "shard_id": job.rank}


def slices(images: Any, labels: Any, job: Job, *, training: bool) -> Any:
    """Of arrays in memory."""
    columns = {"image": images, "label": labels}
    return ds.NumpySlicesDataset(columns, shuffle=training, num_parallel_workers=1, **shard(job, alone=not training))


def batches(data: Any, steps: list[Any], job: Job, *, training: bool) -> Any:
    """``steps`` are done to every image; a rest that fills no batch is left out of the training only."""
    workers = job.arguments.workers
    data = data.map(operations=steps, input_columns=["image"], num_parallel_workers=workers)
    cast = transforms.TypeCast(mindspore.int32)
    data = data.map(operations=cast, input_columns=["label"], num_parallel_workers=workers)
    return data.batch(job.arguments.batch_size, drop_remainder=training)


def normalized(mean: list[float], deviation: list[float]) -> list[Any]:
    """Of pixels from 0 to 255."""
    return [vision.Normalize([255 * m for m in mean], [255 * d for d in deviation]), vision.HWC2CHW()]
