"""The reporter that brings the verdicts of a run to the Tester."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_aisbench.adapters.tester import transport
from pytest_aisbench.desk import PATIENCE_S, bound
from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.domain.upload import PRIVATE, RUNS
from pytest_aisbench.fixtures import CREW
from pytest_aisbench.reporters import tester
from pytest_aisbench.reporters.hosts import guarded, warn
from pytest_aisbench.services.clock import SystemClock
from pytest_aisbench.services.courier import Courier, collect
from pytest_aisbench.services.database import Database
from pytest_aisbench.services.spool import Spool
from pytest_aisbench.stash import SETTINGS


class Tester:
    """Reporter. It changes no verdict; inert where there is no Tester."""

    order = 70
    once = True  # an old run that is told again is not sent again

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._run = folder.name
        self._courier: Courier | None = None
        self._delivered = False  # as far as it could be
        settings = config.stash[SETTINGS]
        found = bound(settings, lambda: config.stash[CREW]().platform(), folder)
        if found is None:
            return
        self._private = found.label == PRIVATE
        self._clock = SystemClock()
        self._database = Database(settings.ledger_file)
        self._spool = Spool(self._database)
        self._spool.bind(self._run, found)
        self._transport = transport(found.tester, settings.tester_access)
        self._refusals: list[str] = []
        self._courier = self._sent_out()

    def _sent_out(self) -> Courier:
        return Courier(
            self._spool,
            self._run,
            words=tester,
            transport=self._transport,
            clock=self._clock,
            warn=self._refusals.append,
        )

    def case(self, entry: CaseEntry) -> None:
        if self._courier:
            self._courier.wake()

    def run(self, entry: RunEntry) -> None:
        """The exit code is known by now; where results wait for the Tester, how the run ended waits behind them."""
        if not self._delivered:
            return
        with guarded(self._config, "upload to the Tester"):
            if self._spool.waiting(self._run):
                collect(self._spool, tester, self._clock.now(), self._run)
            else:
                self._sent_out().close(PATIENCE_S)
            for parcel in self._spool.of(self._run):
                if parcel.kind == RUNS and parcel.why:
                    warn(self._config, f"aisbench: the Tester does not know how the run ended: {parcel.why}")
            self._bury()

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Before the Controller's, which is the last: what it records at the end is the truth about uploads too.

        Not before that of pytest's log, which is the first, so that it has what is logged here."""
        courier, self._courier = self._courier, None
        if courier is None:
            return (yield)
        with guarded(self._config, "upload to the Tester"):
            courier.close(PATIENCE_S)
            self._bury()
            self._delivered = True
        for refusal in self._refusals:
            warn(self._config, f"aisbench: {refusal}")
        try:
            return (yield)
        finally:
            self._transport.close()
            self._database.close()

    def _bury(self) -> None:
        if self._private:
            self._spool.bury(self._clock.now(), self._run)
