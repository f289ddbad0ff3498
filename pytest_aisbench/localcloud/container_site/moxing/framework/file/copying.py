"""From here to OBS, back, and within: files and folders."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from .access import store
from .errors import MoxFileNameDuplicateException, MoxFileNotExistsException
from .folders import exists, is_directory, make_dirs, objects_in
from .opened import File
from .store import is_remote, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_THREADS = 16
_CLASHES = (IsADirectoryError, NotADirectoryError, FileExistsError)


def copy(src_url: str, dst_url: str, client_id: object = None) -> None:
    """One file; folders are for `copy_parallel`."""
    if is_remote(src_url) and is_remote(dst_url):
        store().copy(split(src_url), *split(dst_url))
    elif is_remote(src_url):
        _download(src_url, dst_url)
    elif is_remote(dst_url):
        with open(src_url, "rb") as file:
            store().put(*split(dst_url), file)
    else:
        shutil.copyfile(src_url, dst_url)


def _download(url: str, path: str) -> None:
    """Whoever looks at the path sees the whole file or none."""
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


def copy_parallel(
    src_url: str,
    dst_url: str,
    file_list: Iterable[str] | None = None,
    threads: int = _THREADS,
    is_processing: bool = True,
    use_queue: bool = True,
    **_options: object,
) -> None:
    """What is in one folder goes to another; `file_list`: only these, by their paths from the folder."""
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


def _contents(url: str) -> tuple[list[str], list[str]]:
    """The paths of the files below, and of the folders that are told apart from them."""
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


def append_remote(src_url: str, dst_url: str) -> None:
    with File(src_url, "rb") as source, File(dst_url, "ab") as target:
        shutil.copyfileobj(source, target)


def remove(url: str, recursive: bool = False) -> None:
    """Of OBS: an object, and with `recursive` what lies below that name; what is not there, is no mistake."""
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
