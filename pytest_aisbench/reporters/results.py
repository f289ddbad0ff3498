"""`results.json`, the machine's view of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.codec import dump
from pytest_aisbench.domain.entry import CaseEntry, RunEntry

NAME = "results.json"


class Results:
    """Rewrites the file whenever it is told to: a reader sees the old run or the new one, never half of it."""

    on_workers = False

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._folder = folder

    def case(self, entry: CaseEntry) -> None:
        """A case alone is not a run: whoever keeps the run calls `write`."""

    def run(self, entry: RunEntry) -> None:
        self.write(entry)

    def write(self, entry: RunEntry) -> None:
        write(entry, self._folder)


def document(entry: RunEntry) -> Any:
    """The entry in the published shape, no more: what only people read, notes and times, is in the other reports."""
    data = dump(entry)
    for case in data["cases"]:
        for trial in case["trials"]:
            del trial["notes"], trial["times"]
    return data


def write(entry: RunEntry, folder: Path) -> Path:
    """Strict JSON: no NaN, and a lone surrogate of a mangled log becomes `?`."""
    text = json.dumps(document(entry), allow_nan=False, ensure_ascii=False, indent=1) + "\n"
    path = folder / NAME
    draft = folder / f".{NAME}.{os.getpid()}.tmp"
    draft.write_bytes(text.encode("utf-8", "replace"))
    draft.replace(path)
    return path
