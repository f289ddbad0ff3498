"""`junit.xml`, for CI servers: pytest writes it, we add the properties of each case and of the run."""

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
    """Reporter: adds our properties to the file before pytest writes it."""

    order = 20

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._cases: dict[str, str] = {}  # by test
        self._begun: dict[str, pytest.TestReport] = {}  # the last report of each test that has not ended
        self._ending: Any = None  # pytest's record of the test whose last report is given to all plugins now
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
        """Properties are written at the end of the run: a later test may change the verdict of the case."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._begun[report.nodeid] = report
        if case := case_id_of_report(report):
            self._cases[report.nodeid] = case
        if report.when == "teardown":
            del self._begun[report.nodeid]
            if case and getattr(self._config.option, "xmlpath", None):
                with guarded(self._config, "the properties of a test in junit.xml"):
                    self._ending = self._log().node_reporter(report)

    @pytest.hookimpl(specname="pytest_runtest_logreport", trylast=True)
    def pytest_runtest_logreport_forget(self, report: pytest.TestReport) -> None:
        """A test that a crashed worker began and another one ran again is one test, not two.

        A test that ended keeps its case's id, by which `run` writes the properties: all of them would take 5 kB."""
        ending, self._ending = self._ending, None
        if ending:
            _drop_properties(ending.to_xml().find("properties"), keep="case")
        outcome: str = report.outcome
        if outcome == RERUN:
            with guarded(self._config, "a test twice in junit.xml"):
                log = self._log()
                begun = log.node_reporter(report)
                log.node_reporters_ordered.remove(begun)
                for key in [key for key, value in log.node_reporters.items() if value is begun]:
                    del log.node_reporters[key]

    def run(self, entry: RunEntry) -> None:
        """Add the properties; pytest's own fixture for properties of the suite does not work under xdist."""
        if not getattr(self._config.option, "xmlpath", None):
            return
        with guarded(self._config, "no properties of cases in junit.xml"):
            cases, where = {case.id: case for case in entry.cases}, str(entry.settings.get("platform", ""))
            shared: dict[tuple[str, str], ET.Element] = {}
            for node in self._log().node_reporters_ordered:
                case_id = self._cases.get(str(getattr(node, "id", "")), "")
                element = self._finished_element(node)
                if case := cases.get(case_id or _property(element, "case")):
                    _set_properties(element, case_properties(case, where), shared)
        with guarded(self._config, "no suite properties in junit.xml"):
            log = self._log()
            for name, value in run_properties(entry).items():
                log.add_global_property(PREFIX + name, value)

    def _finished_element(self, node: Any) -> ET.Element:
        """The XML of a test. Without this, an interrupted test would have no name and no outcome, which reads as a
        pass."""
        if "properties" in vars(node):
            report = self._begun.get(str(node.id))
            if report is not None and not node.attrs:
                node.record_testreport(report)
            if report is not None and report.when == "setup" and not node.nodes:
                node._add_simple("skipped", "the run ended before this test did")  # noqa: SLF001
            node.finalize()
        element: ET.Element = node.to_xml()
        return element


def _property(element: ET.Element, name: str) -> str:
    entry = element.find(f"./properties/property[@name='{PREFIX}{name}']")
    return "" if entry is None else entry.get("value", "")


def _set_properties(element: ET.Element, values: Mapping[str, str], shared: dict[tuple[str, str], ET.Element]) -> None:
    """Replace our properties by these; what the test recorded itself stays.

    Most values of a case are those of all cases, so that `shared` saves a thousand cases most of their elements.
    """
    properties = element.find("properties")
    if properties is None:
        properties = ET.Element("properties")
        element.insert(0, properties)
    _drop_properties(properties)
    for pair in values.items():
        if pair not in shared:
            shared[pair] = ET.Element("property", name=PREFIX + pair[0], value=pair[1])
        properties.append(shared[pair])


def _drop_properties(properties: ET.Element | None, keep: str = "") -> None:
    """Remove ours, except the one with the name `keep`."""
    if properties is not None:
        kept = [
            each
            for each in properties
            if not (name := each.get("name", "")).startswith(PREFIX) or name == PREFIX + keep
        ]
        properties[:] = kept
