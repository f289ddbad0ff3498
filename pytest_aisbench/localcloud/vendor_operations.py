"""The operations that the vendor's SDKs have, by which a service names what it does not serve.

`vendor_operations.json` holds them; tests/support/sdk_operations.py makes it from the SDKs. It is read at the first
request that is not served: all others do without it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

MODELARTS_V2, MODELARTS_V1, MODELARTS_V1_OTC, OBS, IAM = APIS = (
    "ModelArts V2",
    "ModelArts V1",
    "ModelArts V1, OTC",
    "OBS",
    "IAM",
)


class Operation(NamedTuple):
    name: str
    """Of the SDK's method."""
    method: str
    path: str
    """With `{names}`, without the query."""
    query: tuple[str, ...]
    """As `name` or `name=value`."""
    fields: frozenset[str]
    """Of the answer, by the SDK's model; empty where the SDK has none."""

    @property
    def parameters(self) -> set[str]:
        return {pair.partition("=")[0] for pair in self.query}


class Sdk(NamedTuple):
    name: str
    version: str
    operations: dict[str, Operation]


@functools.cache
def sdks() -> dict[str, Sdk]:
    """By API; ModelArts V1 has two, since the vendor's own no longer has training jobs by V1."""
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {
        api: Sdk(sdk["sdk"], sdk["version"], {name: _operation(name, *row) for name, row in sdk["operations"].items()})
        for api, sdk in content.items()
    }


def names(apis: Collection[str], method: str, path: str, query: Collection[str] = ()) -> str:
    """What the SDKs call the operation of a request, separated by commas; empty where no SDK has it."""
    matches = [
        operation
        for api in apis
        for operation in sdks()[api].operations.values()
        if operation.method == method and operation.parameters <= set(query) and _pattern(operation.path)(path)
    ]
    best = max(map(_closeness, matches), default=None)
    return ", ".join(operation.name for operation in matches if _closeness(operation) == best)


def _operation(name: str, method: str, target: str, fields: list[str]) -> Operation:
    path, _, query = target.partition("?")
    return Operation(name, method, path, tuple(filter(None, query.split("&"))), frozenset(fields))


def _closeness(operation: Operation) -> tuple[int, int]:
    """`/jobs/templates` is closer than `/jobs/{id}`, and `?append&position` than no query."""
    return len(operation.query), len(re.sub(r"\{\w+\}", "", operation.path))


@functools.cache
def _pattern(path: str) -> Callable[[str], object]:
    parts = re.split(r"(\{\w+\})", path)
    text = "".join(".+" if part == "{key}" else "[^/]+" if part.startswith("{") else re.escape(part) for part in parts)
    return re.compile(f"{text}/?").fullmatch
