"""Late entrance into the plugins that write the files: pytest-html, allure-pytest, pytest's own JUnit.

They make up their mind in `pytest_configure`; whether a run has a workload is known after collection. So we give them
their option then and let them configure themselves again. Some names we touch are not promised by their authors:
everything is done under `guarded`, since a missing report is worth a warning and never a run.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.logs import get_logger, log_ignored

_LOG = get_logger("report")


def warn(config: pytest.Config, text: str) -> None:
    """A line in pytest's summary of warnings; unlike `warnings.warn` it stops no run under `-W error`."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        warnings.warn(pytest.PytestWarning(text), stacklevel=2)
    record = {"warning_message": records[0], "when": "config", "nodeid": "", "location": None}
    config.hook.pytest_warning_recorded.call_historic(kwargs=record)


def say(config: pytest.Config, line: str) -> None:
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


def switched_on(config: pytest.Config, host: str, option: str, path: Path) -> bool:
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


def uncollected(config: pytest.Config) -> list[pytest.CollectReport]:
    """What failed or was skipped while collecting: a host that enters late has missed it, and would look green."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    stats: dict[str, list[Any]] = getattr(terminal, "stats", {})
    found = [*stats.get("error", ()), *stats.get("skipped", ())]
    return [report for report in found if isinstance(report, pytest.CollectReport)]
