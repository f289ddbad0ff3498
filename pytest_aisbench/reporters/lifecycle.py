"""The life of a trial at the times that it really had."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from pytest_aisbench.domain.trial import Step

_ORDER = [step.name.lower() for step in Step]


class Span(NamedTuple):
    name: str  # stage, submit, queue, train, harvest or judge; watch where nobody knows how long it queued
    start: float
    stop: float


def spans(times: Mapping[str, float], queued_s: float | None) -> list[Span]:
    """Each step from when it began until the next did; the watch is told as the queue and the training."""
    began = sorted((at, _ORDER.index(name)) for name, at in times.items() if name in _ORDER)
    told: list[Span] = []
    for (start, step), (stop, _) in itertools.pairwise(began):
        name = _ORDER[step]
        if name != "watch" or queued_s is None:
            told.append(Span(name, start, stop))
        else:
            middle = min(max(start + queued_s, start), stop)
            told += [Span("queue", start, middle), Span("train", middle, stop)]
    return told
