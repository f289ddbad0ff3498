"""The reporters of a session: each is let in by its name, and an error in one is a warning that changes no verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_aisbench import registry
from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.domain.ports import Reporter
from pytest_aisbench.registry import ReporterKind
from pytest_aisbench.reporters.hosts import guarded


class Reporters:
    """All reporters of the registry, or those of them that are `wanted`."""

    def __init__(self, config: pytest.Config, wanted: Callable[[ReporterKind], bool] = lambda _: True) -> None:
        self._config = config
        self._wanted = wanted
        self._present: dict[str, Reporter] = {}

    def open(self, folder: Path) -> None:
        """Build the reporters in their order and register each as a pytest plugin."""
        offered = registry.of_session(self._config)
        kinds: list[ReporterKind] = []
        for name in offered.reporters:
            with guarded(self._config, f"no reporter {name!r}"):
                kinds.append(offered.reporter(name))
        for kind in sorted(filter(self._wanted, kinds), key=lambda kind: kind.order):
            with guarded(self._config, f"no reporter {kind.name!r}"):
                reporter = kind.build(self._config, folder)
                self._config.pluginmanager.register(reporter, f"aisbench-{kind.name}")
                self._present[kind.name] = reporter

    def case(self, entry: CaseEntry) -> None:
        for name, reporter in self._present.items():
            with guarded(self._config, f"reporter {name!r}"):
                reporter.case(entry)

    def run(self, entry: RunEntry) -> None:
        for name, reporter in self._present.items():
            with guarded(self._config, f"reporter {name!r}"):
                reporter.run(entry)
