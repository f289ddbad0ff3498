"""Where pytest's configuration holds what the run was told, for plugins and reporters alike."""

from __future__ import annotations

import pytest

from pytest_aisbench.settings import Settings

SETTINGS = pytest.StashKey[Settings]()


def language(config: pytest.Config) -> str:
    """Of reports and summary. A reporter may be used where nobody has read settings."""
    settings = config.stash.get(SETTINGS, None)
    return settings.lang if settings else Settings.lang
