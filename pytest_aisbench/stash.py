"""What a pytest session shares by its stash: the settings, the object that owns the run, the run's ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.i18n import Language
    from pytest_aisbench.ledger.database import Database
    from pytest_aisbench.model.case import Case
    from pytest_aisbench.model.ports import Platform
    from pytest_aisbench.model.trial import Step, Trial


class RunOwner(Protocol):
    """Owns the run in this process: the controller, a worker of xdist that asks it, or the dry run.

    `session.run_owner` makes it when it is first needed: a plain pytest run never does.
    """

    def reached(self, case: Case, until: Step) -> Trial:
        """The case's trial once it is as far as `until`."""

    def platform(self) -> Platform:
        """The run's platform, connected."""

    def run_name(self) -> str:
        """The id of the run; empty where no workload was selected, and so there is none."""


SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()  # see `session.session_settings`
RUN_OWNER = pytest.StashKey[RunOwner]()
LEDGER: pytest.StashKey[Database] = pytest.StashKey()  # open while the run is: who writes through it shares its commits
VERDICT_DUE = pytest.StashKey[bool]()  # of a test: a fixture gave it its trial, so that it must pass its verdict


def language(config: pytest.Config) -> Language:
    """The language of reports and summary; English where a reporter is used without settings."""
    from pytest_aisbench import i18n

    settings = config.stash.get(SETTINGS, None)
    return i18n.language(settings.lang) if settings else i18n.ENGLISH
