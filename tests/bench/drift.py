"""How soon a slow decline is seen, and how often one is seen that is none; the same of changes of level.

    python tests/bench/drift.py [--quick]

Histories of normal noise around 100. In the first table every run loses a quarter of a percent against the run before,
and each rule looks at each run: the drift, the plain band of -5 % around the reference, as ReFrame has it, and -5 % of
the run before.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

from pytest_aisbench.judge.trend import change_points, find_drift

LEVEL = 100.0
LOSS = 0.0025
RUNS = 60
NOISE = (0.003, 0.01, 0.02, 0.04)
LENGTHS = (20, 40, 60, 80, 100)

RULES: dict[str, Callable[[Sequence[float]], bool]] = {
    "drift against the reference": lambda values: find_drift(values, LEVEL) is not None,
    "drift against its first ten": lambda values: find_drift(values) is not None,
    "the band, -5 % of the reference": lambda values: values[-1] < 0.95 * LEVEL,
    "-5 % of the run before": lambda values: len(values) > 1 and values[-1] < 0.95 * values[-2],
}


def noisy(dice: random.Random, noise: float, count: int, level: float = LEVEL) -> list[float]:
    return [dice.gauss(level, LEVEL * noise) for _ in range(count)]


def seen(rule: Callable[[Sequence[float]], bool], values: Sequence[float]) -> float:
    """After how many runs; infinite where it is never seen."""
    return next((count for count in range(1, len(values) + 1) if rule(values[:count])), math.inf)


def declines(rounds: int) -> None:
    print(f"\n### {LOSS:.2%} lost from run to run, {rounds} histories: seen after so many runs, and so much lost\n")
    print("| noise | " + " | ".join(RULES) + " |\n" + "|---" * (len(RULES) + 1) + "|")
    for noise in NOISE:
        cells = []
        for rule in RULES.values():
            dice = random.Random(f"decline {noise}")  # the same histories for every rule
            found = [
                seen(rule, [dice.gauss(LEVEL * (1 - LOSS) ** run, LEVEL * noise) for run in range(RUNS)])
                for _ in range(rounds)
            ]
            middle = statistics.median(found)
            never = sum(map(math.isinf, found)) / rounds
            told = f"{middle:.0f}, {1 - (1 - LOSS) ** middle:.1%}" if math.isfinite(middle) else "not seen"
            cells.append(f"{told}{f' (never: {never:.0%})' if never else ''}")
        print(f"| {noise:.1%} | " + " | ".join(cells) + " |", flush=True)


def false_alarms(rounds: int) -> None:
    print(f"\n### Noise alone, {rounds} histories of each length: seen all the same\n")
    heads = ("drift against the reference", "drift against its first ten", "a change of level")
    print("| noise | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    for noise in NOISE:
        shares: list[list[float]] = [[], [], []]
        for count in LENGTHS:
            dice = random.Random(f"noise {noise} {count}")
            histories = [noisy(dice, noise, count) for _ in range(rounds)]
            shares[0].append(sum(find_drift(values, LEVEL) is not None for values in histories) / rounds)
            shares[1].append(sum(find_drift(values) is not None for values in histories) / rounds)
            shares[2].append(sum(bool(change_points(values)) for values in histories) / rounds)
        cells = [f"{min(each):.2%} to {max(each):.2%}" for each in shares]
        print(f"| {noise:.1%} | " + " | ".join(cells) + " |", flush=True)


def steps(rounds: int) -> None:
    print(f"\n### A step of -5 % after 30 values, {rounds} histories: a change found within two values of it\n")
    ages = (5, 10, 20)
    print("| noise | " + " | ".join(f"{age} values ago" for age in ages) + " |\n" + "|---" * (len(ages) + 1) + "|")
    for noise in NOISE:
        cells = []
        for age in ages:
            dice = random.Random(f"step {noise} {age}")
            histories = [[*noisy(dice, noise, 30), *noisy(dice, noise, age, 0.95 * LEVEL)] for _ in range(rounds)]
            found = sum(any(abs(each.index - 30) <= 2 for each in change_points(values)) for values in histories)
            cells.append(f"{found / rounds:.1%}")
        print(f"| {noise:.1%} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the histories")
    rounds = 200 if parser.parse_args().quick else 2000
    declines(rounds // 10)
    false_alarms(rounds)
    steps(rounds)
    values = noisy(random.Random(1), 0.01, 10_000)
    for name, act in (("drift", find_drift), ("changes", change_points)):
        began = time.process_time()
        act(values)
        print(f"\n10,000 values, {name}: {(time.process_time() - began) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
