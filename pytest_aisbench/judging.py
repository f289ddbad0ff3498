"""Where a test meets its verdict: hooks of the process that runs the test, registered once a workload is known."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_aisbench.domain.text import plain
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.errors import AisbenchError, NotPassed
from pytest_aisbench.reporters.properties import TRIAL


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that asked for its trial and forgot to require the verdict must not be green by accident."""
    __tracebackhide__ = True
    result = yield
    trial = item.stash.get(TRIAL, None)
    if trial and trial.judged and "trial" in getattr(item, "fixturenames", ()):
        trial.judged.require()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Our own errors say all there is to say; a traceback through fixtures and hooks would hide it."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, (AisbenchError, NotPassed)):
        trial = item.stash.get(TRIAL, None)
        report.longrepr = "\n".join([str(error), *(_where(trial) if trial else ())])
    return report


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
    return lines
