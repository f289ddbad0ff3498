"""One entry of a rank table's file, and what is wrong with it in a line that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.domain.messages import plain

_WHOLE = re.compile(r"\d{1,9}\Z", re.ASCII)


@dataclass(frozen=True)
class Problem:
    """One line that names the entry."""

    text: str
    warning: bool = False  # HCCL takes it

    def __str__(self) -> str:
        return f"{'warning: ' if self.warning else ''}{self.text}"


@dataclass
class Entry:
    """One object of the file; what it lacks goes to the list that all entries share."""

    data: dict[str, Any]
    where: str
    problems: list[Problem] = field(default_factory=list)

    def say(self, text: str, *, warning: bool = False) -> None:
        self.problems.append(Problem(plain(f"{self.where}: {text}" if self.where else text, 300), warning))

    def named(self, name: str) -> Entry:
        """The same entry, once it is known whose it is."""
        return Entry(self.data, f"{self.where.rpartition(', ')[0]}, {name}".removeprefix(", "), self.problems)

    def text(self, key: str, *, needed: bool = True, empty: bool = False) -> str:
        value = self.data.get(key)
        if key not in self.data:
            if needed:
                self.say(f"{key} is missing")
            return ""
        if not isinstance(value, str):
            self.say(f"{key} is {json.dumps(value)[:40]}, and every value is text: write it in quotes")
            return ""
        if not value and not empty:
            self.say(f"{key} is empty")
        return value

    def optional(self, key: str) -> str:
        """Missing and empty are the same."""
        return self.text(key, needed=False, empty=True)

    def whole(self, key: str, *, needed: bool = True) -> int | None:
        value = self.text(key, needed=needed)
        if value and not _WHOLE.match(value):
            self.say(f"{key} is {value!r}, which is not a whole number")
            return None
        return int(value) if value else None

    def entries(self, key: str, kind: str, *, needed: bool = True) -> Iterator[Entry]:
        rows = self.data.get(key)
        if not isinstance(rows, list):
            if needed or key in self.data:
                self.say(f"{key} is missing" if key not in self.data else f"{key} is not a list")
            return
        for index, row in enumerate(rows):
            where = f"{self.where}, {kind} number {index}" if self.where else f"{kind} number {index}"
            if isinstance(row, dict):
                yield Entry(row, where, self.problems)
            else:
                self.say(f"{kind} number {index} is {json.dumps(row)[:40]}, not an object")

    def counts(self, key: str, found: int, what: str, *, needed: bool = True) -> None:
        told = self.whole(key, needed=needed)
        if told is not None and told != found:
            self.say(f"{key} says {told}, and there are {found} {what}")
