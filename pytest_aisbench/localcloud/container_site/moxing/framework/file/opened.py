"""Read and write files and objects, whole or piece by piece."""

from __future__ import annotations

import io
import tempfile

from .store import MoxFileNotExistsException, is_remote, split, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO, Any

_MODES = {"r", "r+", "w", "w+", "a", "a+"}


class File:
    """What `open` returns. Reads and writes a local copy of an object; `flush` and `close` send it to OBS."""

    def __init__(self, name: str, mode: str = "r", encoding: str | None = None, **options: Any) -> None:
        self.name = name
        self.mode = mode
        kind = "".join(letter for letter in mode if letter not in "bt")
        if kind not in _MODES:
            raise ValueError(f"invalid mode: {mode!r}")
        self._remote = is_remote(name)
        self._changed = kind[0] != "r"  # a file opened for writing exists afterwards, even if empty
        self._stream: IO[Any]
        if not self._remote:
            # MoXing accepts `br`, Python does not.
            self._stream = open(name, kind + ("b" if "b" in mode else ""), encoding=encoding, **options)  # noqa: SIM115
            return
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        try:
            if kind[0] != "w":
                self._fetch(copy, may_be_missing=kind[0] == "a")
        except BaseException:
            copy.close()
            raise
        copy.seek(0, io.SEEK_END if kind[0] == "a" else io.SEEK_SET)
        self._copy = copy
        self._stream = copy if "b" in mode else io.TextIOWrapper(copy, encoding=encoding or "utf-8", **options)

    def _fetch(self, copy: IO[bytes], *, may_be_missing: bool) -> None:
        try:
            store().download(*split(self.name), copy)
        except MoxFileNotExistsException:
            if not may_be_missing:
                raise

    # Methods, not attributes of the stream, so that `File(url).read()` holds the file until it has been read.
    def read(self, size: int = -1) -> Any:
        return self._stream.read(size)

    def readline(self, size: int = -1) -> Any:
        return self._stream.readline(size)

    def readlines(self, hint: int = -1) -> list[Any]:
        return self._stream.readlines(hint)

    def write(self, data: Any) -> int:
        self._changed = True
        return self._stream.write(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        self._changed = True
        self._stream.writelines(lines)

    def flush(self) -> None:
        self._stream.flush()
        if self._remote and self._changed:
            place = self._copy.tell()
            store().put(*split(self.name), self._copy)
            self._copy.seek(place)
            self._changed = False

    def close(self) -> None:
        if not self._stream.closed:
            try:
                self.flush()
            finally:
                self._stream.close()

    def size(self) -> int:
        if not self._remote:
            from .folders import stat

            return stat(self.name).length
        self._stream.flush()
        place = self._copy.tell()
        size = self._copy.seek(0, io.SEEK_END)
        self._copy.seek(place)
        return size

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)

    def __next__(self) -> Any:
        return next(self._stream)

    def __enter__(self) -> File:  # noqa: PYI034 - Self is younger than the Pythons this runs on
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "_stream" in self.__dict__:  # it was opened; Python prints what goes wrong here
            self.close()


def read(url: str, client_id: object = None, binary: bool = False) -> Any:
    with File(url, "rb" if binary else "r") as file:
        return file.read()


def write(url: str, data: str | bytes, binary: bool = False) -> None:
    _put(url, "w", data, binary=binary)


def append(url: str, data: str | bytes, binary: bool = False) -> None:
    _put(url, "a", data, binary=binary)


def _put(url: str, kind: str, data: str | bytes, *, binary: bool) -> None:
    with File(url, kind + ("b" if binary or isinstance(data, bytes) else "")) as file:
        file.write(data)
