"""MNIST's IDX format: a reader, and a generator of a small set that is made to be learnt.

A data set is a folder with ``train-images-idx3-ubyte.gz``, ``train-labels-idx1-ubyte.gz`` and the same of ``t10k``, as
they are published; unpacked they are read as well. A file begins with two zero bytes, the kind of its numbers (8:
bytes), how many axes there are, and their lengths, four bytes each, the highest first; the numbers follow.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from contract import ContractError
from looks import CLASSES, LOOKS, PIXELS, draw, patterns

if TYPE_CHECKING:
    from layers import Array, Labels
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Split = tuple[Bytes, Bytes]  # images as (n, 28, 28), and their labels

SIZE = 28
TRAIN, EVAL = "train", "t10k"
UNSIGNED_BYTE = 8


def read(folder: Path, part: str) -> Split:
    images, labels = read_idx(folder, f"{part}-images-idx3-ubyte"), read_idx(folder, f"{part}-labels-idx1-ubyte")
    if images.shape[1:] != (SIZE, SIZE) or labels.shape != images.shape[:1] or not labels.size:
        raise ContractError(f"{folder} is not MNIST: {part} has images of {images.shape} and labels of {labels.shape}")
    if labels.max() >= CLASSES:
        raise ContractError(f"{folder} is not MNIST: {part} has a label {labels.max()}, not 0 to 9")
    return images, labels


def read_idx(folder: Path, name: str) -> Bytes:
    path = folder / f"{name}.gz"
    try:
        content = gzip.decompress(path.read_bytes()) if path.exists() else (folder / name).read_bytes()
    except FileNotFoundError:
        raise ContractError(f"{path} is missing: MNIST's files were expected") from None
    except (EOFError, OSError, zlib.error) as error:
        raise ContractError(f"{path} cannot be unpacked: {error}") from None
    axes = content[3] if len(content) > 3 and content[:3] == bytes([0, 0, UNSIGNED_BYTE]) else 0
    start = 4 + 4 * axes
    lengths = struct.unpack(f">{axes}I", content[4:start]) if axes and len(content) >= start else ()
    if not lengths or len(content) - start != int(np.prod(lengths)):
        raise ContractError(f"{path} is not an IDX file of bytes, or not a whole one: it has {len(content)} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(lengths)


def write_idx(path: Path, values: Bytes) -> None:
    head = bytes([0, 0, UNSIGNED_BYTE, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes(), compresslevel=0))  # there is nothing to gain from noise


def generate(folder: Path, seed: int, count: int, held_out: int, looks: int = LOOKS) -> None:
    """Write a data set of images that are made to be learnt, and not by one rank alone."""
    digit_patterns = patterns(np.random.default_rng([seed, 0]), channels=1, tiles=SIZE // PIXELS, looks=looks)
    for number, (part, size) in enumerate(((TRAIN, count), (EVAL, held_out)), 1):
        rows = draw(np.random.default_rng([seed, number]), digit_patterns, size)
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", rows[:, 1:].reshape(-1, SIZE, SIZE))
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", rows[:, 0])


def decode(split: Split) -> tuple[Array, Labels]:
    """Images as (…, 28, 28, 1) between -1 and 1, and their labels."""
    images, labels = split
    return images[..., None].astype(np.float32) / 127.5 - 1, labels.astype(np.int64)
