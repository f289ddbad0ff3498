"""The keys of a workload, each read as what it must be; an error names the line that it stands on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings import option_types, places


@dataclass(frozen=True)
class Fields:
    """The merged keys of a workload; an error names the line of the section the key was taken from."""

    document: places.Document
    where: Callable[[str], tuple[str, ...]]
    values: Mapping[str, Any]

    def fault(self, message: str, *keys: str, advice: str = "") -> UsageFault:
        return self.document.fault(message, *self.where(keys[0]), *keys, advice=advice)

    def need(self, key: str) -> None:
        if key not in self.values:
            raise UsageFault(f"{self.document.path}: {key} is missing")

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or (not value and key in self.values):
            raise self.fault(f"{key}: {value!r} is not text", key)
        return value

    def texts(self, *keys: str) -> list[str]:
        value: Any = self.values
        for key in keys:
            value = value[key]
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self.fault(f"{'.'.join(keys)}: {value!r} is not a list of texts", *keys)
        return value

    def positive(self, key: str, default: int, most: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.fault(f"{key}: {str(value)[:40]} is not a whole number from 1 to {most}", key)
        return value

    def duration(self, key: str) -> float:
        if key not in self.values:
            return 0.0
        try:
            return option_types.duration(str(self.values[key]))
        except ValueError as error:
            raise self.fault(f"{key}: {error}", key) from None

    def table(self, key: str) -> dict[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.fault(f"{key}: {value!r} is not a table", key)
        return value

    def pairs(self, key: str) -> dict[str, str]:
        """Values as a script is given them on its command line."""
        pairs: dict[str, str] = {}
        for name, value in self.table(key).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise self.fault(f"{key}.{name}: {value} is not a finite number", key, name)
            if not isinstance(value, (str, int, float)):
                raise self.fault(f"{key}.{name}: {value!r} is neither text nor a number", key, name)
            pairs[name] = str(value)
        return pairs
