"""Where pytest's configuration holds the settings of the run, for plugins and reporters alike."""

from __future__ import annotations

import pytest

from pytest_aisbench import i18n
from pytest_aisbench.config.settings import Settings

SETTINGS = pytest.StashKey[Settings]()


def language(config: pytest.Config) -> i18n.Language:
    """The language of reports and summary; English where a reporter is used without settings."""
    settings = config.stash.get(SETTINGS, None)
    return i18n.language(settings.lang) if settings else i18n.ENGLISH
