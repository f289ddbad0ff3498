"""How much of its speed a card keeps when more of them train together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.threshold import Threshold, number
from pytest_aisbench.domain.verdict import Finding, Outcome

THIS_RUN = "this run"


@dataclass(frozen=True)
class Base:
    """What the base was measured to do: a throughput that counts, so its accuracy held."""

    shape: Shape
    value: float
    source: str = THIS_RUN  # or whose history it is from, which the text then says

    @property
    def per_card(self) -> float:
        return self.value / self.shape.world


def efficiency(value: float, shape: Shape, base: Base) -> float:
    """The throughput of a card at this shape, as a share of that at the base."""
    return value / shape.world / base.per_card


def efficiencies(values: Mapping[Shape, float], base: Base) -> dict[Shape, float]:
    """For a chart: every shape that was measured, from few cards to many."""
    order = sorted(values, key=lambda shape: (shape.world, shape))
    return {shape: efficiency(values[shape], shape, base) for shape in order} if _is_speed(base.value) else {}


def scaled(claim: Threshold, shape: Shape, value: float | None, base: Base | None, unit: str = "") -> Finding:
    """What became of a scaling claim; waived, and said so, where nobody knows what the base does."""
    name, wanted = claim.metric, claim.wanted(shape)
    if shape == Shape.parse(claim.base or str(shape)):
        return Finding(name, Outcome.WAIVED, None, wanted, f"{name}: waived, {shape} is the base itself")
    if base is None or str(base.shape) != claim.base or not _is_speed(base.value):
        text = f"{name}: waived, the base {claim.base} was measured neither in this run nor in its history"
        return Finding(name, Outcome.WAIVED, None, wanted, text)
    if value is None or not _is_speed(value) or not claim.sides(shape):
        return Finding(name, Outcome.UNMEASURED, None, wanted, f"{name}: not measured, wanted {wanted}")
    share = efficiency(value, shape, base)
    low, high = claim.band(shape)
    unit = f" {unit}" if unit else ""
    text = (
        f"{name} {number(share)}, {number(value / shape.world)}{unit} per card at {shape} and"
        f" {number(base.per_card)}{unit} at {base.shape} ({base.source}), wanted {wanted}"
    )
    return Finding(name, Outcome.MET if low <= share <= high else Outcome.MISSED, share, wanted, text)


def _is_speed(value: float) -> bool:
    return 0 < value < math.inf
