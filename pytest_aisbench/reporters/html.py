"""`report.html`, the page that people review and sign; pytest-html writes it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pytest_aisbench.domain.entry import Brief, CaseEntry, RunEntry
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.report.text import web
from pytest_aisbench.reporters import page
from pytest_aisbench.reporters.hosts import guarded, session_of, switched_on, uncollected
from pytest_aisbench.reporters.page_case import BUDGET, Frame, details
from pytest_aisbench.reporters.page_style import STYLE, page_style
from pytest_aisbench.reporters.page_summary import overview
from pytest_aisbench.reporters.properties import case_of
from pytest_aisbench.services.folder import request_name
from pytest_aisbench.stash import language

COLUMN = 2  # after the result and the name of the test
WHOLE = 10_000_000  # bytes that cases which passed may weigh together, so that a browser opens the page in seconds
LEAST = 6_000  # of a case, in a run of thousands


class Html:
    order = 10

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._say = language(config)
        self._cases: dict[str, CaseEntry] = {}
        self._run: RunEntry | None = None
        self._past: dict[str, Brief] = {}  # what the last run said of each case
        self._shown: list[tuple[str, dict[str, Any]]] = []  # case and what is shown of it
        self._ours = False
        self._styled = False  # in the head of the page, where a style belongs
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
        report = host._report  # noqa: SLF001 - no hook comes this late
        if self._ours:
            report.title = f"aisbench {self._folder.name}"
            host.pytest_sessionstart(session_of(self._config))
            for missed in uncollected(self._config):
                host.pytest_collectreport(missed)
            for name, told in report.outcomes.items():
                told["label"] = self._say(f"outcome {name}")
            host._css += STYLE + page_style(self._say)  # noqa: SLF001
            self._styled = True
        report.table_header[:] = [page.host_header(cell, self._say) for cell in report.table_header]
        report.table_header[COLUMN:COLUMN] = page.headers(self._say)
        self._columns = True
        self._page = host._report_path.parent  # noqa: SLF001

    def _host(self) -> Any:
        from pytest_html.basereport import BaseReport

        return next(plugin for plugin in self._config.pluginmanager.get_plugins() if isinstance(plugin, BaseReport))

    def case(self, entry: CaseEntry) -> None:
        self._cases[entry.id] = entry

    def run(self, entry: RunEntry) -> None:
        self._run = entry
        self._cases |= {case.id: case for case in entry.cases}
        self._past = {case.id: case for case in entry.before.cases} if entry.before else {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The details hang on the report that decided the case. They are written when everything is known, or after
        each test where pytest-html writes its page as often."""
        entry = self._cases.get(case_of(report) or "")
        if entry is None or not self._columns:
            return
        with guarded(self._config, f"no details of {entry.id} in report.html"):
            if report.when != "teardown" and (report.when == "call" or report.failed):
                self._show(report, entry)
            elif report.when == "teardown" and self._config.getini("generate_report_on_test"):
                self._fill([(name, shown) for name, shown in self._shown if name == entry.id])

    def _show(self, report: Any, entry: CaseEntry) -> None:
        from pytest_html import extras

        shown = extras.html("")
        self._shown.append((entry.id, shown))
        last = entry.trials[-1] if entry.trials else None
        request = self._request(entry)
        files = {"log": last.logs[0] if last and last.logs else "", "request": request}
        links = [extras.url(self._link(file), name=self._say(key)) for key, file in files.items() if file]
        if last and (console := web(last.console)):
            links.append(extras.url(console, name=self._say("console")))
        report.extras = [*getattr(report, "extras", ()), shown, *links]

    def _fill(self, shown: list[tuple[str, dict[str, Any]]]) -> None:
        """Cases that did not pass have all the room that a case may have, the others share what the page may weigh."""
        share = min(max(WHOLE // max(len(self._shown), 1), LEAST), BUDGET)
        for name, part in shown:
            with guarded(self._config, f"no details of {name} in report.html"):
                case = self._cases[name]
                part["content"] = details(case, self._frame(name), share if case.verdict is Ruling.PASSED else BUDGET)

    def _frame(self, name: str) -> Frame:
        before = self._run.before if self._run else None
        past = (before.run, self._past[name]) if before and name in self._past else None
        return Frame(self._link, self._say, self._request(self._cases[name]), past)

    def _request(self, entry: CaseEntry) -> str:
        """The newest that there is of it."""
        number = entry.trials[-1].trial if entry.trials else 1
        names = (f"requests/{request_name(entry.id, each)}.json" for each in (number, 1))
        return next((name for name in names if (self._folder / name).is_file()), "")

    def _link(self, file: str) -> str:
        return quote(os.path.relpath(self._folder / file, self._page))

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[Any]) -> None:
        if not self._columns or not cells:  # no cells: somebody took the row away
            return
        case = case_of(report)
        entry = self._cases.get(case, page.UNJUDGED) if case else None
        if entry and entry.trials:
            told = page.duration(entry)
            cells[:] = [told if 'class="col-duration"' in str(cell) else cell for cell in cells]
        if self._ours:
            cells[:] = [page.outcome(str(cell), self._say) for cell in cells]
        cells[COLUMN:COLUMN] = page.cells(entry, self._say)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, data: list[str]) -> None:
        """A test that said nothing has no empty box for it."""
        if self._ours and data == [page.SILENCE]:
            data.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[Any], postfix: list[Any]) -> None:
        """The last call before the page is written."""
        if not self._columns:
            return
        self._fill(self._shown)
        cases = self._run.cases if self._run else self._cases.values()
        style = "" if self._styled else f"<style>{STYLE}</style>"
        prefix += [style, overview(cases, self._run, self._say, _versions())]
        postfix += [page.translation(self._say)] if self._ours else []


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("pytest-aisbench")
    except PackageNotFoundError:
        own = "?"
    return f"pytest-aisbench {own}, pytest {pytest.__version__}, Python {platform.python_version()}"
