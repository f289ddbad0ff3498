"""A generated data set that nobody learns alone: every class has many looks, and nobody can guess one from the others.

A look is a pattern of tiles under noise. Every look has a double in another class, which differs from it in the first
row of tiles only; and that row is one of two, which every class has about equally often. So whoever has not been
taught a look takes it for its double.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

CLASSES = 10
LOOKS = 16  # of the whole set: the ranks of the largest shape, each of which then has a look of its own to teach
CONTRAST = 48  # of 128; the noise takes the rest
PIXELS = 4  # across a tile


def patterns(rng: np.random.Generator, channels: int, tiles: int, looks: int = LOOKS) -> Bytes:
    """Pixels without noise, as (class, look, pixel), for images of so many tiles across."""
    drawn = rng.choice([0, 2 * CONTRAST], (CLASSES, looks, channels, tiles, tiles)).astype(np.uint8)
    row, half = drawn[0, 0, :, 0].copy(), (CLASSES // 2, looks // 2)
    drawn[half[0] :, looks - half[1] :] = drawn[: half[0], : half[1]]
    drawn[:, :, :, 0] = row
    drawn[: half[0], ::2, :, 0] ^= 2 * CONTRAST  # of two doubles, one has the row inverted
    drawn[half[0] :, 1::2, :, 0] ^= 2 * CONTRAST
    return drawn.repeat(PIXELS, axis=3).repeat(PIXELS, axis=4).reshape(CLASSES, looks, -1)


def draw(rng: np.random.Generator, patterns: Bytes, count: int) -> Bytes:
    """Rows of a label and its pixels, in random order, but within a class in that of its looks.

    So a rank which takes its share of a class in their order holds looks that nobody else does. Classes and looks are
    equally frequent.
    """
    places = np.arange(count)
    labels = rng.permutation(places * CLASSES // count)
    looks = np.empty_like(places)
    looks[np.argsort(labels, kind="stable")] = places * patterns.shape[1] // count
    rows = rng.integers(256 - 2 * CONTRAST, size=(count, 1 + patterns.shape[2]), dtype=np.uint8)  # the noise
    rows[:, 0] = labels
    rows[:, 1:] += patterns[labels, looks]
    return rows
