"""How a report gets to the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, text: str) -> None:
    """The same ends of lines everywhere; a lone surrogate of a mangled log becomes `?`."""
    write_bytes(path, [text.encode("utf-8", "replace")])


def write_bytes(path: Path, parts: Iterable[bytes]) -> None:
    """At once: whoever reads it meanwhile has the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with draft.open("wb") as file:
        file.writelines(parts)
    draft.replace(path)
