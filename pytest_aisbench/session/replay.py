"""Writes the reports of an old run from the ledger.

The recorded reports of its tests pass through a pytest that runs nothing, and every reporter gets them as it did in the
run itself. So there is one way to write each report.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.config.options import LOCAL
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.ledger.runs import RecordedTest
from pytest_aisbench.model.clock import seconds_of
from pytest_aisbench.model.results import CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Ruling, Verdict
from pytest_aisbench.report import results
from pytest_aisbench.report.host_plugins import PREFIX, case_id_of_report, guarded
from pytest_aisbench.report.terminal import Failure
from pytest_aisbench.session.outcome import fails_by_verdict
from pytest_aisbench.session.reporters import Reporters

# Variables that a run obeys and a replay must not: other options, and a CI server's own files.
_IGNORED_VARIABLES = ("AISBENCH_", "PYTEST_", "GITHUB_", "CI", "GITLAB_", "JENKINS_")


def write_reports(entry: RunEntry, tests: Sequence[RecordedTest], folder: Path, settings: Settings) -> list[str]:
    """Write the reports of the run into `folder`; what could not be written, a line each."""
    replay = Replay(entry, tests, folder)
    options = {
        "--rootdir": folder,
        "--aisbench-platform": LOCAL,
        "--aisbench-reports": settings.reports,
        "--aisbench-ledger": settings.ledger,
        "--aisbench-lang": settings.lang,
    }
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    quiet = ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:logging", "-p", "pytest_aisbench.plugin"]
    output = io.StringIO()
    with _isolated(folder), redirect_stdout(output), redirect_stderr(output):
        code = pytest.main([*quiet, *arguments, str(folder)], plugins=[replay])
    if not replay.is_complete:
        raise LedgerError(
            f"the run {entry.run} cannot be reported again: pytest ended with {int(code)}: {output.getvalue()}"
        )
    results.write_results(entry, folder)
    return replay.warnings


@contextmanager
def _isolated(folder: Path) -> Iterator[None]:
    """Run in this folder, without variables of our options and of a CI server; put both back at the end."""
    kept, here = dict(os.environ), Path.cwd()
    for name in kept:
        if name.startswith(_IGNORED_VARIABLES):
            del os.environ[name]
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(kept)


class Replay:
    """A pytest plugin object, in the place of the process that held the run."""

    def __init__(self, entry: RunEntry, tests: Sequence[RecordedTest], folder: Path) -> None:
        self._entry, self._folder = entry, folder
        self._cases = {case.id: case for case in entry.cases}
        recorded = {test.case for test in tests}
        # A ledger of an older version, or a killed run, has cases without a recorded test.
        unrecorded = (case for case in entry.cases if case.verdict and case.id not in recorded)
        self._tests = [*tests, *map(_test_of_verdict, unrecorded)]
        self._reporters: Reporters | None = None
        self.warnings: list[str] = []
        self.is_complete = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        session.items = []
        session.testscollected = len(self._tests)
        return True  # nothing is imported

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        config = session.config
        self._reporters = Reporters(config, lambda kind: not kind.once)
        self._reporters.open(self._folder)
        self._restore_start(config)
        for test in self._tests:
            self._replay_test(config, test, self._reporters)
        return True

    def _replay_test(self, config: pytest.Config, test: RecordedTest, reporters: Reporters) -> None:
        for data in test.reports:
            report = config.hook.pytest_report_from_serializable(config=config, data=_restored(data))
            if test.case and not case_id_of_report(report):
                report.user_properties.append((f"{PREFIX}case", test.case))  # a worker that crashed could not say
            if isinstance(report.longrepr, str) and fails_by_verdict(report):
                file, line, _ = report.location
                report.longrepr = Failure(report.longrepr.splitlines() or [""], (file, (line or 0) + 1), {})
            entry = self._cases.get(test.case)
            if entry and (report.when == "call" or not report.passed):
                reporters.case(entry)
            config.hook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        session.exitstatus = self._entry.exit_code or 0
        if self._reporters:
            self._reporters.run(self._entry)
        result = yield
        self.is_complete = True
        return result

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        text = str(warning_message.message)
        if text.startswith("aisbench: "):
            self.warnings.append(text.removeprefix("aisbench: "))

    def _restore_start(self, config: pytest.Config) -> None:
        """Let junit.xml say when the run began."""
        with guarded(config, "the time of the suite in junit.xml is that of now"):
            from _pytest import timing
            from _pytest.junitxml import xml_key

            log: Any = config.stash.get(xml_key, None)
            began = seconds_of(self._entry.started)
            if hasattr(log, "suite_start"):  # pytest 8.4 and newer
                lasted = seconds_of(self._entry.finished or self._entry.started) - began
                log.suite_start = instant = timing.Instant()
                object.__setattr__(instant, "time", began)
                object.__setattr__(instant, "perf_count", instant.perf_count - lasted)
            elif log:
                log.suite_start_time = began


def _restored(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples, and pytest asks for some."""
    restored = {**data}
    for key in ("user_properties", "sections"):
        restored[key] = [tuple(pair) for pair in restored.get(key, ())]
    for key in ("location", "longrepr"):
        if isinstance(restored.get(key), list):
            restored[key] = tuple(restored[key])
    return restored


def _test_of_verdict(case: CaseEntry) -> RecordedTest:
    """A test for a case that the ledger has no test of, with the outcome that the verdict implies."""
    assert case.verdict is not None
    times = [at for trial in case.trials for at in trial.times.values()] or [0.0]
    text = str(Verdict(case.verdict, case.reason, case.findings))
    failed = {Ruling.PASSED: None, Ruling.BROKEN: "setup"}.get(case.verdict, "call")
    facts: dict[str, Any] = {
        "case": case.id,
        "workload": case.workload,
        "nodes": str(case.nodes),
        "devices_per_node": str(case.devices_per_node),
        "verdict": case.verdict.value,
        "reason": case.reason,
    }
    for name, metric in case.metrics.items():
        facts |= {name: metric.value, f"{name}.unit": metric.unit}
    facts |= {f"{finding.metric}.wanted": finding.wanted for finding in case.findings}
    pairs = [(PREFIX + name, value) for name, value in facts.items() if value not in {None, ""}]
    reports: list[dict[str, Any]] = [
        {
            "$report_type": "TestReport",
            "nodeid": case.id,
            "location": [case.id, None, case.id],
            "keywords": {},
            "outcome": "failed" if when == failed else "passed",
            "longrepr": text if when == failed else None,
            "when": when,
            "user_properties": pairs,
            "sections": [],
            "duration": 0.0,
            "start": min(times),
            "stop": max(times),
        }
        for when in ("setup", "call", "teardown")
        if not (failed == "setup" and when == "call")
    ]
    return RecordedTest(case.id, case.id, "", min(times), max(times), reports)
