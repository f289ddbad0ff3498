"""What two trials must share so that one can be held against the other: traits by name, and their key.

Traits are told to people, as differences between two trials, so they hold no secret: what is named or looks like one
only counts together with all others that do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_aisbench.domain.case import Case

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
