"""A fixed piece of work that says how fast this machine is now: CPU seconds are given as a multiple of it.

It does what a run does most: calls and dictionaries in Python, JSON both ways, and small transactions of SQLite. Never
change it: the figures in docs/benchmarks.json are multiples of it.
"""

from __future__ import annotations

import json
import sqlite3
import time

_RECORD = {f"field{number}": [number, f"value {number}", None, 1.5 * number] for number in range(40)}


def _python() -> int:
    counts: dict[str, int] = {}
    for number in range(60_000):
        key = f"{number % 97}-{number % 89}"
        counts[key] = counts.get(key, 0) + len(key.split("-"))
    return sum(sorted(counts.values()))


def _documents() -> int:
    return sum(len(json.loads(json.dumps(_RECORD, indent=1))) for _ in range(300))


def _transactions() -> int:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE records (name TEXT PRIMARY KEY, record TEXT NOT NULL)")
    text = json.dumps(_RECORD)
    for number in range(3_000):
        db.execute("BEGIN")
        db.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (f"record {number % 500}", text))
        db.execute("COMMIT")
    total = int(db.execute("SELECT sum(length(record)) FROM records").fetchone()[0])
    db.close()
    return total


def _once() -> float:
    start = time.process_time()
    assert _python() == 120_000
    assert _documents() == 12_000
    assert _transactions() > 0
    return time.process_time() - start


class Calibration:
    """The best of all rounds so far. Other programs make a round longer, never shorter."""

    name = "the calibration loop"

    def __init__(self) -> None:
        self.seconds = float("inf")

    def take(self, rounds: int = 3) -> None:
        """Call it between the measurements, so that both have met the same machine."""
        self.seconds = min(self.seconds, *(_once() for _ in range(rounds)))


if __name__ == "__main__":
    calibration = Calibration()
    calibration.take(10)
    print(f"{1000 * calibration.seconds:.1f} ms")
