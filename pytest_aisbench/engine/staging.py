"""Uploads code and data to the Store, once per content.

A tree of files is uploaded to `<root>code/<digest>/<name>/`. The marker `<root>code/<digest>/.ok` is written last and
says that the tree is complete; it stands beside the tree, so that deleting the folder deletes it too. A tree that is
already there costs one request; an interrupted upload is completed.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from pytest_aisbench.errors import StagingFailed, UsageFault
from pytest_aisbench.logs import get_logger
from pytest_aisbench.model.case import Workload
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import AddsFiles, Store, Upload

_LOG = get_logger("store")
FORMAT = "aisbench-tree/1"
_IGNORED = re.compile("|".join(map(translate, ("__pycache__", ".git", "*.pyc", ".DS_Store"))))
_GARBLED = re.compile(r"[\x00-\x1f\x7f\\]")
PIECE = 1024 * 1024
_LONGEST_PATH = 800  # bytes; a key may have 1,024, and the stage needs some of them
_ID_DIGITS = 32
_FEW_FILES = 8  # so many small ones are rather uploaded again than looked for
_TRUSTED_S = 60.0  # that a tree stays whole: a job waits longer for its machines
_LARGE = PIECE  # bytes; larger files are read by several threads at once
_READ: dict[str, TreeFile] = {}  # by source: preflight, fingerprint and staging read the same files
_MOST_READ = 10_000  # files that we remember
_STILL_S = 2.0
_READERS = min(4, os.cpu_count() or 1)
_MD5_UP_TO = 100 * PIECE  # larger files go to OBS in parts, and no Store knows the MD5 of the whole


def code_tree(workload: Workload, platform: object, variables: Mapping[str, str] | None = None) -> Tree:
    """A workload's code as its nodes get it: its folders, and the files that the platform adds.

    `variables` are environment variables that the platform's requests cannot carry.
    """
    added = platform.additions(workload, variables or {}) if isinstance(platform, AddsFiles) else {}
    more = {path: Path(content) if isinstance(content, str) else content for path, content in added.items()}
    return read_tree(workload.code_name, [Path(workload.folder) / part for part in workload.code], more)


def code_placement(root: StoreUrl, tree: Tree) -> Placement:
    """ModelArts names the folder on its nodes after the tree."""
    return Placement(tree, root / "code/")


def data_placement(root: StoreUrl, folder: Path) -> Placement:
    return Placement(read_tree(folder.resolve().name or "data", [folder]), root / "data/")


def upload_tree(store: Store, placement: Placement) -> StoreUrl:
    """Upload what is missing of the tree, and return its address."""
    tree = placement.tree
    head = store.head(placement.marker)
    if head is None or (head.metadata or {}).get("manifest") != tree.digest:
        missing = _missing(store, placement.url, tree)
        _LOG.info("%s: %d of %d files are uploaded", placement.url, len(missing), len(tree.files))
        store.upload([upload for upload in missing if upload.path])
        for file in tree.files:
            if file.written is not None:
                store.write(placement.url / file.path, file.written)
        for file in tree.files:
            file.check_unchanged()
        store.write(placement.marker, tree.manifest, {"manifest": tree.digest})
    else:
        _LOG.debug("%s is whole already", placement.url)
    return placement.url


class Stager:
    """Uploads the trees of one run. Of several threads that need a tree one uploads it, and the others wait. A tree
    that was whole less than a minute ago costs no request."""

    def __init__(self, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._uploading: dict[StoreUrl, threading.Lock] = {}
        self._whole: dict[tuple[StoreUrl, str], float] = {}  # when we last saw that a tree is

    def upload(self, placement: Placement) -> StoreUrl:
        tree = (placement.marker, placement.tree.digest)
        with self._lock:
            uploading = self._uploading.setdefault(placement.marker, threading.Lock())
        with uploading:
            if self._now() - self._whole.get(tree, -math.inf) > _TRUSTED_S:
                upload_tree(self._store, placement)
                self._whole[tree] = self._now()
        return placement.url


def _missing(store: Store, url: StoreUrl, tree: Tree) -> list[Upload]:
    """The files that an interrupted upload of the same tree did not leave there; usually all."""
    few = len(tree.files) <= _FEW_FILES and sum(file.size for file in tree.files) <= PIECE
    present = {} if few else {head.url: (head.size, head.md5) for head in store.objects(url)}
    uploads = [Upload(file.source, url / file.path, file.size, file.md5) for file in tree.files]
    return [each for each in uploads if not each.md5 or present.get(each.url) != (each.size, each.md5)]


@dataclass(frozen=True)
class Placement:
    """A tree and its address in the Store, which follows from the content before anything is uploaded."""

    tree: Tree
    root: StoreUrl

    @cached_property
    def url(self) -> StoreUrl:
        return self.root / f"{self._identity}/{self.tree.name}/"

    @property
    def marker(self) -> StoreUrl:
        return self.root / f"{self._identity}/.ok"

    @property
    def _identity(self) -> str:
        return self.tree.digest[:_ID_DIGITS]


# The tree of files.


@dataclass(frozen=True)
class Stamp:
    """Changes when the file changes."""

    size: int
    modified: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True)
class TreeFile:
    """A file at `path` below the tree: from `source` on this machine, or with the bytes `written`."""

    path: str
    source: str
    executable: bool
    stamp: Stamp
    sha256: str
    md5: str | None  # None for a file that goes to OBS in parts
    written: bytes | None = None

    @property
    def size(self) -> int:
        return self.stamp.size

    def check_unchanged(self) -> None:
        if self.written is not None:
            return
        try:
            still = Stamp.of(os.stat(self.source)) == self.stamp  # noqa: PTH116 - a Path takes as long as the question
        except OSError as error:
            _raise_vanished(self.source, error)
        if not still:
            raise _changed(self.source)


@dataclass(frozen=True)
class Tree:
    """Files in the order of their paths, and the name that their folder has on the nodes."""

    name: str
    files: tuple[TreeFile, ...]

    @cached_property
    def manifest(self) -> bytes:
        lines = [f"{FORMAT} {self.name}"]
        for file in self.files:
            lines.append(f"{file.sha256} {file.size} {'x' if file.executable else '-'} {file.path}")
        return "".join(f"{line}\n" for line in lines).encode()

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()


def read_tree(name: str, folders: Sequence[Path], more: Mapping[str, Path | bytes] | None = None) -> Tree:
    """Read every file below `folders`, merged into one tree; a path may be in one of them only.

    `more` adds single files by their paths: files of this machine at free paths, generated bytes (which may replace a
    file) at any path.
    """
    _check_name(name, name)
    roots = tuple(_root(folder) for folder in folders)
    sources: dict[str, str] = {}
    for folder, root in zip(folders, roots, strict=True):
        files = dict(_walk(root, "", (), roots))
        if not files:
            raise UsageFault(f"{folder} has no file to stage")
        for path in sorted(files.keys() & sources.keys()):
            raise UsageFault(f"{path} is both {sources[path]} and {files[path]}", advice="rename one of the two")
        sources |= files
    for path, source in (more or {}).items():
        _check_name(path, path)
        if isinstance(source, Path) and sources.get(path, str(source)) != str(source):
            raise UsageFault(f"{path} is both {sources[path]} and {source}", advice="rename one of the two")
        sources[path] = str(source) if isinstance(source, Path) else f"{path}, which is written for the job"
    written = {path: data for path, data in (more or {}).items() if isinstance(data, bytes)}
    for path in sorted(_parents(sources) & sources.keys()):
        raise UsageFault(f"{path} is a file, {sources[path]}, and elsewhere a folder", advice="rename one of the two")
    read = {path: source for path, source in sources.items() if path not in written}
    tree = {path: _generated_file(path, data) for path, data in written.items()} | _read_files(read)
    return Tree(name, tuple(tree[path] for path in sorted(tree)))


def _read_files(sources: Mapping[str, str]) -> dict[str, TreeFile]:
    """Read the files at these paths: small ones here, large ones in threads, where hashing takes most of the time."""
    large = {path for path, source in sources.items() if _size(source) > _LARGE}
    with ThreadPoolExecutor(_READERS, thread_name_prefix="aisbench-stage") as pool:
        later = [pool.submit(_read_file, path, sources[path]) for path in sorted(large)]
        try:
            files = [_read_file(path, source) for path, source in sources.items() if path not in large]
            return {file.path: file for file in (*files, *(each.result() for each in later))}
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _size(source: str) -> int:
    try:
        return os.stat(source).st_size  # noqa: PTH116 - a Path takes as long as the question
    except OSError:  # reading the file will say it
        return 0


def _generated_file(path: str, data: bytes) -> TreeFile:
    sha256, md5 = hashlib.sha256(data), hashlib.md5(data, usedforsecurity=False)
    return TreeFile(
        path,
        "",
        executable=False,
        stamp=Stamp(len(data), 0, 0),
        sha256=sha256.hexdigest(),
        md5=md5.hexdigest(),
        written=data,
    )


def _parents(paths: Iterable[str]) -> set[str]:
    parents: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
    return parents


def _root(folder: Path) -> str:
    try:
        root = os.path.realpath(folder, strict=True)
    except OSError as error:
        raise UsageFault(f"cannot stage {folder}: {error.strerror}") from None
    if not Path(root).is_dir():
        raise UsageFault(f"cannot stage {folder}: it is not a folder")
    return root


def _walk(
    folder: str, prefix: str, above: tuple[tuple[int, int], ...], roots: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The relative path and the source of every file; `above` are the folders that contain this one."""
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except FileNotFoundError as error:
        _raise_vanished(folder, error)
    except OSError as error:
        raise UsageFault(f"cannot read folder {folder}: {error.strerror}", advice="make it readable") from None
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise UsageFault(f"{folder} is reached again by a link inside it, at {prefix}", advice="remove the link")
    for entry in entries:
        if _IGNORED.match(entry.name):
            continue
        path = prefix + entry.name
        _check_name(path, entry.path)
        target = Path(_link_target(entry.path, roots)) if entry.is_symlink() else None
        # The listing of a folder says what its entries are, without another question to the disk for each.
        if target.is_dir() if target else entry.is_dir(follow_symlinks=False):
            yield from _walk(str(target or entry.path), f"{path}/", (*above, here), roots)
        elif target.is_file() if target else entry.is_file(follow_symlinks=False):
            yield path, str(target or entry.path)
        else:
            raise UsageFault(f"{entry.path} is neither a file nor a folder", advice="move it out of what is staged")


def _link_target(link: str, roots: Sequence[str]) -> str:
    try:
        target = os.path.realpath(link, strict=True)
    except OSError as error:  # nothing there, or links in a circle
        raise UsageFault(f"the link {link} leads nowhere: {error.strerror}", advice="remove it") from None
    if not any(os.path.commonpath((root, target)) == root for root in roots):
        advice = "copy the file there, or name its folder as one to be staged"
        raise UsageFault(f"the link {link} leads outside, to {target}", advice=advice)
    return target


def _check_name(path: str, source: str) -> None:
    """Raise UsageFault for a name that a Store, an XML document or another machine would garble."""
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise UsageFault(f"the name of {source!r} is not UTF-8", advice="rename it") from None
    if _GARBLED.search(path):
        raise UsageFault(f"the name of {source!r} has a character that OBS keys should not have", advice="rename it")
    if length > _LONGEST_PATH:
        raise UsageFault(f"the path {path} is longer than {_LONGEST_PATH} bytes", advice="shorten it")


def _read_file(path: str, source: str) -> TreeFile:
    """The file with its digests; those of a file that has lain still for a while are taken from memory."""
    try:
        status = os.lstat(source)
    except OSError as error:
        _raise_vanished(source, error)
    stamp = Stamp.of(status)
    executable = bool(status.st_mode & stat.S_IXUSR)
    if (before := _READ.get(source)) and before.stamp == stamp and before.executable is executable:
        return replace(before, path=path)
    file = _read_now(path, source)
    # A file that is being written could change again within one tick of the disk's clock.
    still = file.stamp == stamp and time.time() - status.st_mtime > _STILL_S
    if still and file.size <= _LARGE and len(_READ) < _MOST_READ:
        _READ[source] = file
    return file


def _read_now(path: str, source: str) -> TreeFile:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        # Non-blocking: what was a file a moment ago may be a FIFO now.
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except PermissionError:
        raise UsageFault(f"cannot read {source}", advice="make it readable, or move it out of what is staged") from None
    except OSError as error:
        _raise_vanished(source, error)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise _changed(source)
        at_once, with_md5 = min(PIECE, before.st_size + 1), before.st_size <= _MD5_UP_TO
        try:
            while piece := os.read(descriptor, at_once):
                sha256.update(piece)
                if with_md5:
                    md5.update(piece)
        except OSError as error:
            raise StagingFailed(f"cannot read {source}: {error.strerror}") from None
        stamp = Stamp.of(os.fstat(descriptor))
    finally:
        os.close(descriptor)
    if stamp != Stamp.of(before):
        raise _changed(source)
    executable = bool(before.st_mode & stat.S_IXUSR)
    return TreeFile(path, source, executable, stamp, sha256.hexdigest(), md5.hexdigest() if with_md5 else None)


def _raise_vanished(source: str, error: OSError) -> NoReturn:
    raise StagingFailed(f"{source} vanished while it was staged: {error.strerror}", advice="try again") from None


def _changed(source: str) -> StagingFailed:
    return StagingFailed(f"{source} changed while it was staged", advice="try again when it is still")
