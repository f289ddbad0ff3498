"""The log of one worker, as the platform shows it."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 20
_LIMIT = 1 << 30  # the platform's own


class WorkerLog:
    """The worker's log: the platform's own lines, and what the followed files have grown by."""

    def __init__(self, path: Path, *, silent: bool = False) -> None:
        """`silent`: the platform has no lines of its own in it."""
        self._silent = silent
        self._file = path.open("ab")
        self._followed: dict[IO[bytes], bytes] = {}  # with the begin of a line that is not complete yet
        self._size = 0

    def say(self, text: str, level: str = "INFO") -> None:
        if self._silent:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now * 1000) % 1000:03d}"
        self._write(f"[ModelArts Service Log]{stamp} - {level} - {text}\n".encode())

    def follow(self, path: Path) -> None:
        self._followed[path.open("rb")] = b""

    def merge(self) -> None:
        """Whole lines only, so that ranks do not write into each other's."""
        for source, begun in self._followed.items():
            while data := source.read(_CHUNK):
                whole, newline, begun = (begun + data).rpartition(b"\n")  # noqa: PLW2901
                if len(begun) > _CHUNK:  # not lines at all
                    whole, begun = whole + newline + begun, b""  # noqa: PLW2901
                self._write(whole + newline)
                self._followed[source] = begun

    def finish(self) -> None:
        """Nobody writes to the followed files any more."""
        self.merge()
        for source, begun in self._followed.items():
            source.close()
            if begun:
                self._write(begun + b"\n")
        self._followed.clear()

    def _write(self, data: bytes) -> None:
        if data and self._size <= _LIMIT:
            self._size += len(data)
            if self._size > _LIMIT:
                data = b"[ModelArts Service Log]log length overflow, process will continue running silently\n"
            self._file.write(data)
            self._file.flush()
