"""`junit.xml`, what a CI server reads; pytest writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pytest_aisbench.model.results import CaseEntry, RunEntry
from pytest_aisbench.report.ci import case_properties, run_properties
from pytest_aisbench.report.host_plugins import (
    PREFIX,
    RERUN,
    case_id_of_report,
    collection_problems,
    guarded,
    switch_on,
)


class Junit:
    order = 20

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._cases: dict[str, str] = {}  # by test
        self._begun: dict[str, pytest.TestReport] = {}  # the last word of tests that have not ended
        with guarded(config, "no junit.xml"):
            if switch_on(config, "junitxml", "xmlpath", folder / "junit.xml"):
                log = self._log()
                log.pytest_sessionstart()
                for report in collection_problems(config):
                    log.pytest_collectreport(report)

    def _log(self) -> Any:
        from _pytest.junitxml import xml_key

        return self._config.stash[xml_key]

    def case(self, entry: CaseEntry) -> None:
        """All is told at the end: a test that comes later may change the story of its case."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._begun[report.nodeid] = report
        if report.when == "teardown":
            del self._begun[report.nodeid]
        if case := case_id_of_report(report):
            self._cases[report.nodeid] = case

    @pytest.hookimpl(specname="pytest_runtest_logreport", trylast=True)
    def pytest_runtest_logreport_forget(self, report: pytest.TestReport) -> None:
        """What a crashed worker began and another judges is one test, not a second one without an outcome."""
        outcome: str = report.outcome
        if outcome == RERUN:
            with guarded(self._config, "a test twice in junit.xml"):
                log = self._log()
                begun = log.node_reporter(report)
                log.node_reporters_ordered.remove(begun)
                for key in [key for key, value in log.node_reporters.items() if value is begun]:
                    del log.node_reporters[key]

    def run(self, entry: RunEntry) -> None:
        """Before pytest writes the file. Its own fixture for properties of the suite is deaf under xdist."""
        if not getattr(self._config.option, "xmlpath", None):
            return
        with guarded(self._config, "no properties of cases in junit.xml"):
            cases, where = {case.id: case for case in entry.cases}, str(entry.settings.get("platform", ""))
            for told in self._log().node_reporters_ordered:
                case = self._cases.get(str(getattr(told, "id", "")), "")
                element = self._ended(told)
                if found := cases.get(case or _property(element, "case")):
                    _retell(element, case_properties(found, where))
        with guarded(self._config, "no suite properties in junit.xml"):
            log = self._log()
            for name, value in run_properties(entry).items():
                log.add_global_property(PREFIX + name, value)

    def _ended(self, told: Any) -> ET.Element:
        """What pytest writes of a test. One that was interrupted, or took its worker with it, would have no name there,
        and no outcome, which reads as a pass."""
        if "properties" in vars(told):
            report = self._begun.get(str(told.id))
            if report is not None and not told.attrs:
                told.record_testreport(report)
            if report is not None and report.when == "setup" and not told.nodes:
                told._add_simple("skipped", "the run ended before this test did")  # noqa: SLF001
            told.finalize()
        element: ET.Element = told.to_xml()
        return element


def _property(element: ET.Element, name: str) -> str:
    found = element.find(f"./properties/property[@name='{PREFIX}{name}']")
    return "" if found is None else found.get("value", "")


def _retell(element: ET.Element, told: Mapping[str, str]) -> None:
    """Ours in place of what was known when the test ended; whatever else a test recorded stays."""
    properties = element.find("properties")
    if properties is None:
        properties = ET.Element("properties")
        element.insert(0, properties)
    for old in [each for each in properties if each.get("name", "").startswith(PREFIX)]:
        properties.remove(old)
    properties.extend(ET.Element("property", name=PREFIX + name, value=value) for name, value in told.items())
