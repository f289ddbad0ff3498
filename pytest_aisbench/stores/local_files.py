"""Reads and writes files of this machine: no download lands outside its folder, and none is left half written."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import io
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pytest_aisbench.engine.staging import PIECE
from pytest_aisbench.errors import StagingFailed
from pytest_aisbench.logs import get_logger, ignored

_LOG = get_logger("store")
PART_SUFFIX = ".part"  # of the name of a file while it is being written


def relative_path(key: str, prefix: str) -> str:
    """The part of a key below `prefix`; raises StagingFailed unless it names a file below a folder on any machine."""
    path = key[len(prefix) :]
    if any(part in {"", ".", ".."} for part in path.split("/")) or "\\" in path or "\0" in path:
        raise StagingFailed(f"the key {key!r} is not a path below a folder; nothing was written")
    return path


@contextlib.contextmanager
def safe_download(folder: str, path: str) -> Iterator[IO[bytes]]:
    """A file to write. It appears as `folder/path` at the end of the block; after an error it leaves no trace.

    Each folder is opened relative to the one above it, without following links, so that no link leads outside, not
    even one that is made meanwhile.
    """
    *parents, name = path.split("/")
    with translate_disk_errors(f"cannot write {folder}/{path}"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for parent in parents:
                directory = _enter(directory, parent)
            temporary = f".{secrets.token_hex(8)}{PART_SUFFIX}"
            mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with open(temporary, "wb", opener=lambda file, _: os.open(file, mode, 0o666, dir_fd=directory)) as out:
                    yield out
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with ignored(_LOG, OSError, "the removal of %s", temporary):
                    os.unlink(temporary, dir_fd=directory)
                raise
        finally:
            os.close(directory)


@contextlib.contextmanager
def translate_disk_errors(what: str) -> Iterator[None]:
    """Raise StagingFailed, which no client retries, for errors of this machine's disk."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        why = "no space left on this machine" if full else error.strerror
        raise StagingFailed(f"{what}: {why}") from None
    except UnicodeEncodeError:
        raise StagingFailed(f"{what}: this machine cannot hold such a name") from None


def _enter(directory: int, name: str) -> int:
    """Open the folder `name` below `directory`, making it if necessary, and close `directory`."""
    with contextlib.suppress(FileExistsError):  # noqa: TID251 - nothing is lost
        os.mkdir(name, dir_fd=directory)
    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    os.close(directory)
    return below


class FileSlice(io.FileIO):
    """`size` bytes from `offset` as a stream; an error if the file has become shorter, since a server would wait."""

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
        """The MD5 of all that is left to read, in hexadecimal. Closes the slice."""
        digest = hashlib.md5(usedforsecurity=False)
        with self:
            while piece := self.read(PIECE):
                digest.update(piece)
        return digest.hexdigest()


def read_whole(path: str, size: int) -> bytes:
    """The first `size` bytes of a file."""
    with FileSlice(path, 0, size) as content:
        return b"".join(iter(content.read, b""))


def content_md5(md5: str) -> str:
    """An MD5 in the form of the header Content-MD5."""
    return base64.b64encode(bytes.fromhex(md5)).decode()
