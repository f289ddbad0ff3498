"""A pytest session with workloads in it: who owns the run, what is collected, in which order, and how it ends.

Begin with `run_owner`, then `controller`. `plugin`, `fixtures` and the commands import this package. A pytest run
without workloads imports none of its modules.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.stash import RUN_OWNER, SETTINGS, RunOwner

if TYPE_CHECKING:
    import pytest

    from pytest_aisbench.config.settings import Settings


def run_owner(config: pytest.Config) -> RunOwner:
    """The object that owns the run in this process. The first call makes it and registers it as a pytest plugin."""
    if RUN_OWNER not in config.stash:
        from pytest_aisbench.session import outcome as outcome_module
        from pytest_aisbench.session import scrubbing

        config.stash[RUN_OWNER] = owner = _new_owner(config, session_settings(config))
        config.pluginmanager.register(outcome_module, "pytest_aisbench.session.outcome")
        config.pluginmanager.register(scrubbing, "pytest_aisbench.session.scrubbing")
        scrubbing.scrub_environment(config)
        config.pluginmanager.register(owner, "pytest_aisbench.run_owner")
    return config.stash[RUN_OWNER]


def read_settings(config: pytest.Config) -> Settings:
    """Read the settings of this session from all their sources, for the stash. A mistake in them is exit 4."""
    import pytest

    from pytest_aisbench import registry
    from pytest_aisbench.config.loading import load_settings
    from pytest_aisbench.config.options import OPTIONS
    from pytest_aisbench.errors import UsageFault

    command_line = {row.name: config.getoption(row.ini) for row in OPTIONS}
    ini = {row.name: str(config.getini(row.ini) or "") for row in OPTIONS}
    try:
        offered, root = registry.of_session(config), root_folder(config)
        config.stash[SETTINGS] = settings = load_settings(command_line, ini, os.environ, root, offered)
    except UsageFault as fault:
        raise pytest.UsageError(*fault.lines) from None
    return settings


def session_settings(config: pytest.Config) -> Settings:
    """The settings of this session. Those of a session that no source of settings named when it began are defaults."""
    if SETTINGS not in config.stash:
        from pytest_aisbench.config.loading import load_settings
        from pytest_aisbench.registry import of_session

        config.stash[SETTINGS] = load_settings({}, {}, {}, root_folder(config), of_session(config))
    return config.stash[SETTINGS]


def root_folder(config: pytest.Config) -> Path:
    """The project's folder; without an ini file pytest would take the nearest one that holds all arguments."""
    return config.inipath.parent if config.inipath else config.invocation_params.dir


def _new_owner(config: pytest.Config, settings: Settings) -> RunOwner:
    if settings.dry_run:
        from pytest_aisbench.session.dry_run import DryRunOwner

        return DryRunOwner(config, settings)
    if hasattr(config, "workerinput"):  # a process of xdist: its controller owns the run
        from pytest_aisbench.session.xdist import Worker

        return Worker(config, settings, *config.workerinput["aisbench_link"])
    from pytest_aisbench.session.controller import Controller

    return Controller(config, settings)


def admit_worker(node: Any) -> None:
    """xdist is about to start the worker `node`: tell the worker how to reach the owner of the run."""
    from pytest_aisbench.session.controller import Controller

    owner = run_owner(node.config)
    assert isinstance(owner, Controller), "a dry run has no workers, and a worker starts none"
    owner.admit(node)
