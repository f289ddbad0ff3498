"""Where pytest's configuration holds what the run was told, for plugins and reporters alike."""

from __future__ import annotations

import pytest

from pytest_aisbench.settings import Settings

SETTINGS = pytest.StashKey[Settings]()
