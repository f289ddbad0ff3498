"""CIFAR-10's binary format: a reader, and a generator of a small set that is made to be learnt.

A data set is a folder with ``train/data_batch_1.bin`` to ``5`` and ``eval/test_batch.bin``. A record is one byte of
label, 0 to 9, and 3072 bytes of image: 32×32 pixels of red, then of green, then of blue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from contract import ContractError
from looks import CLASSES, LOOKS, PIXELS, draw, patterns

if TYPE_CHECKING:
    from pathlib import Path

    from layers import Array, Labels
    from numpy.typing import NDArray

    Records = NDArray[np.uint8]

SIZE = 32
RECORD = 1 + 3 * SIZE * SIZE


def train_records(folder: Path) -> Records:
    return np.concatenate([read(folder / "train" / f"data_batch_{k}.bin") for k in range(1, 6)])


def eval_records(folder: Path) -> Records:
    return read(folder / "eval" / "test_batch.bin")


def read(path: Path) -> Records:
    try:
        content = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise ContractError(f"{path} is missing: CIFAR-10's binary version was expected") from None
    if content.size == 0 or content.size % RECORD:
        raise ContractError(
            f"{path} is not CIFAR-10's binary version: {content.size} bytes, not a multiple of {RECORD}"
        )
    records = content.reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        worst = int(records[:, 0].argmax())
        raise ContractError(
            f"{path} is not CIFAR-10's binary version: record {worst} has label {records[worst, 0]}, not 0 to 9"
        )
    return records


def decode(records: Records) -> tuple[Array, Labels]:
    """Images as (…, 32, 32, 3) between -1 and 1, and their labels."""
    planes = records[..., 1:].reshape(*records.shape[:-1], 3, SIZE, SIZE)
    return np.moveaxis(planes, -3, -1).astype(np.float32) / 127.5 - 1, records[..., 0].astype(np.int64)


def generate(folder: Path, seed: int, per_file: int, looks: int = LOOKS) -> None:
    """Write a data set of images that are made to be learnt, and not by one rank alone."""
    class_patterns = patterns(np.random.default_rng([seed, 0]), channels=3, tiles=SIZE // PIXELS, looks=looks)
    train = draw(np.random.default_rng([seed, 1]), class_patterns, 5 * per_file)
    held_out = draw(np.random.default_rng([seed, 2]), class_patterns, per_file)
    names = [*(f"train/data_batch_{k}.bin" for k in range(1, 6)), "eval/test_batch.bin"]
    for name, records in zip(names, [*np.split(train, 5), held_out]):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        records.tofile(path)
