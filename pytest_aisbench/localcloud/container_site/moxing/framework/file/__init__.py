"""Files here and in OBS by the same functions: paths that begin with `s3://` or `obs://` are objects."""

from __future__ import annotations

from .access import set_auth
from .copying import append_remote, copy, copy_parallel, remove, rename
from .errors import (
    MoxFileNameDuplicateException,
    MoxFileNotExistsException,
    MoxFileReadException,
    MoxFileRespException,
)
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
from .shifting import shift

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
