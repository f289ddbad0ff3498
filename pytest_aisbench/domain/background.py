"""What a verdict was weighed against: comparable history, the noise in it, other shapes, and what changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Past:
    """One comparable trial of an earlier run, or an earlier one of this run."""

    run: str
    at: float  # seconds since the epoch
    value: float  # of the throughput
    accuracy: float | None = None


@dataclass(frozen=True)
class ScalePoint:
    """What a shape of the workload was measured to do, and what share of the base's speed a card keeps there."""

    shape: str
    value: float
    efficiency: float | None
    source: str  # "this run", or the run whose history it is from


@dataclass(frozen=True)
class Background:
    """About the throughput of a case, unless a name says otherwise."""

    reference: float | None = None
    low: float | None = None  # the band of its claim; None is open
    high: float | None = None
    interval: tuple[float, ...] | None = None  # both ends of what the trials tell; None where it is unqualified
    history: tuple[Past, ...] = ()  # of the same fingerprint, oldest first
    scaling: tuple[ScalePoint, ...] = ()  # from few cards to many
    warnings: tuple[str, ...] = ()  # drifts and suspicions: they change no verdict
    changed: tuple[str, ...] = ()  # what differs from the newest trial that is not comparable, a line each
    time_to_accuracy_s: float | None = None
