"""Start and end the processes of jobs so that none is left, also where the cloud or a node is killed.

Where the machine allows it, a node runs in a pid namespace: the kernel then ends everything in it with its first
process. Elsewhere the node adopts its orphans (subreaper) and walks /proc, and after a node was killed the engine
searches for the processes that carry the mark of the job.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from ctypes import CDLL


LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8


class Namespace(NamedTuple):
    """A pid namespace, and what the machine wants with it."""

    own_proc: bool
    """A private /proc: without it, programs that look themselves up in /proc by pid find another process."""
    user: str = ""
    """The user namespace: none, or the user is the `same` or `root` in it. Root needs none; other users keep their
    number if possible, since mpirun and others refuse to run as root."""


NAMESPACES = (
    Namespace(own_proc=True),
    Namespace(own_proc=True, user="same"),
    Namespace(own_proc=False),
    Namespace(own_proc=False, user="root"),
)
"""The best first."""


def enter(namespace: Namespace) -> None:
    """Go on as the first process of a new pid namespace; OSError where the machine does not allow it.

    What goes on is a child: this process waits for it and ends with its exit code, and if this one is killed, the
    kernel kills the child, and with it everything in the namespace."""
    flags = _CLONE_NEWPID | (_CLONE_NEWNS if namespace.own_proc else 0)
    if namespace.user:
        unshare_user(flags, as_root=namespace.user == "root")
    else:
        call("unshare", flags)
    if child := os.fork():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the child obeys them
        os.closerange(0, 3)  # so that the child alone holds the pipes to the cloud
        _, status = os.waitpid(child, 0)
        os._exit(exit_code(status))
    die_with_parent()
    if namespace.own_proc:
        call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def unshare_user(flags: int, *, as_root: bool = False) -> None:
    """Enter new namespaces, and a user namespace that allows them."""
    user, group = os.getuid(), os.getgid()
    call("unshare", _CLONE_NEWUSER | flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{0 if as_root else user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{0 if as_root else group} {group} 1")


# For the processes that nodes are, and that starts them.


class SignalPipe:
    """Readable when a child has ended, or another signal with a handler has come."""

    def __init__(self) -> None:
        self._read, self._written = os.pipe()
        for end in (self._read, self._written):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def fileno(self) -> int:
        return self._read

    def reset(self) -> None:
        """Readable no longer, until the next signal."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._written)


def adopt_orphans() -> None:
    """Make descendants whose parent dies children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """For a child between fork and exec. It dies with the THREAD that forked it, so fork from one that lives long."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def reap() -> Iterator[tuple[int, int]]:
    """Yield each child that has ended, adopted ones too, with its exit code; return while others still run."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, exit_code(status)


def exit_code(status: int) -> int:
    """The exit code as a shell gives it: 128 + n for a process that signal n ended."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def signal_groups(leaders: Iterable[int], number: int) -> None:
    for pid in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def kill_descendants() -> None:
    """End and reap every descendant of this process, whatever session or group it moved to."""
    delay = 0.001
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            _kill(_below(os.getpid(), _children(_stats())))
        time.sleep(delay)
        delay = min(delay * 2, 0.05)


def _prctl(option: int, value: int) -> None:
    if LINUX:
        _libc().prctl(option, value, 0, 0, 0)


def call(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library; OSError where it returns an error."""
    import ctypes  # only processes that start others need it

    if getattr(_libc(), name)(*arguments):
        number = ctypes.get_errno()
        text = " ".join(os.fsdecode(argument) for argument in arguments[:2] if isinstance(argument, bytes))
        raise OSError(number, f"{name} {text}".rstrip() + f": {os.strerror(number)}")


@functools.cache
def _libc() -> CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


# For the engine: what /proc says about the processes of nodes.


def kill_marked(mark: str) -> None:
    """End every process of this user whose environment has the entry `mark` (`NAME=value`)."""
    entry = mark.encode()
    while marked := [pid for pid in _pids() if entry in _environment(pid)]:
        _kill(marked)
        time.sleep(0.01)


def families(ancestors: Iterable[int]) -> dict[int, tuple[float, int]]:
    """For each ancestor with its descendants: the CPU time so far, in seconds, and the memory in use, in bytes."""
    stats = _stats()
    children = _children(stats)
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    usage = {}
    for ancestor in ancestors:
        members = [stats[pid] for pid in (ancestor, *_below(ancestor, children)) if pid in stats]
        # Fields 11 to 14 include children that have ended, so their time is not lost.
        ticks = sum(int(field) for stat in members for field in stat[11:15])
        usage[ancestor] = ticks / tick, sum(int(stat[21]) for stat in members) * page
    return usage


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _pids() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return []


def _stats() -> dict[int, list[bytes]]:
    """The fields of /proc/PID/stat behind the name in brackets, which may hold anything: state, parent, …"""
    stats = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            stats[pid] = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return stats


def _children(stats: Mapping[int, list[bytes]]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(int(stat[1]), []).append(pid)
    return children


def _below(ancestor: int, children: Mapping[int, list[int]]) -> list[int]:
    descendants: list[int] = []
    waiting = [ancestor]
    while waiting:
        born = children.get(waiting.pop(), [])
        descendants += born
        waiting += born
    return descendants
