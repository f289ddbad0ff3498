"""The sizes of BERT, by the names that `bert_network` has for them; every one can be told otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from contract import ContractError

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    length: int  # of a sentence
    hidden: int
    layers: int
    heads: int
    inner: int
    asked: int  # masked words of a sentence, at most
    dropout: float = 0.1
    spread: float = 0.02  # of the initial weights
    most_rows: int = 1  # of a batch


NETWORKS = {
    "base": Shape(30522, 128, 768, 12, 12, 3072, 20),
    "large": Shape(30522, 512, 1024, 24, 16, 4096, 76),
    "large_acc": Shape(30522, 512, 1024, 24, 16, 4096, 76),
    "tiny": Shape(97, 16, 64, 2, 4, 128, 2, dropout=0.0, spread=0.15),
}
SIZES = {
    "vocab_size": "vocabulary",
    "seq_length": "length",
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "inner",
    "max_predictions_per_seq": "asked",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bert_network", choices=sorted(NETWORKS), default="large_acc")
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int, default=0, help="default: that of the network")


def shape_of(options: argparse.Namespace) -> Shape:
    sizes = {field: getattr(options, name) for name, field in SIZES.items() if getattr(options, name)}
    rows = max(options.batch_size, options.eval_batch_size)
    shape = replace(NETWORKS[options.bert_network], most_rows=rows, **sizes)
    if shape.hidden % shape.heads:
        raise ContractError(f"--hidden_size={shape.hidden} cannot be shared by {shape.heads} heads")
    return shape
