"""`results.json`, the machine's view of a run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_aisbench.domain.codec import dump
from pytest_aisbench.domain.entry import CaseEntry, RunEntry

NAME = "results.json"


def document(entry: RunEntry) -> Any:
    """The entry in the published shape, no more: what only people read, notes and times, is in the other reports."""
    return {**dump(replace(entry, cases=())), "cases": [_case(case) for case in entry.cases]}


def write(entry: RunEntry, folder: Path) -> Path:
    return Results(folder).write(entry)


class Results:
    """The file of one run. It is whole after every case, so a case that did not change is not put in words again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases: dict[str, tuple[CaseEntry, str]] = {}

    def write(self, entry: RunEntry) -> Path:
        """Strict JSON: no NaN, and a lone surrogate of a mangled log becomes `?`."""
        parts = {key: _text(value, 1) for key, value in dump(replace(entry, cases=())).items()}
        if entry.cases:
            cases = ",\n  ".join(map(self._worded, entry.cases))
            parts["cases"] = f"[\n  {cases}\n ]"
        text = ",\n ".join(f'"{key}": {part}' for key, part in parts.items())
        path = self._folder / NAME
        draft = self._folder / f".{NAME}.{os.getpid()}.tmp"
        draft.write_bytes(f"{{\n {text}\n}}\n".encode("utf-8", "replace"))
        draft.replace(path)
        return path

    def _worded(self, case: CaseEntry) -> str:
        known, text = self._cases.get(case.id, (None, ""))
        if known is not case:
            text = _text(_case(case), 2)
            self._cases[case.id] = (case, text)
        return text


def _case(case: CaseEntry) -> Any:
    data = dump(case)
    for trial in data["trials"]:
        del trial["notes"], trial["times"]
    return data


def _text(value: Any, depth: int) -> str:
    """Indented as a part of the whole; JSON has no line ends within strings."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1).replace("\n", "\n" + " " * depth)
