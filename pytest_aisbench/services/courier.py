"""Brings what is spooled to the Tester: beside a run, in a thread of its own, or all that is left, at once."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pytest_aisbench.domain.entry import CaseEntry
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.ports import Clock
from pytest_aisbench.domain.upload import END, RESULTS, RUNS, Bound, End, Parcel, State, Transport
from pytest_aisbench.errors import AisbenchError, LedgerError, Refused
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.net import retry
from pytest_aisbench.services.spool import Spool, Unspooled

_LOG = get_logger("uploads")
_LONGEST_PAUSE_S = 30.0
_UNTRIED = "not tried yet"


class Words(Protocol):
    """What we know in the Tester's words."""

    def result(
        self, bound: Bound, run: str, case: CaseEntry, attempt: int, artifacts: list[dict[str, Any]]
    ) -> Parcel: ...

    def end(self, bound: Bound, told: End, attempt: int) -> Parcel: ...


def collect(spool: Spool, words: Words, now: float, run: str | None = None) -> None:
    """Spool every verdict that is not, and how runs ended; on disk before it can be sent."""
    for found in spool.unspooled(now, run):
        spool.put(found.run, found.entry.id, RESULTS, found.record, partial(_result, words, found), now=now)
    for untold in spool.untold(now, run):
        told = partial(words.end, untold.bound, untold.end)
        spool.put(untold.end.run, END, RUNS, untold.record, told, now=now)


def _result(words: Words, found: Unspooled, attempt: int) -> Parcel:
    return words.result(found.bound, found.run, found.entry, attempt, _artifacts(found.bound, found.entry))


def _artifacts(bound: Bound, entry: CaseEntry) -> list[dict[str, Any]]:
    """The logs of the trial that decided, as far as they are there."""
    found = []
    for name in entry.trials[-1].logs if entry.trials else ():
        with ignored(_LOG, OSError, "the checksum of %s in what is uploaded", name, level=logging.WARNING):
            digest, size = hashlib.sha256(), 0
            with (Path(bound.folder) / name).open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    size += len(block)
            found.append({"name": plain(name), "sha256": digest.hexdigest(), "size": size})
    return found


def attempt(spool: Spool, parcel: Parcel, send: Callable[[Parcel], None], clock: Clock) -> AisbenchError | None:
    """Send it once and write down what became of it; an error is given back where it may still be delivered."""
    try:
        send(parcel)
    except AisbenchError as error:
        kept = error.retryable or isinstance(error, Refused)
        _LOG.info("%s of %s: %s: %s", parcel.kind, parcel.case, "kept for later" if kept else "given up", error)
        spool.settle(parcel.key, State.SPOOLED if kept else State.DEAD, plain(str(error), 300), clock.now())
        return error if kept else None
    spool.settle(parcel.key, State.DELIVERED, "", clock.now())
    _LOG.info("%s of %s: delivered", parcel.kind, parcel.case)
    return None


def deliver(spool: Spool, parcels: list[Parcel], transport: Transport, clock: Clock, patience_s: float) -> None:
    """All of them to one Tester, in turn, until none is left or patience is at its end."""
    left, deadline = deque(parcels), clock.now() + patience_s

    def send_next() -> None:
        parcel = left.popleft()
        if error := attempt(spool, parcel, transport.send, clock):
            left.append(parcel)  # the next attempt is at another one, which may fare better
            raise error

    try:
        while left:
            retry.call(
                send_next,
                patience_s=deadline - clock.now(),
                longest_pause_s=_LONGEST_PAUSE_S,
                now=clock.now,
                sleep=clock.sleep,
            )
    except AisbenchError as error:
        for other in left:  # what one is told, all are told
            spool.settle(other.key, State.SPOOLED, plain(str(error), 300), clock.now())


class Courier:
    """Uploads the verdicts of one run as they come. Judging never waits for it."""

    def __init__(
        self,
        spool: Spool,
        run: str,
        *,
        words: Words,
        transport: Transport,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        self._spool = spool
        self._run = run
        self._words = words
        self._transport = transport
        self._clock = clock
        self._warn = warn
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._quiet_until = 0.0  # as the Tester asked
        self._refused: AisbenchError | None = None
        self._thread = threading.Thread(target=self._work, name="aisbench-courier", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something was judged."""
        self._woken.set()

    def close(self, patience_s: float) -> None:
        """Everything is spooled; what is not delivered after so long stays so."""
        collect(self._spool, self._words, self._clock.now(), self._run)
        self._closing.set()
        self._woken.set()
        self._thread.join(patience_s)
        self._given_up.set()
        for parcel in self._spool.waiting(self._run):
            self._spool.settle(parcel.key, State.SPOOLED, parcel.why or _UNTRIED, self._clock.now())

    def _work(self) -> None:
        pauses = retry.Pauses(_LONGEST_PAUSE_S)
        while not self._given_up.is_set():
            closing = self._closing.is_set()
            self._woken.clear()
            try:
                pause = self._round(pauses)
            except LedgerError as error:  # whoever judges meets the same ledger, and says it
                pause = pauses.after(error)
                log_ignored(_LOG, error, "one round of uploads", level=logging.WARNING)
            if closing and pause is None:
                return
            if closing:
                self._given_up.wait(pause)
            elif pause is None:
                self._woken.wait()
            elif self._closing.wait(pause):
                pauses.reset()  # the end of the run is worth another try

    def _round(self, pauses: retry.Pauses) -> float | None:
        """Every parcel once; how long to wait before the next round, None where nothing is left to be tried."""
        collect(self._spool, self._words, self._clock.now(), self._run)
        pause: float | None = None
        for parcel in self._spool.waiting(self._run):
            if self._clock.now() < self._quiet_until:
                return self._quiet_until - self._clock.now()
            if self._refused:
                self._spool.settle(parcel.key, State.SPOOLED, plain(str(self._refused), 300), self._clock.now())
                continue
            error = attempt(self._spool, parcel, self._transport.send, self._clock)
            if error is None:
                pauses.reset()
            elif error.retryable:
                pause = pauses.after(error)
                self._quiet_until = self._clock.now() + error.pause_s
            else:
                self._refused = error
                self._warn(f"the Tester does not take results now, they are spooled: {plain(str(error), 300)}")
        return pause
