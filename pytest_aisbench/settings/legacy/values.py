"""The values that a file of settings may hold, and what can be made of them without an interpreter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LONGEST = 65_536  # characters of a text, or entries of a list: no setting is longer, and x = x + x doubles per line
_LARGEST = 2**63


@dataclass(frozen=True)
class Unreadable:
    """A value that only an interpreter could tell. It names the construct and never quotes it: it may hold a key."""

    line: int
    what: str


class Table(dict[str, Any]):
    """A dict that knows the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    def put(self, key: str, value: Any, line: int) -> None:
        self[key], self.lines[key] = value, line


class NotUnderstood(Exception):
    """An expression that is not understood."""

    def __init__(self, node: ast.AST, what: str = "") -> None:
        self.unreadable = Unreadable(getattr(node, "lineno", 0), what or kind(node))


def kind(node: ast.AST) -> str:
    words = {ast.Call: "a call", ast.Name: "a name that is bound nowhere above", ast.Subscript: "a subscript"}
    return words.get(type(node), f"an expression of kind {type(node).__name__}")


def constant(node: ast.Constant) -> Any:
    if node.value is None or isinstance(node.value, (str, bool, int, float)):
        return checked(node.value, node)
    raise NotUnderstood(node)


def checked(value: Any, node: ast.AST) -> Any:
    if isinstance(value, (str, list)) and len(value) > _LONGEST:
        raise NotUnderstood(node, "too long for a setting")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise NotUnderstood(node, "too large for a setting")
    return value


def known(value: Any, node: ast.AST) -> Any:
    if isinstance(value, Unreadable):
        raise NotUnderstood(node, value.what)
    return value


def entry(value: Any, key: Any, node: ast.AST) -> Any:
    if isinstance(value, Table) and isinstance(key, str) and key in value:
        return known(value[key], node)
    if isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
        return known(value[key], node)
    raise NotUnderstood(node)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain(value: Any, node: ast.AST) -> str:
    """A list in a text would have to be written out, and lists of lists of lists have no end."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value)
    raise NotUnderstood(node)


def percent(text: str, values: list[Any], node: ast.AST) -> Iterator[str]:
    rest = iter(values)
    for part in re.split(r"(%.)", text):
        if part == "%%":
            yield "%"
        elif part in {"%s", "%d"}:
            value = next(rest, rest)
            if value is rest or (part == "%d" and not isinstance(value, int)):
                raise NotUnderstood(node, "a format that does not fit")
            yield plain(value, node)
        elif "%" in part:
            raise NotUnderstood(node, "a format of its own")
        else:
            yield part
    if next(rest, rest) is not rest:
        raise NotUnderstood(node, "a format that does not fit")


def braces(text: str, values: dict[str, Any], node: ast.AST) -> Iterator[str]:
    counted = iter(range(len(values)))
    for part in re.split(r"(\{\{|\}\}|\{\w*\})", text):
        if part in {"{{", "}}"}:
            yield part[0]
        elif re.fullmatch(r"\{\w*\}", part):
            key = part[1:-1] or str(next(counted, ""))
            if key not in values:
                raise NotUnderstood(node, "a format that does not fit")
            yield plain(values[key], node)
        elif "{" in part or "}" in part:
            raise NotUnderstood(node, "a format of its own")
        else:
            yield part
