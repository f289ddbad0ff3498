"""Which trials can be compared, by their traits; and what changed from one run to the next.

Traits are told to people, as differences between two trials, so they hold no secret: what is named or looks like one
only counts together with all others that do.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.entry import Before, Brief
from pytest_aisbench.domain.verdict import Ruling

_SHAPE = ("nodes", "devices")
_LABELS = frozenset({"job_name", "job_description_prefix"})  # options that change nothing of what a job does
_LONGEST = 80  # characters of a value; a longer one is cut, and told apart by its digest
_DIGITS = 12
_SECRET_NAME = re.compile(r"token|passw|secret|credential|(^|_)(ak|sk|key|auth)($|_)|access_?key", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"//[^/\s@]*:[^/\s@]*@|[?&](?:sig|signature|token|x-amz-|x-obs-)", re.IGNORECASE)


def traits_of(case: Case, *, platform: str, place: str, code: str, data: str = "") -> dict[str, str]:
    """`code` and `data` are digests; data that lies in the Store is known by its url."""
    workload = case.workload
    given: dict[str, Any] = {
        "platform": platform,
        "place": place,
        **{name: value for name, value in workload.options.items() if name not in _LABELS},
        "nodes": case.shape.nodes,
        "devices": case.shape.devices,
        "mode": case.mode.value,
        "framework": workload.framework,
        "entry": workload.entry,
        "code": code[:_DIGITS],
        "data": data[:_DIGITS] or workload.data or "",
        **{f"unit of {name}": metric.unit for name, metric in workload.metrics.items()},
        **{f"parameter {name}": value for name, value in workload.parameters.items()},
        **{f"environment {name}": value for name, value in workload.environment.items()},
    }
    told = {name: value if isinstance(value, str) else _written(value) for name, value in given.items()}
    hidden = sorted((name, value) for name, value in told.items() if _is_secret(name, value))
    shown = {name: _short(value) for name, value in told.items() if value and not _is_secret(name, value)}
    return {**shown, **({"what is hidden": _digest([workload.name, hidden])} if hidden else {})}


def key(traits: Mapping[str, str], without: Iterable[str] = ()) -> str:
    """The same for the same traits, in whatever order; empty where there are none, which is like nothing else."""
    left_out = set(without)
    counted = {name: value for name, value in traits.items() if name not in left_out}
    return _digest(counted) if counted else ""


def family(traits: Mapping[str, str]) -> str:
    """The key of everything but the shape: what the shapes of a workload share."""
    return key(traits, _SHAPE)


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each trait that differs: `framework_version: mindspore_1.3 -> mindspore_1.5`."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        f"{name}: {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in names
        if old.get(name) != new.get(name)
    )


def differences_beside_shape(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Of two that should be one family, and are not where their logs tell otherwise."""
    bare = ({name: value for name, value in traits.items() if name not in _SHAPE} for traits in (old, new))
    return differences(*bare)


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name.rpartition(" ")[2]) or _SECRET_VALUE.search(value))


def _short(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - _DIGITS]}... {_digest(value)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(_written(value).encode()).hexdigest()[:_DIGITS]


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class Turn:
    """A case whose verdict is another."""

    id: str
    was: Ruling | None
    now: Ruling | None


@dataclass(frozen=True)
class Move:
    """A case that was measured in both runs."""

    id: str
    was: float
    now: float
    unit: str

    @property
    def share(self) -> float:
        return self.now / self.was - 1


@dataclass(frozen=True)
class Difference:
    new: tuple[str, ...]
    gone: tuple[str, ...]
    turned: tuple[Turn, ...]
    moved: tuple[Move, ...]  # the largest change first


def compare(before: Before, cases: Iterable[Brief]) -> Difference:
    """Units that differ are no change of speed."""
    known = {case.id: case for case in before.cases}
    now = {case.id: case for case in cases}
    pairs = [(known[name], case) for name, case in now.items() if name in known]
    moved = [
        Move(new.id, old.throughput, new.throughput, new.unit)
        for old, new in pairs
        if _is_speed(old.throughput) and _is_speed(new.throughput) and old.unit == new.unit
    ]
    return Difference(
        new=tuple(name for name in now if name not in known),
        gone=tuple(name for name in known if name not in now),
        turned=tuple(Turn(new.id, old.verdict, new.verdict) for old, new in pairs if old.verdict is not new.verdict),
        moved=tuple(sorted(moved, key=lambda move: -abs(move.share))),
    )


def _is_speed(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0
