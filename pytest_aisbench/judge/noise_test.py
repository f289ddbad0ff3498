"""Deciding a claim in spite of noise: as many trials as it takes, and no more than were allowed.

The rule. The noise of one trial is s, pooled over comparable history and the new trials of the case, each around its
own mean: s² = (SS of history + SS of trials) / degrees, with degrees = (n - 1) + (k - 1). The mean of k trials is then
known to ± t · s / √k. The claim is met when that whole interval is inside its band and missed when it is wholly
outside; otherwise another trial is due, and after the last one the case is inconclusive. The level of t is 1 - α / K,
and 1 - α / 2K for a claim with two sides: K looks, each with its share of α, let a wrong decision happen in at most α
of all cases that sit on the limit, and ever fewer away from it.

That is per case, and per way: at most α of those that are on the limit or below pass, and at most α of those on it or
above fail. A run of many cases is green only if all of them pass, so one that is not good enough makes it green with
at most α too, however many there are: no share of α per case is needed for that.

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
from functools import lru_cache
from statistics import NormalDist

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.messages import Message, joined, message
from pytest_aisbench.domain.threshold import Threshold, number, quantity
from pytest_aisbench.domain.verdict import Finding, Outcome, Ruling

ALPHA = 0.05
DIGITS = 4  # of what an interval is reckoned from: a product of three such has as many
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

    def closed(self, why: str) -> Decision:
        """Without the trial that is due, which nobody will run: inconclusive."""
        if not self.again:
            return self
        return replace(self, ruling=Ruling.INCONCLUSIVE, text=joined((self.text, message("no other", why=why))))

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


@dataclass(frozen=True)
class Looks:
    """How many trials there are by now, and how many there may be."""

    now: int
    most: int

    def critical(self, sides: int, degrees: int) -> tuple[float, str]:
        """Student's t for one look of them all, and where to look it up."""
        looks = max(self.most, self.now)
        t = t_quantile(1 - ALPHA / looks / max(sides, 1), degrees)
        halved = f"/{sides}" if sides > 1 else ""
        return t, message("critical", level=f"1 - {ALPHA:g}/{looks}{halved}", degrees=str(degrees))


@dataclass(frozen=True)
class Reading:
    """A value and how well it is known, to be held against a claim."""

    value: float
    interval: tuple[float, float]
    said: Message
    how: str  # the interval comes about, so that it can be checked by hand
    looks: Looks


def decide(
    claim: Threshold,
    shape: Shape,
    history: Sequence[float],
    trials: Sequence[float],
    max_trials: int,
    *,
    left_out: Sequence[float] = (),
) -> Decision:
    """`history` is of the same fingerprint, without the trials that are to be judged; neither's order matters.

    `left_out` is what somebody took out of it, and only told.
    """
    if not trials or not all(map(math.isfinite, trials)):
        return unmeasured(claim, shape, "unmeasured somewhere")
    mean, looks = average(trials), Looks(len(trials), max_trials)
    past = [value for value in history if math.isfinite(value)]
    noise = pooled(past, trials)
    several = {"count": str(looks.now)} if looks.now > 1 else {}
    said = message("mean" if several else "value", metric=claim.metric, value=quantity(mean, claim.unit), **several)
    if noise is None:
        return by_band(claim, shape, mean, said, _why(past, trials))
    t, level = looks.critical(claim.sides(shape), noise.degrees)
    half = t * noise.deviation / math.sqrt(looks.now)
    bottom, above_0 = mean - half, ""
    if min(*past, *trials) > 0 and half > mean / 2:
        bottom, above_0 = mean / (4 * half / mean), message("never below 0")
    figures = {"half": half, "t": t, "deviation": noise.deviation}
    told = {name: number(value, DIGITS) for name, value in figures.items()} | several
    known = message("in history", count=str(len(past)))
    known += message("left out", values=", ".join(map(number, left_out))) if left_out else ""
    how = joined((message("noise of mean" if several else "noise", **told), above_0, level, known))
    return by_interval(claim, shape, Reading(mean, (bottom, mean + half), said, how, looks))


def unmeasured(claim: Threshold, shape: Shape, key: str = "unmeasured") -> Decision:
    wanted = claim.wanted(shape)
    text = message(key, metric=claim.metric, wanted=wanted)
    return Decision(claim.metric, Ruling.FAILED, None, None, wanted, text)


def by_band(claim: Threshold, shape: Shape, value: float, said: Message, why: str) -> Decision:
    """Unqualified, and `why`; a claim that bounds nothing is not met."""
    low, high = claim.band(shape)
    ruling = Ruling.PASSED if low <= value <= high and claim.sides(shape) else Ruling.FAILED
    text = joined((_against(claim, shape, value, said), message("unqualified", why=why)))
    return Decision(claim.metric, ruling, value, None, claim.wanted(shape), text)


def by_interval(claim: Threshold, shape: Shape, reading: Reading) -> Decision:
    looks, wanted = reading.looks, claim.wanted(shape)
    ruling, where = place(reading.interval, claim.band(shape))
    told = {"low": number(reading.interval[0]), "high": number(reading.interval[1])}
    if ruling is None:
        told |= {"count": str(looks.now), "most": str(looks.most)}
        where = where if looks.most > 1 else "across at once"
        ruling = Ruling.INCONCLUSIVE if looks.now >= looks.most else None
    text = _against(claim, shape, reading.value, reading.said)
    text += message(where, **told) + message("how", how=reading.how)
    return Decision(claim.metric, ruling, reading.value, reading.interval, wanted, text)


def _against(claim: Threshold, shape: Shape, value: float, said: Message) -> Message:
    return said + message("wanted", wanted=claim.wanted(shape)) + claim.gap(shape, value)


def place(interval: tuple[float, float], band: tuple[float, float]) -> tuple[Ruling | None, str]:
    """Where an interval is to a band, and what says so; no ruling where it is neither in nor out."""
    (bottom, top), (low, high) = interval, band
    if low <= bottom and top <= high:
        return Ruling.PASSED, "inside"
    if top < low or high < bottom:
        return Ruling.FAILED, "outside"
    return None, "across"


def pooled(history: Sequence[float], trials: Sequence[float]) -> Noise | None:
    """None where it cannot be known: too few values, or a spread of nothing, which no measured speed has."""
    degrees = max(len(history) - 1, 0) + max(len(trials) - 1, 0)
    squares = _squares(history) + _squares(trials)
    if degrees < _FEWEST or not 0 < squares < math.inf:
        return None
    return Noise(math.sqrt(squares / degrees), degrees)


def average(values: Sequence[float]) -> float:
    """Exact, so that the order of trials does not matter; each is divided first, so that no sum is too large."""
    return math.fsum(value / len(values) for value in values)


def _squares(values: Sequence[float]) -> float:
    if len(values) < 2 or min(values) == max(values):  # around a rounded mean even equal values would have a spread
        return 0.0
    middle = average(values)
    try:
        return math.fsum((value - middle) ** 2 for value in values)
    except OverflowError:
        return math.inf


def _why(history: Sequence[float], trials: Sequence[float]) -> str:
    if not history and len(trials) == 1:
        return message("no history")
    few = max(len(history) - 1, 0) + max(len(trials) - 1, 0) < _FEWEST
    return message("too few" if few else "no spread", past=str(len(history)), now=str(len(trials)))


_NEWTON_STEPS = 200  # Newton needs three or four; heavy tails far out some more


def t_within(t: float, degrees: int) -> float:
    """The probability that |T| is below `t`."""
    angle = math.atan2(t, math.sqrt(degrees))
    square = degrees / (degrees + t * t)  # of the angle's cosine
    odd = degrees % 2
    term = whole = math.sqrt(square) if odd and degrees > 1 else float(not odd)
    for lower in range(2 + odd, degrees, 2):
        term *= square * (lower - 1) / lower
        whole += term
    whole *= math.sin(angle)
    return 2 / math.pi * (angle + whole) if odd else whole


@lru_cache(maxsize=1024)  # one decision after the other asks for the same few
def t_quantile(level: float, degrees: int) -> float:
    """The value that T stays below with this probability, which is from one half to below 1."""
    if not 0.5 <= level < 1 or degrees < 1:
        raise ValueError(f"no quantile of Student's t at {level} with {degrees} degrees of freedom")
    wanted = 2 * level - 1
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    t = NormalDist().inv_cdf(level)  # with ever more degrees T comes down to it
    for _ in range(_NEWTON_STEPS):
        density = scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
        step = (wanted - t_within(t, degrees)) / (2 * density)
        # `t_within` is concave, so that Newton climbs and never passes the root: a step back is rounding.
        if step <= 1e-13 * t:
            break
        t += step
    return t
