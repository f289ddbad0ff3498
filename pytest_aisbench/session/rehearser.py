"""The process that owns the session of a dry run: it plans where the Controller would run."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.errors import GivenUp
from pytest_aisbench.judge import exit_code
from pytest_aisbench.reporters.hosts import say
from pytest_aisbench.reporters.plan import plan
from pytest_aisbench.services import claims
from pytest_aisbench.services.clock import SystemClock, day
from pytest_aisbench.services.rehearsal import Forecast, rehearse
from pytest_aisbench.session import collection
from pytest_aisbench.session.ending import one_line
from pytest_aisbench.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_aisbench.domain.case import Case
    from pytest_aisbench.domain.ports import Platform
    from pytest_aisbench.domain.trial import Step, Trial


class Rehearser:
    """A pytest plugin object in the Controller's place. No test is run, so nobody is told that one passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._platform: Platform | None = None
        self._forecast: Forecast | None = None

    def reached(self, case: Case, until: Step) -> Trial:
        raise GivenUp(f"{case.id} gets no further than its request: this is a dry run")

    def run_name(self) -> str:
        return ""

    def platform(self) -> Platform:
        if self._platform is None:
            self._platform = registry.of_session(self._config).connect(self._config.stash[SETTINGS])
        return self._platform

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        collection.select(self._config, items, partial(say, self._config))

    @pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
    def pytest_collection_modifyitems_check(self, items: list[pytest.Item]) -> None:
        with one_line():
            collection.check(self._config, items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In place of pytest's own loop, which says what is wrong with the collection, or only lists it."""
        option = self._config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None
        with one_line():
            wants = collection.plan(self._config, session.items).wants
            if wants:
                self._forecast = rehearse(self._config.stash[SETTINGS], self.platform(), SystemClock(), wants)
                self._forecast.budget.require()
                for line in claims.expired((case for case, _ in wants), day(SystemClock().now())):
                    say(self._config, line)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == exit_code.PASSED and not self._config.option.collectonly:
            session.exitstatus = exit_code.NOTHING_JUDGED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._config.option.collectonly:
            return
        terminalreporter.section("aisbench: dry run")
        if self._forecast is None:
            terminalreporter.write_line("no case is planned, and no test was run")
            return
        width = shutil.get_terminal_size((80, 24)).columns
        folder = str(self._forecast.folder).removeprefix(f"{self._config.invocation_params.dir}/")
        for line, markup in plan(self._forecast, folder, width):
            terminalreporter.write_line(line, **markup)

    def pytest_unconfigure(self) -> None:
        if self._platform:
            self._platform.close()
