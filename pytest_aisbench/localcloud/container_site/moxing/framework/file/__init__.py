"""`mox.file`: the same functions for local files and for objects of OBS, whose paths begin with `s3://` or `obs://`.

Begin with `store` (requests to OBS), then `folders`, `opened` and `copying`. Scripts import this package only.
"""

from __future__ import annotations

from .copying import append_remote, copy, copy_parallel, remove, rename, shift
from .folders import (
    FileStatistics,
    exists,
    get_size,
    glob,
    is_directory,
    list_directory,
    make_dirs,
    mk_dir,
    scan_dir,
    stat,
    walk,
)
from .opened import File, append, read, write
from .store import (
    MoxFileNameDuplicateException,
    MoxFileNotExistsException,
    MoxFileReadException,
    MoxFileRespException,
    set_auth,
)

__all__ = [
    "File",
    "FileStatistics",
    "MoxFileNameDuplicateException",
    "MoxFileNotExistsException",
    "MoxFileReadException",
    "MoxFileRespException",
    "append",
    "append_remote",
    "copy",
    "copy_parallel",
    "exists",
    "get_size",
    "glob",
    "is_directory",
    "list_directory",
    "make_dirs",
    "mk_dir",
    "read",
    "remove",
    "rename",
    "scan_dir",
    "set_auth",
    "shift",
    "stat",
    "walk",
    "write",
]
