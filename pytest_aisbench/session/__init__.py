"""A pytest session with workloads in it: who owns the run, what is collected, in which order, and how it ends.

Begin with `run_owner`, then `controller`. `plugin`, `fixtures` and the commands import this package. A pytest run
without workloads imports none of its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_aisbench.stash import RUN_OWNER, SETTINGS, RunOwner

if TYPE_CHECKING:
    import pytest

    from pytest_aisbench.config.settings import Settings


def run_owner(config: pytest.Config) -> RunOwner:
    """The object that owns the run in this process. The first call makes it and registers it as a pytest plugin."""
    if RUN_OWNER not in config.stash:
        from pytest_aisbench.session import outcome as outcome_module

        config.stash[RUN_OWNER] = owner = _new_owner(config, config.stash[SETTINGS])
        config.pluginmanager.register(outcome_module, "pytest_aisbench.session.outcome")
        config.pluginmanager.register(owner, "pytest_aisbench.run_owner")
    return config.stash[RUN_OWNER]


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
