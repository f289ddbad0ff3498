"""What becomes of the gate's promise where noise is not as it assumes, for ratios, and over a run of many cases.

    python tests/bench/promise.py [--quick]

The claim is the reference with -5 %, at most 3 trials, 30 trials in history unless it says otherwise. On the limit
every decision is wrong one way or the other; the promise is at most 5 % each way.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pytest_aisbench.judge.noise_test import average, decide, pooled_noise
from pytest_aisbench.judge.scaling import Speed, decide_scaling
from pytest_aisbench.judge.trend import loss_within_margin, newest_level
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.verdict import Outcome, Threshold

CLAIM = Threshold("throughput", "images/s", reference=100.0, lower=-0.05)
SCALING = Threshold("scaling", at_least=0.9, base="1x8")
ONE, TWO = Shape(1, 8), Shape(2, 8)
MOST = 3

Draw = Callable[[], float]


def ruled(history: Sequence[float], draw: Draw) -> Outcome:
    trials: list[float] = []
    while True:
        trials.append(draw())
        decision = decide(CLAIM, ONE, history, trials, MOST)
        if not decision.needs_another_trial:
            return decision.outcome


def ratio(noise: float, true: float, dice: random.Random) -> Outcome:
    """One trial of the base in this run, and ten before of both shapes."""

    def some(mean: float, count: int) -> list[float]:
        return [dice.gauss(mean, mean * noise) for _ in range(count)]

    now, wide = some(800.0, 1), some(1600.0 * true, 10)
    base = Speed(ONE, average(now), noise=pooled_noise(some(800.0, 10), now))
    trials: list[float] = []
    while True:
        trials += some(1600.0 * true, 1)
        speed = Speed(TWO, average(trials), count=len(trials), noise=pooled_noise(wide, trials))
        decision = decide_scaling(SCALING, speed, base, MOST)
        if not decision.needs_another_trial:
            return decision.outcome


def plain(noise: float, true: float, dice: random.Random) -> Outcome:
    passed = dice.gauss(true, true * noise) / dice.gauss(1.0, noise) >= 0.9
    return Outcome.MET if passed else Outcome.MISSED


def heavy(dice: random.Random, mean: float, deviation: float) -> float:
    """Student's t with 4 degrees of freedom."""
    wide = math.sqrt(sum(dice.gauss(0, 1) ** 2 for _ in range(4)) / 4)
    return mean + deviation * dice.gauss(0, 1) / wide / math.sqrt(2)


def on_the_limit(tails: bool, known: int, dice: random.Random) -> Outcome:
    draw = partial(heavy, dice) if tails else dice.gauss
    return ruled(newest_level([draw(100.0, 2.0) for _ in range(known)]).values, partial(draw, 95.0, 2.0))


def of_a_day(share: float, shift: float, dice: random.Random) -> Outcome:
    """So much of the variance is that of the day, which all trials of a run have in common."""
    of_day, own = 2.0 * math.sqrt(share), 2.0 * math.sqrt(1 - share)
    history = [dice.gauss(100.0, 2.0) for _ in range(30)]
    day = dice.gauss(100.0 * (1 + shift), of_day)
    return ruled(history, partial(dice.gauss, day, own))


def noisier(times: float, shift: float, dice: random.Random) -> Outcome:
    """So many times as noisy as its history, whose noise was 1 %."""
    history = [dice.gauss(100.0, 1.0) for _ in range(30)]
    return ruled(history, partial(dice.gauss, 100.0 * (1 + shift), times))


def after_a_fault(off: float, chosen: bool, dice: random.Random) -> Outcome:
    """One of thirty was slow for a reason that is gone; nothing is lost now. The noise is 0.3 %."""
    history = [dice.gauss(100.0, 0.3) for _ in range(29)]
    history.insert(dice.randrange(30), 100.0 * (1 + off))
    return ruled(newest_level(history).values if chosen else history, partial(dice.gauss, 100.0, 0.3))


def of_many(noise: float, shift: float, bad: bool, dice: random.Random) -> Outcome:
    """Thirty cases with this shift, and one more on its limit where `bad`; FAILED if any did."""
    told = set()
    for at in range(31 if bad else 30):
        mean = 95.0 if at == 30 else 100.0 * (1 + shift)
        history = [dice.gauss(100.0, 100 * noise) for _ in range(30)]
        told.add(ruled(history, partial(dice.gauss, mean, 100 * noise)))
    return next((each for each in (Outcome.MISSED, Outcome.UNDECIDED) if each in told), Outcome.MET)


def warned(noise: float, shift: float, known: int, rounds: int) -> float:
    """How often a loss inside the margin is told by the first trial that has it."""
    dice = random.Random(f"{noise} {shift} {known}")
    told = 0
    for _ in range(rounds):
        history = [dice.gauss(100.0, 100 * noise) for _ in range(known)]
        told += bool(loss_within_margin("throughput", dice.gauss(100.0 * (1 + shift), 100 * noise), history))
    return told / rounds


def show(name: str, ruling: Callable[[random.Random], Outcome], rounds: int) -> None:
    dice = random.Random(name)
    counted = Counter(ruling(dice) for _ in range(rounds))
    shares = (f"{counted[each] / rounds:.1%}" for each in (Outcome.MET, Outcome.MISSED, Outcome.UNDECIDED))
    print(f"| {name} | " + " | ".join(shares) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    rounds = 500 if parser.parse_args().quick else 5000
    print(f"{rounds} rounds; of runs of many cases a tenth\n")
    print("| what | PASSED | FAILED | INCONCLUSIVE |\n|---|---|---|---|")
    for tails in (False, True):
        for known in (3, 10, 30, 100):
            name = f"on the limit, {'heavy tails' if tails else 'normal noise'} of 2 %, {known} in history"
            show(name, partial(on_the_limit, tails, known), rounds)
    for share in (0.25, 0.5):
        for shift in (0.0, -0.05, -0.08):
            name = f"{share:.0%} of the variance is the day's, noise 2 %, shift {shift:.0%}"
            show(name, partial(of_a_day, share, shift), rounds)
    for times in (1.5, 3.0):
        for shift in (0.0, -0.05, -0.08):
            name = f"{times:g} times the noise of history, which was 1 %, shift {shift:.0%}"
            show(name, partial(noisier, times, shift), rounds)
    for off in (-0.1, -0.3):
        for chosen in (False, True):
            name = f"a trial of 30 at {off:.0%}, {'left out' if chosen else 'taken for noise'}"
            show(name, partial(after_a_fault, off, chosen), rounds)
    for noise in (0.003, 0.01, 0.02):
        for true in (0.85, 0.88, 0.9, 0.92, 0.95):
            told = f"scaling {true} for >= 0.9, noise {noise:.1%}"
            show(f"{told}, plain limit", partial(plain, noise, true), rounds)
            show(f"{told}, gate", partial(ratio, noise, true), rounds)
    for noise in (0.01, 0.02):
        for shift, bad in ((0.0, False), (-0.02, False), (0.0, True)):
            name = f"30 cases, noise {noise:.0%}, shift {shift:.0%}{', one more on its limit' if bad else ''}"
            show(name, partial(of_many, noise, shift, bad), rounds // 10)
    print("\n| noise | told of nothing lost, 5 / 30 in history | told of 3 % lost |\n|---|---|---|")
    for noise in (0.001, 0.003, 0.01, 0.02, 0.04):
        cells = (
            " / ".join(f"{warned(noise, shift, known, rounds):.1%}" for known in (5, 30)) for shift in (0.0, -0.03)
        )
        print(f"| {noise:.1%} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
