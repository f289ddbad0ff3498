"""What outlives a run: the transcript of its tests in the ledger, and the list of all runs beside the reports."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.i18n import language
from pytest_aisbench.reporters import index
from pytest_aisbench.reporters.hosts import guarded
from pytest_aisbench.reporters.story import RERUN, Story
from pytest_aisbench.services.database import Database
from pytest_aisbench.services.transcript import Told, Transcript
from pytest_aisbench.settings import Settings
from pytest_aisbench.stash import SETTINGS

_LONGEST = 64_000  # characters of what a test printed that are kept
_MOST = 100  # tests of nothing of ours that are written together


class Scribe:
    """Reporter: writes what pytest says of each test to the ledger."""

    order = 90  # the highest: pytest calls it before the other reporters, which hang their pages on the reports
    once = True  # an old run that is told again is not written down again

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._database = Database(config.stash[SETTINGS].ledger_file)
        self._transcript = Transcript(self._database, folder.name)
        self._cases: dict[str, CaseEntry] = {}
        self._begun: dict[str, tuple[Story, list[Any]]] = {}  # tests that have not ended
        self._ended: list[Told] = []  # and are not written yet

    def case(self, entry: CaseEntry) -> None:
        self._cases[entry.id] = entry

    def run(self, entry: RunEntry) -> None:
        """A test that was interrupted has said something too."""
        with guarded(self._config, "no transcript of the last tests"):
            for nodeid in list(self._begun):
                self._end(nodeid)
            self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with guarded(self._config, f"no transcript of {report.nodeid}"):
            story, said = self._begun.setdefault(report.nodeid, (Story(report.nodeid), []))
            story.hear(report)
            said.append(self._serialized(report))
            if report.outcome == RERUN:
                del self._begun[report.nodeid]  # another worker will tell it
            elif report.when == "teardown":
                self._end(report.nodeid)

    def _serialized(self, report: pytest.TestReport) -> Any:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        data.pop("node", None)  # xdist's own, of the process that ran the test
        return {**data, "sections": [(name, _shortened(text)) for name, text in report.sections]}

    def _end(self, nodeid: str) -> None:
        story, said = self._begun.pop(nodeid)
        entry = self._cases.get(story.case)
        self._ended.append(Told(nodeid, story.case, story.status(entry), *story.span(entry), said))
        if story.case or len(self._ended) >= _MOST:
            self._write()

    def _write(self) -> None:
        ended, self._ended = self._ended, []
        if ended:
            self._transcript.add(ended)

    def pytest_unconfigure(self) -> None:
        self._database.close()


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
        """Its page and its junit.xml, which the list links to, are not there yet."""

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
