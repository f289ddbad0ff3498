"""Contents on disk: written once under a name nobody else has, then only read. What points to them is the index."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    import io
    from collections.abc import Collection, Iterable, Iterator
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
        digest = hashlib.md5(usedforsecurity=False)
        with self._new() as (name, file):
            for block in (data,) if isinstance(data, bytes) else iter(lambda: data.read(BLOCK), b""):
                digest.update(block)
                view = memoryview(block)
                while view:
                    view = view[file.write(view) :]
            return Blob(name, file.tell(), digest.digest())

    def join(self, parts: Iterable[BinaryIO]) -> Blob:
        """One after the other. Nobody asks for the MD5 of the whole, which would cost as much as the copy."""
        with self._new() as (name, file):
            for part in parts:
                shutil.copyfileobj(part, file, BLOCK)
            return Blob(name, file.tell(), b"")

    def open(self, name: str) -> BinaryIO:
        return open(self._path(name), "rb")  # noqa: PTH123

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            os.unlink(self._path(name))  # noqa: PTH108

    def sweep(self, wanted: Collection[str]) -> None:
        """Remove what a killed process wrote and did not come to record."""
        for fan in range(256):
            self.remove(name for name in os.listdir(f"{self._root}/{fan:02x}") if name not in wanted)  # noqa: PTH208

    @contextlib.contextmanager
    def _new(self) -> Iterator[tuple[str, io.FileIO]]:
        name = secrets.token_hex(16)
        with open(self._path(name), "xb", buffering=0) as file:  # noqa: PTH123
            try:
                yield name, file
            except BaseException:
                os.unlink(self._path(name))  # noqa: PTH108
                raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"
