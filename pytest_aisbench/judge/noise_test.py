"""Decide whether a threshold is met although measurements are noisy, with as few trials as possible.

The rule. s is the noise of one trial, pooled over comparable history and the new trials of the case, each around its
own mean: s² = (SS of history + SS of trials) / degrees, with degrees = (n - 1) + (k - 1). The mean of k trials is then
known to ± t · s / √k. The threshold is met when that whole interval is inside its band and missed when it is wholly
outside; otherwise another trial is due, and after the last one the case is inconclusive. The level of t is 1 - α / K,
and 1 - α / 2K for a threshold with two bounds. K is the largest number of trials: each of the K decisions gets its
share of α, so at most α of all cases that sit exactly on the limit are decided wrongly, and ever fewer away from it.

That holds per case, and per direction: at most α of the cases on the limit or below it pass, and at most α of those on
it or above it fail. A run of many cases is green only if all of them pass, so a case that is not good enough makes the
run green with a probability of at most α, however many cases there are. No further correction is needed.

Noise cannot make a positive quantity fall to 0: where t · s / √k is more than half of the mean, the lower end is not
the mean less that but mean² / (4 · t · s / √k), which continues smoothly from there and stays above 0. So a machine
whose speed doubles and halves from day to day still meets a floor that is far below.

With fewer than two degrees of freedom, or without any spread, the noise is unknown. The mean is then compared with the
plain band, and the text says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.messages import Message, joined, message
from pytest_aisbench.model.verdict import Finding, Outcome, Threshold, number, quantity

ALPHA = 0.05
_PREDICTED = 0.999  # the share of new values within a prediction interval
DIGITS = 4  # of the terms of an interval: their product is then right to as many digits
_FEWEST_DEGREES = 2  # with one degree of freedom t is above 30 and decides nothing
_NEWTON_STEPS = 200  # three or four are enough; heavy tails far out need some more


@dataclass(frozen=True)
class Decision:
    """The finding on one threshold after the trials so far, and whether another trial must decide it."""

    finding: Finding
    interval: tuple[float, float] | None = None  # of the mean; None if the noise is unknown
    needs_another_trial: bool = False  # the finding is then undecided for now

    @property
    def outcome(self) -> Outcome:
        return self.finding.outcome

    @property
    def text(self) -> str:
        return self.finding.text

    def without_another_trial(self, why: str) -> Decision:
        """The decision as it stays if the trial that it needs will not run, with the reason in its text."""
        if not self.needs_another_trial:
            return self
        text = joined((self.finding.text, message("no other", why=why)))
        return Decision(replace(self.finding, text=text), self.interval)


@dataclass(frozen=True)
class Noise:
    """The standard deviation of one trial, and the degrees of freedom that it was estimated with."""

    deviation: float
    degrees: int


@dataclass(frozen=True)
class TrialBudget:
    """How many trials there are by now, and how many there may be."""

    done: int
    allowed: int

    def critical_t(self, sides: int, degrees: int) -> tuple[float, str]:
        """Student's t for one of the decisions, and the level and degrees to look it up by."""
        decisions = max(self.allowed, self.done)
        t = t_quantile(1 - ALPHA / decisions / max(sides, 1), degrees)
        halved = f"/{sides}" if sides > 1 else ""
        return t, message("critical", level=f"1 - {ALPHA:g}/{decisions}{halved}", degrees=str(degrees))


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that it is known to lie in, to be compared with a threshold."""

    value: float
    interval: tuple[float, float]
    statement: Message  # names the value
    calculation: str  # of the interval, so that a reader can check it by hand
    budget: TrialBudget


def decide(
    threshold: Threshold,
    shape: Shape,
    history: Sequence[float],
    trials: Sequence[float],
    max_trials: int,
    *,
    left_out: Sequence[float] = (),
) -> Decision:
    """Compare the mean of a case's trials with its threshold.

    `history` holds comparable values of other runs; the order of either does not matter. `left_out` names the values
    that the caller removed from the history as outliers; they appear in the text only.
    """
    if not trials or not all(map(math.isfinite, trials)):
        return not_measured(threshold, shape, "unmeasured somewhere")
    mean, budget = average(trials), TrialBudget(len(trials), max_trials)
    past = [value for value in history if math.isfinite(value)]
    noise = pooled_noise(past, trials)
    several = {"count": str(budget.done)} if budget.done > 1 else {}
    value = quantity(mean, threshold.unit)
    statement = message("mean" if several else "value", metric=threshold.metric, value=value, **several)
    if noise is None:
        return decide_by_band(threshold, shape, mean, statement, _why_noise_is_unknown(past, trials))
    t, level = budget.critical_t(threshold.sides(shape), noise.degrees)
    half = t * noise.deviation / math.sqrt(budget.done)
    low, above_0 = mean - half, ""
    if min(*past, *trials) > 0 and half > mean / 2:
        low, above_0 = mean / (4 * half / mean), message("never below 0")
    terms = {"half": half, "t": t, "deviation": noise.deviation}
    figures = {name: number(value, DIGITS) for name, value in terms.items()} | several
    counted = message("in history", count=str(len(past)))
    counted += message("left out", values=", ".join(map(number, left_out))) if left_out else ""
    calculation = joined((message("noise of mean" if several else "noise", **figures), above_0, level, counted))
    return decide_by_interval(threshold, shape, Estimate(mean, (low, mean + half), statement, calculation, budget))


def not_measured(threshold: Threshold, shape: Shape, key: str = "unmeasured") -> Decision:
    wanted = threshold.wanted(shape)
    text = message(key, metric=threshold.metric, wanted=wanted)
    return Decision(Finding(threshold.metric, Outcome.UNMEASURED, None, wanted, text))


def decide_by_band(threshold: Threshold, shape: Shape, value: float, statement: Message, why: str) -> Decision:
    """Compare the bare value with the band, because the noise is unknown for the reason `why`.

    A threshold without a bound is not met.
    """
    low, high = threshold.band(shape)
    outcome = Outcome.MET if low <= value <= high and threshold.sides(shape) else Outcome.MISSED
    text = joined((_compared(threshold, shape, value, statement), message("unqualified", why=why)))
    return Decision(Finding(threshold.metric, outcome, value, threshold.wanted(shape), text))


def decide_by_interval(threshold: Threshold, shape: Shape, estimate: Estimate) -> Decision:
    """Met if the interval is inside the band, missed if it is outside; else another trial, as long as one is left."""
    budget, (low, high) = estimate.budget, estimate.interval
    outcome, key = locate(estimate.interval, threshold.band(shape))
    facts = {"low": number(low), "high": number(high)}
    if outcome is Outcome.UNDECIDED:
        facts |= {"count": str(budget.done), "most": str(budget.allowed)}
        key = key if budget.allowed > 1 else "across at once"
    text = _compared(threshold, shape, estimate.value, estimate.statement)
    text += message(key, **facts) + message("how", how=estimate.calculation)
    finding = Finding(threshold.metric, outcome, estimate.value, threshold.wanted(shape), text)
    again = outcome is Outcome.UNDECIDED and budget.done < budget.allowed
    return Decision(finding, estimate.interval, needs_another_trial=again)


def _compared(threshold: Threshold, shape: Shape, value: float, statement: Message) -> Message:
    return statement + message("wanted", wanted=threshold.wanted(shape)) + threshold.gap(shape, value)


def locate(interval: tuple[float, float], band: tuple[float, float]) -> tuple[Outcome, str]:
    """Whether an interval is inside a band, outside, or across one of its bounds; and the key of the message."""
    (bottom, top), (low, high) = interval, band
    if low <= bottom and top <= high:
        return Outcome.MET, "inside"
    if top < low or high < bottom:
        return Outcome.MISSED, "outside"
    return Outcome.UNDECIDED, "across"


def pooled_noise(history: Sequence[float], trials: Sequence[float]) -> Noise | None:
    """None if there are too few values, or if they have no spread at all: every measured speed has some."""
    degrees = _degrees(history, trials)
    squares = sum_of_squares(history) + sum_of_squares(trials)
    if degrees < _FEWEST_DEGREES or not 0 < squares < math.inf:
        return None
    return Noise(math.sqrt(squares / degrees), degrees)


def average(values: Sequence[float]) -> float:
    """The mean, exact, so that the order of trials does not matter; dividing first keeps the sum finite."""
    return math.fsum(value / len(values) for value in values)


def _degrees(history: Sequence[float], trials: Sequence[float]) -> int:
    return max(len(history) - 1, 0) + max(len(trials) - 1, 0)


def sum_of_squares(values: Sequence[float]) -> float:
    if len(values) < 2 or min(values) == max(values):  # around a rounded mean even equal values would have a spread
        return 0.0
    middle = average(values)
    try:
        return math.fsum((value - middle) ** 2 for value in values)
    except OverflowError:
        return math.inf


def _why_noise_is_unknown(history: Sequence[float], trials: Sequence[float]) -> str:
    if not history and len(trials) == 1:
        return message("no history")
    too_few = _degrees(history, trials) < _FEWEST_DEGREES
    return message("too few" if too_few else "no spread", past=str(len(history)), now=str(len(trials)))


# Student's t for whole degrees of freedom, the only special function that judging needs. The distribution is then a
# finite sum of positive terms (Abramowitz and Stegun, 26.7.3 and 26.7.4): nothing is approximated and nothing cancels.
# docs/benchmarks.md compares it with SciPy's.


def t_within(t: float, degrees: int) -> float:
    """The probability that |T| is below `t`."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine_squared = degrees / (degrees + t * t)
    odd = degrees % 2
    term = whole = math.sqrt(cosine_squared) if odd and degrees > 1 else float(not odd)
    for lower in range(2 + odd, degrees, 2):
        term *= cosine_squared * (lower - 1) / lower
        whole += term
    whole *= math.sin(angle)
    return 2 / math.pi * (angle + whole) if odd else whole


@lru_cache(maxsize=1024)  # successive decisions ask for the same few
def t_quantile(level: float, degrees: int) -> float:
    """The value that T stays below with probability `level`, from one half to below 1."""
    if not 0.5 <= level < 1 or degrees < 1:
        raise ValueError(f"no quantile of Student's t at {level} with {degrees} degrees of freedom")
    wanted = 2 * level - 1
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    t = NormalDist().inv_cdf(level)  # T approaches it from above as the degrees grow
    for _ in range(_NEWTON_STEPS):
        density = scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
        step = (wanted - t_within(t, degrees)) / (2 * density)
        # `t_within` is concave, so Newton climbs and never passes the root: a step back is rounding.
        if step <= 1e-13 * t:
            break
        t += step
    return t


def prediction_reach(count: int, deviation: float) -> float:
    """How far one more value may lie from the mean of `count` earlier ones: only one in a thousand lies further."""
    return t_quantile(_PREDICTED, count - 1) * deviation * math.sqrt(1 + 1 / count)
