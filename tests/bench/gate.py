"""How often each rule is wrong, on the same generated histories: the gate, and what others do.

    python tests/bench/gate.py [--quick]

A history of normal noise around the reference, and new trials around the reference with a true shift. The claim is the
reference with -5 %. A false alarm is FAILED where nothing was lost; a miss is PASSED where 8 % or 10 % were lost. Only
the gate may say INCONCLUSIVE; its price is the trials that it asked for.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pytest_aisbench.domain import student
from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.gate import decide
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.domain.verdict import Ruling

REFERENCE = 14151.0
CLAIM = Threshold("throughput", "images/s", reference=REFERENCE, lower=-0.05)
ONE = Shape(1, 1)
MOST = 5
NOISE = (0.001, 0.003, 0.01, 0.02, 0.04)
SHIFTS = (0.0, -0.02, -0.03, -0.05, -0.08, -0.10)

Draw = Callable[[], float]
Rule = Callable[[Sequence[float], Draw], tuple[Ruling, int]]


def gate(history: Sequence[float], draw: Draw) -> tuple[Ruling, int]:
    trials: list[float] = []
    while True:
        trials.append(draw())
        if ruling := decide(CLAIM, ONE, history, trials, MOST).ruling:
            return ruling, len(trials)


def _once(limit: float, draw: Draw) -> tuple[Ruling, int]:
    return (Ruling.PASSED if draw() >= limit else Ruling.FAILED), 1


def reframe(history: Sequence[float], draw: Draw) -> tuple[Ruling, int]:
    """(reference, -0.05, None): one value, no statistics."""
    return _once(REFERENCE * 0.95, draw)


def previous(history: Sequence[float], draw: Draw) -> tuple[Ruling, int]:
    """Fixed -5 % of the run before."""
    return _once(history[-1] * 0.95, draw)


def three_sigma(history: Sequence[float], draw: Draw) -> tuple[Ruling, int]:
    return _once(statistics.fmean(history) - 3 * statistics.stdev(history), draw)


RULES: dict[str, Rule] = {
    "gate": gate,
    "fixed -5 % of the run before": previous,
    "mean - 3 s": three_sigma,
    "ReFrame's band, -5 %": reframe,
}


def rates(rule: Rule, noise: float, shift: float, known: int, rounds: int) -> tuple[Counter[Ruling], float]:
    """How often it ruled what, and how many trials it took on average."""
    dice = random.Random(f"{noise} {shift} {known}")  # the same histories for every rule
    counted: Counter[Ruling] = Counter()
    trials = 0
    for _ in range(rounds):
        history = [dice.gauss(REFERENCE, REFERENCE * noise) for _ in range(known)]
        seed = random.Random(dice.random())
        ruling, took = rule(history, partial(seed.gauss, REFERENCE * (1 + shift), REFERENCE * noise))
        counted[ruling] += 1
        trials += took
    return counted, trials / rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    rounds = 500 if parser.parse_args().quick else 5000
    for known in (5, 30):
        print(f"\n### {known} values in history, {rounds} rounds: PASSED / FAILED / INCONCLUSIVE %, trials")
        for name, rule in RULES.items():
            print(f"\n| {name}, noise | " + " | ".join(f"{shift:.0%}" for shift in SHIFTS) + " |")
            print("|---" * (len(SHIFTS) + 1) + "|")
            for noise in NOISE:
                cells = []
                for shift in SHIFTS:
                    counted, trials = rates(rule, noise, shift, known, rounds)
                    shares = [counted[each] / rounds for each in (Ruling.PASSED, Ruling.FAILED, Ruling.INCONCLUSIVE)]
                    cells.append(" / ".join(f"{share:.1%}".rstrip("%") for share in shares) + f", {trials:.1f}")
                print(f"| {noise:.1%} | " + " | ".join(cells) + " |", flush=True)
    print("\n| values in history | a decision, ms |\n|---|---|")
    for known in (5, 100, 1000, 10_000):
        history = [random.Random(number).gauss(REFERENCE, 100.0) for number in range(known)]
        student.quantile.cache_clear()
        began = time.perf_counter()
        decide(CLAIM, ONE, history, [REFERENCE], MOST)
        print(f"| {known} | {(time.perf_counter() - began) * 1000:.2f} |")


if __name__ == "__main__":
    main()
