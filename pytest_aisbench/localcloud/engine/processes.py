"""How processes of jobs are started and ended so that none is left, whoever dies first.

A node runs in a pid namespace of its own where the machine allows it: the kernel then ends everything in it with
its first process. Elsewhere the node adopts its orphans (subreaper) and walks /proc, and the engine looks for what
still carries the job's mark after a node was killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
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
# A private /proc first: without it programs that look themselves up in /proc by pid find a stranger. As root no
# user namespace is needed; otherwise the user keeps his own number, since mpirun and others refuse to run as root.
_NAMESPACES = (
    (*_PID_NAMESPACE, "--mount-proc"),
    (*_PID_NAMESPACE, "--mount-proc", "--user", "--map-current-user"),
    _PID_NAMESPACE,
    (*_PID_NAMESPACE, "--user", "--map-root-user"),
)


@functools.cache
def namespace() -> tuple[str, ...]:
    """The command that puts what follows it into a pid namespace of its own; empty where that is not allowed."""
    if not LINUX or shutil.which("unshare") is None:
        return ()
    for command in _NAMESPACES:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            probe = subprocess.run(
                [*command, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
            )
            if probe.returncode == 0:
                return command
    return ()


def _prctl(option: int, value: int) -> None:
    if LINUX:
        _libc().prctl(option, value, 0, 0, 0)


@functools.cache
def _libc() -> CDLL:
    import ctypes  # only processes that start others need it

    return ctypes.CDLL(None)


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """For a child between fork and exec. Meant is the parent's THREAD: fork from one that lives long."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_code(status: int) -> int:
    """As a shell says it: 128 + n for a process that signal n ended."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def reap() -> Iterator[tuple[int, int]]:
    """Every child that has ended, adopted ones too, with its exit code; returns when the others still run."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, exit_code(status)


def signal_groups(leaders: Iterable[int], number: int) -> None:
    for pid in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def kill_descendants() -> None:
    """End every descendant of this process, whatever session or group it moved to, and reap it."""
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
            _kill(_descendants(os.getpid()))
        time.sleep(delay)
        delay = min(delay * 2, 0.05)


def kill_marked(mark: str) -> None:
    """End every process of ours whose environment has the entry `mark` (`NAME=value`)."""
    entry = mark.encode()
    while marked := [pid for pid in _pids() if entry in _environment(pid)]:
        _kill(marked)
        time.sleep(0.01)


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
    except OSError:  # gone, a zombie, or somebody else's
        return []


def _descendants(ancestor: int) -> list[int]:
    return _below(ancestor, _children(_stats()))


def families(ancestors: Iterable[int]) -> dict[int, tuple[float, int]]:
    """Of each with its descendants: the CPU time so far, in seconds, and the bytes of memory it holds now."""
    stats = _stats()
    children = _children(stats)
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found = {}
    for ancestor in ancestors:
        members = [stats[pid] for pid in (ancestor, *_below(ancestor, children)) if pid in stats]
        # With the children that it waited for: what a process used is not lost when it ends.
        ticks = sum(int(field) for stat in members for field in stat[11:15])
        found[ancestor] = ticks / tick, sum(int(stat[21]) for stat in members) * page
    return found


def _stats() -> dict[int, list[bytes]]:
    """The fields of /proc/PID/stat behind the name, which is in brackets and may hold anything: state, parent, …"""
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
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return found
