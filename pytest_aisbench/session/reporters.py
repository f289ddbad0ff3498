"""The reporters of a session, and those of ours that write to the ledger or read it.

An error in a reporter is a warning and changes no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.i18n import language
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.outbox import Outbox
from pytest_aisbench.ledger.runs import RecordedTest, RecordedTests, executor_of
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.ports import Platform, Reporter
from pytest_aisbench.model.results import PRIVATE, RUNS, CaseEntry, RunEntry
from pytest_aisbench.registry import ReporterKind
from pytest_aisbench.report import index
from pytest_aisbench.report.host_plugins import RERUN, ReportedTest, guarded, warn
from pytest_aisbench.stash import LEDGER, RUN_OWNER, SETTINGS
from pytest_aisbench.tester.transports import make_transport
from pytest_aisbench.tester.uploader import PATIENCE_S, Uploader, fill_outbox, find_destination, tester_access


class Reporters:
    """All reporters of the registry, or those of them that are `wanted`."""

    def __init__(self, config: pytest.Config, wanted: Callable[[ReporterKind], bool] = lambda _: True) -> None:
        self._config = config
        self._wanted = wanted
        self._present: dict[str, Reporter] = {}

    def open(self, folder: Path) -> None:
        """Build the reporters in their order and register each as a pytest plugin."""
        offered = registry.of_session(self._config)
        kinds: list[ReporterKind] = []
        for name in offered.reporters:
            with guarded(self._config, f"no reporter {name!r}"):
                kinds.append(offered.reporter(name))
        for kind in sorted(filter(self._wanted, kinds), key=lambda kind: kind.order):
            with guarded(self._config, f"no reporter {kind.name!r}"):
                reporter = kind.build(self._config, folder)
                self._config.pluginmanager.register(reporter, f"aisbench-{kind.name}")
                self._present[kind.name] = reporter

    def case(self, entry: CaseEntry) -> None:
        for name, reporter in self._present.items():
            with guarded(self._config, f"reporter {name!r}"):
                reporter.case(entry)

    def run(self, entry: RunEntry) -> None:
        for name, reporter in self._present.items():
            with guarded(self._config, f"reporter {name!r}"):
                reporter.run(entry)


# Our reporters that need the ledger


class TestRecorder:
    """Reporter: writes what pytest says of each test to the ledger."""

    order = 90  # the highest: pytest calls it before the other reporters, which hang their pages on the reports
    once = True  # `aisbench report` does not record an old run again

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._recorded = RecordedTests(config.stash[LEDGER], folder.name)
        self._cases: dict[str, CaseEntry] = {}
        self._begun: dict[str, tuple[ReportedTest, list[Any]]] = {}  # tests that have not ended
        self._ended: list[RecordedTest] = []  # and are not written yet

    def case(self, entry: CaseEntry) -> None:
        self._cases[entry.id] = entry

    def run(self, entry: RunEntry) -> None:
        """Record the tests that were interrupted, too."""
        with guarded(self._config, "no transcript of the last tests"):
            for nodeid in list(self._begun):
                self._end(nodeid)
            self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with guarded(self._config, f"no transcript of {report.nodeid}"):
            test, reports = self._begun.setdefault(report.nodeid, (ReportedTest(report.nodeid), []))
            test.add(report)
            reports.append(self._serialized(report))
            if report.outcome == RERUN:
                del self._begun[report.nodeid]  # another worker runs it again
            elif report.when == "teardown":
                self._end(report.nodeid)

    def _serialized(self, report: pytest.TestReport) -> Any:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        data.pop("node", None)  # xdist's own, of the process that ran the test
        return {**data, "sections": [(name, _shortened(text)) for name, text in report.sections]}

    def _end(self, nodeid: str) -> None:
        test, reports = self._begun.pop(nodeid)
        entry = self._cases.get(test.case)
        self._ended.append(RecordedTest(nodeid, test.case, test.status(entry), *test.span(entry), reports))
        if test.case or len(self._ended) >= _MOST:
            self._write()

    def _write(self) -> None:
        ended, self._ended = self._ended, []
        if ended:
            self._recorded.add(ended)


_LONGEST = 64_000  # characters of what a test printed that are kept
_MOST = 100  # tests of nothing of ours that are written together


def _shortened(text: str) -> str:
    left_out = len(text) - _LONGEST
    return text if left_out <= 0 else f"({left_out} characters are left out)\n{text[-_LONGEST:]}"


class Index:
    """Reporter: `index.html` among the reports, once a run has ended."""

    order = 80
    once = True

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config

    def case(self, entry: CaseEntry) -> None:
        """A run that has not ended is not listed again."""

    def run(self, entry: RunEntry) -> None:
        """Nothing yet: the list links to the page and junit.xml, which are written at the end of the session."""

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        result = yield  # now their hosts have written them
        with guarded(self._config, f"no new {index.NAME}"):
            write_index(self._config.stash[SETTINGS])
        return result


def write_index(settings: Settings) -> Path:
    database = Database(settings.ledger_file)
    try:
        return index.write(database, settings.reports, language(settings.lang))
    finally:
        database.close()


class Tester:
    """Reporter: brings the verdicts of a run to the Tester. It does nothing if there is no Tester."""

    order = 70
    once = True  # `aisbench report` does not upload an old run again

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._run = folder.name
        self._uploader: Uploader | None = None
        self._delivered = False  # as far as it could be
        settings = config.stash[SETTINGS]
        destination = find_destination(settings, self._platform, folder)
        if destination is None:
            return
        self._private = destination.label == PRIVATE
        self._clock = SystemClock()
        database = config.stash[LEDGER]
        destination = replace(destination, origin=executor_of(database, self._run))
        self._outbox = Outbox(database)
        self._outbox.set_destination(self._run, destination)
        self._transport = make_transport(destination.tester, tester_access(settings, self._platform, destination))
        self._refusals: list[str] = []
        self._uploader = self._start_uploader()

    def _platform(self) -> Platform:
        return self._config.stash[RUN_OWNER].platform()

    def _start_uploader(self) -> Uploader:
        return Uploader(
            self._outbox, self._run, transport=self._transport, clock=self._clock, warn=self._refusals.append
        )

    def case(self, entry: CaseEntry) -> None:
        if self._uploader:
            self._uploader.add(entry)

    def run(self, entry: RunEntry) -> None:
        """Upload how the run ended: the exit code is set by now. It waits behind results that wait."""
        if not self._delivered:
            return
        with guarded(self._config, "upload to the Tester"):
            if self._outbox.waiting(self._run):
                fill_outbox(self._outbox, self._clock.now(), self._run)
            else:
                self._start_uploader().close(PATIENCE_S)
            for upload in self._outbox.of(self._run, RUNS):
                if upload.why:
                    warn(self._config, f"aisbench: the Tester does not know how the run ended: {upload.why}")
            self._bury()

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Ends the uploads before the Controller records the run, so that the record shows what was uploaded.

        It begins after pytest's log, so that the log has what is logged here."""
        uploader, self._uploader = self._uploader, None
        if uploader is None:
            return (yield)
        with guarded(self._config, "upload to the Tester"):
            uploader.close(PATIENCE_S)
            self._bury()
            self._delivered = True
        for refusal in self._refusals:
            warn(self._config, f"aisbench: {refusal}")
        try:
            return (yield)
        finally:
            self._transport.close()

    def _bury(self) -> None:
        if self._private:
            self._outbox.drop_private(self._clock.now(), self._run)
