"""A data set to learn: textures of 16 kinds, small images in three colours.

A texture is a wave of its own direction, length and colour, at a random phase and under noise: no pixel says anything
by itself, so a linear model sees nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from layers import Array

CLASSES, SIZE, NOISE = 16, 16, 0.7


def textures(seed: list[int], kind: int, count: int, noise: float = NOISE) -> Array:
    """Images of one class, (count, SIZE, SIZE, 3)."""
    angle, length = np.pi * kind / CLASSES, (6.0, 3.6)[kind % 2]
    colour = np.random.default_rng([7, kind]).standard_normal(3)
    colour /= np.linalg.norm(colour)
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE]
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    wave = np.sin(2 * np.pi / length * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    grain = rng.normal(0, noise, (count, SIZE, SIZE, 3))
    images: Array = (wave[..., None] * colour + grain).astype(np.float32)
    return images
