"""The pytest plugin: options, the marker, the fixtures. It imports all else once a test asks for a workload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import fixtures, registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.settings import option_table
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.session import admit_worker, run_owner
from pytest_aisbench.stash import SETTINGS

MARKER = (
    "workload(name, nodes=[…] or shapes=['1x8', …]): train this workload at each shape and judge it; "
    "workload(package=True): what --aisbench-package names"
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_aisbench import hookspecs as hookspecs_module

    pluginmanager.add_hookspecs(hookspecs_module)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("aisbench", "train on ModelArts or a local cloud, and judge the result (aisbench)")
    for row in option_table():
        if row.metavar:
            group.addoption(row.flag, dest=row.ini, metavar=row.metavar, default=None, help=row.help)
        else:
            group.addoption(row.flag, dest=row.ini, action="store_const", const="true", default=None, help=row.help)
        parser.addini(row.ini, f"Default for {row.flag}", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    _share_log_file(config)
    command_line = {row.name: config.getoption(row.ini) for row in option_table()}
    ini = {row.name: str(config.getini(row.ini) or "") for row in option_table()}
    try:
        config.stash[SETTINGS] = load_settings(
            command_line, ini, os.environ, _root(config), registry.of_session(config)
        )
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None
    config.pluginmanager.register(fixtures, "pytest_aisbench.fixtures")
    if config.stash[SETTINGS].dry_run:
        _forbid_workers(config)
        run_owner(config)
    elif config.stash[SETTINGS].required and not hasattr(config, "workerinput"):
        run_owner(config)  # required cases are missing also if nothing is collected


def _share_log_file(config: pytest.Config) -> None:
    """Let the processes of xdist append to pytest's log file: each would open it anew, and write over the others."""
    worker, option = hasattr(config, "workerinput"), config.option
    if not hasattr(option, "log_file") or not (worker or getattr(option, "dist", "no") != "no"):
        return
    file = option.log_file or config.getini("log_file")
    if file and (option.log_file_mode or config.getini("log_file_mode") or "w") == "w":
        if not worker and Path(file).is_file():
            Path(file).write_bytes(b"")
        option.log_file_mode = "a"


def _forbid_workers(config: pytest.Config) -> None:
    """A dry run runs no test. xdist reads these two options after us."""
    if hasattr(config.option, "tx"):
        config.option.tx, config.option.dist = [], "no"


def _root(config: pytest.Config) -> Path:
    """The project's folder; without an ini file pytest would take the nearest one that holds all arguments."""
    return config.inipath.parent if config.inipath else config.invocation_params.dir


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse an unknown platform here, in one line; later it would be one error per test."""
    settings = session.config.stash[SETTINGS]
    try:
        registry.of_session(session.config).require_platform(settings.platform)
    except UsageFault as fault:
        source = settings.sources.get("platform", "platform")
        raise pytest.UsageError(f"{source}: {fault}") from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Every value that is not a default, and its source."""
    settings = config.stash[SETTINGS]
    values = [f"{key}={_as_text(getattr(settings, key))} ({source})" for key, source in settings.sources.items()]
    lines = [", ".join(values)] if values else []
    return [f"aisbench: {line}" for line in (*lines, *settings.notes)]


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("workload")
    if marker:
        run_owner(metafunc.config)
    if marker and "case" in metafunc.fixturenames:
        from pytest_aisbench.session.collection import parametrize_cases

        parametrize_cases(metafunc, marker, metafunc.config.stash[SETTINGS])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist is about to start a worker: this process owns the run, whatever the worker collects."""
    admit_worker(node)


def pytest_aisbench_platforms() -> dict[str, str]:
    return registry.PLATFORMS


def pytest_aisbench_reporters() -> dict[str, str]:
    return registry.REPORTERS


def pytest_aisbench_power_sources() -> dict[str, str]:
    return registry.POWER_SOURCES
