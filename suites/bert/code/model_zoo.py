"""The names that MindSpore's model_zoo has for the weights of BERT, as its published checkpoints carry them. Pure.

They stand below `bert.bert.` or `bert.`, whichever cell was saved. Two embeddings were renamed between its versions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EMBEDDINGS = "bert_embedding_postprocessor."
PLACES = {
    "words.embedding_table": ("bert_embedding_lookup.embedding_table",),
    "segments.embedding_table": (f"{EMBEDDINGS}token_type_embedding.embedding_table", f"{EMBEDDINGS}embedding_table"),
    "positions": (f"{EMBEDDINGS}full_position_embedding.embedding_table", f"{EMBEDDINGS}full_position_embeddings"),
    "vocabulary_bias": ("cls1.output_bias",),
}
CELLS = {
    "norm": f"{EMBEDDINGS}layernorm",
    "transform": "cls1.dense",
    "transformed": "cls1.layernorm",
    "pool": "dense",
    "follows": "cls2.dense",
}
OF_BLOCKS = {
    "attention.query": "attention.attention.query_layer",
    "attention.key": "attention.attention.key_layer",
    "attention.value": "attention.attention.value_layer",
    "attention.output": "attention.output.dense",
    "after_attention": "attention.output.layernorm",
    "inner": "intermediate",
    "outer": "output.dense",
    "after_inner": "output.layernorm",
}
BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def names(own: str) -> tuple[str, ...]:
    """What a weight of ours may be called there."""
    if own in PLACES:
        return PLACES[own]
    block = BLOCK.match(own)
    cell, _, kind = (block[2] if block else own).rpartition(".")
    if block:
        return (f"bert_encoder.layers.{block[1]}.{OF_BLOCKS[cell]}.{kind}",)
    return (f"{CELLS[cell]}.{kind}",)


def saved_names(own: Iterable[str], saved: Iterable[str]) -> dict[str, str]:
    """For each weight of ours its name in a checkpoint; without those that it lacks."""
    there = {re.sub(r"^(?:bert\.)+", "", name): name for name in saved}
    chosen = {name: next((there[theirs] for theirs in names(name) if theirs in there), "") for name in own}
    return {name: theirs for name, theirs in chosen.items() if theirs}
