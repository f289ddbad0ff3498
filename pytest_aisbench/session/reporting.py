"""The reporters of a session: each is let in by its name, and an error in one is a warning that changes no verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import offers
from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.domain.ports import Reporter
from pytest_aisbench.reporters.hosts import guarded


class Reporters:
    """All that are offered, or those of them whose class is `wanted`."""

    def __init__(self, config: pytest.Config, wanted: Callable[[Any], bool] = lambda _: True) -> None:
        self._config = config
        self._wanted = wanted
        self._present: dict[str, Reporter] = {}

    def open(self, folder: Path) -> None:
        """Each is a pytest plugin from here on."""
        found = offers.reporters(self._config)
        for name in found:
            with guarded(self._config, f"no reporter {name!r}"):
                kind = offers.load("reporter", name, found)
                if self._wanted(kind):
                    reporter = kind(self._config, folder)
                    self._config.pluginmanager.register(reporter, f"aisbench-{name}")
                    self._present[name] = reporter

    def case(self, entry: CaseEntry) -> None:
        for name, reporter in self._present.items():
            with guarded(self._config, f"reporter {name!r}"):
                reporter.case(entry)

    def run(self, entry: RunEntry) -> None:
        for name, reporter in self._present.items():
            with guarded(self._config, f"reporter {name!r}"):
                reporter.run(entry)
