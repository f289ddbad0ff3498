"""`mox.file.shift('os', 'mox')`: Python's own functions take paths of OBS. Other paths go where they always went."""

from __future__ import annotations

import builtins
import functools
import glob
import os
import shutil

from . import copying, folders
from .opened import File
from .store import is_remote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Function = Callable[..., Any]

_originals: dict[tuple[str, str], Function] = {}


def _targets() -> list[tuple[Any, str, Function]]:
    return [
        (builtins, "open", File),
        (glob, "glob", lambda path, **_: folders.glob(path)),
        (os, "listdir", folders.list_directory),
        (os, "makedirs", lambda path, *_, **__: folders.make_dirs(path)),
        (os, "mkdir", lambda path, *_, **__: folders.mk_dir(path)),
        (os, "remove", lambda path, **_: copying.remove(path)),
        (os, "rename", lambda source, target, **_: copying.rename(source, target)),
        (os, "scandir", folders.scan_dir),
        (os, "stat", lambda path, **_: folders.stat(path)),
        (os, "walk", folders.walk),
        (os.path, "exists", folders.exists),
        (os.path, "getsize", folders.get_size),
        (os.path, "isdir", folders.is_directory),
        (os.path, "isfile", lambda path: folders.exists(path) and not folders.is_directory(path)),
        (shutil, "copyfile", lambda source, target, **_: copying.copy(source, target)),
        (shutil, "copytree", lambda source, target, **_: copying.copy_parallel(source, target)),
        (shutil, "rmtree", lambda path, *_, **__: copying.remove(path, recursive=True)),
    ]


def shift(src: str, dst: str) -> None:
    """From 'os' to 'mox', and back; twice is once."""
    if (src, dst) == ("os", "mox"):
        for module, name, function in _targets():
            original = _originals.setdefault((module.__name__, name), getattr(module, name))
            setattr(module, name, _chosen(original, function))
    elif (src, dst) == ("mox", "os"):
        for module, name, _ in _targets():
            setattr(module, name, _originals.pop((module.__name__, name), getattr(module, name)))
    else:
        raise ValueError(f"shift knows 'os' and 'mox', not {src!r} and {dst!r}")


def _chosen(original: Function, function: Function) -> Function:
    @functools.wraps(original)
    def choose(*arguments: Any, **options: Any) -> Any:
        # Two paths at most come first; of a copy either may be of OBS.
        return (function if any(map(is_remote, arguments[:2])) else original)(*arguments, **options)

    return choose
