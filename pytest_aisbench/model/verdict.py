"""Thresholds and verdicts: the claim on a metric with its band, what became of it, and the ruling on a case."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_aisbench.errors import NotPassed
from pytest_aisbench.model.messages import message, plain

if TYPE_CHECKING:
    from pytest_aisbench.model.case import Shape


@dataclass(frozen=True)
class ExpectedFailure:
    """Why a threshold is not expected to be met yet, and the last day on which a miss is waived."""

    reason: str
    until: str  # as `2027-01-31`, so that days are compared as they are written
    source: str = field(default="", metadata={"alias": "place"})  # file and line, for messages

    def holds(self, today: str) -> bool:
        """True until its last day; False if today is unknown."""
        return bool(today) and today <= self.until


BOUND_KEYS = ("reference", "lower", "upper", "at_least", "at_most")  # the fields of a Threshold that bound its metric


@dataclass(frozen=True, slots=True)
class Threshold:
    """`reference` with `lower`/`upper` as ReFrame reads them, or `at_least`/`at_most`; never both kinds.

    Bounds of a reference are fractions of it, an omitted one is open; a negative reference mirrors the band and
    a reference of zero makes the bounds absolute. `per` multiplies every bound by the nodes or cards of the shape.
    """

    metric: str
    unit: str = ""
    reference: float | None = None
    lower: float | None = None
    upper: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    per: str | None = None
    base: str | None = None  # the shape that a scaling claim is measured against
    expected_failure: ExpectedFailure | None = None

    def without_bounds(self) -> Threshold:
        """For a proposal that sets the bounds anew."""
        none: dict[str, Any] = dict.fromkeys(BOUND_KEYS)
        return replace(self, **none)

    def band(self, shape: Shape) -> tuple[float, float]:
        """The smallest and the largest value that meet the claim at this shape."""
        low, high = self._band_of_one()
        times = self.times(shape)
        return low * times, high * times

    def expected(self, shape: Shape) -> float | None:
        """The reference at this shape; None for a bare limit."""
        return None if self.reference is None else self.reference * self.times(shape)

    def times(self, shape: Shape) -> int:
        """The factor of every bound: nodes, cards or 1."""
        return {"node": shape.nodes, "device": shape.world}.get(self.per or "", 1)

    def _band_of_one(self) -> tuple[float, float]:
        if self.reference is None:
            low = -math.inf if self.at_least is None else self.at_least
            high = math.inf if self.at_most is None else self.at_most
            return low, high
        if self.reference == 0:
            low = -math.inf if self.lower is None else self.lower
            high = math.inf if self.upper is None else self.upper
            return low, high
        # The magnitude, so that a bound below always widens the band downwards, whatever the reference's sign.
        span = abs(self.reference)
        low = -math.inf if self.lower is None else self.reference + self.lower * span
        high = math.inf if self.upper is None else self.reference + self.upper * span
        return low, high

    def gap(self, shape: Shape, value: float) -> str:
        """How far a value is outside the band, ` (1.2% below)`; empty inside, and where the bound is 0."""
        low, high = self.band(shape)
        bound = low if value < low else high
        if low <= value <= high or not bound:
            return ""
        return message("below" if value < low else "above", share=f"{abs(value / bound - 1):.1%}")

    def sides(self, shape: Shape) -> int:
        """How many bounds the band has."""
        return sum(not math.isinf(bound) for bound in self.band(shape))

    def wanted(self, shape: Shape) -> str:
        """The band in words: `>= 13443.6 images/s`."""
        low, high = self.band(shape)
        unit = f" {self.unit}" if self.unit else ""
        if math.isinf(low) and math.isinf(high):
            return f"any{unit}"
        if math.isinf(high):
            return f">= {number(low)}{unit}"
        if math.isinf(low):
            return f"<= {number(high)}{unit}"
        return f"{number(low)} .. {number(high)}{unit}"


def quantity(value: float, unit: str) -> str:
    """A number with its unit; a ratio has none."""
    return f"{number(value)} {unit}" if unit else number(value)


def number(value: float, digits: int = 6) -> str:
    """A number with so many significant digits, and no exponent below 1e15."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text


# Verdicts.


class Outcome(enum.Enum):
    """The result of one threshold."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"
    UNMEASURED = "unmeasured"
    WAIVED = "waived"


class Ruling(enum.Enum):
    """The result of a case in one word."""

    PASSED = "PASSED"
    FAILED = "FAILED"  # the workload, or the speed of the cluster, is at fault
    BROKEN = "BROKEN"  # the platform is at fault
    INCONCLUSIVE = "INCONCLUSIVE"  # the noise is larger than the margin, or a check did not run


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one threshold, or a result that is missing, in one line."""

    metric: str
    outcome: Outcome
    measured: float | None
    wanted: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A ruling, the reason in one line, and the findings behind it."""

    ruling: Ruling
    reason: str
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        return self.ruling is Ruling.PASSED

    def require(self) -> None:
        """Fail the test unless the case passed."""
        __tracebackhide__ = True
        if not self.passed:
            raise NotPassed(str(self))

    def __str__(self) -> str:
        lines = [f"{self.ruling.value}: {plain(self.reason)}"]
        lines += [f"  {finding.outcome.value:<10} {plain(finding.text)}" for finding in self.findings]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Past:
    """A comparable trial of an earlier run, or an earlier trial of this run."""

    run: str
    at: float  # seconds since the epoch
    value: float  # of the throughput
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """The throughput of a shape, and its scaling efficiency."""

    shape: str
    value: float
    efficiency: float | None
    source: str  # "this run", or the run whose history it is from


@dataclass(frozen=True, slots=True)
class Background:
    """What a verdict rests on, for a report: about the throughput, unless a name says otherwise."""

    reference: float | None = None
    low: float | None = None  # the band of its threshold; None is open
    high: float | None = None
    interval: tuple[float, ...] | None = None  # of the mean of the trials; None if the noise is unknown
    history: tuple[Past, ...] = ()  # comparable trials, oldest first
    scaling: tuple[ScalePoint, ...] = ()  # from few cards to many
    warnings: tuple[str, ...] = ()  # drifts and suspicions, which change no verdict
    changed: tuple[str, ...] = ()  # traits that differ from the newest trial that is not comparable
    time_to_accuracy_s: float | None = None
