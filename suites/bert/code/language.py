"""A language made to be learnt.

A sentence is a word of four letters, said three times; two of its twelve letters are masked. Each must be copied from
where the word is said again, which only attention can do. Every dialect has an alphabet of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from layers import Labels

DIALECTS, ALPHABET, WORD, TIMES, MASKED = 16, 6, 4, 3, 2
LENGTH = WORD * TIMES
MASK = DIALECTS * ALPHABET  # the token after the last letter


def sentences(seed: list[int], dialect: int, count: int) -> tuple[Labels, Labels]:
    """Sentences with masked letters, and labels that are -1 but for the truth about those."""
    rng = np.random.default_rng(seed)
    words = rng.integers(ALPHABET, size=(count, WORD)) + dialect * ALPHABET
    text = np.tile(words, (1, TIMES))
    masked = rng.permuted(np.tile(np.arange(LENGTH), (count, 1)), axis=1) < MASKED
    return np.where(masked, MASK, text), np.where(masked, text, -1)
