"""pytest's door: options, the marker, the fixtures. All else is imported once a test asks for a workload."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import fixtures, registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.settings import option_table
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.fixtures import CREW
from pytest_aisbench.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_aisbench.fixtures import Crew

MARKER = (
    "workload(name, nodes=[…] or shapes=['1x8', …]): train this workload at each shape and judge it; "
    "workload(package=True): what --aisbench-package names"
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_aisbench import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


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
    enlist: Callable[[], Crew] = cache(lambda: _enlist(config))
    config.stash[CREW] = enlist
    config.pluginmanager.register(fixtures, "pytest_aisbench.fixtures")
    if config.stash[SETTINGS].dry_run:
        _rehearse(config)
    elif config.stash[SETTINGS].required and not hasattr(config, "workerinput"):
        enlist()  # also where nothing is collected somebody must miss it


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


def _rehearse(config: pytest.Config) -> None:
    """Nobody runs a test, so nobody needs workers: xdist asks for them after us, by these two."""
    if hasattr(config.option, "tx"):
        config.option.tx, config.option.dist = [], "no"
    config.stash[CREW]()


def _root(config: pytest.Config) -> Path:
    """The project's folder; without an ini file pytest would take the nearest one that holds all arguments."""
    return config.inipath.parent if config.inipath else config.invocation_params.dir


def pytest_sessionstart(session: pytest.Session) -> None:
    """An unknown platform is one line here, and one error per test if it were found later."""
    settings = session.config.stash[SETTINGS]
    try:
        registry.of_session(session.config).require_platform(settings.platform)
    except UsageFault as fault:
        source = settings.sources.get("platform", "platform")
        raise pytest.UsageError(f"{source}: {fault}") from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Every value that is not a default, and who said so."""
    settings = config.stash[SETTINGS]
    told = [f"{key}={_shown(getattr(settings, key))} ({source})" for key, source in settings.sources.items()]
    lines = [", ".join(told)] if told else []
    return [f"aisbench: {line}" for line in (*lines, *settings.notes)]


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("workload")
    if marker:
        metafunc.config.stash[CREW]()
    if marker and "case" in metafunc.fixturenames:
        from pytest_aisbench.session.collection import generate

        generate(metafunc, marker)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist is about to start a worker: whatever the worker will find, the run is held here."""
    crew: Any = node.config.stash[CREW]()
    crew.admit(node)


def pytest_aisbench_platforms() -> dict[str, str]:
    return registry.PLATFORMS


def pytest_aisbench_reporters() -> dict[str, str]:
    return registry.REPORTERS


def pytest_aisbench_power_sources() -> dict[str, str]:
    return registry.POWER_SOURCES


def _enlist(config: pytest.Config) -> Crew:
    """The run's holder in this process: a worker of xdist leaves the run to its controller."""
    from pytest_aisbench.session import outcome as outcome_module

    workerinput = getattr(config, "workerinput", None)
    crew: Crew
    if config.stash[SETTINGS].dry_run:
        from pytest_aisbench.session.dry_run import Rehearser

        crew = Rehearser(config)
    elif workerinput is None:
        from pytest_aisbench.session.controller import Controller

        crew = Controller(config)
    else:
        from pytest_aisbench.session.xdist import Worker

        crew = Worker(config, *workerinput["aisbench_link"])
    config.pluginmanager.register(outcome_module, "pytest_aisbench.session.outcome")
    config.pluginmanager.register(crew, "pytest_aisbench.crew")
    return crew
