"""A folder of a running job, copied to the object store while it grows."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_aisbench.localcloud.launch import Place
    from pytest_aisbench.localcloud.objects import Objects

_BYTES_PER_SECOND = 1 << 20  # an object is replaced as a whole, so a file that grows is rewritten ever more slowly


class Mirror:
    def __init__(self, objects: Objects, folder: Path, place: Place, follow: Callable[[Path], Path]) -> None:
        """`follow`: where a file of the folder, which may be a link, truly lies."""
        self._objects = objects
        self._follow = follow
        self._folder = folder
        self._place = place
        self._copied: dict[Path, tuple[int, int, int]] = {}
        self._due: dict[Path, float] = {}

    def push(self, *, everything: bool = False) -> None:
        """Copy what has changed; large files only when their turn has come, or `everything` is asked for."""
        now = time.monotonic()
        for path, file in self._files():
            with contextlib.suppress(FileNotFoundError):  # a temporary file, gone again
                status = file.stat()
                version = (status.st_ino, status.st_size, status.st_mtime_ns)
                if self._copied.get(path) == version or not (everything or self._due.get(path, now) <= now):
                    continue
                key = self._place.prefix + path.relative_to(self._folder).as_posix()
                self._objects.put_file(file, self._place.bucket, key)
                self._copied[path] = version
                self._due[path] = now + status.st_size / _BYTES_PER_SECOND

    def _files(self) -> Iterator[tuple[Path, Path]]:
        for folder, _, names in os.walk(self._folder):
            for path in (Path(folder, name) for name in names):
                file = self._follow(path)
                if file.is_file():  # not a pipe or a socket, nor a link to nowhere
                    yield path, file
