"""How often each rule is wrong, on the same generated histories: the noise test, and what others do.

    python tests/bench/noise.py [--quick]

A history of normal noise around the reference, and new trials around the reference with a true shift. The claim is the
reference with -5 %, or what `aisbench references propose` makes of the history. A false alarm is FAILED where nothing
was lost; a miss is PASSED where something was. Only the gate may say INCONCLUSIVE; its price is the trials that it
asked for. Where ReFrame is installed its own `assert_reference` decides for it, and else the same band of ours.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pytest_aisbench.judge import noise_test
from pytest_aisbench.judge.noise_test import decide
from pytest_aisbench.judge.references import propose
from pytest_aisbench.judge.trend import newest_level
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.verdict import Outcome, Threshold

REFERENCE = 14151.0
CLAIM = Threshold("throughput", "images/s", reference=REFERENCE, lower=-0.05)
ONE = Shape(1, 1)
MOST = 3  # as by default
NOISE = (0.001, 0.003, 0.01, 0.02, 0.04)
LOSSES = (0.0, -0.03, -0.08)
SHIFTS = (0.0, -0.02, -0.03, -0.05, -0.08, -0.10)

Draw = Callable[[], float]
Rule = Callable[[Sequence[float], Draw], tuple[Outcome, int]]


def gate(history: Sequence[float], draw: Draw, claim: Threshold = CLAIM) -> tuple[Outcome, int]:
    trials: list[float] = []
    level = newest_level(history)  # as verdicts do
    while True:
        trials.append(draw())
        decision = decide(claim, ONE, level.values, trials, MOST, wander=level.wander)
        if not decision.needs_another_trial:
            return decision.outcome, len(trials)


def proposed(history: Sequence[float], draw: Draw) -> tuple[Outcome, int]:
    """Where the noise is too large to propose anything, the old claim stands."""
    return gate(history, draw, propose(CLAIM, ONE, history).threshold or CLAIM)


def _once(met: bool) -> tuple[Outcome, int]:
    return (Outcome.MET if met else Outcome.MISSED), 1


def fixed(history: Sequence[float], draw: Draw) -> tuple[Outcome, int]:
    return _once(draw() >= statistics.fmean(history) * 0.95)


def three_sigma(history: Sequence[float], draw: Draw) -> tuple[Outcome, int]:
    return _once(draw() >= statistics.fmean(history) - 3 * statistics.stdev(history))


def reframe(history: Sequence[float], draw: Draw) -> tuple[Outcome, int]:
    """(reference, -0.05, None): one value, no statistics."""
    return _once(reframe_takes(draw(), CLAIM))


def reframe_takes(value: float, claim: Threshold) -> bool:
    """By ReFrame itself, or, where it is not installed, by the same band of ours."""
    try:
        from reframe.core.exceptions import SanityError
        from reframe.utility.sanity import assert_reference, evaluate
    except ImportError:
        low, high = claim.band(ONE)
        return low <= value <= high
    try:
        return bool(evaluate(assert_reference(value, claim.reference, claim.lower, claim.upper)))
    except SanityError:
        return False


RULES: dict[str, Rule] = {
    "gate": gate,
    "gate, claim from history": proposed,
    "fixed -5 %": fixed,
    "mean - 3 s": three_sigma,
    "ReFrame's band, -5 %": reframe,
}


def rates(rule: Rule, noise: float, shift: float, known: int, rounds: int) -> tuple[Counter[Outcome], float]:
    """How often it ruled what, and how many trials it took on average."""
    dice = random.Random(f"{noise} {shift} {known}")  # the same histories for every rule
    counted: Counter[Outcome] = Counter()
    trials = 0
    for _ in range(rounds):
        history = [dice.gauss(REFERENCE, REFERENCE * noise) for _ in range(known)]
        seed = random.Random(dice.random())
        ruling, took = rule(history, partial(seed.gauss, REFERENCE * (1 + shift), REFERENCE * noise))
        counted[ruling] += 1
        trials += took
    return counted, trials / rounds


def wrong(rule: Rule, noise: float, known: int, rounds: int) -> str:
    """FAILED where nothing was lost, and PASSED where something was."""
    shares = []
    for shift in LOSSES:
        counted, _ = rates(rule, noise, shift, known, rounds)
        shares.append(counted[Outcome.MET if shift else Outcome.MISSED] / rounds)
    return " / ".join(map(_percent, shares))


def paid(rule: Rule, noise: float, shift: float, known: int, rounds: int) -> str:
    counted, trials = rates(rule, noise, shift, known, rounds)
    shares = (counted[each] / rounds for each in (Outcome.MET, Outcome.MISSED, Outcome.UNDECIDED))
    return " / ".join(map(_percent, shares)) + f", {trials:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0")


def table(head: Sequence[str], cells: Callable[[float, str], str], columns: Sequence[str]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for noise in NOISE:
        told = [cells(noise, column) for column in columns]
        print(f"| {_percent(noise)} % | " + " | ".join(told) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    rounds = 500 if parser.parse_args().quick else 5000
    for known in (5, 30):
        print(f"\n### {known} values in history, {rounds} rounds: false alarm / 3 % missed / 8 % missed, in %\n")
        table(["noise", *RULES], lambda noise, name: wrong(RULES[name], noise, known, rounds), list(RULES))  # noqa: B023
    for name in ("gate", "gate, claim from history"):
        print(f"\n### {name}, 5 values in history: PASSED / FAILED / INCONCLUSIVE in %, trials\n")
        table(
            ["noise", *(f"{_percent(shift)} %" for shift in SHIFTS)],
            lambda noise, shift: paid(RULES[name], noise, float(shift), 5, rounds),  # noqa: B023
            list(map(str, SHIFTS)),
        )
    print("\n| values in history | a decision, ms |\n|---|---|")
    for known in (5, 100, 1000, 10_000):
        history = [random.Random(number).gauss(REFERENCE, 100.0) for number in range(known)]
        noise_test.t_quantile.cache_clear()
        began = time.perf_counter()
        decide(CLAIM, ONE, history, [REFERENCE], MOST)
        print(f"| {known:,} | {(time.perf_counter() - began) * 1000:.2f} |")


if __name__ == "__main__":
    main()
