"""Sends what the outbox holds to the Tester.

The outbox (`ledger/outbox.py`) keeps each upload on disk until the Tester has it. Three callers empty it: a run's
`Uploader`, in a thread beside the jobs; `aisbench flush`, for what earlier runs left (`Flusher`); and the fixture
`tester`, for what a test hands in itself (`TesterClient`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.errors import AisbenchError, LedgerError, Refused, UsageFault
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.outbox import Outbox, PendingResult
from pytest_aisbench.ledger.runs import run_id
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.ports import Clock, HasTester, HasTesterToken, Platform
from pytest_aisbench.model.results import (
    ATTACHMENTS,
    PRIVATE,
    RESULTS,
    RUN_END,
    RUNS,
    CaseEntry,
    Destination,
    Transport,
    UploadItem,
    UploadState,
)
from pytest_aisbench.net import retry
from pytest_aisbench.tester.payload import attachment_upload, end_upload, result_upload, stub_upload
from pytest_aisbench.tester.transports import make_transport, read_stub_log

if TYPE_CHECKING:
    from pytest_aisbench.config.access import TesterAccess
    from pytest_aisbench.config.settings import Settings

_LOG = get_logger("uploads")
PATIENCE_S = 5.0  # at the end of a run, and of each call of TesterClient
_LONGEST_PAUSE_S = 30.0
_LONGEST_NAME = 80
_PUNCTUATION = str.maketrans("", "", "-_.")
_UNTRIED = "not tried yet"
_GATHER_S = 0.05  # verdicts that come within that time enter the outbox by one commit
_TOGETHER = 50  # so many at the most: other threads wait for the ledger meanwhile


def find_destination(settings: Settings, platform: Callable[[], Platform], folder: Path) -> Destination | None:
    """The Tester of the settings, else the platform's own; None if there is none, or the user wants none."""
    address, label = settings.tester, ""
    if address is None and isinstance(own := platform(), HasTester):
        address, label = own.tester, PRIVATE if own.private else "local cloud"
    if not address:
        return None
    access = settings.tester_access
    return Destination(address, settings.platform, str(folder), label, access.testid, access.config, access.system)


def tester_access(settings: Settings, platform: Callable[[], Platform], destination: Destination) -> TesterAccess:
    """The table `[tester]`; for the platform's own Tester with that one's token."""
    return with_own_token(settings.tester_access, platform()) if destination.label else settings.tester_access


def with_own_token(access: TesterAccess, platform: Platform) -> TesterAccess:
    if isinstance(platform, HasTesterToken):
        return replace(access, url=platform.tester, token=platform.tester_token)
    return access


# Filling the outbox


def fill_outbox(outbox: Outbox, now: float, run: str | None = None) -> None:
    """Put verdicts and ends of runs that the ledger has and the outbox has not into the outbox.

    Of one run, or of all runs that are over.
    """
    put_results(outbox, outbox.pending_results(now, run), now)
    for end in outbox.pending_ends(now, run):
        outbox.put(end.end.run, RUN_END, RUNS, end.record, partial(end_upload, end.bound, end.end), now=now)


def put_results(outbox: Outbox, results: Sequence[PendingResult], now: float) -> None:
    for start in range(0, len(results), _TOGETHER):
        some = results[start : start + _TOGETHER]
        artifacts = [_artifacts(each.bound, each.entry) for each in some]  # reads files: not inside the transaction
        with outbox.together():
            for each, files in zip(some, artifacts, strict=True):
                make = partial(_result, each, files)
                outbox.put(each.run, each.entry.id, RESULTS, each.record, make, now=now)


def _result(verdict: PendingResult, artifacts: list[dict[str, Any]], attempt: int) -> UploadItem:
    return result_upload(verdict.bound, verdict.run, verdict.entry, attempt, artifacts)


def _artifacts(destination: Destination, entry: CaseEntry) -> list[dict[str, Any]]:
    """Name, checksum and size of each log of the last trial that is on disk."""
    artifacts = []
    for name in entry.trials[-1].logs if entry.trials else ():
        with ignored(_LOG, OSError, "the checksum of %s in what is uploaded", name, level=logging.WARNING):
            digest, size = hashlib.sha256(), 0
            with (Path(destination.folder) / name).open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    size += len(block)
            artifacts.append({"name": plain(name), "sha256": digest.hexdigest(), "size": size})
    return artifacts


# Sending


def send_once(
    outbox: Outbox, upload: UploadItem, send: Callable[[UploadItem], None], clock: Clock
) -> AisbenchError | None:
    """Send an upload once and write its new state to the outbox; the error, if a later attempt may succeed."""
    try:
        send(upload)
    except AisbenchError as error:
        kept = error.retryable or isinstance(error, Refused)
        _LOG.info("%s of %s: %s: %s", upload.kind, upload.case, "kept for later" if kept else "given up", error)
        outbox.set_state(
            upload.key, UploadState.WAITING if kept else UploadState.DEAD, plain(str(error), 300), clock.now()
        )
        return error if kept else None
    outbox.set_state(upload.key, UploadState.DELIVERED, "", clock.now())
    _LOG.info("%s of %s: delivered", upload.kind, upload.case)
    return None


def send_all(outbox: Outbox, uploads: list[UploadItem], transport: Transport, clock: Clock, patience_s: float) -> None:
    """Send uploads to one Tester, in turn, until it has all of them or `patience_s` is over."""
    left, deadline = deque(uploads), clock.now() + patience_s

    def send_next() -> None:
        upload = left.popleft()
        if error := send_once(outbox, upload, transport.send, clock):
            left.append(upload)  # the next attempt sends another one, which may succeed
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
        for other in left:  # the Tester's answer to one holds for all
            outbox.set_state(other.key, UploadState.WAITING, plain(str(error), 300), clock.now())


class Uploader:
    """Uploads the verdicts of one run as they come, in a thread of its own. Judging never waits for it."""

    def __init__(
        self, outbox: Outbox, run: str, *, transport: Transport, clock: Clock, warn: Callable[[str], None]
    ) -> None:
        self._outbox = outbox
        self._run = run
        self._transport = transport
        self._clock = clock
        self._warn = warn
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._quiet_until = 0.0  # as the Tester asked
        self._refused: AisbenchError | None = None
        self._new: deque[CaseEntry] = deque()
        self._thread = threading.Thread(target=self._work, name="aisbench-uploader", daemon=True)
        self._thread.start()

    def add(self, entry: CaseEntry) -> None:
        """Upload the case's verdict, if it has one."""
        if entry.verdict:
            self._new.append(entry)
            self._woken.set()

    def close(self, patience_s: float) -> None:
        """Put the last verdicts into the outbox and send for at most so long; the rest stays in the outbox."""
        fill_outbox(self._outbox, self._clock.now(), self._run)
        self._closing.set()
        self._woken.set()
        self._thread.join(patience_s)
        self._given_up.set()
        for upload in self._outbox.waiting(self._run):
            self._outbox.set_state(upload.key, UploadState.WAITING, upload.why or _UNTRIED, self._clock.now())

    def _work(self) -> None:
        pauses = retry.Pauses(_LONGEST_PAUSE_S)
        while not self._given_up.is_set():
            closing = self._closing.is_set()
            self._woken.clear()
            try:
                pause = self._round(pauses)
            except LedgerError as error:  # the run's own thread meets the same ledger, and reports it
                pause = pauses.after(error)
                log_ignored(_LOG, error, "one round of uploads", level=logging.WARNING)
            if closing and pause is None:
                return
            if closing:
                self._given_up.wait(pause)
            elif pause is None:
                self._woken.wait()
                self._closing.wait(_GATHER_S)
            elif self._closing.wait(pause):
                pauses.reset()  # the end of the run is worth another try

    def _round(self, pauses: retry.Pauses) -> float | None:
        """Send every upload that waits once; the pause before the next round, None if none is needed."""
        new = [self._new.popleft() for _ in range(len(self._new))]
        put_results(self._outbox, self._outbox.results_of(self._run, new), self._clock.now())
        pause: float | None = None
        for upload in self._outbox.waiting(self._run):
            if self._clock.now() < self._quiet_until:
                return self._quiet_until - self._clock.now()
            if self._refused:
                self._outbox.set_state(
                    upload.key, UploadState.WAITING, plain(str(self._refused), 300), self._clock.now()
                )
                continue
            error = send_once(self._outbox, upload, self._transport.send, self._clock)
            if error is None:
                pauses.reset()
            elif error.retryable:
                pause = pauses.after(error)
                self._quiet_until = self._clock.now() + error.pause_s
            else:
                self._refused = error
                self._warn(f"the Tester does not take results now, they are spooled: {plain(str(error), 300)}")
        return pause


# `aisbench flush`


def flush(
    outbox: Outbox, open_transport: Callable[[str], Transport], clock: Clock, *, patience_s: float
) -> list[UploadItem]:
    """Send what waits in the outbox, of all runs, and what a killed run did not put there; each with its new state."""
    outbox.drop_private(clock.now())
    fill_outbox(outbox, clock.now())
    outbox.drop_private(clock.now())
    uploads = outbox.waiting()
    by_tester: dict[str, list[UploadItem]] = {}
    for upload in uploads:
        by_tester.setdefault(upload.tester, []).append(upload)
    for tester, destination in by_tester.items():
        with closing(open_transport(tester)) as transport:
            send_all(outbox, destination, transport, clock, patience_s)
    return [sent for upload in uploads for sent in outbox.named(upload.key)]


def requeue(outbox: Outbox, key_prefix: str, clock: Clock) -> UploadItem:
    """Let a dead letter be tried again."""
    dead = [upload for upload in outbox.named(key_prefix) if upload.state is UploadState.DEAD]
    if len(dead) != 1:
        what = "no dead letter has" if not dead else f"{len(dead)} dead letters have"
        raise UsageFault(f"{what} a key that begins with {key_prefix!r}", advice="`aisbench flush --dead` shows them")
    outbox.set_state(dead[0].key, UploadState.WAITING, "to be tried again", clock.now())
    return replace(dead[0], state=UploadState.WAITING)


class Flusher:
    """What `aisbench flush` does with an open ledger."""

    def __init__(self, settings: Settings, database: Database, patience_s: float, access: TesterAccess) -> None:
        self._settings = settings
        self._access = access
        self._outbox = Outbox(database)
        self._clock = SystemClock()
        self._patience_s = patience_s

    def flush(self) -> list[UploadItem]:
        open_transport = partial(make_transport, access=self._access)
        return flush(self._outbox, open_transport, self._clock, patience_s=self._patience_s)

    def dead(self) -> list[UploadItem]:
        return self._outbox.dead()

    def requeue(self, key_prefix: str) -> None:
        requeue(self._outbox, key_prefix, self._clock)

    def take_log(self, file: Path) -> None:
        """Put the result that ais-bench-stubs wrote to its own log into the outbox; once, however often it is read."""
        if not self._settings.tester:
            raise UsageFault("there is no Tester for the log", advice="name one: --tester URL")
        log, access = read_stub_log(file), self._settings.tester_access
        destination = Destination(self._settings.tester, "ais-bench-stubs", "", "", access.testid, {}, access.system)
        made = stub_upload(destination, log.config, log.info)
        self._outbox.put(made.run, made.case, made.kind, made.body, lambda _: made, now=self._clock.now())


# The fixture `tester`


class TesterClient:
    """What the fixture `tester` gives: uploads a test's own data as reliably as results are uploaded."""

    def __init__(self, settings: Settings, platform: Callable[[], Platform], run: str) -> None:
        self._clock = SystemClock()
        self.run = run or run_id(self._clock.now())
        destination = find_destination(settings, platform, settings.reports / self.run)
        if destination is None:
            advice = "name one: --aisbench-tester URL, or url in [tester] of aisbench.toml"
            raise UsageFault("there is no Tester", advice=advice)
        self._bound = destination
        self._lock = threading.Lock()
        self._database = Database(settings.ledger_file)
        self._outbox = Outbox(self._database)
        self._transport = make_transport(destination.tester, tester_access(settings, platform, destination))

    @property
    def address(self) -> str:
        return self._bound.tester

    @property
    def uploads(self) -> list[UploadItem]:
        """Every upload of this run, results of cases included, with its state."""
        return self._outbox.of(self.run)

    def upload(self, name: str, data: Any) -> UploadItem:
        """Upload JSON data. It is on disk before it is sent; `state` says whether the Tester has it, `why` why not."""
        if not name or len(name) > _LONGEST_NAME or not name.translate(_PUNCTUATION).isalnum():
            advice = "letters, digits, '.', '_' and '-', 80 at most"
            raise UsageFault(f"{name[:_LONGEST_NAME]!r} is not a name", advice=advice)
        try:
            record = json.dumps(data, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageFault(f"{name} cannot be written as JSON: {error}") from None
        with self._lock:
            make = partial(self._make, name, json.loads(record))
            made = self._outbox.put(self.run, name, ATTACHMENTS, record, make, now=self._clock.now())
            send_all(self._outbox, [made], self._transport, self._clock, PATIENCE_S)
        return next(upload for upload in self.uploads if upload.key == made.key)

    def _make(self, name: str, data: Any, attempt: int) -> UploadItem:
        return attachment_upload(self._bound, self.run, name, attempt, data)

    def close(self) -> None:
        if self._bound.label == PRIVATE:
            self._outbox.drop_private(self._clock.now(), self.run)
        self._transport.close()
        self._database.close()
