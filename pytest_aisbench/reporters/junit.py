"""`junit.xml`, what a CI server reads; pytest writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.reporters.hosts import guarded, switched_on, uncollected
from pytest_aisbench.reporters.properties import PREFIX, case_of
from pytest_aisbench.reporters.text import words


class Junit:
    on_workers = False

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._cases: dict[str, CaseEntry] = {}
        with guarded(config, "no junit.xml"):
            if switched_on(config, "junitxml", "xmlpath", folder / "junit.xml"):
                log = self._log()
                log.pytest_sessionstart()
                for report in uncollected(config):
                    log.pytest_collectreport(report)

    def _log(self) -> Any:
        from _pytest.junitxml import xml_key

        return self._config.stash[xml_key]

    def case(self, entry: CaseEntry) -> None:
        self._cases[entry.id] = entry

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """pytest takes the properties of the last report. They were written before the test had its say:
        where the test itself failed, the case's verdict is no longer that of its trial."""
        entry = self._cases.get(case_of(report) or "")
        if report.when == "teardown" and entry and entry.verdict:
            late = {f"{PREFIX}verdict": entry.verdict.value, f"{PREFIX}reason": entry.reason}
            kept = [(name, value) for name, value in report.user_properties if name not in late]
            report.user_properties = [*kept, *late.items()]

    @pytest.hookimpl(specname="pytest_runtest_logreport", trylast=True)
    def pytest_runtest_logreport_forget(self, report: pytest.TestReport) -> None:
        """What a crashed worker began and another judges is one test, not a second one without an outcome."""
        outcome: str = report.outcome
        if outcome == "rerun":
            with guarded(self._config, "a test twice in junit.xml"):
                log = self._log()
                begun = log.node_reporter(report)
                log.node_reporters_ordered.remove(begun)
                for key in [key for key, value in log.node_reporters.items() if value is begun]:
                    del log.node_reporters[key]

    def run(self, entry: RunEntry) -> None:
        """Properties of the suite: pytest's own fixture for them is deaf under xdist."""
        if not getattr(self._config.option, "xmlpath", None):
            return
        with guarded(self._config, "no suite properties in junit.xml"):
            log = self._log()
            facts = {"run": entry.run, "schema": entry.schema, "started": entry.started}
            for name in ("platform", "nodes"):
                if name in entry.settings:
                    facts[name] = words(entry.settings[name])
            for name, value in facts.items():
                log.add_global_property(PREFIX + name, value)
