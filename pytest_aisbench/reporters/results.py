"""`results.json`, the machine's view of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pytest_aisbench.domain.codec import dump
from pytest_aisbench.domain.entry import RunEntry

NAME = "results.json"


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
