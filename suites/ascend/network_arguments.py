"""What the classifiers may be told; apart from the network, so that a script can be read without MindSpore."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser, image_size: int) -> None:
    parser.add_argument("--blocks", type=counts, default=(3, 4, 6, 3), help="bottlenecks of each stage")
    parser.add_argument("--width", type=int, default=64, help="of the first stage; every other doubles it")
    parser.add_argument("--image_size", type=int, default=image_size)
    parser.add_argument("--weight_decay", type=float, default=1e-4)
    parser.add_argument("--label_smoothing", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=8, help="threads that prepare the images")


def counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
