"""Whether every measurement that a trial owes is there, once, and bears the right label.

Harvesting asks for each result by its name. This looks at what came of it, from wherever it came: a rank that counts
twice makes a cluster look faster than it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.logged import unlogged
from pytest_aisbench.domain.metric import THROUGHPUT, Flaw, Measurement
from pytest_aisbench.domain.trial import Trial

_Label = tuple[int | None, int | None]  # rank, server


def flaws_of(trial: Trial) -> tuple[Flaw, ...]:
    """Those that harvesting found, what is wrong with the metrics that it did not object to, and what is claimed of
    the log and not in it."""
    known = {flaw.metric for flaw in trial.flaws}
    found = objections(trial.case, trial.measurements) if trial.measurements or trial.flaws else []
    found += unlogged(trial)
    return (*trial.flaws, *(flaw for flaw in found if flaw.metric not in known))


def objections(case: Case, measurements: Iterable[Measurement]) -> list[Flaw]:
    by_metric: dict[str, list[Measurement]] = {name: [] for name in case.workload.metrics}
    for each in measurements:
        by_metric.setdefault(each.metric, []).append(each)
    flaws = [Flaw(name, "nobody should have written this metric") for name in by_metric.keys() - case.workload.metrics]
    for name, metric in case.workload.metrics.items():
        found = by_metric[name]
        flaws += [
            Flaw(name, f"{each.source} has the unit {each.unit!r}, not {metric.unit!r}")
            for each in found
            if each.unit != metric.unit
        ]
        flaws += [
            Flaw(name, f"{each.source} says {each.value}, which is not finite")
            for each in found
            if not math.isfinite(each.value)
        ]
        counted, wanted = Counter((each.rank, each.server) for each in found), _labels(case, name)
        flaws += [Flaw(name, f"{_who(label)} is missing") for label in wanted if label not in counted]
        flaws += [Flaw(name, f"{_who(label)} is there {count} times") for label, count in counted.items() if count > 1]
        flaws += [Flaw(name, f"{_who(label)} is not of {case.id}") for label in counted if label not in wanted]
    return sorted(flaws, key=lambda flaw: (flaw.metric, flaw.text))


def _labels(case: Case, metric: str) -> dict[_Label, None]:
    shape = case.shape
    if metric == THROUGHPUT:
        return {(rank, rank // shape.devices if case.alone else None): None for rank in range(shape.world)}
    return dict.fromkeys((None, node) for node in range(shape.nodes)) if case.alone else {(None, None): None}


def _who(label: _Label) -> str:
    rank, server = label
    words = [f"node {server}" if server is not None else "", f"rank {rank}" if rank is not None else ""]
    return "the value of " + (", ".join(filter(None, words)) or "the job")
