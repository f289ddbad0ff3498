"""How much of its speed a card keeps when more of them train together.

The rule. The efficiency is a ratio of two means, and both are known only as well as their noise lets them be: to
± ratio · t · √(c² / k + b² / n), with the noise of one trial as a share of its mean, c of the shape and b of its base,
k trials of the one and n of the other. The degrees are the fewer of both. What the gate does with an interval is done
with this one. Where the noise of either is not known the plain limit decides, and the text says "unqualified".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.messages import joined, message
from pytest_aisbench.domain.threshold import Threshold, number, quantity
from pytest_aisbench.domain.verdict import Finding, Outcome
from pytest_aisbench.judge import noise_test
from pytest_aisbench.judge.noise_test import DIGITS, Decision, Looks, Noise, Reading

THIS_RUN = message("this run")


@dataclass(frozen=True)
class Speed:
    """What a shape was measured to do, as the mean of trials that count, so their accuracy held."""

    shape: Shape
    value: float
    source: str = THIS_RUN  # or whose history it is from, which the text then says
    count: int = 1
    noise: Noise | None = None  # of one trial

    @property
    def per_card(self) -> float:
        return self.value / self.shape.world

    @property
    def share(self) -> float:
        """The noise of one trial, as a share of the mean."""
        return self.noise.deviation / self.value if self.noise else math.nan

    @property
    def known(self) -> bool:
        return 0 < self.value < math.inf


def efficiency(speed: Speed, base: Speed) -> float:
    """The throughput of a card at a shape, as a share of that at the base."""
    return speed.per_card / base.per_card


def efficiencies(speeds: Iterable[Speed], base: Speed) -> dict[Shape, float]:
    """For a chart: every shape that was measured, from few cards to many."""
    order = sorted(speeds, key=lambda speed: (speed.shape.world, speed.shape))
    shares = {speed.shape: efficiency(speed, base) for speed in order} if base.known else {}
    return {shape: share for shape, share in shares.items() if math.isfinite(share)}


def waived(claim: Threshold, shape: Shape, base: Speed | None) -> Finding | None:
    """What is said of a claim that cannot be held against anything; None where it can."""
    if shape == Shape.parse(claim.base or str(shape)):
        why = message("is base", metric=claim.metric, shape=str(shape))
    elif base is None or str(base.shape) != claim.base or not base.known:
        why = message("no base", metric=claim.metric, base=str(claim.base))
    else:
        return None
    return Finding(claim.metric, Outcome.WAIVED, None, claim.wanted(shape), why)


def scaled(claim: Threshold, speed: Speed, base: Speed, max_trials: int, unit: str = "") -> Decision:
    """What becomes of a claim that is not waived."""
    shape, looks = speed.shape, Looks(speed.count, max_trials)
    if not speed.known or not claim.sides(shape):
        return noise_test.unmeasured(claim, shape)
    ratio, both = efficiency(speed, base), {"shape": str(shape), "base": str(base.shape)}
    speeds = {"value": quantity(speed.per_card, unit), "base_value": quantity(base.per_card, unit)}
    said = message("scaled", metric=claim.metric, share=number(ratio), source=base.source, **speeds, **both)
    if speed.noise is None or base.noise is None:
        unknown = [str(each.shape) for each in (speed, base) if each.noise is None]
        why = message("unknown noises", **both) if len(unknown) > 1 else message("unknown noise", shape=unknown[0])
        return noise_test.by_band(claim, shape, ratio, said, why)
    t, level = looks.critical(claim.sides(shape), min(speed.noise.degrees, base.noise.degrees))
    own, by_base = (ratio * t * each.share / math.sqrt(each.count) for each in (speed, base))
    half = math.hypot(own, by_base)
    terms = " + ".join(f"{number(each.share, DIGITS)}² / {each.count}" for each in (speed, base))
    figures = {"half": half, "share": ratio, "t": t}
    told = {name: number(value, DIGITS) for name, value in figures.items()}
    how = joined((message("noise of ratio", terms=terms, **told), message("of both", **both), level))
    decision = noise_test.by_interval(claim, shape, Reading(ratio, (ratio - half, ratio + half), said, how, looks))
    # More trials of this shape move the ratio by its own part of the noise, and leave the base's as it is: where that
    # would reach across the limit from either end, nobody shall pay for them.
    ends = (ratio - own, ratio + own)
    if all(noise_test.place((end - by_base, end + by_base), claim.band(shape))[0] is None for end in ends):
        return decision.closed(message("base alone", base=str(base.shape), half=number(by_base, DIGITS)))
    return decision


def base_of(case: Case) -> Shape | None:
    """The shape that its claim on scaling is measured against; None where there is no such claim, or it is its own."""
    base = next((Shape.parse(claim.base) for claim in case.thresholds if claim.base), None)
    return None if base == case.shape else base


def awaited(case: Case) -> str:
    """The id of the case that must have been measured before this one is judged; empty where there is none."""
    base = base_of(case)
    return replace(case, shape=base).id if base else ""
