"""What becomes of the noise test's promise where noise is not as it assumes, for ratios, and over a run of many cases.

    pip install ReFrame-HPC apache-otava   # or else ReFrame's band is computed by us, and otava's column is empty
    python tests/bench/promise.py [--quick] [--kind KIND…]

The claim is the reference with -5 %, at most 3 trials as by default, 30 trials in history unless it says otherwise. On
the limit every decision is wrong one way or the other; for normal noise the promise is at most 5 % each way.

The first table holds each kind of noise against four rules on the same trials: ours; ReFrame's band, which looks at one
value; a t-test of three trials against the limit at 5 %; and otava, which says of history and three trials together
whether the last of them are at another level, 5 % lower or more.
"""

from __future__ import annotations

import argparse
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, stdev

from noise import reframe_takes

from pytest_aisbench.judge.noise_test import average, decide, pooled_noise, t_quantile
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


# Kinds of noise. Each makes a history and the trials of a session, as offsets from the level: both of a standard
# deviation of 1, unless it says otherwise.

KNOWN = 30
Offsets = tuple[list[float], list[float]]
Kind = Callable[[random.Random], Offsets]


def white(dice: random.Random, known: int = KNOWN) -> Offsets:
    return [dice.gauss(0, 1) for _ in range(known)], [dice.gauss(0, 1) for _ in range(MOST)]


def heavy(dice: random.Random) -> Offsets:
    """Student's t with 4 degrees of freedom."""
    offsets = [
        dice.gauss(0, 1) / math.sqrt(sum(dice.gauss(0, 1) ** 2 for _ in range(4)) / 2) for _ in range(KNOWN + MOST)
    ]
    return offsets[:KNOWN], offsets[KNOWN:]


def bimodal(share: float, dice: random.Random) -> Offsets:
    """So many are fast, the others slow; a twentieth of the deviation is within a mode."""
    modes = math.sqrt((1 - share) / share), -math.sqrt(share / (1 - share))
    offsets = [0.95 * modes[dice.random() >= share] + 0.31 * dice.gauss(0, 1) for _ in range(KNOWN + MOST)]
    return offsets[:KNOWN], offsets[KNOWN:]


def alike(correlation: float, dice: random.Random) -> Offsets:
    """AR(1), from the history into the session."""
    offsets = [dice.gauss(0, 1)]
    while len(offsets) < KNOWN + MOST:
        offsets.append(correlation * offsets[-1] + math.sqrt(1 - correlation**2) * dice.gauss(0, 1))
    return offsets[:KNOWN], offsets[KNOWN:]


def of_a_day(share: float, dice: random.Random, *, one_day: bool = False) -> Offsets:
    """So much of the variance is that of the day, which a session shares. Each trial of history had a day of its own,
    or all had one."""
    of_day, own = math.sqrt(share), math.sqrt(1 - share)
    days = [0.0 if one_day else dice.gauss(0, of_day) for _ in range(KNOWN)]
    today = dice.gauss(0, of_day)
    return [dice.gauss(day, own) for day in days], [dice.gauss(today, own) for _ in range(MOST)]


def noisier(times: float, dice: random.Random) -> Offsets:
    """Today is so many times as noisy as history, whose noise is the one named."""
    history, trials = white(dice)
    return history, [times * offset for offset in trials]


def changed(over: int, dice: random.Random) -> Offsets:
    """Twelve runs ago the level had fallen by eight deviations, over so many runs."""
    history, trials = white(dice)
    before = (min(max(KNOWN - 12 - at, 0) / over, 1) for at in range(KNOWN))
    return [offset + 8 * share for offset, share in zip(history, before, strict=True)], trials


def identical(dice: random.Random) -> Offsets:
    return [0.0] * 10, white(dice)[1]


def one_fault(known: int, dice: random.Random) -> Offsets:
    """One of so few values was at -30 % (added where the level is known)."""
    history, trials = white(dice, known)
    history[dice.randrange(known)] = -math.inf
    return history, trials


KINDS: dict[str, Kind] = {
    "white": white,
    "heavy tails": heavy,
    "bimodal, half and half": partial(bimodal, 0.5),
    "bimodal, one of five slow": partial(bimodal, 0.8),
    "AR(1) 0.7": partial(alike, 0.7),
    "AR(1) 0.9": partial(alike, 0.9),
    "a quarter is the day's": partial(of_a_day, 0.25),
    "half is the day's": partial(of_a_day, 0.5),
    "history of one day, a quarter is the day's": partial(of_a_day, 0.25, one_day=True),
    "history of one day, half is the day's": partial(of_a_day, 0.5, one_day=True),
    "today 1.5 times as noisy": partial(noisier, 1.5),
    "today 3 times as noisy": partial(noisier, 3.0),
    "fell at once, 12 runs ago": partial(changed, 1),
    "fell over 5 runs, 12 runs ago": partial(changed, 5),
    "no history": partial(white, known=0),
    "identical history": identical,
    "4 in history, one at -30 %": partial(one_fault, 4),
    "9 in history, one at -30 %": partial(one_fault, 9),
}
NOISE = (0.003, 0.01, 0.02)
Rule = Callable[[Sequence[float], Sequence[float]], tuple[Outcome, int]]


def _met(met: bool, took: int = 1) -> tuple[Outcome, int]:
    return (Outcome.MET if met else Outcome.MISSED), took


def ours(history: Sequence[float], trials: Sequence[float]) -> tuple[Outcome, int]:
    level = newest_level(history)
    for count in range(1, MOST + 1):
        decision = decide(CLAIM, ONE, level.values, trials[:count], MOST, wander=level.wander)
        if not decision.needs_another_trial:
            break
    return decision.outcome, count


def reframe(_: Sequence[float], trials: Sequence[float]) -> tuple[Outcome, int]:
    return _met(reframe_takes(trials[0], CLAIM))


def t_test(_: Sequence[float], trials: Sequence[float]) -> tuple[Outcome, int]:
    gap = fmean(trials) - CLAIM.band(ONE)[0]
    if abs(gap) <= t_quantile(0.95, MOST - 1) * stdev(trials) / math.sqrt(MOST):
        return Outcome.UNDECIDED, MOST
    return _met(gap > 0, MOST)


def otava(history: Sequence[float], trials: Sequence[float]) -> tuple[Outcome, int]:
    from otava.analysis import compute_change_points

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of variances of one value
        found, _ = compute_change_points([*history, *trials], min_magnitude=0.05)
    return _met(
        not any(point.index >= len(history) - 1 and point.stats.mean_2 < point.stats.mean_1 for point in found), MOST
    )


RULES: dict[str, Rule] = {"ours": ours, "ReFrame's band": reframe, "t-test of 3 trials": t_test, "otava": otava}


def outcomes(kind: Kind, rule: Rule, noise: float, shift: float, rounds: int) -> tuple[Counter[Outcome], float]:
    """How often it ruled what, and how many trials it took on average."""
    dice = random.Random(f"{noise} {shift}")  # the same trials for every rule
    counted: Counter[Outcome] = Counter()
    paid = 0
    for _ in range(rounds):
        history, trials = kind(dice)
        values = [max(100 + 100 * noise * offset, 70.0) for offset in history]
        outcome, took = rule(values, [100 * (1 + shift) + 100 * noise * offset for offset in trials])
        counted[outcome] += 1
        paid += took
    return counted, paid / rounds


def compare(kinds: Sequence[str], rounds: int) -> None:
    heads = ["kind of noise", "noise", *RULES, "ours INCONCLUSIVE, trials"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name in kinds:
        for noise in NOISE:
            cells, price = [], ""
            for which, rule in RULES.items():
                taken = rounds // 10 if rule is otava else rounds  # which takes milliseconds
                try:
                    (good, few), (bad, many), (limit, _) = (
                        outcomes(KINDS[name], rule, noise, shift, taken) for shift in (0.0, -0.08, -0.05)
                    )
                except ImportError:
                    cells.append("")
                    continue
                shares = good[Outcome.MISSED], bad[Outcome.MET], limit[Outcome.MET], limit[Outcome.MISSED]
                wrong, missed, passed, failed = (f"{100 * each / taken:.1f}" for each in shares)
                cells.append(f"{wrong} / {missed} · {passed} / {failed}")
                if which == "ours":
                    opened = (f"{100 * each[Outcome.UNDECIDED] / taken:.1f}" for each in (good, bad))
                    price = f"{' / '.join(opened)}, {few:.1f} / {many:.1f}"
            first = name if noise == NOISE[0] else ""
            print(f"| {first} | {100 * noise:.1f} % | " + " | ".join([*cells, price]) + " |", flush=True)


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
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these rows of the first table")
    given = parser.parse_args()
    rounds = 500 if given.quick else 5000
    print(f"{rounds} rounds; of runs of many cases, and of otava, a tenth")
    print("\nEach cell: FAILED where nothing is lost / PASSED where 8 % are · PASSED / FAILED on the limit, in %\n")
    compare(given.kind or list(KINDS), rounds)
    if given.kind:
        return
    print()
    print("| what | PASSED | FAILED | INCONCLUSIVE |\n|---|---|---|---|")
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
