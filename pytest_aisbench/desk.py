"""Where adapters, spool and the Tester's words meet: the desk of a suite, and the flushing of what runs left."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.adapters.stubs import read_log
from pytest_aisbench.adapters.tester import transport
from pytest_aisbench.domain.ports import HasTester
from pytest_aisbench.domain.upload import ATTACHMENTS, PRIVATE, Bound, Parcel
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.reporters import tester
from pytest_aisbench.services import folder as folders
from pytest_aisbench.services.clock import SystemClock
from pytest_aisbench.services.courier import deliver
from pytest_aisbench.services.database import Database
from pytest_aisbench.services.flush import flush, requeue
from pytest_aisbench.services.spool import Spool

if TYPE_CHECKING:
    from pytest_aisbench.domain.ports import Platform
    from pytest_aisbench.settings import Settings

PATIENCE_S = 5.0  # at the end of a run, and of each call at the desk
_NAME = 80


def bound(settings: Settings, platform: Callable[[], Platform], folder: Path) -> Bound | None:
    """The Tester of the settings, or the platform's own; None where there is none, or none is wanted."""
    address, label = settings.tester, ""
    if address is None and isinstance(own := platform(), HasTester):
        address, label = own.tester, PRIVATE if own.private else "local cloud"
    if not address:
        return None
    papers = settings.tester_access
    return Bound(address, settings.platform, str(folder), label, papers.testid, papers.config, papers.system)


class Flushing:
    """What `aisbench flush` does, on a ledger that is open."""

    def __init__(self, settings: Settings, database: Database, patience_s: float) -> None:
        self._settings = settings
        self._spool = Spool(database)
        self._clock = SystemClock()
        self._patience_s = patience_s

    def flush(self) -> list[Parcel]:
        access = self._settings.tester_access
        opened = partial(transport, access=access)
        return flush(self._spool, tester, opened, self._clock, patience_s=self._patience_s)

    def dead(self) -> list[Parcel]:
        return self._spool.dead()

    def requeue(self, beginning: str) -> None:
        requeue(self._spool, beginning, self._clock)

    def take_log(self, file: Path) -> None:
        """Spool the result of a test that ais-bench-stubs ran by itself; once, however often it is handed in."""
        if not self._settings.tester:
            raise UsageFault("there is no Tester for the log", advice="name one: --tester URL")
        told, papers = read_log(file), self._settings.tester_access
        to = Bound(self._settings.tester, "ais-bench-stubs", "", "", papers.testid, {}, papers.system)
        made = tester.of_stub(to, told.config, told.info)
        self._spool.put(made.run, made.case, made.kind, made.body, lambda _: made, now=self._clock.now())


class Desk:
    """What the fixture `tester` gives: a Tester to hand things in at, with the promises that results have."""

    def __init__(self, settings: Settings, platform: Callable[[], Platform], run: str) -> None:
        self._clock = SystemClock()
        self.run = run or folders.run_id(self._clock.now())
        found = bound(settings, platform, settings.reports / self.run)
        if found is None:
            advice = "name one: --aisbench-tester URL, or url in [tester] of aisbench.toml"
            raise UsageFault("there is no Tester", advice=advice)
        self._bound = found
        self._lock = threading.Lock()
        self._database = Database(settings.ledger_file)
        self._spool = Spool(self._database)
        self._transport = transport(found.tester, settings.tester_access)

    @property
    def address(self) -> str:
        return self._bound.tester

    @property
    def uploads(self) -> list[Parcel]:
        """Everything of this run, results of cases too, and what became of it."""
        return self._spool.of(self.run)

    def upload(self, name: str, data: Any) -> Parcel:
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

    def _made(self, name: str, data: Any, attempt: int) -> Parcel:
        return tester.attachment(self._bound, self.run, name, attempt, data)

    def close(self) -> None:
        if self._bound.label == PRIVATE:
            self._spool.bury(self._clock.now(), self.run)
        self._transport.close()
        self._database.close()
