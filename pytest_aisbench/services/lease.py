"""Whose jobs these are: a run that lives renews its lease, and nobody takes over what is leased."""

from __future__ import annotations

import logging
import os
import socket
import threading

from pytest_aisbench.domain.ports import Clock
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.services.ledger import Ledger

_LOG = get_logger("fleet")
LEASE_S = 12.0


class Lease:
    """Renewed by a thread of its own: the Fleet's may be busy with a long upload."""

    def __init__(self, ledger: Ledger, run: str, clock: Clock) -> None:
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
        while not self._end.wait(LEASE_S / 4):
            # A disk that is full now may have room in a moment, and a run that lives without a lease loses its jobs.
            # If it is not so, the Fleet meets the same ledger, and says it.
            with ignored(_LOG, LedgerError, "one renewal of the lease on our jobs", level=logging.WARNING):
                self._ledger.renew(self._run, self._clock.now() + LEASE_S)


def owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def is_held(other: str, lease: float, now: float) -> bool:
    """Whether a run that did not end may still be at work: its lease lasts, and its process is not known to be dead."""
    return lease > now and not is_dead(other)


def is_dead(other: str) -> bool:
    """Known to be dead: a process of this machine that is no more. Of other machines nothing is known."""
    host, _, pid = other.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
