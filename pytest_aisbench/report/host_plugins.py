"""Switches on the plugins that write files for us (pytest-html, allure-pytest, pytest's JUnit), and follows tests.

These plugins read their options in `pytest_configure`, but whether a run has a workload is known only after collection.
So we set their option then and let them configure themselves again. We touch names that their authors do not promise;
all of it is done under `guarded`, because a missing report deserves a warning and must not end a run.
"""

from __future__ import annotations

import functools
import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.judge.values import judged_values
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Ruling

_LOG = get_logger("report")


def warn(config: pytest.Config, text: str) -> None:
    """Add a line to pytest's summary of warnings; unlike `warnings.warn` it ends no run under `-W error`."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        warnings.warn(pytest.PytestWarning(text), stacklevel=2)
    record = {"warning_message": records[0], "when": "config", "nodeid": "", "location": None}
    config.hook.pytest_warning_recorded.call_historic(kwargs=record)


def write_line(config: pytest.Config, line: str) -> None:
    """Write a line to pytest's terminal, between those of the tests; who follows a pipe sees it at once."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal:
        terminal.ensure_newline()
        terminal.write_line(f"aisbench: {line}")
        terminal.flush()


@contextmanager
def guarded(config: pytest.Config, what: str) -> Iterator[None]:
    """Turn any error into a warning that begins with `what`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - another version of a host may fail in any way
        warn(config, f"aisbench: {what}: {type(error).__name__}: {error}")
        log_ignored(_LOG, error, "%s", what, level=logging.INFO)


def switch_on(config: pytest.Config, host: str, option: str, path: Path) -> bool:
    """Switch a host plugin on; False if the user did so already, or it is not loaded."""
    if getattr(config.option, option, None):
        return False
    plugin: Any = config.pluginmanager.get_plugin(host)
    if plugin is None or not hasattr(config.option, option):
        warn(config, f"aisbench: {path.name} is not written: the pytest plugin {host!r} is not loaded")
        return False
    setattr(config.option, option, str(path))
    try:
        plugin.pytest_configure(config)
    except Exception:
        setattr(config.option, option, None)
        raise
    return True


def session_of(config: pytest.Config) -> pytest.Session:
    session = config.pluginmanager.get_plugin("session")
    assert isinstance(session, pytest.Session)
    return session


def collection_problems(config: pytest.Config) -> list[pytest.CollectReport]:
    """Modules that collection failed at or skipped: a host that enters late has missed them, and would look green."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    stats: dict[str, list[Any]] = getattr(terminal, "stats", {})
    reports = [*stats.get("error", ()), *stats.get("skipped", ())]
    return [report for report in reports if isinstance(report, pytest.CollectReport)]


# Properties: what the report of a test carries from the process that ran it to the process of the run

PREFIX = "aisbench."
TRIAL: pytest.StashKey[Trial] = pytest.StashKey()


def trial_properties(trial: Trial, platform: str = "") -> list[tuple[str, str | float]]:
    """Flat pairs for `item.user_properties`: they survive xdist, and JUnit shows them as they are."""
    verdict, workload = trial.judged, trial.case.workload
    pairs: list[tuple[str, str | float | None]] = [
        ("case", trial.case.id),
        ("workload", workload.name),
        ("nodes", str(trial.case.shape.nodes)),
        ("devices_per_node", str(trial.case.shape.devices)),
        ("platform", platform or None),
        ("job_id", trial.job_id),
        ("verdict", verdict.ruling.value if verdict else None),
        ("reason", verdict.reason if verdict else trial.stopped_by or None),
    ]
    values = judged_values(trial, verdict)  # after several trials the mean, as every report shows it
    for name, metric in workload.metrics.items():
        pairs += [(name, values.get(name)), (f"{name}.unit", metric.unit or None)]
    pairs += [(f"{finding.metric}.wanted", finding.wanted) for finding in (verdict.findings if verdict else ())]
    return [
        (_prefixed(name), plain(value) if isinstance(value, str) else value)
        for name, value in pairs
        if value is not None
    ]


@functools.cache  # one string for all cases of a run
def _prefixed(name: str) -> str:
    return PREFIX + name


def replace_properties(pairs: list[tuple[str, Any]], ours: list[tuple[str, str | float]]) -> None:
    """Put our pairs in place of the earlier ones; what the test recorded itself stays."""
    pairs[:] = [(name, value) for name, value in pairs if not str(name).startswith(PREFIX)] + ours


def properties_of(report: Any) -> dict[str, Any]:
    """Our properties without the prefix; empty for other tests and for reports of collection."""
    pairs = getattr(report, "user_properties", ())
    return {name.removeprefix(PREFIX): value for name, value in pairs if str(name).startswith(PREFIX)}


def case_id_of_report(report: Any) -> str | None:
    """The id of the case that this report is about."""
    case = properties_of(report).get("case")
    return None if case is None else str(case)


# One test, put together from its reports, in whichever process it ran

# Allure's statuses. INCONCLUSIVE has not passed; Allure shows it as a category of its own.
STATUS = {Ruling.PASSED: "passed", Ruling.FAILED: "failed", Ruling.BROKEN: "broken", Ruling.INCONCLUSIVE: "failed"}
RERUN = "rerun"  # the outcome of a test whose worker crashed, if another worker runs it again


@dataclass
class ReportedTest:
    """A test as its reports describe it. As in pytest, the first report that did not pass decides."""

    nodeid: str
    case: str = ""
    outcome: str = "passed"
    when: str = "call"
    text: str = ""  # why it did not pass
    start: float = math.inf  # seconds since the epoch
    stop: float = 0.0
    uuid: str = ""  # of the Allure result that the test's process writes
    is_over: bool = False  # its teardown was reported too

    def add(self, report: pytest.TestReport) -> None:
        self.case = self.case or case_id_of_report(report) or ""
        self.uuid = getattr(report, "allure_uuid", self.uuid)
        self.is_over = self.is_over or report.when == "teardown"
        stop = report.stop or time.time()  # a crashed worker wrote no time
        self.start, self.stop = min(self.start, report.start or stop), max(self.stop, stop)
        if self.outcome == "passed" and not report.passed:
            self.outcome, self.when, self.text = report.outcome, str(report.when), _text(report)

    def status(self, entry: CaseEntry | None) -> str:
        if self.outcome == "passed" and not self.is_over:
            return "skipped"  # it was interrupted
        if self.outcome != "failed":
            return self.outcome
        if entry and entry.verdict and entry.verdict is not Ruling.PASSED:
            return STATUS[entry.verdict]
        return "failed" if self.when == "call" else "broken"

    def span(self, entry: CaseEntry | None) -> tuple[float, float]:
        """Start and end: of the trials if it has a case, since the test itself only waits for them."""
        times = [at for trial in entry.trials for at in trial.times.values()] if entry else []
        return (min(times), max(times)) if times else (self.start, self.stop)


def _text(report: Any) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longreprtext)
