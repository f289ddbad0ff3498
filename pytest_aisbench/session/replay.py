"""An old run told again from the ledger: its tests' reports pass through a pytest that runs nothing, and every reporter
hears of them as it did in the run itself. So there is one way to write each report."""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.config.settings import LOCAL, Settings
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.ledger.runs import RecordedTest
from pytest_aisbench.model.clock import seconds_of
from pytest_aisbench.model.results import CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Ruling, Verdict
from pytest_aisbench.report import results
from pytest_aisbench.report.host_plugins import PREFIX, case_id_of_report, guarded
from pytest_aisbench.session.reporters import Reporters

# What a run obeys and a retelling must not: other options, and a CI server's own files.
_DEAF = ("AISBENCH_", "PYTEST_", "GITHUB_", "CI", "GITLAB_", "JENKINS_")


def tell(entry: RunEntry, tests: Sequence[RecordedTest], folder: Path, settings: Settings) -> list[str]:
    """Write the reports of the run into `folder`; what could not be written, a line each."""
    replay = Replay(entry, tests, folder)
    options = {
        "--rootdir": folder,
        "--aisbench-platform": LOCAL,
        "--aisbench-reports": settings.reports,
        "--aisbench-ledger": settings.ledger,
        "--aisbench-lang": settings.lang,
    }
    told = [f"{name}={value}" for name, value in options.items() if value is not None]
    quiet = ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:logging", "-p", "pytest_aisbench.plugin"]
    said = io.StringIO()
    with _alone(folder), redirect_stdout(said), redirect_stderr(said):
        code = pytest.main([*quiet, *told, str(folder)], plugins=[replay])
    if not replay.is_told:
        raise LedgerError(f"the run {entry.run} cannot be told again: pytest ended with {int(code)}: {said.getvalue()}")
    results.write_results(entry, folder)
    return replay.warnings


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Away from the user's project, its settings and its CI server."""
    kept, here = dict(os.environ), Path.cwd()
    for name in kept:
        if name.startswith(_DEAF):
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
        known = {test.case for test in tests}
        # A ledger of an older version, or a run that was killed, has cases of which no test has told.
        self._tests = [*tests, *(_told(case) for case in entry.cases if case.verdict and case.id not in known)]
        self._reporters: Reporters | None = None
        self.warnings: list[str] = []
        self.is_told = False

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
        self._turn_back(config)
        for test in self._tests:
            self._again(config, test, self._reporters)
        return True

    def _again(self, config: pytest.Config, test: RecordedTest, reporters: Reporters) -> None:
        for data in test.reports:
            report = config.hook.pytest_report_from_serializable(config=config, data=_as_it_was(data))
            if test.case and not case_id_of_report(report):
                report.user_properties.append((f"{PREFIX}case", test.case))  # a worker that crashed could not say
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
        self.is_told = True
        return result

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        text = str(warning_message.message)
        if text.startswith("aisbench: "):
            self.warnings.append(text.removeprefix("aisbench: "))

    def _turn_back(self, config: pytest.Config) -> None:
        """JUnit says when its suite began."""
        with guarded(config, "the time of the suite in junit.xml is that of the retelling"):
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


def _as_it_was(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples, and pytest asks for some."""
    told = {**data}
    for key in ("user_properties", "sections"):
        told[key] = [tuple(pair) for pair in told.get(key, ())]
    for key in ("location", "longrepr"):
        if isinstance(told.get(key), list):
            told[key] = tuple(told[key])
    return told


def _told(case: CaseEntry) -> RecordedTest:
    """The test of a case that nobody wrote down, as its verdict says it ended."""
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
