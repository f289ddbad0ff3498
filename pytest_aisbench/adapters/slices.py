"""A part of a local file as a stream that is complete, or an error that names the file."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path

from pytest_aisbench.errors import StagingFailed

_PIECE = 1024 * 1024


class FileSlice(io.RawIOBase):
    """`size` bytes from `offset`. A file that has fewer by now fails at once; the server would wait for the rest."""

    def __init__(self, path: str, offset: int, size: int) -> None:
        super().__init__()
        self._path, self._left = path, size
        try:
            self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed in close()
            self._file.seek(offset)
        except OSError as error:
            raise StagingFailed(f"cannot read {path}: {error.strerror}") from None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        try:
            data = self._file.read(wanted) or b""
        except OSError as error:
            raise StagingFailed(f"cannot read {self._path}: {error.strerror}") from None
        if wanted and not data:
            raise StagingFailed(
                f"{self._path} became shorter while it was uploaded", advice="stage it when it is still"
            )
        self._left -= len(data)
        return data

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()

    def md5(self) -> str:
        """Of all that is left to read, in hexadecimal; the slice is closed."""
        digest = hashlib.md5(usedforsecurity=False)
        with self:
            while piece := self.read(_PIECE):
                digest.update(piece)
        return digest.hexdigest()


def content_md5(md5: str) -> str:
    """An MD5 as the header Content-MD5 has it."""
    return base64.b64encode(bytes.fromhex(md5)).decode()
