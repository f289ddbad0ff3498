"""Reads TOML files; errors name the file, the line and the key."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import UsageFault, perhaps

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"""^\s*\[\[?(?P<path>(?:"[^"]*"|'[^']*'|[^\[\]"'])+)\]\]?\s*(#.*)?$""")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KEY = re.compile(r"""^\s*(?P<key>"[^"]*"|'[^']*'|[A-Za-z0-9_.\- ]+?)\s*=""")


@dataclass(frozen=True)
class Document:
    """A parsed file that knows the line of each key."""

    path: Path
    text: str
    data: dict[str, Any]

    def fault(self, message: str, *keys: str, advice: str = "") -> UsageFault:
        """An error about the key at the end of the path `keys`. The message begins with file and line."""
        return UsageFault(f"{self.location(*keys)}: {message}", advice=advice)

    def texts(
        self, table: str, keys: Iterable[str], environment: Mapping[str, str], *, used: bool
    ) -> tuple[dict[str, str], frozenset[str]]:
        """The values of a table with `${NAME}` replaced from the environment, and the names of these variables.

        `used` is false for the table of a platform on which nothing runs: then a variable may be missing.
        """
        raw = self.data.get(table, {})
        if not isinstance(raw, dict):
            raise self.fault(f"{table} is a table", table, advice=f"write [{table}] on a line of its own")
        taken: set[str] = set()
        for key, value in raw.items():
            if key not in keys:
                raise self.fault(f"unknown key {key!r} in [{table}]", table, key, advice=perhaps(key, keys))
            if not isinstance(value, str):
                raise self.fault(f"{table}.{key} is not text", table, key, advice="put it in quotes")
            for wanted in _REFERENCE.findall(value):
                taken.add(wanted)
                if used and wanted not in environment:
                    message = f"{table}.{key} takes ${{{wanted}}}, which is not set"
                    raise self.fault(message, table, key, advice=f"export {wanted}, or write the value")
        return {key: expand_variables(value, environment) for key, value in raw.items()}, frozenset(taken)

    def location(self, *keys: str) -> str:
        line = self._line(keys)
        return f"{self.path}:{line}" if line else str(self.path)

    def _line(self, wanted: tuple[str, ...]) -> int:
        """The line of the key, or of the nearest table around it; 0 if there is none.

        The standard parser keeps no positions. A scan of headers and assignments is enough for our files, in which a
        table is either a header or an inline table on one line.
        """
        best, depth = 0, 0
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.splitlines(), start=1):
            if opened := opened_table(line):
                path = table = opened
            elif key := assigned_key(line):
                path = table + key
            else:
                continue
            if len(path) > depth and path == wanted[: len(path)]:
                best, depth = number, len(path)
        return best


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """The text with `${NAME}` replaced from the environment; by nothing if it is not set."""
    return _REFERENCE.sub(lambda match: environment.get(match[1], ""), text)


def opened_table(line: str) -> tuple[str, ...]:
    """The path of the table whose header is on this line; empty if there is none."""
    match = _HEADER.match(line)
    return _split(match["path"]) if match else ()


def assigned_key(line: str) -> tuple[str, ...]:
    """The path of the key that this line assigns; empty if there is none."""
    match = _KEY.match(line)
    return _split(match["key"]) if match else ()


def parse_or_empty(text: str) -> dict[str, Any]:
    """The data of a text; empty if it is not TOML."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except ValueError:
        return {}
    return data


def _split(path: str) -> tuple[str, ...]:
    parts = re.findall(r'"([^"]*)"|\'([^\']*)\'|([A-Za-z0-9_\-]+)', path)
    return tuple(next(part for part in group if part or group == ("", "", "")) for group in parts)


def read(path: Path) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageFault(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise UsageFault(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UsageFault(f"{path}: cannot be read ({error.strerror})") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageFault(f"{path}: not valid TOML: {_lower(str(error))}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or very deep tables
        raise UsageFault(f"{path}: not to be read: {_lower(str(error))}") from None
    return Document(path, text, data)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
