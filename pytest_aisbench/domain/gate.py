"""Deciding a claim in spite of noise: as many trials as it takes, and no more than were allowed.

The rule. The noise of one trial is s, pooled over comparable history and the new trials of the case, each around its
own mean: s² = (SS of history + SS of trials) / degrees, with degrees = (n - 1) + (k - 1). The mean of k trials is then
known to ± t · s / √k. The claim is met when that whole interval is inside its band and missed when it is wholly
outside; otherwise another trial is due, and after the last one the case is inconclusive. The level of t is 1 - α / K,
and 1 - α / 2K for a claim with two sides: K looks, each with its share of α, let a wrong decision happen in at most α
of all cases that sit on the limit, and ever fewer away from it.

What is never negative does not fall to 0 by noise: where half of the mean is less than t · s / √k, the lower end is not
the mean less that but mean² / (4 · t · s / √k), which goes on smoothly from there and stays above 0. So a floor that
is far below is met on a machine whose speed doubles and halves from day to day.

Without three comparable values nobody knows the noise. The mean is then held against the plain band, and the text says
"unqualified".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_aisbench.domain import student
from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.verdict import Finding, Outcome, Ruling

ALPHA = 0.05
_FEWEST = 2  # degrees of freedom: with one, t is above 30 and decides nothing

_OUTCOMES = {
    Ruling.PASSED: Outcome.MET,
    Ruling.FAILED: Outcome.MISSED,
    Ruling.INCONCLUSIVE: Outcome.UNDECIDED,
}


@dataclass(frozen=True)
class Decision:
    """What the trials so far say of one claim; the ruling is None where another trial is due."""

    metric: str
    ruling: Ruling | None
    mean: float | None
    interval: tuple[float, float] | None  # None where it is unqualified
    wanted: str
    text: str

    @property
    def again(self) -> bool:
        return self.ruling is None

    @property
    def qualified(self) -> bool:
        return self.interval is not None

    def closed(self, why: str) -> Decision:
        """Without the trial that is due, which nobody will run: inconclusive."""
        if not self.again:
            return self
        return replace(self, ruling=Ruling.INCONCLUSIVE, text=f"{self.text}; no other trial: {why}")

    @property
    def finding(self) -> Finding:
        """For `judge`; one that is still open is undecided."""
        if self.mean is None:
            return Finding(self.metric, Outcome.UNMEASURED, None, self.wanted, self.text)
        outcome = _OUTCOMES[self.ruling or Ruling.INCONCLUSIVE]
        return Finding(self.metric, outcome, self.mean, self.wanted, self.text)


@dataclass(frozen=True)
class Noise:
    """The spread of one trial around its mean, and how much it was learnt from."""

    deviation: float
    degrees: int


def decide(
    claim: Threshold, shape: Shape, history: Sequence[float], trials: Sequence[float], max_trials: int
) -> Decision:
    """`history` is of the same fingerprint, without the trials that are to be judged; neither's order matters."""
    wanted = claim.wanted(shape)
    if not trials or not all(map(math.isfinite, trials)):
        text = f"{claim.metric}: not measured in every trial, wanted {wanted}"
        return Decision(claim.metric, Ruling.FAILED, None, None, wanted, text)
    mean = _mean(trials)
    past = [value for value in history if math.isfinite(value)]
    noise = pooled(past, trials)
    low, high = claim.band(shape)
    unit = f" {claim.unit}" if claim.unit else ""
    if noise is None:
        met = low <= mean <= high and claim.sides(shape) > 0
        told = f"{claim.metric} {number(mean)}{unit}{_of(trials) or ','} wanted {wanted}{claim.gap(shape, mean)}"
        text = f"{told}; unqualified: {_why(past, trials)}"
        return Decision(claim.metric, Ruling.PASSED if met else Ruling.FAILED, mean, None, wanted, text)
    count, looks = len(trials), max(max_trials, len(trials))
    level = 1 - ALPHA / looks / max(claim.sides(shape), 1)
    t = student.quantile(level, noise.degrees)
    half = t * noise.deviation / math.sqrt(count)
    interval = (_bottom(mean, half, positive=min(*past, *trials) > 0), mean + half)
    text = (
        f"{claim.metric} {number(mean)}{unit}{_of(trials)} ± {number(half)}"
        f" (t {t:.4g} at {level:.4g} with {noise.degrees} degrees × s {number(noise.deviation)}"
        f"{f' / √{count}' if count > 1 else ''}; {len(past)} in history), wanted {wanted}: "
    )
    shown = f"{number(interval[0])} .. {number(interval[1])}"
    ruling, word = _place(interval, (low, high))
    if ruling is None and count >= max_trials:
        ruling, word = Ruling.INCONCLUSIVE, f"{word} after {count} of at most {max_trials} trials"
    elif ruling is None:
        word += f", trial {count + 1} of at most {max_trials} is due"
    return Decision(claim.metric, ruling, mean, interval, wanted, f"{text}{shown} {word}")


def pooled(history: Sequence[float], trials: Sequence[float]) -> Noise | None:
    """None where it cannot be known: too few values, or a spread of nothing, which no measured speed has."""
    degrees = max(len(history) - 1, 0) + max(len(trials) - 1, 0)
    squares = _squares(history) + _squares(trials)
    if degrees < _FEWEST or not 0 < squares < math.inf:
        return None
    return Noise(math.sqrt(squares / degrees), degrees)


def _bottom(mean: float, half: float, *, positive: bool) -> float:
    return mean / (4 * half / mean) if positive and half > mean / 2 else mean - half


def _place(interval: tuple[float, float], band: tuple[float, float]) -> tuple[Ruling | None, str]:
    (bottom, top), (low, high) = interval, band
    if low <= bottom and top <= high:
        return Ruling.PASSED, "is inside"
    if top < low or high < bottom:
        return Ruling.FAILED, "is outside"
    return None, "is not decided"


def _mean(values: Sequence[float]) -> float:
    """Exact, so that the order of trials does not matter; each is divided first, so that no sum is too large."""
    return math.fsum(value / len(values) for value in values)


def _squares(values: Sequence[float]) -> float:
    if len(values) < 2 or min(values) == max(values):  # around a rounded mean even equal values would have a spread
        return 0.0
    middle = _mean(values)
    try:
        return math.fsum((value - middle) ** 2 for value in values)
    except OverflowError:
        return math.inf


def _of(trials: Sequence[float]) -> str:
    return f", mean of {len(trials)} trials," if len(trials) > 1 else ""


def _why(history: Sequence[float], trials: Sequence[float]) -> str:
    if not history and len(trials) == 1:
        return "no comparable history"
    together = f"{len(history)} in history and {len(trials)} now"
    if max(len(history) - 1, 0) + max(len(trials) - 1, 0) < _FEWEST:
        return f"{together} do not tell the noise"
    return f"{together} have no spread to reckon with"
