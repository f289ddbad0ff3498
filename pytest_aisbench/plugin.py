"""The pytest plugin: options, the marker, the fixtures. It imports all else once a test asks for a workload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import fixtures
from pytest_aisbench.config import start_hint
from pytest_aisbench.config.options import CONFIG_FILE, OPTIONS
from pytest_aisbench.session import admit_worker, read_settings, root_folder, run_owner, session_settings
from pytest_aisbench.stash import SETTINGS

MARKER = (
    "workload(name, nodes=[…] or shapes=['1x8', …], parameters=[…]): train this workload at each shape and judge it; "
    "parametrized arguments that are named in parameters= or in [parameters] of workload.toml are given to the job; "
    "workload(package=True): what --aisbench-package names"
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_aisbench import hookspecs as hookspecs_module

    pluginmanager.add_hookspecs(hookspecs_module)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("aisbench", "train on ModelArts or a local cloud, and judge the result (aisbench)")
    for row in OPTIONS:
        if row.metavar:
            group.addoption(row.flag, dest=row.ini, metavar=row.metavar, default=None, help=row.help)
        else:
            group.addoption(row.flag, dest=row.ini, action="store_const", const="true", default=None, help=row.help)
        parser.addini(row.ini, f"Default for {row.flag}", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    _share_log_file(config)
    config.pluginmanager.register(fixtures, "pytest_aisbench.fixtures")
    if not _is_addressed(config):
        return  # the first workload makes the settings, all of them defaults
    settings = read_settings(config)
    if settings.dry_run:
        _forbid_workers(config)
        run_owner(config)
    elif settings.required and not hasattr(config, "workerinput"):
        run_owner(config)  # required cases are missing also if nothing is collected


def _is_addressed(config: pytest.Config) -> bool:
    """True if any source of settings names us; then a mistake in it ends the session before it begins."""
    hook = config.hook
    return (
        any(config.getoption(row.ini) is not None or config.getini(row.ini) for row in OPTIONS)
        or any(name.startswith("AISBENCH_") for name in os.environ)
        or (root_folder(config) / CONFIG_FILE).is_file()
        or any(
            len(offers.get_hookimpls()) > 1  # more than our own
            for offers in (
                hook.pytest_aisbench_platforms,
                hook.pytest_aisbench_reporters,
                hook.pytest_aisbench_power_sources,
            )
        )
    )


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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse an unknown platform here, in one line; later it would be one error per test."""
    settings = session.config.stash.get(SETTINGS, None)
    if settings is None:
        return
    from pytest_aisbench.errors import UsageFault
    from pytest_aisbench.registry import of_session

    try:
        of_session(session.config).require_platform(settings.platform)
    except UsageFault as fault:
        source = settings.sources.get("platform", "platform")
        raise pytest.UsageError(f"{source}: {fault}") from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Every value that is not a default, and its source."""
    settings = config.stash.get(SETTINGS, None)
    if settings is None:
        return []
    values = [f"{key}={_as_text(getattr(settings, key))} ({source})" for key, source in settings.sources.items()]
    lines = [", ".join(values)] if values else []
    return [f"aisbench: {line}" for line in (*lines, *settings.notes)]


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Say how to begin, where pytest found nothing because the folder is empty."""
    if exitstatus not in {pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR}:
        return
    if hint := start_hint(config.invocation_params.dir):
        terminalreporter.write_line(f"aisbench: {hint}")


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("workload")
    if marker:
        run_owner(metafunc.config)
    if marker and "case" in metafunc.fixturenames:
        from pytest_aisbench.session.collection import parametrize_cases

        parametrize_cases(metafunc, marker, session_settings(metafunc.config))


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_metadata(metadata: dict[str, Any]) -> None:
    """Take user names and tokens out of the addresses that pytest-metadata took from a CI server: its header, which -v
    prints before anything of a run exists, shows them as they are."""
    for name, value in metadata.items():
        if isinstance(value, str) and "://" in value:
            from pytest_aisbench.secret import bare_address

            metadata[name] = bare_address(value, is_address=name.endswith("URL"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist is about to start a worker: this process owns the run, whatever the worker collects."""
    admit_worker(node)


def pytest_aisbench_platforms() -> dict[str, str]:
    from pytest_aisbench.registry import PLATFORMS

    return PLATFORMS


def pytest_aisbench_reporters() -> dict[str, str]:
    from pytest_aisbench.registry import REPORTERS

    return REPORTERS


def pytest_aisbench_power_sources() -> dict[str, str]:
    from pytest_aisbench.registry import POWER_SOURCES

    return POWER_SOURCES
