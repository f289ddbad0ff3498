"""One test as its reports tell it, whichever process ran it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_aisbench.domain.entry import CaseEntry
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.reporters.properties import case_of

# In Allure's words. What noise left undecided has not passed; a category of its own tells it from the rest.
STATUS = {Ruling.PASSED: "passed", Ruling.FAILED: "failed", Ruling.BROKEN: "broken", Ruling.INCONCLUSIVE: "failed"}
RERUN = "rerun"  # the outcome of a report on a worker that crashed, where another judges


@dataclass
class Story:
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
        self.case = self.case or case_of(report) or ""
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
