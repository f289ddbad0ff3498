"""The built-in reporters and the machine's clock keep their contracts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_aisbench import Clock, Reporter
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.report.allure import Allure
from pytest_aisbench.report.ci import Junit
from pytest_aisbench.report.page import Html
from pytest_aisbench.report.results import Fields
from pytest_aisbench.session import reporters, session_settings
from pytest_aisbench.stash import LEDGER, SETTINGS
from pytest_aisbench.testing import ClockContract, ReporterContract

pytest_plugins = ["pytester"]


class TestSystemClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()


class TestBuiltInReporters(ReporterContract):
    @pytest.fixture(params=[Html, Junit, Allure, reporters.Tester, Fields], ids=lambda kind: kind.__name__.lower())
    def reporter(self, request: pytest.FixtureRequest, pytester: pytest.Pytester, tmp_path: Path) -> Iterator[Reporter]:
        """In a pytest of its own, whose session has begun."""
        # Its unraisableexception would collect all garbage of this process five times, and so does the outer one.
        module = pytester.getmodulecol("def test_nothing(): pass", ["-p", "no:unraisableexception"])
        (item,) = pytester.genitems([module])
        settings = session_settings(item.config)
        item.config.stash[SETTINGS] = replace(settings, tester=f"file://{tmp_path}/tester", reports=tmp_path)
        with closing(Database(tmp_path / "ledger.db")) as database:
            item.config.stash[LEDGER] = database
            yield request.param(item.config, tmp_path)
