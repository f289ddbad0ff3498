"""How a run ends: its exit code, how a test fails by its verdict, and what Ctrl-C and SIGTERM do.

`session.run_owner` registers this module as a pytest plugin: two of its functions are hooks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.errors import AisbenchError, Crashed, LedgerError, NotPassed, UsageFault
from pytest_aisbench.judge import exit_code
from pytest_aisbench.judge.exit_code import Tally
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.messages import message, plain
from pytest_aisbench.model.results import RunEntry, UploadState
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Ruling, Verdict
from pytest_aisbench.report.host_plugins import TRIAL, properties_of, replace_properties, trial_properties
from pytest_aisbench.report.text import ERROR_OF_TEST
from pytest_aisbench.stash import VERDICT_DUE

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.engine.run import Run
    from pytest_aisbench.session.collection import Plan
_LOG = get_logger("session")
# What fails a test as it should: its claims, and what the platform or the run reports through us.
_NO_ERRORS_OF_TESTS = (AssertionError, pytest.fail.Exception, AisbenchError)
# Attributes of a report; xdist sends those to its controller.
_ERROR_OF_TEST = "aisbench_error_of_test"
_BY_VERDICT = "aisbench_by_verdict"


# The exit code


class RunOutcome:
    """Counts what happens in a session, and makes the exit code of it."""

    def __init__(self, config: pytest.Config, settings: Settings, signals: Signals) -> None:
        self._config = config
        self._settings = settings
        self._signals = signals
        self.tally = Tally()

    def plan(self, plan: Plan) -> None:
        """Take in a plan. Each worker of xdist sends one, and all of them collect the same tests."""
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
            self.tally.failed += is_error_of_test(report) or not (broken or inconclusive)

    def skip(self, case_id: str, report: pytest.TestReport) -> None:
        """Record that a test was skipped, and why."""
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        self.tally.skipped[case_id] = plain(reason.removeprefix("Skipped: "))

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Turn a failure to record the run into exit 3 and one line: never a green run, never a traceback."""
        try:
            yield
        except (LedgerError, OSError) as error:
            log_ignored(_LOG, error, "a part of the run's record", level=logging.WARNING)
            self.tally.unrecorded = str(error)

    def enough(self) -> bool:
        """Whether -x or --maxfail is satisfied."""
        return 0 < (self._config.getvalue("maxfail") or 0) <= self.tally.failures

    def interrupted(self, by: type[BaseException]) -> None:
        """Note an interrupt. xdist ends -x and --maxfail by an interrupt of its own, without a signal."""
        self.tally.stopped_early = by.__module__.startswith("xdist") and self.enough()

    def code(self, exitstatus: int, run: Run | None) -> int:
        self.tally.terminated = self._signals.terminated
        if self._signals.seen:
            exitstatus = exit_code.INTERRUPTED
        if run and self._settings.tester_required:
            with self.noticing():
                self.tally.undelivered = _undelivered(run.entry())
        if run and run.fleet.crash:
            self.tally.unrecorded = str(Crashed.of(run.fleet.crash))
        self.tally.stopped = run.stopped() if run else {}
        return self.tally.code(int(exitstatus), run.rulings() if run else {})

    def missing(self, run: Run | None) -> dict[str, str]:
        """Required cases without a verdict, and why."""
        return self.tally.missing(run.rulings() if run else {})

    def skipped(self, run: Run | None) -> dict[str, str]:
        """Cases without a verdict whose test was skipped, and why."""
        judged = run.rulings() if run else {}
        return {case: why for case, why in self.tally.skipped.items() if case and why and case not in judged}


def _undelivered(entry: RunEntry) -> int:
    """How many judged cases the Tester does not have; all of them if there is no Tester."""
    newest = {upload["case"]: upload["state"] for upload in entry.uploads}
    return sum(newest.get(case.id) != UploadState.DELIVERED.value for case in entry.cases if case.verdict)


# Hooks of the process that runs the tests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that asked for its trial and forgot to require the verdict must not be green by accident."""
    __tracebackhide__ = True
    result = yield
    trial = item.stash.get(TRIAL, None)
    if trial and trial.judged and item.stash.get(VERDICT_DUE, False):
        trial.judged.require()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Our own errors say all there is to say; a traceback through fixtures and hooks would hide it."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    trial = item.stash.get(TRIAL, None)
    if report.failed and error and (isinstance(error, UsageFault) or not isinstance(error, _NO_ERRORS_OF_TESTS)):
        setattr(report, _ERROR_OF_TEST, True)
    if isinstance(error, (AisbenchError, NotPassed)):
        report.longrepr = str(error)
        setattr(report, _BY_VERDICT, bool(trial and trial.judged))
    if report.failed and trial and trial.judged and trial.judged.passed:
        _overrule(item, report, trial)
    return report


def _overrule(item: pytest.Item, report: pytest.TestReport, trial: Trial) -> None:
    """Give the case the verdict of its failed test in place of PASSED. Every report on this test then says so."""
    verdict = replace(verdict_of_failure(report), findings=trial.verdict.findings)
    item.stash[TRIAL] = trial = replace(trial, judged=verdict)
    replace_properties(item.user_properties, trial_properties(trial, str(properties_of(item).get("platform", ""))))
    report.user_properties = list(item.user_properties)


def is_error_of_test(report: pytest.TestReport) -> bool:
    """True if the test ended by an error, such as a name that it misspells, and not by an assertion or pytest.fail."""
    return bool(getattr(report, _ERROR_OF_TEST, False))


def verdict_of_failure(report: pytest.TestReport) -> Verdict:
    """The verdict on a case that its test alone keeps from passing.

    An assertion that does not hold fails the case. An error says nothing about the workload: what the test was to check
    was not checked, so that the case is INCONCLUSIVE.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "")
    headline = next((line for line in text.splitlines() if line.strip()), "no message")
    if is_error_of_test(report):
        return Verdict(Ruling.INCONCLUSIVE, message(ERROR_OF_TEST, when=str(report.when), why=headline))
    return Verdict(Ruling.FAILED, message("test failed", when=str(report.when), why=headline))


def fails_by_verdict(report: pytest.TestReport) -> bool:
    """True if the verdict of its case, and no assertion of the test's own, failed the test."""
    return report.failed and bool(getattr(report, _BY_VERDICT, False))


# Ends before their time


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn our errors into a line: a usage error is exit 4, a ledger or cloud that does not open is exit 3.

    pytest prints each mistake of a usage error as a line of its own."""
    try:
        yield
    except UsageFault as fault:
        raise pytest.UsageError(*fault.lines) from None
    except AisbenchError as error:
        pytest.exit(str(error), returncode=exit_code.INTERNAL)


class Signals:
    """The first Ctrl-C or SIGTERM ends the run in good order, the second at once.

    By default SIGTERM would leave the jobs running. Both arrive as KeyboardInterrupt, since `except Exception` in a
    test or a reporter would swallow anything less.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.seen: signal.Signals | None = None
        self._say = say
        self._before: dict[int, Any] = {}
        self._calm = False

    @property
    def terminated(self) -> bool:
        return self.seen is signal.SIGTERM

    def open(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            # A shell starts what it puts in the background with Ctrl-C ignored, and means it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._end)

    def calm(self) -> None:
        """Nothing is left to interrupt: a first signal is noted for the exit code while the jobs are stopped and the
        reports written."""
        self._calm = True

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _end(self, number: int, _: object) -> None:
        if self.seen is None:
            self.seen = signal.Signals(number)
            if not self._calm:
                raise KeyboardInterrupt
            self._remark("the run is ending already; once more, and it is left at once")
            return
        # The ledger has every job on disk; nothing that is left to do is worth keeping a person waiting.
        self._remark("left at once; jobs that may still run: aisbench jobs")
        os._exit(exit_code.TERMINATED if self.terminated else exit_code.INTERRUPTED)

    def _remark(self, line: str) -> None:
        """Print a line from inside a signal handler: a log may be in the middle of one."""
        with contextlib.suppress(Exception):  # noqa: TID251 - the signal is obeyed whether or not it can be printed
            self._say(line)
            sys.stdout.flush()
