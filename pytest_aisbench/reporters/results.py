"""`results.json`, the machine's view of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_aisbench.domain.codec import dump
from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.reporters.files import write_bytes

NAME = "results.json"
_FOR_PEOPLE = ("notes", "times", "pace", "curve", "events", "last_lines", "traits", "console", "usage", "power")


def document(entry: RunEntry) -> Any:
    """The entry in the published shape, no more: what people read beside it is in other reports."""
    return {**_head(entry), "cases": [case_document(case) for case in entry.cases]}


def write(entry: RunEntry, folder: Path) -> Path:
    return Results(folder).write(entry)


class Results:
    """The file of one run. It is whole after every case, so a case that did not change is not put in words again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases: dict[str, tuple[CaseEntry, bytes]] = {}

    def write(self, entry: RunEntry) -> Path:
        """Strict JSON: no NaN, and a lone surrogate of a mangled log becomes `?`."""
        path = self._folder / NAME
        write_bytes(path, list(self._parts(entry)))  # what cannot be put in words leaves no draft
        return path

    def _parts(self, entry: RunEntry) -> Iterator[bytes]:
        comma = b"{\n "
        for key, value in _head(entry).items():
            yield comma + _text(key, 1) + b": "
            if key == "cases" and entry.cases:
                yield from self._worded(entry.cases)
            else:
                yield _text(value, 1)
            comma = b",\n "
        yield b"\n}\n"

    def _worded(self, cases: Iterable[CaseEntry]) -> Iterator[bytes]:
        comma = b"[\n  "
        for case in cases:
            known, text = self._cases.get(case.id, (None, b""))
            if known is not case:
                text = _text(case_document(case), 2)
                self._cases[case.id] = (case, text)
            yield comma
            yield text
            comma = b",\n  "
        yield b"\n ]"


def _head(entry: RunEntry) -> dict[str, Any]:
    data: dict[str, Any] = dump(replace(entry, cases=(), before=None))
    del data["before"], data["executor"]
    return data


def case_document(case: CaseEntry) -> Any:
    bare = replace(case, background=None, trials=tuple(replace(trial, curve=None) for trial in case.trials))
    data = dump(bare)  # the long things are not put in words only to be dropped
    del data["background"], data["target_accuracy"]
    for trial in data["trials"]:
        for key in _FOR_PEOPLE:
            del trial[key]
    return data


def _text(value: Any, depth: int) -> bytes:
    """Indented as a part of the whole; JSON has no line ends within strings."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1)
    return text.replace("\n", "\n" + " " * depth).encode("utf-8", "replace")
