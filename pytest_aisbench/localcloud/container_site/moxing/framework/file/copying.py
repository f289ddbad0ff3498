"""Copy, move and remove files and folders, locally, in OBS and between the two."""

from __future__ import annotations

import builtins
import functools
import glob
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from . import folders
from .folders import exists, is_directory, make_dirs, objects_in
from .opened import File
from .store import MoxFileNameDuplicateException, MoxFileNotExistsException, is_remote, split, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Function = Callable[..., Any]


_THREADS = 16
_CLASHES = (IsADirectoryError, NotADirectoryError, FileExistsError)
_originals: dict[tuple[str, str], Function] = {}


def copy(src_url: str, dst_url: str, client_id: object = None) -> None:
    """Copy one file; `copy_parallel` copies folders."""
    if is_remote(src_url) and is_remote(dst_url):
        store().copy(split(src_url), *split(dst_url))
    elif is_remote(src_url):
        _download(src_url, dst_url)
    elif is_remote(dst_url):
        with open(src_url, "rb") as file:
            store().put(*split(dst_url), file)
    else:
        shutil.copyfile(src_url, dst_url)


def copy_parallel(
    src_url: str,
    dst_url: str,
    file_list: Iterable[str] | None = None,
    threads: int = _THREADS,
    is_processing: bool = True,
    use_queue: bool = True,
    **_options: object,
) -> None:
    """Copy the contents of a folder; `file_list` restricts them to these paths, relative to the folder."""
    src_url, dst_url = os.fspath(src_url), os.fspath(dst_url)
    if not exists(src_url):
        raise MoxFileNotExistsException(src_url)
    if not is_directory(src_url):
        raise NotADirectoryError(f"{src_url} is no folder; copy a file with mox.file.copy")
    files, folders = _contents(src_url)
    if file_list is not None:
        files, folders = list(file_list), []
    for path in (*files, *folders):
        if ".." in PurePosixPath(path).parts or path.startswith("/"):
            raise ValueError(f"{path} leads out of {src_url}")
    if not is_remote(dst_url):
        _make_folders(dst_url, files, folders)
    elif not files:
        make_dirs(dst_url)
    with ThreadPoolExecutor(max(1, min(threads or _THREADS, len(files) or 1))) as pool:
        jobs = [pool.submit(copy, _join(src_url, path), _join(dst_url, path)) for path in files]
        for job in jobs:
            job.result()


def append_remote(src_url: str, dst_url: str) -> None:
    with File(src_url, "rb") as source, File(dst_url, "ab") as target:
        shutil.copyfileobj(source, target)


def remove(url: str, recursive: bool = False) -> None:
    """Remove a file or an object, and with `recursive` what lies below. An object that is not there is no error."""
    if not is_remote(url):
        if recursive and os.path.isdir(url):
            shutil.rmtree(url)
        else:
            os.remove(url)
        return
    bucket, key = split(url)
    keys = [entry.key for _, entry in objects_in(url)] if recursive else []
    if recursive and key.strip("/"):
        keys.append(f"{key.rstrip('/')}/")
    if key and not key.endswith("/"):
        keys.append(key)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda key: store().delete(bucket, key), keys))


def rename(src_url: str, dst_url: str) -> None:
    if not is_remote(src_url) and not is_remote(dst_url):
        os.rename(src_url, dst_url)
    elif is_directory(src_url):
        copy_parallel(src_url, dst_url)
        remove(src_url, recursive=True)
    else:
        copy(src_url, dst_url)
        remove(src_url)


def _download(url: str, path: str) -> None:
    """Write to a file beside it first: a reader sees the whole file or none."""
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            store().download(*split(url), file)
        os.replace(partial, path)
    except _CLASHES as clash:
        raise MoxFileNameDuplicateException(clash.errno, f"{path} is a folder here and a file in OBS") from clash
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def _contents(url: str) -> tuple[list[str], list[str]]:
    """The relative paths of the files in the folder, and of the folders that are listed separately."""
    if is_remote(url):
        paths = [path for path, _ in objects_in(url)]
        return [path for path in paths if not path.endswith("/")], [path for path in paths if path.endswith("/")]
    files: list[str] = []
    folders: list[str] = []
    for folder, names, file_names in os.walk(url):
        files += [os.path.relpath(os.path.join(folder, name), url) for name in file_names]
        folders += [os.path.relpath(os.path.join(folder, name), url) for name in names]
    return files, folders


def _make_folders(root: str, files: list[str], folders: list[str]) -> None:
    parents = {os.path.dirname(path) for path in files}
    try:
        for folder in sorted({"", *folders, *parents}):
            os.makedirs(os.path.join(root, folder), exist_ok=True)
    except _CLASHES as clash:
        raise MoxFileNameDuplicateException(clash.errno, f"{clash.filename} is a file and a folder") from clash


def _join(folder: str, path: str) -> str:
    return f"{folder.rstrip('/')}/{path}"


# `mox.file.shift('os', 'mox')`: Python's own functions take paths of OBS.


def shift(src: str, dst: str) -> None:
    """Replace functions of Python by those of this package, or put them back. A second call changes nothing."""
    if (src, dst) == ("os", "mox"):
        for module, name, function in _targets():
            original = _originals.setdefault((module.__name__, name), getattr(module, name))
            setattr(module, name, _chosen(original, function))
    elif (src, dst) == ("mox", "os"):
        for module, name, _ in _targets():
            setattr(module, name, _originals.pop((module.__name__, name), getattr(module, name)))
    else:
        raise ValueError(f"shift knows 'os' and 'mox', not {src!r} and {dst!r}")


def _targets() -> list[tuple[Any, str, Function]]:
    return [
        (builtins, "open", File),
        (glob, "glob", lambda path, **_: folders.glob(path)),
        (os, "listdir", folders.list_directory),
        (os, "makedirs", lambda path, *_, **__: folders.make_dirs(path)),
        (os, "mkdir", lambda path, *_, **__: folders.mk_dir(path)),
        (os, "remove", lambda path, **_: remove(path)),
        (os, "rename", lambda source, target, **_: rename(source, target)),
        (os, "scandir", folders.scan_dir),
        (os, "stat", lambda path, **_: folders.stat(path)),
        (os, "walk", folders.walk),
        (os.path, "exists", folders.exists),
        (os.path, "getsize", folders.get_size),
        (os.path, "isdir", folders.is_directory),
        (os.path, "isfile", lambda path: folders.exists(path) and not folders.is_directory(path)),
        (shutil, "copyfile", lambda source, target, **_: copy(source, target)),
        (shutil, "copytree", lambda source, target, **_: copy_parallel(source, target)),
        (shutil, "rmtree", lambda path, *_, **__: remove(path, recursive=True)),
    ]


def _chosen(original: Function, function: Function) -> Function:
    @functools.wraps(original)
    def choose(*arguments: Any, **options: Any) -> Any:
        # The first two arguments may be paths; either path of a copy may be in OBS.
        return (function if any(map(is_remote, arguments[:2])) else original)(*arguments, **options)

    return choose
