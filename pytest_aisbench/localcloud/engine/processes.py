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
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from ctypes import CDLL


LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
# A private /proc first: without it, programs that look themselves up in /proc by pid find another process. Root needs
# no user namespace; other users keep their number, since mpirun and others refuse to run as root.
_NAMESPACES = (
    (*_PID_NAMESPACE, "--mount-proc"),
    (*_PID_NAMESPACE, "--mount-proc", "--user", "--map-current-user"),
    _PID_NAMESPACE,
    (*_PID_NAMESPACE, "--user", "--map-root-user"),
)


@functools.cache
def namespace() -> tuple[str, ...]:
    """The command that runs what follows it in a new pid namespace; empty where the machine allows none."""
    import shutil  # not above: nodes import this module, and must start fast

    if not LINUX or shutil.which("unshare") is None:
        return ()
    for command in _NAMESPACES:
        try:
            subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            import logging

            logging.getLogger(__name__).debug("no pid namespace by %s: %s", " ".join(command), error)
        else:
            return command
    return ()


# For the node process.


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
        libc().prctl(option, value, 0, 0, 0)


@functools.cache
def libc() -> CDLL:
    import ctypes  # only processes that start others need it

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
