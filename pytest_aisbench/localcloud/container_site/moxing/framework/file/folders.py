"""List, search, measure and create folders, local ones and those of OBS."""

from __future__ import annotations

import fnmatch
import glob as local_glob
import os
import re
import stat as modes

from .store import Entry, MoxFileNotExistsException, is_remote, split, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


class FileStatistics:
    """Has the names of MoXing and those of `os.stat`."""

    def __init__(self, length: int, modified: float, *, is_directory: bool) -> None:
        self.length = self.st_size = length
        self.mtime_nsec = self.st_mtime_ns = int(modified * 1e9)
        self.st_mtime = modified
        self.is_directory = is_directory
        self.st_mode = (modes.S_IFDIR | 0o755) if is_directory else (modes.S_IFREG | 0o644)

    def __repr__(self) -> str:
        return f"FileStatistics(length={self.length}, is_directory={self.is_directory})"


class RemoteEntry:
    """An entry of a folder, as `os.scandir` yields it."""

    def __init__(self, folder: str, name: str, entry: Entry | None) -> None:
        self.name = name
        self.path = f"{folder.rstrip('/')}/{name}"
        self._entry = entry

    def is_dir(self, **_: object) -> bool:
        return self._entry is None

    def is_file(self, **_: object) -> bool:
        return self._entry is not None

    def is_symlink(self) -> bool:
        return False

    def stat(self, **_: object) -> FileStatistics:
        return _statistics(self._entry)

    def __fspath__(self) -> str:
        return self.path


def _statistics(entry: Entry | None) -> FileStatistics:
    return FileStatistics(entry.size, entry.modified, is_directory=False) if entry else _FOLDER


_FOLDER = FileStatistics(0, 0.0, is_directory=True)


def folder_prefix(key: str) -> str:
    return f"{key.rstrip('/')}/" if key.strip("/") else ""


def objects_in(url: str) -> Iterator[tuple[str, Entry]]:
    """Yield all objects below, also those that mark folders, with their paths relative to the url."""
    bucket, key = split(url)
    prefix = folder_prefix(key)
    for entry in store().list(bucket, prefix):
        if isinstance(entry, Entry) and entry.key != prefix:
            yield entry.key[len(prefix) :], entry


def exists(url: str) -> bool:
    if not is_remote(url):
        return os.path.exists(url)
    bucket, key = split(url)
    if key and not key.endswith("/") and store().head(bucket, key) is not None:
        return True
    return is_directory(url)


def is_directory(url: str) -> bool:
    if not is_remote(url):
        return os.path.isdir(url)
    bucket, key = split(url)
    prefix = folder_prefix(key)
    if not prefix:
        return store().has_bucket(bucket)
    try:
        return any(True for _ in store().list(bucket, prefix, limit=1))
    except MoxFileNotExistsException:  # the bucket does not exist either
        return False


def stat(url: str) -> FileStatistics:
    if not is_remote(url):
        status = os.stat(url)
        return FileStatistics(status.st_size, status.st_mtime, is_directory=modes.S_ISDIR(status.st_mode))
    bucket, key = split(url)
    entry = store().head(bucket, key) if key and not key.endswith("/") else None
    if entry is None and not is_directory(url):
        raise MoxFileNotExistsException(url)
    return _statistics(entry)


def get_size(url: str, recursive: bool = False) -> int:
    """The size of a file; a folder of OBS has the size 0, with `recursive` that of everything below."""
    if not is_directory(url):
        return stat(url).length
    if is_remote(url):
        return sum(entry.size for _, entry in objects_in(url)) if recursive else 0
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(url) for name in names)


def _listing(url: str) -> list[RemoteEntry]:
    bucket, key = split(url)
    prefix = folder_prefix(key)
    entries = list(store().list(bucket, prefix, delimiter="/"))
    if not entries and prefix:
        raise MoxFileNotExistsException(url)
    by_name = {}
    for entry in entries:
        name = (entry if isinstance(entry, str) else entry.key)[len(prefix) :].rstrip("/")
        if name:
            by_name[name] = RemoteEntry(url, name, None if isinstance(entry, str) else entry)
    return sorted(by_name.values(), key=lambda entry: entry.name)


def scan_dir(url: str) -> Iterator[Any]:
    return iter(_listing(url)) if is_remote(url) else iter(os.scandir(url))


def list_directory(
    url: str, recursive: bool = False, remove_sep: bool = True, skip_file: bool = False, skip_dir: bool = False
) -> list[str]:
    """Names, or with `recursive` relative paths; folders end with a slash if `remove_sep` is False."""
    separator = "" if remove_sep else "/"
    names: list[str] = []
    for entry in scan_dir(url):
        folder = entry.is_dir()
        if not (skip_dir if folder else skip_file):
            names.append(entry.name + (separator if folder else ""))
        if folder and recursive:
            below = list_directory(entry.path, True, remove_sep, skip_file, skip_dir)
            names += [f"{entry.name}/{name}" for name in below]
    return names


def walk(
    url: str, topdown: bool = True, onerror: Callable[[OSError], object] | None = None, followlinks: bool = False
) -> Iterator[tuple[str, list[str], list[str]]]:
    if not is_remote(url):
        yield from os.walk(url, topdown, onerror, followlinks)
        return
    try:
        entries = _listing(url)
    except MoxFileNotExistsException as error:
        if onerror:
            onerror(error)
        return
    folders = [entry.name for entry in entries if entry.is_dir()]
    here = url, folders, [entry.name for entry in entries if entry.is_file()]
    if topdown:
        yield here
    for name in folders:
        yield from walk(f"{url.rstrip('/')}/{name}", topdown, onerror)
    if not topdown:
        yield here


def glob(url: str) -> list[str]:
    """Return whole paths; a star does not match a slash."""
    if not is_remote(url):
        return sorted(local_glob.glob(url))
    if not re.search(r"[*?[]", url):
        return [url] if exists(url) else []
    scheme, _, rest = url.partition("://")
    bucket, *patterns = rest.split("/")
    paths = [bucket]
    for pattern in patterns:
        paths = [path for folder in paths for path in _matching(f"{scheme}://{folder}", pattern)]
    return [f"{scheme}://{path}" for path in paths]


def _matching(folder: str, pattern: str) -> list[str]:
    try:
        names = [entry.name for entry in _listing(folder)]
    except MoxFileNotExistsException:
        return []
    return [f"{folder.partition('://')[2]}/{name}" for name in names if fnmatch.fnmatchcase(name, pattern)]


def make_dirs(url: str) -> None:
    """Create a folder; in OBS that is an empty object whose key ends with a slash."""
    if not is_remote(url):
        os.makedirs(url, exist_ok=True)
        return
    bucket, key = split(url)
    if folder_prefix(key):
        store().put(bucket, folder_prefix(key), b"")
    elif not store().has_bucket(bucket):
        raise MoxFileNotExistsException(url)


def mk_dir(url: str) -> None:
    if is_remote(url):
        parent = url.rstrip("/").rpartition("/")[0]
        if not is_directory(parent):
            raise MoxFileNotExistsException(parent)
        make_dirs(url)
    else:
        os.mkdir(url)
