"""Where a test meets its verdict: hooks of the process that runs the test, registered once a workload is known."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest

from pytest_aisbench.domain.messages import message, plain
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.domain.verdict import Ruling, Verdict
from pytest_aisbench.errors import AisbenchError, NotPassed
from pytest_aisbench.fixtures import VERDICT_DUE
from pytest_aisbench.reporters.properties import TRIAL, properties, properties_of, renew


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
    if isinstance(error, (AisbenchError, NotPassed)):
        report.longrepr = "\n".join([str(error), *(_where(trial) if trial else ())])
    elif report.failed and trial and trial.judged and trial.judged.passed:
        _overrule(item, report, trial)
    return report


def _overrule(item: pytest.Item, report: pytest.TestReport, trial: Trial) -> None:
    """A case whose test did not pass has not passed: whoever reports on this test says so too."""
    verdict = Verdict(Ruling.FAILED, failure(report), trial.verdict.findings)
    item.stash[TRIAL] = trial = replace(trial, judged=verdict)
    renew(item.user_properties, properties(trial, str(properties_of(item).get("platform", ""))))
    report.user_properties = list(item.user_properties)


def failure(report: pytest.TestReport) -> str:
    """Why a test failed, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "")
    headline = next((line for line in text.splitlines() if line.strip()), "no message")
    return message("test failed", when=str(report.when), why=headline)


def _where(trial: Trial) -> list[str]:
    """What a person looks up next."""
    lines = []
    if trial.job_id:
        phase = f" ({trial.job.platform_phase})" if trial.job else ""
        lines.append(f"  job        {plain(trial.job_id + phase)}")
    if trial.stage:
        lines.append(f"  stage      {trial.stage.root}")
    lines += [f"  log        {name}" for name in trial.logs if "worker" in name]
    lines += [f"  note       {plain(note)}" for note in trial.notes]
    lines += [f"  event      {plain(event)}" for event in trial.events]
    lines += [f"  said last  {line}" for line in trial.last_lines]
    return lines
