"""A Store in a folder that this machine and the nodes both mount.

Jobs may write anything there, so this module follows no link below the folder, and no file is ever half written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from pytest_aisbench.engine.staging import PIECE
from pytest_aisbench.errors import StagingFailed, UsageFault
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Head, Upload
from pytest_aisbench.stores.local_files import PART_SUFFIX, FileSlice, safe_download, translate_disk_errors

_LOG = get_logger("store")
BUCKET = "share"
_METADATA_FOLDER = ".aisbench-metadata"  # one file per object with metadata, which a file system cannot keep


class SharedFolder:
    """A Store. `obs://share/KEY` is FOLDER/KEY."""

    def __init__(self, folder: Path, bucket: str = BUCKET) -> None:
        self._folder = folder
        self._bucket = bucket
        self._closed = False

    def check(self, url: StoreUrl) -> None:
        self._require(url)
        if not self._folder.is_dir():
            raise UsageFault(f"there is no shared folder {self._folder}", advice="mount it, or correct share")
        if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
            raise UsageFault(f"the shared folder {self._folder} cannot be written", advice="ask for the right")

    def head(self, url: StoreUrl) -> Head | None:
        path = self._path(url)
        with _opened(self._folder, path) as file:
            if file is None:
                return None
            size = os.fstat(file.fileno()).st_size
        return Head(url, size, None, self._read_metadata(url))

    def read(self, url: StoreUrl) -> bytes | None:
        path = self._path(url)
        with _opened(self._folder, path) as file, translate_disk_errors(f"cannot read {self._folder}/{path}"):
            return file.read() if file else None

    def read_from(self, url: StoreUrl, since: int, most: int) -> bytes:
        """At most so many bytes of an object from an offset; empty if there is no such object."""
        path = self._path(url)
        with _opened(self._folder, path) as file, translate_disk_errors(f"cannot read {self._folder}/{path}"):
            if file is None:
                return b""
            file.seek(since)
            return file.read(most)

    def write(self, url: StoreUrl, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        path = self._path(url)
        with safe_download(str(self._folder), path) as out:
            out.write(data)
        self._write_metadata(url, metadata)

    def upload(self, uploads: Sequence[Upload]) -> None:
        for each in uploads:
            path, digest = self._path(each.url), hashlib.md5(usedforsecurity=False)
            with FileSlice(each.path, 0, each.size) as source, safe_download(str(self._folder), path) as out:
                while piece := source.read(PIECE):
                    digest.update(piece)
                    out.write(piece)
                if each.md5 and digest.hexdigest() != each.md5:
                    raise StagingFailed(f"{each.path} changed while it was copied", advice="stage it when it is still")
            self._write_metadata(each.url, None)

    def objects(self, url: StoreUrl) -> Iterator[Head]:
        self._require(url)
        prefix = url.key if url.is_folder else f"{url.key}/"
        if prefix and not _is_path(prefix[:-1]):
            return iter(())
        keys_and_sizes = sorted(_files(self._folder, prefix.rstrip("/")))
        return iter([Head(StoreUrl(url.bucket, key), size) for key, size in keys_and_sizes])

    def download(self, url: StoreUrl, folder: str) -> list[str]:
        prefix = url.key if url.is_folder else f"{url.key}/"
        paths = []
        for head in self.objects(url):
            path = head.url.key[len(prefix) :]
            with _opened(self._folder, head.url.key) as source:
                if source is None:  # deleted meanwhile
                    continue
                with safe_download(folder, path) as out:
                    shutil.copyfileobj(source, out, PIECE)
            paths.append(path)
        return paths

    def delete(self, url: StoreUrl) -> None:
        self._require(url)
        below = [head.url for head in self.objects(url)] if url.is_folder else [url]
        with translate_disk_errors(f"cannot delete {url}"):
            for each in below:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # noqa: TID251 - it is gone already
                    (self._folder / self._path(each)).unlink()
                self._write_metadata(each, None)
        if url.is_folder and url.key:
            self._prune(url.key.rstrip("/"))

    def close(self) -> None:
        self._closed = True

    def _require(self, url: StoreUrl) -> None:
        if self._closed:
            raise StagingFailed("the shared folder has been closed")
        if url.bucket != self._bucket:
            advice = f"the platform's is obs://{self._bucket}/; for data that pods see elsewhere write data_dir"
            raise UsageFault(f"{url.bucket} is not the shared folder {self._folder}", advice=advice)

    def _path(self, url: StoreUrl) -> str:
        self._require(url)
        if not _is_path(url.key):
            raise StagingFailed(f"the key {url.key!r} is not a path below a folder")
        return url.key

    def _metadata_file(self, url: StoreUrl) -> str:
        return f"{_METADATA_FOLDER}/{hashlib.sha256(url.key.encode(errors='surrogatepass')).hexdigest()}.json"

    def _write_metadata(self, url: StoreUrl, metadata: Mapping[str, str] | None) -> None:
        if metadata:
            with safe_download(str(self._folder), self._metadata_file(url)) as out:
                out.write(json.dumps(dict(metadata)).encode())
        else:
            with ignored(_LOG, OSError, "the removal of the metadata of %s", url):
                (self._folder / self._metadata_file(url)).unlink()

    def _read_metadata(self, url: StoreUrl) -> dict[str, str]:
        with _opened(self._folder, self._metadata_file(url)) as file:
            try:
                data = json.loads(file.read()) if file else {}
            except ValueError as error:
                log_ignored(_LOG, error, "the metadata of %s", url, level=logging.WARNING)
                data = {}
        return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}

    def _prune(self, path: str) -> None:
        """Remove empty folders: a folder is no object, and goes with what was in it."""
        for folder, _, _ in os.walk(self._folder / path, topdown=False):
            with ignored(_LOG, OSError, "the removal of the folder %s", folder):
                Path(folder).rmdir()


def _is_path(key: str) -> bool:
    parts = key.split("/")
    return not ({"", ".", ".."} & set(parts) or parts[0] == _METADATA_FOLDER or "\\" in key or "\0" in key)


def _files(folder: Path, path: str) -> Iterator[tuple[str, int]]:
    """Keys and sizes of the plain files below, without links and files that are being written."""
    try:
        entries = list(os.scandir(folder / path))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StagingFailed(f"cannot list {folder / path}: {error.strerror}") from None
    for entry in entries:
        key = f"{path}/{entry.name}" if path else entry.name
        if entry.is_dir(follow_symlinks=False):
            if key != _METADATA_FOLDER:
                yield from _files(folder, key)
        elif entry.is_file(follow_symlinks=False) and not (entry.name[0] == "." and entry.name.endswith(PART_SUFFIX)):
            with contextlib.suppress(FileNotFoundError):  # noqa: TID251 - it was deleted meanwhile
                yield key, entry.stat(follow_symlinks=False).st_size


@contextlib.contextmanager
def _opened(folder: Path, path: str) -> Iterator[IO[bytes] | None]:
    """A plain file, reached without a link; None if there is none."""
    file: IO[bytes] | None = None
    missing = (FileNotFoundError, NotADirectoryError)
    with contextlib.suppress(*missing), translate_disk_errors(f"cannot read {folder}/{path}"):  # noqa: TID251 - None tells it
        file = _open_plain_file(folder, path)
    try:
        yield file
    finally:
        if file:
            file.close()


def _open_plain_file(folder: Path, path: str) -> IO[bytes] | None:
    *parents, name = path.split("/")
    directory = -1
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for parent in parents:
            below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = below
        # Without O_NONBLOCK a pipe that a job left there would hold us for ever.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    finally:
        if directory >= 0:
            os.close(directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")
