"""A part of a local file as a stream that is complete, or an error that names the file."""

from __future__ import annotations

import base64
import hashlib
import io

from pytest_aisbench.errors import StagingFailed

_PIECE = 1024 * 1024


class FileSlice(io.FileIO):
    """`size` bytes from `offset`. A file that has fewer by now fails at once; the server would wait for the rest."""

    def __init__(self, path: str, offset: int, size: int) -> None:
        self._path, self._left = path, size
        try:
            super().__init__(path)
            self.seek(offset)
        except OSError as error:
            raise StagingFailed(f"cannot read {path}: {error.strerror}") from None

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._left if size is None or size < 0 else min(size, self._left)
        try:
            data = super().read(wanted) or b""
        except OSError as error:
            raise StagingFailed(f"cannot read {self._path}: {error.strerror}") from None
        if wanted and not data:
            raise StagingFailed(
                f"{self._path} became shorter while it was uploaded", advice="stage it when it is still"
            )
        self._left -= len(data)
        return data

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
