"""What one or more folders hold together, addressed by content.

Regular files only. A link counts as what it leads to, as long as that is inside the given folders. Empty folders
vanish: a Store has none. Caches and version control are left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from pytest_aisbench.errors import StagingFailed, UsageFault

FORMAT = "aisbench-tree/1"
_LEFT_OUT = ("__pycache__", ".git", "*.pyc", ".DS_Store")
_GARBLED = re.compile(r"[\x00-\x1f\x7f\\]")
_PIECE = 1024 * 1024
_LONGEST_PATH = 800  # bytes; a key has 1,024, and some of them are the place's


@dataclass(frozen=True)
class Stamp:
    """What changes when a file does."""

    size: int
    modified: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True)
class Leaf:
    """A file: `path` below the tree, `source` on this machine; or `written`, its bytes, where it is nowhere else."""

    path: str
    source: str
    executable: bool
    stamp: Stamp
    sha256: str
    md5: str
    written: bytes | None = None

    @property
    def size(self) -> int:
        return self.stamp.size

    def check_unchanged(self) -> None:
        if self.written is not None:
            return
        try:
            still = Stamp.of(Path(self.source).stat()) == self.stamp
        except OSError as error:
            _vanished(self.source, error)
        if not still:
            raise _changed(self.source)


@dataclass(frozen=True)
class Tree:
    """Leaves in the order of their paths, under the name that the folder has where it is used."""

    name: str
    leaves: tuple[Leaf, ...]

    @property
    def manifest(self) -> bytes:
        lines = [f"{FORMAT} {self.name}"]
        for leaf in self.leaves:
            lines.append(f"{leaf.sha256} {leaf.size} {'x' if leaf.executable else '-'} {leaf.path}")
        return "".join(f"{line}\n" for line in lines).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()


def plant(name: str, folders: Sequence[Path], more: Mapping[str, Path | bytes] | None = None) -> Tree:
    """Read every file below `folders`, which are laid over one another; no path may be in two of them.

    `more` are single files and where they go: those of this machine to a free path, written ones also in place of
    what is there.
    """
    _check_name(name, name)
    roots = tuple(_root(folder) for folder in folders)
    found: dict[str, str] = {}
    for folder, root in zip(folders, roots, strict=True):
        files = dict(_walk(root, "", (), roots))
        if not files:
            raise UsageFault(f"{folder} has no file to stage")
        for path in sorted(files.keys() & found.keys()):
            raise UsageFault(f"{path} is both {found[path]} and {files[path]}", advice="rename one of the two")
        found |= files
    for path, source in (more or {}).items():
        _check_name(path, path)
        if isinstance(source, Path) and found.get(path, str(source)) != str(source):
            raise UsageFault(f"{path} is both {found[path]} and {source}", advice="rename one of the two")
        found[path] = str(source) if isinstance(source, Path) else f"{path}, which is written for the job"
    written = {path: data for path, data in (more or {}).items() if isinstance(data, bytes)}
    for path in sorted(_parents(found) & found.keys()):
        raise UsageFault(f"{path} is a file, {found[path]}, and elsewhere a folder", advice="rename one of the two")
    leaves = (_written(path, written[path]) if path in written else _leaf(path, found[path]) for path in sorted(found))
    return Tree(name, tuple(leaves))


def _written(path: str, data: bytes) -> Leaf:
    sha256, md5 = hashlib.sha256(data), hashlib.md5(data, usedforsecurity=False)
    return Leaf(
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
    """The relative path and the source of every file; `above` are the folders that this one is inside of."""
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except FileNotFoundError as error:
        _vanished(folder, error)
    except OSError as error:
        raise UsageFault(f"cannot read folder {folder}: {error.strerror}", advice="make it readable") from None
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise UsageFault(f"{folder} is reached again by a link inside it, at {prefix}", advice="remove the link")
    for entry in entries:
        if any(fnmatchcase(entry.name, pattern) for pattern in _LEFT_OUT):
            continue
        path = prefix + entry.name
        _check_name(path, entry.path)
        source = _followed(entry.path, roots) if entry.is_symlink() else entry.path
        try:
            mode = Path(source).lstat().st_mode
        except OSError as error:
            _vanished(source, error)
        if stat.S_ISDIR(mode):
            yield from _walk(source, f"{path}/", (*above, here), roots)
        elif stat.S_ISREG(mode):
            yield path, source
        else:
            raise UsageFault(f"{entry.path} is neither a file nor a folder", advice="move it out of what is staged")


def _followed(link: str, roots: Sequence[str]) -> str:
    try:
        target = os.path.realpath(link, strict=True)
    except OSError as error:  # nothing there, or links in a circle
        raise UsageFault(f"the link {link} leads nowhere: {error.strerror}", advice="remove it") from None
    if not any(os.path.commonpath((root, target)) == root for root in roots):
        advice = "copy the file there, or name its folder as one to be staged"
        raise UsageFault(f"the link {link} leads outside, to {target}", advice=advice)
    return target


def _check_name(path: str, source: str) -> None:
    """Names that no Store, XML document or other machine would garble."""
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise UsageFault(f"the name of {source!r} is not UTF-8", advice="rename it") from None
    if _GARBLED.search(path):
        raise UsageFault(f"the name of {source!r} has a character that OBS keys should not have", advice="rename it")
    if length > _LONGEST_PATH:
        raise UsageFault(f"the path {path} is longer than {_LONGEST_PATH} bytes", advice="shorten it")


def _leaf(path: str, source: str) -> Leaf:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        # Not to block: what was a file a moment ago may be a FIFO now.
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except PermissionError:
        raise UsageFault(f"cannot read {source}", advice="make it readable, or move it out of what is staged") from None
    except OSError as error:
        _vanished(source, error)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise _changed(source)
        try:
            while piece := file.read(_PIECE):
                sha256.update(piece)
                md5.update(piece)
        except OSError as error:
            raise StagingFailed(f"cannot read {source}: {error.strerror}") from None
        stamp = Stamp.of(os.fstat(descriptor))
    if stamp != Stamp.of(before):
        raise _changed(source)
    executable = bool(before.st_mode & stat.S_IXUSR)
    return Leaf(path, source, executable, stamp, sha256.hexdigest(), md5.hexdigest())


def _vanished(source: str, error: OSError) -> NoReturn:
    raise StagingFailed(f"{source} vanished while it was staged: {error.strerror}", advice="try again") from None


def _changed(source: str) -> StagingFailed:
    return StagingFailed(f"{source} changed while it was staged", advice="try again when it is still")
