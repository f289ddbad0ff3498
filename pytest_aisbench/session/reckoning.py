"""What a run comes to: its tests counted, its manifest checked, one exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.upload import State
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.judge import exit_code
from pytest_aisbench.judge.exit_code import Tally
from pytest_aisbench.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_aisbench.domain.entry import RunEntry
    from pytest_aisbench.services.run import Run
    from pytest_aisbench.session.collection import Plan
    from pytest_aisbench.session.ending import Signals


class Reckoning:
    """The Controller's: it is told what happens, and says what that amounts to."""

    def __init__(self, config: pytest.Config, signals: Signals) -> None:
        self._config = config
        self._settings = config.stash[SETTINGS]
        self._signals = signals
        self.tally = Tally()

    def plan(self, plan: Plan) -> None:
        """Told by each worker of xdist, all of which collect the same; never where nothing is run."""
        self.tally.required = self._settings.required
        self.tally.unmatched |= plan.unmatched
        self.tally.expected |= plan.expected
        self.tally.selected |= set(plan.cases.values())
        self.tally.deselected |= plan.deselected

    def count(self, report: pytest.TestReport, verdict: Any) -> None:
        if report.failed:
            broken = report.when == "setup" and verdict == Ruling.BROKEN.value
            inconclusive = report.when == "call" and verdict == Ruling.INCONCLUSIVE.value
            self.tally.failures += 1
            self.tally.failed += not (broken or inconclusive)

    def skip(self, case_id: str, report: pytest.TestReport) -> None:
        """A test did not ask what became of its job."""
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        self.tally.skipped[case_id] = plain(told.removeprefix("Skipped: "))

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """A run that cannot be recorded is never green, and never a traceback: one line, and exit 3."""
        try:
            yield
        except (LedgerError, OSError) as error:
            self.tally.unrecorded = str(error)

    def enough(self) -> bool:
        """Whether -x or --maxfail is satisfied."""
        return 0 < (self._config.getvalue("maxfail") or 0) <= self.tally.failures

    def interrupted(self, by: type[BaseException]) -> None:
        """xdist ends -x and --maxfail with an interrupt of its own; nobody pressed a key."""
        self.tally.stopped_early = by.__module__.startswith("xdist") and self.enough()

    def code(self, exitstatus: int, run: Run | None) -> int:
        self.tally.terminated = self._signals.terminated
        if self._signals.seen:
            exitstatus = exit_code.INTERRUPTED
        if run and self._settings.tester_required:
            with self.noticing():
                self.tally.undelivered = _undelivered(run.entry())
        return self.tally.code(int(exitstatus), run.rulings() if run else {})

    def missing(self, run: Run | None) -> dict[str, str]:
        """Required cases without a verdict, and why."""
        return self.tally.missing(run.rulings() if run else {})


def _undelivered(entry: RunEntry) -> int:
    """Judged cases whose last word the Tester has not got; without a Tester, all of them."""
    newest = {upload["case"]: upload["state"] for upload in entry.uploads}
    return sum(newest.get(case.id) != State.DELIVERED.value for case in entry.cases if case.verdict)
