"""CIFAR-10's binary format: a reader, and a generator of a small set that is made to be learnt.

A data set is a folder with ``train/data_batch_1.bin`` to ``5`` and ``eval/test_batch.bin``. A record is one byte of
label, 0 to 9, and 3072 bytes of image: 32×32 pixels of red, then of green, then of blue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from contract import ContractError

if TYPE_CHECKING:
    from pathlib import Path

    from layers import Array, Labels
    from numpy.typing import NDArray

    Records = NDArray[np.uint8]

CLASSES, SIZE = 10, 32
RECORD = 1 + 3 * SIZE * SIZE
LOOKS = 16  # of the whole set: the ranks of the largest shape, each of which then has a look of its own to teach
CONTRAST = 48  # of 128; the noise takes the rest


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
    """Write a data set in which every look of a class is a pattern of coloured tiles under noise.

    The images of a class come look by look, so that a rank which takes its share of them in their order holds looks
    that nobody else does. Nor can the others guess these. Every look has a double in another class, which differs from
    it in the first row of tiles only; and that row is one of two, which every class has about equally often. So
    whoever has not been taught a look takes it for its double.
    """
    tiles = np.random.default_rng([seed, 0]).choice([0, 2 * CONTRAST], (CLASSES, looks, 3, 8, 8)).astype(np.uint8)
    row, half = tiles[0, 0, :, 0].copy(), (CLASSES // 2, looks // 2)
    tiles[half[0] :, looks - half[1] :] = tiles[: half[0], : half[1]]
    tiles[:, :, :, 0] = row
    tiles[: half[0], ::2, :, 0] ^= 2 * CONTRAST  # of two doubles, one has the row inverted
    tiles[half[0] :, 1::2, :, 0] ^= 2 * CONTRAST
    patterns = tiles.repeat(4, axis=3).repeat(4, axis=4).reshape(CLASSES, looks, -1)
    train = draw(np.random.default_rng([seed, 1]), patterns, 5 * per_file)
    held_out = draw(np.random.default_rng([seed, 2]), patterns, per_file)
    names = [*(f"train/data_batch_{k}.bin" for k in range(1, 6)), "eval/test_batch.bin"]
    for name, records in zip(names, [*np.split(train, 5), held_out], strict=True):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        records.tofile(path)


def draw(rng: np.random.Generator, patterns: Records, count: int) -> Records:
    """Records in random order, but within a class in that of its looks; classes and looks are equally frequent."""
    places = np.arange(count)
    labels = rng.permutation(places * CLASSES // count)
    looks = np.empty_like(places)
    looks[np.argsort(labels, kind="stable")] = places * patterns.shape[1] // count
    records = rng.integers(256 - 2 * CONTRAST, size=(count, RECORD), dtype=np.uint8)  # the noise
    records[:, 0] = labels
    records[:, 1:] += patterns[labels, looks]
    return records
