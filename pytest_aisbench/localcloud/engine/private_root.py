"""The file system of one node: the machine's, but with the folders of the node at the platform's paths.

A child of the node builds it in a new mount namespace (and a user namespace, unless it is root) and hands the
namespaces over as open files; the processes that the node starts enter them. The host sees none of the mounts and gets
no folder for them. The kernel drops them with the last process, so there is nothing to clean up after a kill.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pytest_aisbench.localcloud.engine import processes
from pytest_aisbench.localcloud.engine.processes import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Binds = Iterable[tuple[str, str]]

PATHS = ("/cache", "/home/ma-user", "/home/work", "/user/config", "/tmp")  # noqa: S108 - private, which is the point

_CLONE_NEWNS = 0x00020000
_MS_RELATIME, _MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 21, 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2


class Isolation(NamedTuple):
    """What keeps the nodes of this machine apart from it, and from each other."""

    namespace: processes.Namespace | None
    private: bool
    """True if jobs find the platform's paths."""
    text: str
    """One line that says what jobs find, or why they do not."""


@functools.cache
def isolation() -> Isolation:
    """Try what this machine allows, in a process of its own."""
    if not processes.LINUX:
        return Isolation(None, private=False, text=_without("only Linux has mount namespaces"))
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": os.environ.get("PATH", os.defpath)}
    import tempfile  # not above: nodes import this module, and must start fast

    with tempfile.TemporaryDirectory(prefix="aisbench-probe-") as folder:
        try:
            probe = subprocess.run(
                [sys.executable, "-S", "-m", __name__, folder],
                env=environment,
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            )
            namespace, private, problem = json.loads(probe.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return Isolation(None, private=False, text=_without(str(error)))
    text = f"every node has {_listed()} of its own" if private else _without(problem)
    return Isolation(processes.Namespace(*namespace) if namespace else None, private, text)


def pid_namespace() -> processes.Namespace | None:
    """What keeps the processes of a node together; None where the machine allows none."""
    return isolation().namespace


def container_support() -> tuple[bool, str]:
    """True if jobs find the platform's paths on this machine, and a line that says what they find or why not."""
    _, private, text = isolation()
    return private, text


def _listed() -> str:
    return f"{', '.join(PATHS[:-1])} and {PATHS[-1]}"


def _without(reason: str) -> str:
    return (
        f"no private mounts on this machine ({reason}): scripts that name {_listed()} meet the machine's own; "
        "those that go by MA_HOME, MA_JOB_DIR, TMPDIR and their arguments work"
    )


class PrivateRoot:
    """The namespaces of the file system; children enter them between fork and exec."""

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors  # the user namespace first: it gives the right to enter the other

    @classmethod
    def build(cls, root: str, binds: Binds, read_only: Iterable[str] = ()) -> PrivateRoot:
        """`binds`: folders of the host, each with its path in the node. `read_only`: folders of the host that the node
        sees and must not change. `root`: a folder to build in, which stays empty. Raises OSError where the machine does
        not allow it."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            builder = os.fork()
            if builder == 0:
                _build_and_send(theirs, root, binds, read_only)
            theirs.close()
            message, descriptors, _, _ = socket.recv_fds(ours, 1 << 12, 2)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(builder, 0)
        if not descriptors:
            raise OSError(message.decode(errors="replace") or "the process that builds the private mounts died")
        return cls(descriptors)

    def enter(self, folder: str) -> None:
        for descriptor in self._descriptors:
            call("setns", descriptor, 0)
        os.chdir(folder)


def _build_and_send(to: socket.socket, root: str, binds: Binds, read_only: Iterable[str]) -> NoReturn:
    """Everything that the child does; it must not return into its copy of the parent's program."""
    try:
        has_user_namespace = _unshare()
        _fill(root, {target: source for source, target in binds})
        for folder in read_only:
            _protect(root + folder)
        _change_root(root)
        names = ["user", "mnt"] if has_user_namespace else ["mnt"]
        socket.send_fds(to, [b"!"], [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names])
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        to.send(str(error).encode()[: 1 << 12] or repr(error).encode())
    finally:
        os._exit(0)


def _unshare() -> bool:
    """Enter a new mount namespace; return True if that took a user namespace."""
    try:
        call("unshare", _CLONE_NEWNS)
        privileged = True
    except PermissionError:
        processes.unshare_user(_CLONE_NEWNS)
        privileged = False
    call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    return not privileged


def _fill(root: str, sources: dict[str, str]) -> None:
    """Copy the machine's root to a file system in memory, by bind mounts, with `sources` at their paths."""
    call("mount", b"tmpfs", root.encode(), b"tmpfs", 0, b"mode=755,size=4m")
    parents = {str(parent) for target in sources for parent in Path(target).parents}
    _copy_folder("/", root, parents, set(sources))
    for target in sorted(sources, key=lambda path: path.count("/")):
        inside = root + target
        if os.path.isdir(sources[target]):  # noqa: PTH112 - a target is an absolute path: strings are joined
            os.makedirs(inside, exist_ok=True)  # noqa: PTH103
        else:
            os.close(os.open(inside, os.O_CREAT | os.O_CLOEXEC))
        _bind(sources[target], inside)
    call("mount", None, root.encode(), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None)


def _copy_folder(folder: str, copy: str, parents: set[str], left_out: set[str]) -> None:
    for entry in os.scandir(folder):
        target = f"{copy}/{entry.name}"
        if entry.path in left_out:
            continue
        if entry.path in parents and entry.is_dir():
            os.mkdir(target)  # noqa: PTH102
            _copy_folder(entry.path, target, parents, left_out)
        elif entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)  # noqa: PTH115, PTH211
        else:
            if entry.is_dir():
                os.mkdir(target)  # noqa: PTH102
            else:
                os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC))
            _bind(entry.path, target)


def _bind(source: str, target: str) -> None:
    call("mount", source.encode(), target.encode(), None, _MS_BIND | _MS_REC, None)


def _protect(folder: str) -> None:
    if os.path.isdir(folder):  # noqa: PTH112 - as above
        _bind(folder, folder)
        # In a user namespace no flag of the mount below may be dropped. Those of statvfs have the same numbers but one.
        flags = os.statvfs(folder).f_flag
        kept = flags & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
        kept |= _MS_RELATIME if flags & os.ST_RELATIME else 0
        call("mount", None, folder.encode(), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept, None)


def _change_root(root: str) -> None:
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def _probe(folder: str) -> Isolation:
    """Try the namespaces, the best first, and a file system as nodes have it."""
    namespace = next((each for each in processes.NAMESPACES if not _problem_of(lambda: processes.enter(each))), None)  # noqa: B023 - called at once

    def build() -> None:
        if namespace:
            processes.enter(namespace)
        _try_root(folder)

    problem = _problem_of(build)
    return Isolation(namespace, not problem, problem)


def _problem_of(attempt: Callable[[], None]) -> str:
    """What goes wrong in a child that makes the attempt; empty if nothing does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        text = file.read()
    _, status = os.waitpid(child, 0)
    return text or (f"exit code {processes.exit_code(status)}" if status else "")


def _try_root(folder: str) -> None:
    """Build and enter a file system as a node does; OSError where that fails."""
    source, root = Path(folder, "source"), Path(folder, "root")
    source.mkdir()
    root.mkdir()
    inside = PrivateRoot.build(str(root), [(str(source), path) for path in PATHS], [str(Path(__file__).parent)])
    inside.enter("/cache")
    Path("/user/config/seen").touch()
    if not Path("/tmp/seen").exists():  # noqa: S108
        raise OSError("the mounts are not where they should be")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_probe(sys.argv[1])))
