"""How well changes of level are told from noise as machines have it: ours, a rolling t-test's, and otava's.

    pip install apache-otava             # or else its row is left out
    python tests/bench/levels.py [--quick]

Every window has 100 values. Its noise is alike from one value to the next (AR(1), 0.2 to 0.75), has heavy tails
(Student's t with 3 degrees of freedom), outliers, and steps that pass after three to eight values. Three windows of
four have one change of level that stays, labelled; the others have none. A finding within five values of the label is
right, any other is wrong.

How hard the windows are is calibrated: on series that performance engineers had labelled, the rolling t-test had an F1
of .79 and otava one of .65, and so they have here. If one of them leaves its figure by more than .03, the windows are
too easy or too hard, and the program ends with 1.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from pytest_aisbench.judge.trend import MAGNITUDE, change_points

LENGTH = 100
NEAR = 5
SIDE, THRESHOLD = 12, 3.5  # of the rolling t-test
CALIBRATED = {"a rolling t-test": 0.79, "otava": 0.65}
TOLERANCE = 0.03

Rule = Callable[[Sequence[float]], list[int]]


@dataclass(frozen=True)
class Window:
    values: list[float]
    label: int | None  # index of the first value at the new level


@dataclass(frozen=True)
class Score:
    precision: float
    recall: float
    alarmed: float  # the share of windows without a label in which something is found

    @property
    def f1(self) -> float:
        return 2 * self.precision * self.recall / (self.precision + self.recall) if self.precision else 0.0


def _heavy(dice: random.Random) -> float:
    """Student's t with 3 degrees of freedom, of standard deviation 1."""
    wide = math.sqrt(sum(dice.gauss(0.0, 1.0) ** 2 for _ in range(3)))
    return dice.gauss(0.0, 1.0) / wide


def window(dice: random.Random) -> Window:
    noise = math.exp(dice.uniform(math.log(0.003), math.log(0.021)))
    alike = dice.uniform(0.2, 0.75)
    offsets = [_heavy(dice)]
    while len(offsets) < LENGTH:
        offsets.append(alike * offsets[-1] + math.sqrt(1 - alike**2) * _heavy(dice))
    while dice.random() < 0.25:  # a third of a step per window
        length = dice.randrange(3, 9)
        start, size = dice.randrange(LENGTH - length), dice.choice((-1, 1)) * dice.uniform(1.5, 4.0)
        offsets[start : start + length] = [offset + size for offset in offsets[start : start + length]]
    offsets = [offset - dice.uniform(5.0, 15.0) if dice.random() < 0.01 else offset for offset in offsets]
    label = dice.randrange(15, LENGTH - 15) if dice.random() < 0.75 else None
    change = dice.choice((-1, 1)) * max(noise * dice.uniform(0.9, 8.0), MAGNITUDE)
    levels = [100.0 * (1 + change) if label is not None and at >= label else 100.0 for at in range(LENGTH)]
    return Window([level + 100 * noise * offset for level, offset in zip(levels, offsets, strict=True)], label)


def windows(count: int, seed: int = 7) -> list[Window]:
    dice = random.Random(seed)
    return [window(dice) for _ in range(count)]


def ours(values: Sequence[float]) -> list[int]:
    return [point.index for point in change_points(values)]


def rolling_t_test(values: Sequence[float]) -> list[int]:
    """As sheriffs of performance have it: t of the twelve values before and after, at its local maximum."""
    scores = [0.0] * len(values)
    for at in range(SIDE // 2, len(values) - SIDE // 2):
        before, after = values[max(at - SIDE, 0) : at], values[at : at + SIDE]
        if abs(fmean(after) / fmean(before) - 1) >= MAGNITUDE:
            error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
            scores[at] = abs(fmean(after) - fmean(before)) / error
    return [
        at
        for at, score in enumerate(scores)
        if score > THRESHOLD and score == max(scores[max(at - SIDE, 0) : at + SIDE + 1])
    ]


def otava(values: Sequence[float]) -> list[int]:
    """With its defaults, and our magnitude."""
    from otava.analysis import compute_change_points

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of variances of one value
        found, _ = compute_change_points(list(values), min_magnitude=MAGNITUDE)
    return [int(point.index) for point in found]


RULES: dict[str, Rule] = {"ours": ours, "a rolling t-test": rolling_t_test, "otava": otava}


def score(rule: Rule, generated: Sequence[Window]) -> Score:
    right = wrong = missed = alarmed = clean = 0
    for each in generated:
        found = rule(each.values)
        hit = each.label is not None and any(abs(at - each.label) <= NEAR for at in found)
        right += hit
        wrong += len(found) - hit
        missed += each.label is not None and not hit
        clean += each.label is None
        alarmed += each.label is None and bool(found)
    return Score(right / max(right + wrong, 1), right / max(right + missed, 1), alarmed / max(clean, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the windows")
    generated = windows(800 if parser.parse_args().quick else 4000)
    print(f"{len(generated)} windows\n")
    print(
        "| rule | precision | recall | F1 | windows without a change that are alarmed | ms each |\n" + "|---" * 6 + "|"
    )
    strange = []
    for name, rule in RULES.items():
        began = time.process_time()
        try:
            found = score(rule, generated)
        except ImportError:
            continue
        spent = 1000 * (time.process_time() - began) / len(generated)
        cells = (f"{each:.2f}" for each in (found.precision, found.recall, found.f1))
        print(f"| {name} | {' | '.join(cells)} | {found.alarmed:.1%} | {spent:.2f} |", flush=True)
        strange += [name] if abs(found.f1 - CALIBRATED.get(name, found.f1)) > TOLERANCE else []
    if strange:
        print(f"not as hard as real series: {', '.join(strange)}", file=sys.stderr)
    return 1 if strange else 0


if __name__ == "__main__":
    sys.exit(main())
