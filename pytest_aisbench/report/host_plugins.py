"""Late entrance into the plugins that write the files: pytest-html, allure-pytest, pytest's own JUnit.

They make up their mind in `pytest_configure`; whether a run has a workload is known after collection. So we give them
their option then and let them configure themselves again. Some names we touch are not promised by their authors:
everything is done under `guarded`, since a missing report is worth a warning and never a run.
"""

from __future__ import annotations

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

from pytest_aisbench.judge.values import case_values
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Ruling

_LOG = get_logger("report")


def warn(config: pytest.Config, text: str) -> None:
    """A line in pytest's summary of warnings; unlike `warnings.warn` it stops no run under `-W error`."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        warnings.warn(pytest.PytestWarning(text), stacklevel=2)
    record = {"warning_message": records[0], "when": "config", "nodeid": "", "location": None}
    config.hook.pytest_warning_recorded.call_historic(kwargs=record)


def write_line(config: pytest.Config, line: str) -> None:
    """A line on pytest's terminal, between those of the tests."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal:
        terminal.ensure_newline()
        terminal.write_line(f"aisbench: {line}")


@contextmanager
def guarded(config: pytest.Config, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - another version of a host may fail in any way
        warn(config, f"aisbench: {what}: {type(error).__name__}: {error}")
        log_ignored(_LOG, error, "%s", what, level=logging.INFO)


def switch_on(config: pytest.Config, host: str, option: str, path: Path) -> bool:
    """Switch a host plugin on; False where it is on already, because the user asked for it, or cannot be."""
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
    """What failed or was skipped while collecting: a host that enters late has missed it, and would look green."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    stats: dict[str, list[Any]] = getattr(terminal, "stats", {})
    found = [*stats.get("error", ()), *stats.get("skipped", ())]
    return [report for report in found if isinstance(report, pytest.CollectReport)]


# -- What a workload item's report carries from the process that ran the test to whoever reads it.

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
        ("reason", verdict.reason if verdict else None),
    ]
    values = case_values(trial).values
    for name, metric in workload.metrics.items():
        pairs += [(name, values.get(name)), (f"{name}.unit", metric.unit or None)]
    pairs += [(f"{finding.metric}.wanted", finding.wanted) for finding in (verdict.findings if verdict else ())]
    return [
        (PREFIX + name, plain(value) if isinstance(value, str) else value) for name, value in pairs if value is not None
    ]


def replace_properties(pairs: list[tuple[str, Any]], ours: list[tuple[str, str | float]]) -> None:
    """Put our pairs in place of the earlier ones; whatever else a test records stays."""
    pairs[:] = [(name, value) for name, value in pairs if not str(name).startswith(PREFIX)] + ours


def properties_of(report: Any) -> dict[str, Any]:
    """Ours, without the prefix; empty for other tests and for reports of collection, which carry none."""
    pairs = getattr(report, "user_properties", ())
    return {name.removeprefix(PREFIX): value for name, value in pairs if str(name).startswith(PREFIX)}


def case_id_of_report(report: Any) -> str | None:
    """The id of the case that this report is of."""
    case = properties_of(report).get("case")
    return None if case is None else str(case)


# -- One test as its reports tell it, whichever process ran it.

# In Allure's words. What noise left undecided has not passed; a category of its own tells it from the rest.
STATUS = {Ruling.PASSED: "passed", Ruling.FAILED: "failed", Ruling.BROKEN: "broken", Ruling.INCONCLUSIVE: "failed"}
RERUN = "rerun"  # the outcome of a report on a worker that crashed, where another judges


@dataclass
class ReportedTest:
    """The first report that did not pass decides, as it does for pytest."""

    nodeid: str
    case: str = ""
    outcome: str = "passed"
    when: str = "call"
    text: str = ""  # why it did not pass
    start: float = math.inf  # seconds since the epoch
    stop: float = 0.0
    uuid: str = ""  # of the Allure result that the test's process writes
    is_over: bool = False  # its teardown was told too

    def hear(self, report: pytest.TestReport) -> None:
        self.case = self.case or case_id_of_report(report) or ""
        self.uuid = getattr(report, "allure_uuid", self.uuid)
        self.is_over = self.is_over or report.when == "teardown"
        stop = report.stop or time.time()  # a worker that crashed did not look at the clock
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
        """From when to when; of a case: its trials, since the test itself only asked what became of them."""
        times = [at for trial in entry.trials for at in trial.times.values()] if entry else []
        return (min(times), max(times)) if times else (self.start, self.stop)


def _text(report: Any) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longreprtext)
