"""Reads settings from a Python file by its syntax tree, without executing it.

Understands literals, names bound to literals, concatenation and formatting of both, `EasyDict` and `dict` around a
table, classes as tables, and assignments to a key. Any other value becomes an `Unreadable`, which is an error only if
the run needs that value.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import UsageFault

LONGEST = 65_536  # characters of a text, or entries of a list: no setting is longer, and x = x + x doubles per line
_LARGEST = 2**63
_TABLES = {"dict", "EasyDict"}


@dataclass(frozen=True)
class Unreadable:
    """A value that only executing the file would tell. Names the construct without quoting it: it may contain a key."""

    line: int
    what: str


class Table(dict[str, Any]):
    """A dict that knows the line of each of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    def put(self, key: str, value: Any, line: int) -> None:
        self[key], self.lines[key] = value, line


class NotUnderstood(Exception):
    """Raised for an expression that this module does not understand."""

    def __init__(self, node: ast.AST, what: str = "") -> None:
        self.unreadable = Unreadable(getattr(node, "lineno", 0), what or describe(node))


def read(path: Path) -> Table:
    """The names that the file binds at top level, and their values."""
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise UsageFault(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageFault(f"{path}: cannot be read ({error.strerror})") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of invalid escapes in the file
            module = ast.parse(source)
        return _Reader().module(module)
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else str(path)
        advice = "save it as UTF-8 text" if "codec" in str(error.msg) else ""
        raise UsageFault(f"{where}: not valid Python: {error.msg}", advice=advice) from None
    except (ValueError, RecursionError, MemoryError) as error:  # a zero byte; too many nested brackets
        raise UsageFault(f"{path}: not to be read: {type(error).__name__}") from None


class _Reader:
    def __init__(self) -> None:
        self.names = Table()
        self.makers = set(_TABLES)  # the names of EasyDict in this file

    def module(self, module: ast.Module) -> Table:
        for statement in module.body:
            self._statement(statement, self.names)
        return self.names

    def _statement(self, node: ast.stmt, scope: Table) -> None:
        if isinstance(node, ast.Assign):
            value = self._value(node.value)
            for target in node.targets:
                self._bind(target, value, scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._bind(node.target, self._value(node.value), scope)
        elif isinstance(node, ast.ImportFrom):
            self.makers |= {alias.asname or alias.name for alias in node.names if alias.name == "EasyDict"}
        elif isinstance(node, ast.ClassDef) and not node.decorator_list:
            table = Table()
            for inner in node.body:
                self._statement(inner, table)
            scope.put(node.name, table, node.lineno)
        elif not _changes_nothing(node):
            # The statement may change any name in it.
            self._spoil(
                _mentioned(node),
                Unreadable(node.lineno, f"changed by a statement of kind {type(node).__name__}"),
                scope,
            )

    def _spoil(self, names: set[str], why: Unreadable, scope: Table) -> None:
        for name in sorted(names):
            for place in (scope, self.names):
                place.put(name, why, why.line)

    def _bind(self, target: ast.expr, value: Any, scope: Table) -> None:
        if isinstance(target, ast.Name):
            scope.put(target.id, value, target.lineno)
            return
        try:
            table, key = self._target(target)
            table.put(key, value, target.lineno)
        except NotUnderstood as stop:
            self._spoil(_mentioned(target), stop.unreadable, scope)

    def _target(self, target: ast.expr) -> tuple[Table, str]:
        if isinstance(target, (ast.Subscript, ast.Attribute)):
            table = self._expression(target.value)
            key = target.attr if isinstance(target, ast.Attribute) else self._expression(target.slice)
            if isinstance(table, Table) and isinstance(key, str):
                return table, key
        raise NotUnderstood(target)

    def _value(self, node: ast.expr) -> Any:
        try:
            return self._expression(node)
        except NotUnderstood as stop:
            # A call may change the tables among its arguments, and `:=` binds names inside an expression.
            bound = {inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr)}
            given = {name for name in _mentioned(node) if isinstance(self.names.get(name), (Table, list))}
            self._spoil(bound | given, stop.unreadable, self.names)
            return stop.unreadable

    def _expression(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return read_constant(node)
        if isinstance(node, ast.Name):
            return require_readable(self.names.get(node.id, Unreadable(node.lineno, describe(node))), node)
        if isinstance(node, ast.Dict):
            return self._table(node)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(element) for element in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self._expression(node.operand)
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                return -number
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
            return self._joined(node, self._expression(node.left), self._expression(node.right))
        if isinstance(node, ast.JoinedStr):
            return check_size("".join(self._pieces(node)), node)
        if isinstance(node, ast.Subscript):
            return look_up(self._expression(node.value), self._expression(node.slice), node)
        if isinstance(node, ast.Attribute):
            return look_up(self._expression(node.value), node.attr, node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise NotUnderstood(node)

    def _table(self, node: ast.Dict) -> Table:
        table = Table()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                more = self._expression(value)
                if not isinstance(more, Table):
                    raise NotUnderstood(value)
                for name, item in more.items():
                    table.put(name, item, more.lines[name])
                continue
            name = self._expression(key)
            if not isinstance(name, str):
                raise NotUnderstood(key, "a key that is not text")
            table.put(name, self._value(value), key.lineno)
        return table

    def _joined(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        if isinstance(node.op, ast.Mod) and isinstance(left, str):
            values = right if isinstance(right, list) else [right]
            return check_size("".join(format_percent(left, values, node)), node)
        if isinstance(node.op, ast.Add):
            if (isinstance(left, str) and isinstance(right, str)) or (
                isinstance(left, list) and isinstance(right, list)
            ):
                return check_size(left + right, node)  # type: ignore[operator]
            if is_number(left) and is_number(right):
                return check_size(left + right, node)
        raise NotUnderstood(node)

    def _pieces(self, node: ast.JoinedStr) -> Iterator[str]:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion != -1:
                    raise NotUnderstood(part, "a format of its own")
                yield as_text(self._expression(part.value), part)
            else:
                yield as_text(self._expression(part), part)

    def _call(self, node: ast.Call) -> Any:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in self.makers and len(node.args) <= 1:
            table = self._table(ast.Dict([None] * len(node.args), [*node.args]))
            for keyword in node.keywords:
                if keyword.arg is None:
                    raise NotUnderstood(node)
                table.put(keyword.arg, self._value(keyword.value), keyword.value.lineno)
            return table
        if name == "format" and isinstance(node.func, ast.Attribute):
            text = self._expression(node.func.value)
            values = {str(index): self._expression(value) for index, value in enumerate(node.args)}
            values |= {str(word.arg): self._expression(word.value) for word in node.keywords}
            if isinstance(text, str):
                return check_size("".join(format_braces(text, values, node)), node)
        raise NotUnderstood(node)


def _changes_nothing(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.Pass)):
        return True
    if isinstance(node, ast.Expr):  # a docstring, or a call of print
        call = node.value
        return isinstance(call, ast.Constant) or (
            isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
        )
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return not any(isinstance(inner, ast.Global) for inner in ast.walk(node))
    return isinstance(node, ast.If) and _is_main(node)


def _is_main(node: ast.If) -> bool:
    """True for `if __name__ == …`, which an import does not enter."""
    test = node.test
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _mentioned(node: ast.AST) -> set[str]:
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names.union(*(inner.names for inner in ast.walk(node) if isinstance(inner, ast.Global)))


def describe(node: ast.AST) -> str:
    words = {ast.Call: "a call", ast.Name: "a name that is bound nowhere above", ast.Subscript: "a subscript"}
    return words.get(type(node), f"an expression of kind {type(node).__name__}")


def read_constant(node: ast.Constant) -> Any:
    if node.value is None or isinstance(node.value, (str, bool, int, float)):
        return check_size(node.value, node)
    raise NotUnderstood(node)


def check_size(value: Any, node: ast.AST) -> Any:
    if isinstance(value, (str, list)) and len(value) > LONGEST:
        raise NotUnderstood(node, "too long for a setting")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise NotUnderstood(node, "too large for a setting")
    return value


def require_readable(value: Any, node: ast.AST) -> Any:
    if isinstance(value, Unreadable):
        raise NotUnderstood(node, value.what)
    return value


def look_up(value: Any, key: Any, node: ast.AST) -> Any:
    if isinstance(value, Table) and isinstance(key, str) and key in value:
        return require_readable(value[key], node)
    if isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
        return require_readable(value[key], node)
    raise NotUnderstood(node)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_text(value: Any, node: ast.AST) -> str:
    """A value as a text. Not a list: lists of lists of lists could be endless."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value)
    raise NotUnderstood(node)


def format_percent(text: str, values: list[Any], node: ast.AST) -> Iterator[str]:
    rest = iter(values)
    for part in re.split(r"(%.)", text):
        if part == "%%":
            yield "%"
        elif part in {"%s", "%d"}:
            value = next(rest, rest)
            if value is rest or (part == "%d" and not isinstance(value, int)):
                raise NotUnderstood(node, "a format that does not fit")
            yield as_text(value, node)
        elif "%" in part:
            raise NotUnderstood(node, "a format of its own")
        else:
            yield part
    if next(rest, rest) is not rest:
        raise NotUnderstood(node, "a format that does not fit")


def format_braces(text: str, values: dict[str, Any], node: ast.AST) -> Iterator[str]:
    counted = iter(range(len(values)))
    for part in re.split(r"(\{\{|\}\}|\{\w*\})", text):
        if part in {"{{", "}}"}:
            yield part[0]
        elif re.fullmatch(r"\{\w*\}", part):
            key = part[1:-1] or str(next(counted, ""))
            if key not in values:
                raise NotUnderstood(node, "a format that does not fit")
            yield as_text(values[key], node)
        elif "{" in part or "}" in part:
            raise NotUnderstood(node, "a format of its own")
        else:
            yield part
