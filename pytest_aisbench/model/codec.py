"""Our frozen values as plain JSON data, and back.

A field that was renamed still reads what ledgers hold under its old name: `field(metadata={"alias": "old_name"})`.
Renamed keys of a mapping: `field(metadata={"key_aliases": {"old_key": "new_key"}})`. Only new names are written.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pytest_aisbench.model.messages import Message, from_json, to_json

T = TypeVar("T")
_PLAIN = frozenset({str, int, bool})


def dump(value: Any, *, whole: bool = False) -> Any:
    """Dataclasses become objects, enums their values. A number that is not finite is an error: JSON has none.

    Of a message its text is written, and where it is to be `whole` its clauses too.
    """
    if value is None or type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: dump(getattr(value, name), whole=whole) for name in _hints(type(value))}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): dump(item, whole=whole) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [dump(item, whole=whole) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be written as JSON")
    if isinstance(value, Message):
        return to_json(value) if whole else str(value)
    if isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def load(kind: type[T], data: Any) -> T:
    """The value that `dump` was given; unknown keys of a newer version are left out."""
    return typing.cast(T, _load(kind, data))


def _load(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any or data is None:
        return data
    if origin in {typing.Union, types.UnionType}:
        return _load(next(arm for arm in typing.get_args(kind) if arm is not type(None)), data)
    if origin is tuple:
        return tuple(_load(typing.get_args(kind)[0], item) for item in data)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _load(typing.get_args(kind)[1], item) for key, item in data.items()}
    if dataclasses.is_dataclass(kind):
        stored = _stored(typing.cast(type, kind))
        return kind(**{stored[key].name: stored[key].load(item) for key, item in data.items() if key in stored})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    if kind is str and isinstance(data, Mapping):
        return from_json(data)
    return float(data) if kind is float else data


@functools.cache  # typing evaluates every annotation anew, and a run of a thousand cases asks a million times
def _hints(kind: type) -> dict[str, Any]:
    """The fields of a dataclass, in their order, and what each holds."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


class _StoredField(typing.NamedTuple):
    """A field of a dataclass as it is read."""

    name: str
    kind: Any
    key_aliases: Mapping[str, str]  # of a mapping: old key to new key

    def load(self, data: Any) -> Any:
        if self.key_aliases and isinstance(data, Mapping):
            data = {self.key_aliases.get(key, key): item for key, item in data.items()}
        return _load(self.kind, data)


@functools.cache
def _stored(kind: type) -> dict[str, _StoredField]:
    """The fields of a dataclass by every name that JSON data may have for them: today's, and an alias."""
    hints, stored = _hints(kind), {}
    for field in dataclasses.fields(kind):
        aliases = field.metadata.get("key_aliases", {})
        for name in filter(None, (field.name, field.metadata.get("alias"))):
            stored[name] = _StoredField(field.name, hints[field.name], aliases)
    return stored
