"""Learns on which side of a line a point lies."""

import argparse
import os
import random
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--train_url", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_known_args()[0]  # a platform may add arguments of its own
rank, size = int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"])


def points(seed: int, count: int) -> list[tuple[float, float, bool]]:
    draw = random.Random(seed).uniform
    pairs = [(draw(-1, 1), draw(-1, 1)) for _ in range(count)]
    return [(x, y, y > 0.5 * x + 0.2) for x, y in pairs]


a = b = c = 0.0
start, seen = time.perf_counter(), 0
for _ in range(options.epochs):
    for x, y, above in points(rank, 2000):
        error = above - (a * x + b * y + c > 0)
        a, b, c, seen = a + error * x, b + error * y, c + error, seen + 1
throughput = seen / (time.perf_counter() - start)

(options.train_url / f"throughput_{rank}.json").write_text(repr(throughput))
if rank == 0:
    test = points(-1, 1000)
    right = sum((a * x + b * y + c > 0) == above for x, y, above in test)
    (options.train_url / "accuracy.json").write_text(repr(right / len(test)))
    (options.train_url / "ranksize.json").write_text(str(size))
print(f"rank {rank} of {size}: {throughput:.0f} points/s")
