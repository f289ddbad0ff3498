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
from pytest_aisbench.domain.sentence import tell
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
    flaws = [Flaw(name, tell("unwanted")) for name in by_metric.keys() - case.workload.metrics]
    for name, metric in case.workload.metrics.items():
        found = by_metric[name]
        flaws += [
            Flaw(name, tell("other unit", what=each.source, text=repr(each.unit), unit=repr(metric.unit)))
            for each in found
            if each.unit != metric.unit
        ]
        flaws += [
            Flaw(name, tell("not finite", what=each.source, text=str(each.value)))
            for each in found
            if not math.isfinite(each.value)
        ]
        counted, wanted = Counter((each.rank, each.server) for each in found), _labels(case, name)
        flaws += [Flaw(name, tell("missing", what=_who(label))) for label in wanted if label not in counted]
        flaws += [
            Flaw(name, tell("twice", what=_who(label), count=str(count)))
            for label, count in counted.items()
            if count > 1
        ]
        flaws += [
            Flaw(name, tell("of others", what=_who(label), case=case.id)) for label in counted if label not in wanted
        ]
    return sorted(flaws, key=lambda flaw: (flaw.metric, flaw.text))


def _labels(case: Case, metric: str) -> dict[_Label, None]:
    shape = case.shape
    if metric == THROUGHPUT:
        return {(rank, rank // shape.devices if case.single_server else None): None for rank in range(shape.world)}
    return dict.fromkeys((None, node) for node in range(shape.nodes)) if case.single_server else {(None, None): None}


def _who(label: _Label) -> str:
    rank, server = label
    if rank is None:
        return tell("value of job") if server is None else tell("value of node", node=str(server))
    return (
        tell("value of rank", rank=str(rank))
        if server is None
        else tell("value of rank there", node=str(server), rank=str(rank))
    )
