"""`allure-results/`, the lifecycle view.

allure-pytest writes a result in the process that runs the test. What only the process of the run knows, the case with
all its trials, is put into these files when the run has ended. So they are the same with xdist and without, and a test
whose worker crashed, or whose run is an old one, has its result too.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.report.text import write_text
from pytest_aisbench.reporters import allure_case, allure_files
from pytest_aisbench.reporters.allure_attachments import Attachments
from pytest_aisbench.reporters.hosts import guarded, switched_on
from pytest_aisbench.reporters.story import RERUN, Story
from pytest_aisbench.services.database import Database
from pytest_aisbench.services.transcript import Past, past
from pytest_aisbench.stash import SETTINGS, language

_LOG = get_logger("report")


class Allure:
    order = 30
    on_workers = True

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._stories: dict[str, Story] = {}
        self._say = language(config)
        with guarded(config, "no allure-results"):
            switched_on(config, "allure_pytest", "allure_report_dir", folder / allure_files.FOLDER)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """In the test's process, at its end: which result it writes."""
        report = yield
        listener: Any = self._config.pluginmanager.get_plugin("allure_listener")
        if listener and report.when == "teardown":
            with guarded(self._config, "a result of allure-pytest's is not found"):
                report.allure_uuid = listener.allure_logger.get_test(None).uuid  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == RERUN:
            self._stories.pop(report.nodeid, None)
        else:
            self._stories.setdefault(report.nodeid, Story(report.nodeid)).hear(report)

    def case(self, entry: CaseEntry) -> None:
        """Files are amended when all are written."""

    def run(self, entry: RunEntry) -> None:
        target = getattr(self._config.option, "allure_report_dir", None)
        if not target:
            return
        place = Path(target)
        with guarded(self._config, "no environment in allure-results"):
            place.mkdir(parents=True, exist_ok=True)
            allure_files.write(place, entry, self._past(entry.run))
        cases = {case.id: case for case in entry.cases}
        known = _by_uuid(place, {story.uuid for story in self._stories.values()} - {""})
        for story in self._stories.values():
            with guarded(self._config, f"no lifecycle of {story.nodeid} in allure-results"):
                self._tell(known.get(story.uuid), place, story, cases.get(story.case), entry)

    def _past(self, run: str) -> list[Past]:
        settings = self._config.stash.get(SETTINGS, None)
        ledger = settings.ledger_file if settings else None
        if ledger is None or not ledger.is_file():
            return []
        with closing(Database(ledger)) as database:
            return past(database, run)

    def _tell(self, found: Path | None, place: Path, story: Story, case: CaseEntry | None, run: RunEntry) -> None:
        story.uuid = story.uuid or str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run.run} {story.nodeid}"))
        if found and not case:
            return  # allure-pytest has said all
        result = json.loads(found.read_bytes()) if found else allure_case.written(story)
        if case:
            result = allure_case.told(result, story, case, run, self._say)
            Attachments(place, self._folder, f"{run.run} {story.nodeid}", self._say).add(result, case)
        file = found or place / f"{story.uuid}-result.json"
        write_text(file, json.dumps(result, ensure_ascii=True))


def _by_uuid(place: Path, wanted: set[str]) -> dict[str, Path]:
    """Which file holds which result: the newest first, since a folder of the user's may hold those of a year."""
    found: dict[str, Path] = {}
    for file in sorted(place.glob("*-result.json"), key=_age) if wanted else ():
        # A file of somebody else's.
        with ignored(_LOG, (ValueError, LookupError, TypeError), "which test %s is the result of", file):
            told = json.loads(file.read_bytes())["uuid"]
            if told in wanted:
                found[told] = file
        if len(found) == len(wanted):
            break
    return found


def _age(file: Path) -> float:
    return -file.stat().st_mtime
