"""Our frozen values as plain JSON data, and back.

A field that was renamed still reads what ledgers hold under its old name: `field(metadata={"alias": "old_name"})`.
Renamed keys of a mapping: `field(metadata={"key_aliases": {"old_key": "new_key"}})`. Only new names are written.
A field with `metadata={"stored": False}` is neither written nor read.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pytest_aisbench.model.messages import Message, from_json, to_json

T = TypeVar("T")
_Dump = Callable[[Any], Any]
_Load = Callable[[Any], Any]


def dump(value: Any, *, whole: bool = False) -> Any:
    """Dataclasses become objects, enums their values. A number that is not finite is an error: JSON has none.

    Of a message its text is written, and where it is to be `whole` its clauses too.
    """
    return (_WHOLE if whole else _BRIEF).dump(value)


class _Dumper:
    """Knows for each type how its values are written: a thousand cases have a million values of thirty types."""

    def __init__(self, message: _Dump) -> None:
        self._message = message
        self._by_type: dict[type, _Dump] = {
            **dict.fromkeys((str, int, bool, type(None)), lambda value: value),
            float: _finite,
            dict: self._mapping,
            **dict.fromkeys((list, tuple, set, frozenset), self._items),
        }

    def dump(self, value: Any) -> Any:
        kind = type(value)
        return (self._by_type.get(kind) or self._learn(kind))(value)

    def _learn(self, kind: type) -> _Dump:
        made = self._by_type[kind] = self._new(kind)
        return made

    def _new(self, kind: type) -> _Dump:
        if dataclasses.is_dataclass(kind):
            names = tuple(_hints(kind))
            return lambda value: {name: self.dump(getattr(value, name)) for name in names}
        if issubclass(kind, enum.Enum):
            return lambda value: value.value
        if issubclass(kind, Mapping):
            return self._mapping
        if issubclass(kind, (list, tuple, set, frozenset)):
            return self._items
        if issubclass(kind, Message):
            return self._message
        if issubclass(kind, float):
            return _finite
        if issubclass(kind, (str, int)):
            return lambda value: value
        raise TypeError(f"{kind.__name__} cannot be written as JSON")

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(key): self.dump(item) for key, item in value.items()}

    def _items(self, value: Iterable[Any]) -> list[Any]:
        return [self.dump(item) for item in value]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be written as JSON")
    return value


_WHOLE, _BRIEF = _Dumper(to_json), _Dumper(str)


def load(kind: type[T], data: Any) -> T:
    """The value that `dump` was given; unknown keys of a newer version are left out."""
    return typing.cast(T, _loader(typing.cast(Any, kind))(data))


@functools.cache
def _loader(kind: Any) -> _Load:
    """How values of a type are read; None is always None."""
    origin, arms = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        return _loader(next(arm for arm in arms if arm is not type(None)))
    if origin is tuple:
        item = _loader(arms[0])
        return lambda data: None if data is None else tuple([item(each) for each in data])
    if origin is not None and issubclass(origin, Mapping):
        item = _loader(arms[1])
        return lambda data: None if data is None else {key: item(each) for key, each in data.items()}
    if dataclasses.is_dataclass(kind):
        return functools.partial(_load_dataclass, kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return lambda data: None if data is None else kind(data)
    if kind is str:
        return lambda data: from_json(data) if isinstance(data, dict) else data
    if kind is float:
        return lambda data: None if data is None else float(data)
    return lambda data: data


def _load_dataclass(kind: Any, data: Any) -> Any:
    if data is None:
        return None
    stored = _stored(kind)  # not before it is needed: a dataclass may hold others of its own type
    return kind(**{stored[key].name: stored[key].load(item) for key, item in data.items() if key in stored})


@functools.cache  # typing evaluates every annotation anew, and a run of a thousand cases asks a million times
def _hints(kind: type) -> dict[str, Any]:
    """The stored fields of a dataclass, in their order, and what each holds."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.metadata.get("stored", True)}


class _StoredField(typing.NamedTuple):
    """A field of a dataclass as it is read."""

    name: str
    load: _Load


def _renaming(aliases: Mapping[str, str], load: _Load) -> _Load:
    """Reads a mapping some of whose keys had other names: old key to new key."""

    def renamed(data: Any) -> Any:
        return {aliases.get(key, key): item for key, item in data.items()} if isinstance(data, dict) else data

    return lambda data: load(renamed(data))


@functools.cache
def _stored(kind: type) -> dict[str, _StoredField]:
    """The fields of a dataclass by every name that JSON data may have for them: today's, and an alias."""
    hints, stored = _hints(kind), {}
    for field in dataclasses.fields(kind):
        if field.name not in hints:
            continue
        read, aliases = _loader(hints[field.name]), field.metadata.get("key_aliases")
        for name in filter(None, (field.name, field.metadata.get("alias"))):
            stored[name] = _StoredField(field.name, _renaming(aliases, read) if aliases else read)
    return stored
