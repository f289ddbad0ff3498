"""A value that must not be seen: no repr, str, format, pickle or JSON of it shows what it holds."""

from __future__ import annotations

from typing import Any


class Secret:
    """Holds a key, token or password; only `reveal()` gives it out, at the one place that signs with it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "***" if self._value else "''"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> Any:
        raise TypeError("a Secret is not pickled")


NO_SECRET = Secret("")
