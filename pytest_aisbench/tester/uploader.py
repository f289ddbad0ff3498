"""Brings what is spooled to the Tester: beside a run, in a thread of its own, or all that is left, at once."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aisbench.errors import AisbenchError, LedgerError, Refused, UsageFault
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.outbox import Outbox, PendingResult
from pytest_aisbench.ledger.runs import run_id
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.ports import Clock, HasTester
from pytest_aisbench.model.results import (
    ATTACHMENTS,
    PRIVATE,
    RESULTS,
    RUN_END,
    RUNS,
    CaseEntry,
    Destination,
    RunEnd,
    Transport,
    UploadItem,
    UploadState,
)
from pytest_aisbench.net import retry
from pytest_aisbench.tester import payload
from pytest_aisbench.tester.payload import attachment, of_stub
from pytest_aisbench.tester.transports import read_log, transport

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.model.ports import Platform

_LOG = get_logger("uploads")
_LONGEST_PAUSE_S = 30.0
_UNTRIED = "not tried yet"


class Words(Protocol):
    """What we know in the Tester's words."""

    def result(
        self, bound: Destination, run: str, case: CaseEntry, attempt: int, artifacts: list[dict[str, Any]]
    ) -> UploadItem: ...

    def end(self, bound: Destination, told: RunEnd, attempt: int) -> UploadItem: ...


def collect(spool: Outbox, words: Words, now: float, run: str | None = None) -> None:
    """Spool every verdict that is not, and how runs ended; on disk before it can be sent."""
    for found in spool.pending_results(now, run):
        spool.put(found.run, found.entry.id, RESULTS, found.record, partial(_result, words, found), now=now)
    for untold in spool.pending_ends(now, run):
        told = partial(words.end, untold.bound, untold.end)
        spool.put(untold.end.run, RUN_END, RUNS, untold.record, told, now=now)


def _result(words: Words, found: PendingResult, attempt: int) -> UploadItem:
    return words.result(found.bound, found.run, found.entry, attempt, _artifacts(found.bound, found.entry))


def _artifacts(bound: Destination, entry: CaseEntry) -> list[dict[str, Any]]:
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


def attempt(
    spool: Outbox, parcel: UploadItem, send: Callable[[UploadItem], None], clock: Clock
) -> AisbenchError | None:
    """Send it once and write down what became of it; an error is given back where it may still be delivered."""
    try:
        send(parcel)
    except AisbenchError as error:
        kept = error.retryable or isinstance(error, Refused)
        _LOG.info("%s of %s: %s: %s", parcel.kind, parcel.case, "kept for later" if kept else "given up", error)
        spool.set_state(
            parcel.key, UploadState.WAITING if kept else UploadState.DEAD, plain(str(error), 300), clock.now()
        )
        return error if kept else None
    spool.set_state(parcel.key, UploadState.DELIVERED, "", clock.now())
    _LOG.info("%s of %s: delivered", parcel.kind, parcel.case)
    return None


def deliver(spool: Outbox, parcels: list[UploadItem], transport: Transport, clock: Clock, patience_s: float) -> None:
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
            spool.set_state(other.key, UploadState.WAITING, plain(str(error), 300), clock.now())


class Courier:
    """Uploads the verdicts of one run as they come. Judging never waits for it."""

    def __init__(
        self,
        spool: Outbox,
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
            self._spool.set_state(parcel.key, UploadState.WAITING, parcel.why or _UNTRIED, self._clock.now())

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
                self._spool.set_state(
                    parcel.key, UploadState.WAITING, plain(str(self._refused), 300), self._clock.now()
                )
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


# -- Delivering what runs left in the spool, from another shell.


def flush(
    spool: Outbox, words: Words, open_transport: Callable[[str], Transport], clock: Clock, *, patience_s: float
) -> list[UploadItem]:
    """Deliver what is spooled of all runs, and what a killed run could not spool; what became of each."""
    spool.drop_private(clock.now())
    collect(spool, words, clock.now())
    spool.drop_private(clock.now())
    parcels = spool.waiting()
    by_tester: dict[str, list[UploadItem]] = {}
    for parcel in parcels:
        by_tester.setdefault(parcel.tester, []).append(parcel)
    for tester, bound in by_tester.items():
        with closing(open_transport(tester)) as transport:
            deliver(spool, bound, transport, clock, patience_s)
    return [found for parcel in parcels for found in spool.named(parcel.key)]


def requeue(spool: Outbox, beginning: str, clock: Clock) -> UploadItem:
    """A dead letter is to be tried again."""
    found = [parcel for parcel in spool.named(beginning) if parcel.state is UploadState.DEAD]
    if len(found) != 1:
        what = "no dead letter has" if not found else f"{len(found)} dead letters have"
        raise UsageFault(f"{what} a key that begins with {beginning!r}", advice="`aisbench flush --dead` shows them")
    spool.set_state(found[0].key, UploadState.WAITING, "to be tried again", clock.now())
    return replace(found[0], state=UploadState.WAITING)


# -- Where adapters, spool and the Tester's words meet: the desk of a suite, and the flushing of what runs left.

PATIENCE_S = 5.0  # at the end of a run, and of each call at the desk
_NAME = 80


def bound(settings: Settings, platform: Callable[[], Platform], folder: Path) -> Destination | None:
    """The Tester of the settings, or the platform's own; None where there is none, or none is wanted."""
    address, label = settings.tester, ""
    if address is None and isinstance(own := platform(), HasTester):
        address, label = own.tester, PRIVATE if own.private else "local cloud"
    if not address:
        return None
    papers = settings.tester_access
    return Destination(address, settings.platform, str(folder), label, papers.testid, papers.config, papers.system)


class Flushing:
    """What `aisbench flush` does, on a ledger that is open."""

    def __init__(self, settings: Settings, database: Database, patience_s: float) -> None:
        self._settings = settings
        self._spool = Outbox(database)
        self._clock = SystemClock()
        self._patience_s = patience_s

    def flush(self) -> list[UploadItem]:
        access = self._settings.tester_access
        opened = partial(transport, access=access)
        return flush(self._spool, payload, opened, self._clock, patience_s=self._patience_s)

    def dead(self) -> list[UploadItem]:
        return self._spool.dead()

    def requeue(self, beginning: str) -> None:
        requeue(self._spool, beginning, self._clock)

    def take_log(self, file: Path) -> None:
        """Spool the result of a test that ais-bench-stubs ran by itself; once, however often it is handed in."""
        if not self._settings.tester:
            raise UsageFault("there is no Tester for the log", advice="name one: --tester URL")
        told, papers = read_log(file), self._settings.tester_access
        to = Destination(self._settings.tester, "ais-bench-stubs", "", "", papers.testid, {}, papers.system)
        made = of_stub(to, told.config, told.info)
        self._spool.put(made.run, made.case, made.kind, made.body, lambda _: made, now=self._clock.now())


class Desk:
    """What the fixture `tester` gives: a Tester to hand things in at, with the promises that results have."""

    def __init__(self, settings: Settings, platform: Callable[[], Platform], run: str) -> None:
        self._clock = SystemClock()
        self.run = run or run_id(self._clock.now())
        found = bound(settings, platform, settings.reports / self.run)
        if found is None:
            advice = "name one: --aisbench-tester URL, or url in [tester] of aisbench.toml"
            raise UsageFault("there is no Tester", advice=advice)
        self._bound = found
        self._lock = threading.Lock()
        self._database = Database(settings.ledger_file)
        self._spool = Outbox(self._database)
        self._transport = transport(found.tester, settings.tester_access)

    @property
    def address(self) -> str:
        return self._bound.tester

    @property
    def uploads(self) -> list[UploadItem]:
        """Everything of this run, results of cases too, and what became of it."""
        return self._spool.of(self.run)

    def upload(self, name: str, data: Any) -> UploadItem:
        """Hand in JSON data. It is on disk before it is sent; `state` says whether the Tester has it, or `why` not."""
        if not name or len(name) > _NAME or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise UsageFault(f"{name[:_NAME]!r} is not a name", advice="letters, digits, '.', '_' and '-', 80 at most")
        try:
            record = json.dumps(data, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageFault(f"{name} cannot be written as JSON: {error}") from None
        with self._lock:
            make = partial(self._made, name, json.loads(record))
            made = self._spool.put(self.run, name, ATTACHMENTS, record, make, now=self._clock.now())
            deliver(self._spool, [made], self._transport, self._clock, PATIENCE_S)
        return next(parcel for parcel in self.uploads if parcel.key == made.key)

    def _made(self, name: str, data: Any, attempt: int) -> UploadItem:
        return attachment(self._bound, self.run, name, attempt, data)

    def close(self) -> None:
        if self._bound.label == PRIVATE:
            self._spool.drop_private(self._clock.now(), self.run)
        self._transport.close()
        self._database.close()
