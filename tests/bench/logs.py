"""How fast logs are read, and how much worse the worst line is than a common one.

    python tests/bench/logs.py [--quick]

CPU time of this process, so that other programs matter less. A line that is made to be hard is held against a
line of the same length that some reader looks at and nobody knows: the ratio is what counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import track

from pytest_aisbench.traininglog.curve import read_curve
from pytest_aisbench.traininglog.readers import MOST_CHARACTERS, read_line

_MANY = MOST_CHARACTERS - 100
_BERT = "epoch: 0, current epoch percent: 1.0, step: 1, outputs are"


def logs(lines: int) -> Iterator[tuple[str, str, int]]:
    """Name, text, and how many ranks write to it."""
    losses = [f"epoch: {1 + step // 100} step: {1 + step % 100}, loss is 1.9601055\n" for step in range(lines)]
    yield "MindSpore, one rank", "".join(losses), 1
    yield "MindSpore, eight ranks", "".join(8 * line for line in losses[: lines // 8]), 8
    bars = "\r".join(f"{step}/938 [==>....] - ETA: 9s - loss: 0.5 - accuracy: 0.5" for step in range(938))
    yield "Keras, a bar drawn over itself", f"{bars}\r938/938 - 4s 5ms/step - loss: 0.1\n" * max(1, lines // 938), 1
    yield "nothing that a reader knows", "a line that says nothing of interest to anybody here\n" * lines, 1


HARD = {
    "digits": "eval epoch: 1, accuracy: 0.5, elapsed: " + "1" * _MANY,
    "digits of a time": "epoch time: " + "1" * _MANY,
    "digits of a field": "[Epoch 1, iter: 1] loss: " + "1" * _MANY + "/",
    "digits of a speed": "Iter #1: " + "1" * _MANY + " img/sec",
    "blanks": f"{_BERT} {' ' * _MANY}",
    "blanks of a tensor": f"{_BERT} (Tensor(shape=[], dtype=F, {' ' * _MANY}",
    "fields": "[Epoch 1, iter: 1] " + "a:1/ " * (_MANY // 5),
    "meters": "Epoch: [0][1/2] " + "Loss 1 " * (_MANY // 7),
    "items": "{'loss': " + "'a': 1, " * (_MANY // 8),
    "prefixes": "[rank1]:" * (_MANY // 8) + "loss",
    "brackets": ":::MLLOG " + "[" * _MANY,
}  # fmt: skip


def seconds(act: Callable[[], object], least: float) -> float:
    """CPU time of one call, of as many as are needed to measure it."""
    calls, began = 0, time.process_time()
    while (took := time.process_time() - began) < least or not calls:
        act()
        calls += 1
    return took / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the lines")
    quick = parser.parse_args().quick
    print(track.machine(), flush=True)
    rows = []
    for name, text, ranks in logs(5_000 if quick else 50_000):
        took = seconds(lambda text=text, ranks=ranks: read_curve(text, ranks), 0.0)  # type: ignore[misc]
        rows.append([name, f"{len(text) / took / 1e6:.1f}", f"{text.count(chr(10)) / took:,.0f}"])
    track.table(["log", "MB/s", "lines/s"], rows)
    common = seconds(lambda: read_line("loss " + "x" * _MANY), 0.2)
    worst = [(name, seconds(lambda line=line: read_line(line), 0.2)) for name, line in HARD.items()]  # type: ignore[misc]
    track.table(
        [f"a line of {MOST_CHARACTERS} characters", "µs", "ratio"],
        [["common", f"{1e6 * common:.0f}", "1"], *([n, f"{1e6 * t:.0f}", f"{t / common:.1f}"] for n, t in worst)],
    )


if __name__ == "__main__":
    main()
