"""`report.html`, the page that people review; pytest-html writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.reporters import page
from pytest_aisbench.reporters.hosts import guarded, session_of, switched_on, uncollected
from pytest_aisbench.reporters.properties import case_of, properties_of

COLUMN = 2  # after the result and the name of the test


class Html:
    on_workers = False

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._cases: dict[str, CaseEntry] = {}
        self._run: RunEntry | None = None
        self._shown: dict[str, dict[str, Any]] = {}  # details by test
        self._ours = False
        self._columns = False  # a row with more cells than the header stops pytest-html
        self._page = folder  # the folder that the page is in: links start there
        with guarded(config, "no report.html"):
            if not getattr(config.option, "htmlpath", None):
                config.option.self_contained_html = True
            self._ours = switched_on(config, "html", "htmlpath", folder / "report.html")
            if getattr(config.option, "htmlpath", None):
                self._enter()

    def _enter(self) -> None:
        host = self._host()
        if self._ours:
            host._report.title = f"aisbench {self._folder.name}"  # noqa: SLF001 - no hook comes this late
            host.pytest_sessionstart(session_of(self._config))
            for report in uncollected(self._config):
                host.pytest_collectreport(report)
        host._report.table_header[COLUMN:COLUMN] = page.HEADERS  # noqa: SLF001
        self._columns = True
        self._page = host._report_path.parent  # noqa: SLF001

    def _host(self) -> Any:
        from pytest_html.basereport import BaseReport

        return next(plugin for plugin in self._config.pluginmanager.get_plugins() if isinstance(plugin, BaseReport))

    def case(self, entry: CaseEntry) -> None:
        self._cases[entry.id] = entry

    def run(self, entry: RunEntry) -> None:
        self._run = entry

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The details hang on the report that decided the case; pytest-html makes its rows after the last one, so that
        a teardown that fails may still change the story."""
        entry = self._cases.get(case_of(report) or "")
        if entry is None or not self._columns:
            return
        with guarded(self._config, f"no details of {entry.id} in report.html"):
            if report.when == "teardown":
                if shown := self._shown.pop(report.nodeid, None):
                    shown["content"] = page.details(entry, self._link)
            elif report.when == "call" or report.failed:
                self._show(report, entry)

    def _show(self, report: Any, entry: CaseEntry) -> None:
        from pytest_html import extras

        shown = extras.html(page.details(entry, self._link))
        logs = entry.trials[-1].logs[:1] if entry.trials else ()
        links = [extras.url(self._link(log), name="log") for log in logs]
        report.extras = [*getattr(report, "extras", ()), shown, *links]
        self._shown[report.nodeid] = shown

    def _link(self, file: str) -> str:
        return quote(os.path.relpath(self._folder / file, self._page))

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[Any]) -> None:
        if not self._columns or not cells:  # no cells: somebody took the row away
            return
        facts = properties_of(report)
        entry = self._cases.get(facts.get("case", ""))
        if entry and entry.verdict:  # the test had its say after the properties were written
            facts["verdict"] = entry.verdict.value
        cells[COLUMN:COLUMN] = page.cells(facts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[Any]) -> None:
        if self._columns:
            cases = self._run.cases if self._run else self._cases.values()
            prefix += [page.STYLE, page.PAGE_STYLE if self._ours else "", page.overview(cases, self._run)]
