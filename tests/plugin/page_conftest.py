"""The showcase as a pytest run: a conftest whose page has everything on it. LANG_OF_PAGE is its language."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import showcase

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.report.page import Html
from pytest_aisbench.stash import SETTINGS

MANY = int(os.environ.get("CASES", "0"))
ACCEPTANCE = "ACCEPTANCE" in os.environ
RUN = (
    showcase.acceptance()
    if ACCEPTANCE
    else showcase.run(tuple(showcase.case(name=f"model{at}", seed=at) for at in range(MANY)))
)
ENTRIES = {entry.id: entry for entry in RUN.cases}


class Teller:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._html: Html | None = None

    def pytest_collection_finish(self) -> None:
        if os.environ.get("LANG_OF_PAGE"):
            self._config.stash[SETTINGS] = Settings(lang=os.environ["LANG_OF_PAGE"])
            self._html = Html(self._config, Path(os.environ["REPORTS"]))
            self._config.pluginmanager.register(self._html, "aisbench-html")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "aisbench.case" and self._html:
                self._html.case(ENTRIES[str(value)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._html:
            self._html.run(RUN)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Teller(config))


@pytest.fixture(params=list(ENTRIES))
def entry(request: pytest.FixtureRequest) -> CaseEntry:
    told = ENTRIES[request.param]
    wanted = {finding.metric: finding.wanted for finding in told.findings}
    request.node.user_properties += [("aisbench.case", told.id)]
    request.node.user_properties += [(f"aisbench.{name}.wanted", text) for name, text in wanted.items()]
    for name, value in told.metrics.items():
        if value.value is not None:
            request.node.user_properties += [(f"aisbench.{name}", value.value), (f"aisbench.{name}.unit", value.unit)]
    return told
