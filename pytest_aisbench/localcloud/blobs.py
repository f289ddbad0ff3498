"""Contents on disk: written once under a name nobody else has, then only read. What points to them is the index."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

BLOCK = 1024 * 1024


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


@dataclass(frozen=True)
class Blob:
    name: str
    size: int
    md5: bytes


class Blobs:
    def __init__(self, root: Path) -> None:
        self._root = str(root)
        for fan in range(256):  # ten thousand files in one folder are slow to list and to delete
            os.makedirs(f"{root}/{fan:02x}", exist_ok=True)  # noqa: PTH103 (Path costs a third of the start)

    def write(self, data: bytes | Readable) -> Blob:
        """Whatever goes wrong (the disk is full, the client leaves), nothing is left behind."""
        name = secrets.token_hex(16)
        digest = hashlib.md5(usedforsecurity=False)
        size = 0
        with open(self._path(name), "xb", buffering=0) as file:  # noqa: PTH123
            try:
                for block in (data,) if isinstance(data, bytes) else iter(lambda: data.read(BLOCK), b""):
                    digest.update(block)
                    size += len(block)
                    view = memoryview(block)
                    while view:
                        view = view[file.write(view) :]
            except BaseException:
                os.unlink(self._path(name))  # noqa: PTH108
                raise
        return Blob(name, size, digest.digest())

    def open(self, name: str) -> BinaryIO:
        return open(self._path(name), "rb")  # noqa: PTH123

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            os.unlink(self._path(name))  # noqa: PTH108

    def sweep(self, wanted: Collection[str]) -> None:
        """Remove what a killed process wrote and did not come to record."""
        for fan in range(256):
            self.remove(name for name in os.listdir(f"{self._root}/{fan:02x}") if name not in wanted)  # noqa: PTH208

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"
