"""A worker of pytest-xdist: it collects and judges; platform, Fleet and ledger are the controller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_aisbench import registry
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.link import RemoteLink
from pytest_aisbench.session import collection
from pytest_aisbench.session.reporting import Reporters
from pytest_aisbench.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_aisbench.domain.case import Case
    from pytest_aisbench.domain.ports import Platform
    from pytest_aisbench.domain.trial import Step, Trial


class Worker:
    """A pytest plugin object, as the controller is one."""

    def __init__(self, config: pytest.Config, address: str, key: bytes) -> None:
        self._config = config
        self._link = RemoteLink(address, key)
        self._platform: Platform | None = None
        self._run_name = ""

    def run_name(self) -> str:
        return self._run_name

    def reached(self, case: Case, until: Step) -> Trial:
        trial: Trial = self._link.call("reached", case, until)
        return trial

    def platform(self) -> Platform:
        if self._platform is None:
            settings = replace(self._config.stash[SETTINGS], **self._link.call("share"))
            self._platform = registry.of_session(self._config).connect(settings)
        return self._platform

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        collection.select(self._config, items, lambda _: None)  # the controller's terminal, not ours

    @pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
    def pytest_collection_modifyitems_check(self, items: list[pytest.Item]) -> None:
        try:
            collection.check(self._config, items)
        except UsageFault as fault:
            self._link.call("fault", fault)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        collection.leave_out(self._config, items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before xdist tells the controller that this worker has collected."""
        try:
            folder = self._link.call("plan", collection.plan(self._config, session.items))
        except UsageFault as fault:
            self._link.call("fault", fault)
        else:
            if folder:
                self._run_name = Path(folder).name
                Reporters(self._config, lambda kind: kind.on_workers).open(Path(folder))

    def pytest_unconfigure(self) -> None:
        if self._platform:
            self._platform.close()
        self._link.close()
