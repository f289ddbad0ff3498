"""Whose the jobs of a run are: its process's, as long as that lives.

A run writes a heartbeat into the ledger every few seconds. Another run may take its jobs once the process is known to
have ended, or once no heartbeat came while the other watched for as long as a lease lasts. Clocks of two machines are
compared nowhere: one may be minutes behind. That a run was thought dead and lives does no harm either: whoever takes a
trial raises its fence, and the former owner neither writes it nor asks the platform to change its job.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.ports import Clock

LEASE_S = 12.0  # without a heartbeat; then the run counts as dead
_BEAT_S = LEASE_S / 4
_LOOK_S = 0.5
_ABSURD_S = 3600.0  # no run writes a lease that ends so much later than now
_LONG_S = 86400.0  # no two clocks differ by so much
_LOG = get_logger("fleet")
_PROC = Path("/proc")
_STAT = re.compile(r".*\) (\S)(?: \S+){18} (\d+)", re.DOTALL)  # the state and the start; a name may contain `)`


class Lease:
    """Writes a run's heartbeat in a thread of its own, and sees that the ledger is still there: the Fleet's threads may
    be busy for long, and jobs may run for hours before the next change is saved."""

    def __init__(self, ledger: Ledger, run: str, clock: Clock, lost: Callable[[LedgerError], None]) -> None:
        """`lost` is called once if the ledger's file is gone."""
        self._lost = lost
        self._ledger = ledger
        self._run = run
        self._clock = clock
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="aisbench-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._end.wait(_BEAT_S):
            # A full disk may have room in a moment, and a run without a heartbeat loses its jobs. If the error lasts,
            # the Fleet meets and reports it.
            with ignored(_LOG, LedgerError, "one heartbeat of this run", level=logging.WARNING):
                self._ledger.renew(self._run, self._clock.now() + LEASE_S)
            try:
                self._ledger.database.check_file()
            except LedgerError as error:
                self._lost(error)
                return


def runs_with_heartbeat(ledger: Ledger, runs: Iterable[str], clock: Clock) -> set[str]:
    """Those of the runs whose heartbeat moves while we watch, for as long as a lease lasts at most."""
    before, alive = ledger.heartbeats(runs), set[str]()
    deadline = clock.now() + LEASE_S
    watched = set(before)
    while watched and (rest := deadline - clock.now()) > 0:
        clock.sleep(min(_LOOK_S, rest))
        now = ledger.heartbeats(watched)  # without those that have ended meanwhile
        alive |= {run for run, heartbeat in now.items() if heartbeat != before[run]}
        watched = set(now) - alive
    return alive


def is_absurd(lease: float, now: float) -> bool:
    """True if no run wrote this lease: a clock was wrong by hours, or the file was changed by hand."""
    return math.isnan(lease) or lease - now > _ABSURD_S


class Liveness(enum.Enum):
    """Whether a process lives, as far as this one can see."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


def this_process() -> str:
    """`host:pid`, and what tells this process from every other of that number: boot, pid namespace, start."""
    return " ".join(filter(None, (f"{_host()}:{os.getpid()}", _sight(), _start(os.getpid()))))


def liveness(owner: str) -> Liveness:
    """Whether the process that `this_process` named lives. Its machine may have started anew, and its number may have
    been given to another process; of other machines and of other containers nothing is known."""
    if not owner:
        return Liveness.DEAD  # the first version named none, and no process of it is left
    if owner == this_process():
        return Liveness.UNKNOWN  # another run of this very process: it has a heartbeat, or has ended
    name, *identity = owner.split(" ")
    host, _, pid = name.rpartition(":")
    if not pid.isdigit():
        return Liveness.UNKNOWN
    if len(identity) != 3:  # an older version wrote it, or a system that tells no more
        return Liveness.DEAD if host == _host() and not _exists(int(pid)) else Liveness.UNKNOWN
    *sight, started = identity
    if " ".join(sight) != _sight():
        return Liveness.UNKNOWN
    if start := _start(int(pid)):
        return Liveness.ALIVE if start == started else Liveness.DEAD
    return Liveness.UNKNOWN if _exists(int(pid)) else Liveness.DEAD


def is_held(owner: str, lease: float, now: float) -> bool:
    """True if an unfinished run may be alive, without waiting for its heartbeat.

    Of a process that we cannot see, its lease is believed: enough to leave its uploads to it, not to take its jobs.
    """
    state = liveness(owner)
    return state is Liveness.ALIVE or (state is Liveness.UNKNOWN and lease > now)


def is_long_dead(owner: str, lease: float, now: float) -> bool:
    """True if an unfinished run is known to be dead, or if it was last alive on another day."""
    state = liveness(owner)
    return state is Liveness.DEAD or (state is Liveness.UNKNOWN and now - lease > _LONG_S)


def _host() -> str:
    import socket

    return socket.gethostname()


@lru_cache(maxsize=1)
def _sight() -> str:
    """The boot of this machine and the pid namespace: processes that share both see each other. Empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError as error:
        log_ignored(_LOG, error, "the boot and the pid namespace of this process")
        return ""


def _start(pid: int) -> str:
    """When the process started, in ticks since the boot; another text if it has ended, none if it cannot be seen."""
    try:
        match = _STAT.match((_PROC / str(pid) / "stat").read_text(errors="replace"))
    except OSError:  # there is none, or another user's is hidden
        return ""
    if match is None:
        return ""
    return "ended" if match[1] in "ZX" else match[2]  # no one has asked yet how it ended


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
