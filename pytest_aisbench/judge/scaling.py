"""Scaling efficiency: how much of its speed a card keeps when more cards train together.

The rule. The efficiency is a ratio of two means, and both are noisy. It is known to ± ratio · t · √(c² / k + b² / n),
where c and b are the noise of one trial as a share of its mean, of the shape and of its base, and k and n their numbers
of trials. The degrees of freedom are the smaller of both. The noise test decides by this interval. Where the noise of
either is unknown, it is assumed as in the noise test, and the text says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_aisbench.judge.noise_test import (
    ASSUMED_NOISE,
    DIGITS,
    Decision,
    Estimate,
    Noise,
    TrialBudget,
    average,
    decide_by_interval,
    locate,
    not_measured,
    pooled_noise,
)
from pytest_aisbench.judge.trend import newest_level
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.messages import joined, message
from pytest_aisbench.model.verdict import Finding, Outcome, Threshold, number, quantity

THIS_RUN = message("this run")
BASE_TRIALS = 10  # the newest of another shape, whose mean is its speed


@dataclass(frozen=True)
class Speed:
    """The mean throughput of a shape over comparable trials."""

    shape: Shape
    value: float
    source: str = THIS_RUN  # or the run whose history it is from
    count: int = 1
    noise: Noise | None = None  # of one trial

    @property
    def per_card(self) -> float:
        return self.value / self.shape.world

    @property
    def relative_noise(self) -> float:
        """The noise of one trial, as a share of the mean."""
        return self.noise.deviation / self.value if self.noise else math.nan

    def or_assumed(self, share: float) -> Speed:
        """The speed with this share of it as its noise, if that is unknown."""
        return self if self.noise else replace(self, noise=Noise(share * self.value, math.inf))

    @property
    def is_measured(self) -> bool:
        return 0 < self.value < math.inf


def scaling_base(case: Case) -> Shape | None:
    """The shape that a case's scaling is measured against; None without such a threshold, and for the base itself."""
    base = next((Shape.parse(threshold.base) for threshold in case.thresholds if threshold.base), None)
    return None if base == case.shape else base


def base_case_id(case: Case) -> str:
    """The id of the case that must be measured before this one is judged; empty if there is none."""
    base = scaling_base(case)
    return replace(case, shape=base).id if base else ""


def efficiency(speed: Speed, base: Speed) -> float:
    """The throughput of a card at a shape, as a share of that at the base."""
    return speed.per_card / base.per_card


def efficiencies(speeds: Iterable[Speed], base: Speed) -> dict[Shape, float]:
    """Of every measured shape, from few cards to many, for a chart."""
    order = sorted(speeds, key=lambda speed: (speed.shape.world, speed.shape))
    shares = {speed.shape: efficiency(speed, base) for speed in order} if base.is_measured else {}
    return {shape: share for shape, share in shares.items() if math.isfinite(share)}


def base_speed(shape: Shape, measured: Sequence[float], past: Sequence[float]) -> Speed | None:
    """The speed of a base with its noise: as `measured` in the run, or else by its newest trials before; None if
    neither has it."""
    level = newest_level(past).values
    newest = measured or level[-BASE_TRIALS:]
    if not newest:
        return None
    return Speed(shape, average(newest), count=len(newest), noise=pooled_noise(level, measured))


def waived_finding(threshold: Threshold, case: Case, base: Speed | None) -> Finding | None:
    """The finding on a threshold that cannot be compared with its base, and why; None if it can."""
    shape, base_shape = case.judged_shape, Shape.parse(threshold.base or str(case.shape))
    facts = {"metric": threshold.metric}
    if case.single_server and case.shape != base_shape and (base_shape.nodes > 1 or base_shape == shape):
        why = message("all alone", base=str(base_shape), shape=str(case.shape), **facts)
    elif shape == base_shape:
        why = message("is base", shape=str(shape), **facts)
    elif base is None or base.shape != base_shape or not base.is_measured:
        why = message("no base", base=str(threshold.base), **facts)
    else:
        return None
    return Finding(threshold.metric, Outcome.WAIVED, None, threshold.wanted(shape), why)


def decide_scaling(
    threshold: Threshold, speed: Speed, base: Speed, max_trials: int, unit: str = "", *, assumed: float = ASSUMED_NOISE
) -> Decision:
    """Compare the efficiency with a threshold that is not waived; `assumed` stands for a noise that is unknown."""
    shape, budget = speed.shape, TrialBudget(speed.count, max_trials)
    if not speed.is_measured or not threshold.sides(shape):
        return not_measured(threshold, shape)
    ratio, shapes = efficiency(speed, base), {"shape": str(shape), "base": str(base.shape)}
    speeds = {"value": quantity(speed.per_card, unit), "base_value": quantity(base.per_card, unit)}
    statement = message("scaled", metric=threshold.metric, share=number(ratio), source=base.source, **speeds, **shapes)
    unknown = [str(each.shape) for each in (speed, base) if each.noise is None]
    why = message("unknown noises", **shapes) if len(unknown) > 1 else message("unknown noise", shape="".join(unknown))
    default = message("scaling assumed", why=why, share=f"{100 * assumed:g}%") if unknown else ""
    speed, base = speed.or_assumed(assumed), base.or_assumed(assumed)
    degrees = min(each.noise.degrees for each in (speed, base) if each.noise)
    t, level = budget.critical_t(threshold.sides(shape), degrees)
    own_part, base_part = (ratio * t * each.relative_noise / math.sqrt(each.count) for each in (speed, base))
    half = math.hypot(own_part, base_part)
    terms = " + ".join(f"{number(each.relative_noise, DIGITS)}² / {each.count}" for each in (speed, base))
    figures = {"half": number(half, DIGITS), "share": number(ratio, DIGITS), "t": number(t, DIGITS)}
    calculation = joined(
        (message("noise of ratio", terms=terms, **figures), message("of both", **shapes), default, level)
    )
    estimate = Estimate(ratio, (ratio - half, ratio + half), statement, calculation, budget)
    decision = decide_by_interval(threshold, shape, estimate)
    # More trials of this shape reduce its own part of the noise and leave the base's part as it is. If that part alone
    # reaches across the limit from either end, more trials would be paid for in vain.
    ends = (ratio - own_part, ratio + own_part)
    places = [locate((end - base_part, end + base_part), threshold.band(shape))[0] for end in ends]
    if all(place is Outcome.UNDECIDED for place in places):
        why = message("base alone", base=str(base.shape), half=number(base_part, DIGITS))
        return decision.without_another_trial(why)
    return decision
