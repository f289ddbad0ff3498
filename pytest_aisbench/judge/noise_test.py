"""Decide whether a threshold is met although measurements are noisy, with as few trials as possible.

The rule. The mean of k trials is known to ± t · s / √k', where s is the noise of one trial. The threshold is met when
that whole interval is inside its band and missed when it is wholly outside; otherwise another trial is due, and after
the last one the case is inconclusive.

What s is. History tells how noisy the machine was, today's trials how noisy it is. s² = (2 · s² of history + SS of
trials) / degrees, with degrees = 2 + (k - 1): however long history is, it counts as two degrees of freedom, because a
day may be noisier than all before. It counts as three where its tails are light, as those of a machine that has two
speeds and nothing between. If an F test at 1 % finds that today's trials contradict history, theirs alone is s, with
k - 1 degrees, and the text says so. Until history has three different values, s is assumed: 2 % of the mean, or
what the workload says, with the normal quantile for t; if three different trials make a narrower interval, that
counts. One trial is enough for a floor that is far away. Where nothing is to be assumed, the plain band decides.

What k' is. Trials of one session have much in common, so that k of them tell less than k independent ones:
k' = k² / (k + 2 · r · (k - 1)), where r is the correlation of each value of history with the next, and at least 0.1.
Where history wanders (`trend.py` says when), s is at least the distance that it went, and r at least 0.9.

What t is. Its level is 1 - α · (k + 1) / (2 + 3 + … + (K + 1)), and half of that share for each bound of a threshold
with two. K is the largest number of trials. The shares of all K decisions add up to α, so at most α of all cases that
sit exactly on the limit are decided wrongly, and ever fewer away from it. The first decision gets the least: it knows
nothing of today's noise.

That holds per case, and per direction: at most α of the cases on the limit or below it pass, and at most α of those on
it or above it fail. A run of many cases is green only if all of them pass, so a case that is not good enough makes the
run green with a probability of at most α, however many cases there are. No further correction is needed. How far it
holds where noise is not normal, not independent or not that of history: docs/benchmarks.md.

Noise cannot make a positive quantity fall to 0: where the half width is more than half of the mean, the lower end is
mean² / (4 · half width), which continues smoothly from there and stays above 0. So a machine whose speed doubles and
halves from day to day still meets a floor that is far below.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.messages import Message, joined, message
from pytest_aisbench.model.verdict import Finding, Outcome, Threshold, number, quantity

ALPHA = 0.05
CALCULATION = "how"  # the clause of a finding that shows the arithmetic; reasons go without it
ASSUMED_NOISE = 0.02  # of the mean, until history knows better
ASSUMED_NOISE_OF_ACCURACY = 0.002  # trainings of one network with different seeds differ by about as much
_PREDICTED = 0.999  # the share of new values within a prediction interval
DIGITS = 4  # of the terms of an interval: their product is then right to as many digits
_FEWEST_DEGREES = 2  # with one degree of freedom t is above 30 and decides nothing
_FEWEST_DIFFERENT = 3  # values: two may be alike by chance
_HISTORY_DEGREES = 2  # that history counts for at most
_LIGHT_DEGREES = 3  # the same, where its tails are light
_LIGHT = 1.7  # kurtosis: of two values in equal shares it is 1, of normal noise 3, and of 30 normal values hardly below
_FEWEST_FOR_TAILS = 20  # values
_LEAST_ALIKE = 0.1  # the correlation of successive trials that is assumed in any case
WANDERING = 0.9  # the same, where history wanders
_CONTRADICTED = 0.01  # how often noise as in history may make today's trials differ so much
_NEWTON_STEPS = 200  # three or four are enough; heavy tails far out need some more
_FRACTION_STEPS = 500  # twenty are enough for few degrees of freedom
_FRACTION_DIGITS = 1e-15
_NEARLY_INFINITE = 1e6  # degrees of freedom


@dataclass(frozen=True)
class Decision:
    """The finding on one threshold after the trials so far, and whether another trial must decide it."""

    finding: Finding
    interval: tuple[float, float] | None = None  # of the mean; None if nothing was measured, and for a bare limit
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
    """The standard deviation of one trial, and the degrees of freedom that it was estimated with.

    An assumed noise has infinitely many.
    """

    deviation: float
    degrees: float
    source: str = ""  # in words, if it is not the noise of history


@dataclass(frozen=True)
class TrialBudget:
    """How many trials there are by now, and how many there may be."""

    done: int
    allowed: int

    def critical_t(self, sides: int, degrees: float) -> tuple[float, str]:
        """Student's t for the decision that is due now, and the level and degrees to look it up by."""
        decisions = max(self.allowed, self.done)
        share, shares = self.done + 1, decisions * (decisions + 3) // 2
        t = t_quantile(1 - ALPHA * share / shares / max(sides, 1), degrees)
        level = (
            f"1 - {ALPHA:g}" + (f" × {share}/{shares}" if decisions > 1 else "") + (f"/{sides}" if sides > 1 else "")
        )
        if math.isinf(degrees):
            return t, message("critical normal", level=level)
        return t, message("critical", level=level, degrees=f"{degrees:g}")


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
    wander: float = 0.0,
    assumed: float = ASSUMED_NOISE,
) -> Decision:
    """Compare the mean of a case's trials with its threshold.

    `history` holds comparable values of other runs, oldest first. `left_out` names the values that the caller removed
    from the history as outliers; they appear in the text only. `wander` is how far a history that wanders went from
    its newest level, and 0 of any other. `assumed` is the noise of one trial, as a share of the mean, until history
    has three different values.
    """
    if not trials or not all(map(math.isfinite, trials)):
        return not_measured(threshold, shape, "unmeasured somewhere")
    mean, budget = average(trials), TrialBudget(len(trials), max_trials)
    past = [value for value in history if math.isfinite(value)]
    several = {"count": str(budget.done)} if budget.done > 1 else {}
    value = quantity(mean, threshold.unit)
    statement = message("mean" if several else "value", metric=threshold.metric, value=value, **several)
    sides, alike = threshold.sides(shape), max(WANDERING if wander else _LEAST_ALIKE, correlation(past))
    default = message("assumed", share=f"{100 * assumed:g}%", why=_why_noise_is_unknown(past, trials))
    noises = possible_noises(past, trials, Noise(assumed * abs(mean), math.inf, default), wander)
    noise = min(noises, key=lambda each: each.deviation * budget.critical_t(sides, each.degrees)[0])
    if not noise.deviation:
        return decide_by_band(threshold, shape, mean, statement, _why_noise_is_unknown(past, trials))
    t, level = budget.critical_t(sides, noise.degrees)
    count = budget.done**2 / (budget.done + 2 * alike * (budget.done - 1))
    half = t * noise.deviation / math.sqrt(count)
    low, above_0 = mean - half, ""
    if min((*past, *trials)) > 0 and half > mean / 2:
        low, above_0 = mean / (4 * half / mean), message("never below 0")
    terms = {"half": half, "t": t, "deviation": noise.deviation}
    figures = {name: number(value, DIGITS) for name, value in terms.items()}
    if several:
        figures["count"] = number(count, DIGITS)
        level = joined((level, message("alike", alike=number(alike, 2), **several, effective=number(count, DIGITS))))
    counted = message("in history", count=str(len(past))) if past else ""
    counted += message("left out", values=", ".join(map(number, left_out))) if left_out else ""
    calculation = joined(
        (message("noise of mean" if several else "noise", **figures), above_0, level, noise.source, counted)
    )
    return decide_by_interval(threshold, shape, Estimate(mean, (low, mean + half), statement, calculation, budget))


def possible_noises(
    history: Sequence[float], trials: Sequence[float], assumed: Noise, wander: float = 0.0
) -> list[Noise]:
    """The noise of one trial today. Where it is assumed, what three trials show stands beside it."""
    now = noise_of(trials)
    of_history = noise_of(history) if len(set(history)) >= _FEWEST_DIFFERENT else None
    if of_history and of_history.deviation < wander:
        of_history = replace(
            of_history, deviation=wander, source=message("wanders", level=number(of_history.deviation, DIGITS))
        )
    before = of_history or assumed
    if now and _contradicts(now, before):
        return [replace(now, source=message("noisier", before=number(before.deviation, DIGITS)))]
    if of_history and len(history) >= _FEWEST_FOR_TAILS and kurtosis(history) < _LIGHT:
        light = joined((of_history.source, message("light tails", degrees=str(_LIGHT_DEGREES))))
        return [_pooled(replace(of_history, degrees=_LIGHT_DEGREES, source=light), now)]
    if of_history:
        return [_pooled(replace(of_history, degrees=_HISTORY_DEGREES), now)]
    return [before, now] if now and len(set(trials)) >= _FEWEST_DIFFERENT else [before]


def not_measured(threshold: Threshold, shape: Shape, key: str = "unmeasured") -> Decision:
    wanted = threshold.wanted(shape)
    text = message(key, metric=threshold.metric, wanted=wanted)
    return Decision(Finding(threshold.metric, Outcome.UNMEASURED, None, wanted, text))


def decide_by_band(threshold: Threshold, shape: Shape, value: float, statement: Message, why: str) -> Decision:
    """Compare the bare value with the band: the noise is unknown for the reason `why`, and none is to be assumed."""
    outcome = locate((value, value), threshold.band(shape))[0] if threshold.sides(shape) else Outcome.MISSED
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
    text += message(key, **facts) + message(CALCULATION, how=estimate.calculation)
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
    """The noise of both, each around its own mean; None if there are too few values, or if they have no spread."""
    degrees = max(len(history) - 1, 0) + max(len(trials) - 1, 0)
    squares = sum_of_squares(history) + sum_of_squares(trials)
    if degrees < _FEWEST_DEGREES or not 0 < squares < math.inf:
        return None
    return Noise(math.sqrt(squares / degrees), degrees)


def noise_of(values: Sequence[float]) -> Noise | None:
    """None without any spread: every measured speed has some."""
    squares = sum_of_squares(values)
    return Noise(math.sqrt(squares / (len(values) - 1)), len(values) - 1) if 0 < squares < math.inf else None


def _pooled(before: Noise, now: Noise | None) -> Noise:
    if now is None:
        return before
    degrees = before.degrees + now.degrees
    squares = before.degrees * before.deviation**2 + now.degrees * now.deviation**2
    return Noise(math.sqrt(squares / degrees), degrees, before.source)


def _contradicts(now: Noise, before: Noise) -> bool:
    if not before.deviation:
        return False
    return f_beyond((now.deviation / before.deviation) ** 2, now.degrees, before.degrees) < _CONTRADICTED


def correlation(values: Sequence[float]) -> float:
    """Of each value with the next; 0 without a spread."""
    offsets = _offsets(values)
    products = (one * other for one, other in itertools.pairwise(offsets))
    return sum(products) / sum(offset * offset for offset in offsets) if offsets else 0.0


def kurtosis(values: Sequence[float]) -> float:
    """How heavy the tails are: that of normal noise is 3. Not a number without a spread."""
    squares = [offset * offset for offset in _offsets(values)]
    return len(squares) * sum(each * each for each in squares) / sum(squares) ** 2 if squares else math.nan


def _offsets(values: Sequence[float]) -> list[float]:
    """From their mean, as shares of the widest, so that no square is infinite; none without a spread."""
    middle = average(values) if values else 0.0
    widest = max((abs(value - middle) for value in values), default=0.0)
    return [(value - middle) / widest for value in values] if 0 < widest < math.inf else []


def average(values: Sequence[float]) -> float:
    """The mean, exact, so that the order of trials does not matter; dividing first keeps the sum finite."""
    return math.fsum(value / len(values) for value in values)


def sum_of_squares(values: Sequence[float]) -> float:
    if len(values) < 2 or min(values) == max(values):  # around a rounded mean even equal values would have a spread
        return 0.0
    middle = average(values)
    try:
        return math.fsum((value - middle) ** 2 for value in values)
    except OverflowError:
        return math.inf


def _why_noise_is_unknown(history: Sequence[float], trials: Sequence[float]) -> str:
    if not history:
        return message("no history")
    too_few = len(history) < _FEWEST_DIFFERENT
    return message("too few" if too_few else "no spread", past=str(len(history)), now=str(len(trials)))


# The distributions of Student's t and of F, the only special functions that judging needs: both are the incomplete beta
# function, by its continued fraction. docs/benchmarks.md compares them with SciPy's.


def t_within(t: float, degrees: float) -> float:
    """The probability that |T| is below `t`."""
    return _beta_share(t * t, degrees, 0.5, degrees / 2)


def f_beyond(ratio: float, degrees: float, other_degrees: float) -> float:
    """The probability that a ratio of variances with so many degrees of freedom is above `ratio`."""
    other_degrees = min(other_degrees, _NEARLY_INFINITE)
    return _beta_share(other_degrees, degrees * ratio, other_degrees / 2, degrees / 2)


def _beta_share(part: float, rest: float, a: float, b: float) -> float:
    """The regularised incomplete beta function of x = part / (part + rest); both parts, since 1 - x would cancel."""
    x, y = part / (part + rest), rest / (part + rest)
    if not x or not y:
        return float(not y)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly for x, it is fast for 1 - x
        return 1 - _beta_share(rest, part, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)) / a
    # Lentz' method: the numerators and denominators of successive fractions, as ratios.
    fraction, upper, lower = 1.0, 1.0, 0.0
    for step in range(_FRACTION_STEPS):
        half, odd = divmod(step, 2)
        if odd:
            term = -(a + half) * (a + b + half) * x / ((a + step - 1) * (a + step))
        else:
            term = half * (b - half) * x / ((a + step - 1) * (a + step)) if step else 1.0
        lower = 1 / (1 + term * lower)
        upper = 1 + term / upper
        fraction *= upper * lower
        if abs(upper * lower - 1) < _FRACTION_DIGITS:
            break
    return scale * (fraction - 1)


@lru_cache(maxsize=1024)  # successive decisions ask for the same few
def t_quantile(level: float, degrees: float) -> float:
    """The value that T stays below with probability `level`, from one half to below 1."""
    if not 0.5 <= level < 1 or degrees < 1:
        raise ValueError(f"no quantile of Student's t at {level} with {degrees} degrees of freedom")
    t = NormalDist().inv_cdf(level)  # T approaches it from above as the degrees grow
    if math.isinf(degrees):
        return t
    wanted = 2 * level - 1
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
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
