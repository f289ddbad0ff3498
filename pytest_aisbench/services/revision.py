"""A claim put into the text of a thresholds.toml, with every other line left as its author wrote it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings import places

MARK = "# From history: "  # how the evidence begins that we wrote above a claim; the next proposal replaces it
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def revised(document: places.Document, scope: Sequence[str], rows: Mapping[str, tuple[Mapping[str, Any], str]]) -> str:
    """The text with these claims, each with its evidence in one line, in the table that `scope` names."""
    lines = document.text.removesuffix("\n").split("\n") if document.text else []
    wanted = copy.deepcopy(document.data)
    for metric, (row, evidence) in rows.items():
        _put(lines, scope, metric, [f"{MARK}{evidence}", f"{_key(metric)} = {_toml(row)}"])
        table = wanted
        for name in scope:
            table = table.setdefault(name, {})
        table[metric] = dict(row)
    text = "\n".join(lines) + "\n"
    # The edit knows lines, not TOML: whatever it does not understand must not change what the file says.
    if places.parse(text) != wanted:
        advice = f"give [{'.'.join(map(_key, scope))}] lines of its own, one claim on each"
        raise UsageFault(f"{document.path}: the claims of {'.'.join(scope)} cannot be changed safely", advice=advice)
    return text


def _put(lines: list[str], scope: Sequence[str], metric: str, new: list[str]) -> None:
    headers = [(at, places.header(line)) for at, line in enumerate(lines) if places.header(line)]
    start = next((at for at, path in headers if path == tuple(scope)), None)
    if start is None:
        lines += [*([""] if lines else []), f"[{'.'.join(map(_key, scope))}]", *new]
        return
    end = next((at for at, _ in headers if at > start), len(lines))
    old = next((at for at in range(start + 1, end) if places.assigned(lines[at]) == (metric,)), None)
    if old is None:
        last = max(at for at in range(start, end) if at == start or places.assigned(lines[at]))
        lines[last + 1 : last + 1] = new
        return
    first = old - 1 if lines[old - 1].startswith(MARK) else old
    lines[first : old + 1] = [*new[:-1], f"{new[-1]}{_comment(lines[old])}"]


def _comment(line: str) -> str:
    """What stands behind the value; a # may be in a text too, so a comment begins where the rest is whole."""
    marks = (at for at, sign in enumerate(line) if sign == "#")
    return next((f"  {line[at:].rstrip()}" for at in marks if places.parse(line[:at])), "")


def _key(name: str) -> str:
    # Shapes in quotes, as everywhere; names of platforms bare.
    return name if _BARE.match(name) and not name[0].isdecimal() else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)  # of text, numbers and truth both languages have the same
