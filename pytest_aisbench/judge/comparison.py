"""Which trials can be compared, by their traits; and what changed from one run to the next.

Traits describe what a job does: two trials are comparable if all their traits agree. Reports show the differences, so
traits hold no secret: all values that are named or look like one are combined into a single digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from pytest_aisbench.model.case import Case
from pytest_aisbench.model.codec import dump
from pytest_aisbench.model.job import BY_PARAMETER
from pytest_aisbench.model.results import CaseBrief, PreviousRun
from pytest_aisbench.model.verdict import Ruling

_SHAPE = ("nodes", "devices")
# What the platforms' own options mean, the most telling first.
HARDWARE_OPTIONS = ("flavor", "pool_id", "device_type", "gres", "constraint", "partition")
SOFTWARE_OPTIONS = ("image", "framework_version", "framework_type")  # an image replaces the engine
_LONGEST = 80  # characters of a value; a longer one is cut, and its digest added
_DIGITS = 12
_SECRET_NAME = re.compile(r"token|passw|secret|credential|(^|_)(ak|sk|key|auth)($|_)|access_?key", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"//[^/\s@]*:[^/\s@]*@|[?&](?:sig|signature|token|x-amz-|x-obs-)", re.IGNORECASE)


def traits_of(
    case: Case, *, platform: str, place: str, code: str, data: str = "", labels: Collection[str] = ()
) -> dict[str, str]:
    """Everything that decides what a job does, by name. `code` and `data` are digests; data in the Store has a url.

    `labels` are options that change nothing of it.
    """
    workload = case.workload
    given: dict[str, Any] = {
        "platform": platform,
        "place": place,
        **{name: value for name, value in workload.options.items() if name not in labels},
        "nodes": case.shape.nodes,
        "devices": case.shape.devices,
        "mode": case.mode.value,
        "framework": workload.framework,
        "entry": workload.entry,
        "urls_by": "" if workload.urls_by == BY_PARAMETER else workload.urls_by,
        "code": code[:_DIGITS],
        "data": data[:_DIGITS] or workload.data or "",
        **{f"unit of {name}": metric.unit for name, metric in workload.metrics.items()},
        **{
            f"{key} of {name}": value
            for name, metric in workload.metrics.items()
            for key, value in (dump(metric.log) if metric.log else {}).items()
            if value
        },
        **{f"parameter {name}": value for name, value in workload.parameters.items()},
        **{f"environment {name}": value for name, value in workload.environment.items()},
    }
    texts = {name: value if isinstance(value, str) else _as_json(value) for name, value in given.items()}
    hidden = sorted((name, value) for name, value in texts.items() if _is_secret(name, value))
    visible = {name: _short(value) for name, value in texts.items() if value and not _is_secret(name, value)}
    return {**visible, **({"what is hidden": _digest([workload.name, hidden])} if hidden else {})}


def traits_key(traits: Mapping[str, str]) -> str:
    """A digest, equal for equal traits in any order. Empty without traits: such a trial is comparable to no other."""
    return _digest(dict(traits)) if traits else ""


def family_key(traits: Mapping[str, str]) -> str:
    """The key of all traits but the shape: equal for all shapes of a workload."""
    return traits_key(_without_shape(traits))


def trait_differences(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each trait that differs: `framework_version: mindspore_1.3 -> mindspore_1.5`."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        f"{name}: {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in names
        if old.get(name) != new.get(name)
    )


def family_differences(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """The differences that are not of the shape: shapes of one run may differ by the software that their logs name."""
    return trait_differences(_without_shape(old), _without_shape(new))


def _without_shape(traits: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in traits.items() if name not in _SHAPE}


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name.rpartition(" ")[2]) or _SECRET_VALUE.search(value))


def _short(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - _DIGITS]}... {_digest(value)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(_as_json(value).encode()).hexdigest()[:_DIGITS]


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class VerdictChange:
    """A case whose verdict changed from one run to the next."""

    id: str
    was: Ruling | None
    now: Ruling | None


@dataclass(frozen=True)
class SpeedChange:
    """The throughput of a case that both runs measured."""

    id: str
    was: float
    now: float
    unit: str

    @property
    def share(self) -> float:
        return self.now / self.was - 1


@dataclass(frozen=True)
class RunDifference:
    new: tuple[str, ...]
    back: tuple[str, ...]  # that run did not have them, but an older one did
    gone: tuple[str, ...]
    turned: tuple[VerdictChange, ...]
    moved: tuple[SpeedChange, ...]  # the largest change first


def compare_runs(before: PreviousRun, cases: Iterable[CaseBrief]) -> RunDifference:
    """Throughputs with different units are not compared."""
    earlier = {case.id: case for case in before.cases}
    now = {case.id: case for case in cases}
    pairs = [(earlier[name], case) for name, case in now.items() if name in earlier]
    moved = [
        SpeedChange(new.id, old.throughput, new.throughput, new.unit)
        for old, new in pairs
        if _is_speed(old.throughput) and _is_speed(new.throughput) and old.unit == new.unit
    ]
    return RunDifference(
        new=tuple(name for name in now if name not in earlier and name not in before.earlier),
        back=tuple(name for name in now if name not in earlier and name in before.earlier),
        gone=tuple(name for name in earlier if name not in now),
        turned=tuple(
            VerdictChange(new.id, old.verdict, new.verdict) for old, new in pairs if old.verdict is not new.verdict
        ),
        moved=tuple(sorted(moved, key=lambda move: -abs(move.share))),
    )


def _is_speed(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0
