"""A local cloud for all tests of a session, and a folder with suites that take a second instead of a minute."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from yard import Yard


@pytest.fixture(scope="session")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A local cloud of its own process, as `aisbench cloud --json > FILE` leaves its card."""
    file = tmp_path_factory.mktemp("cloud") / "card.json"
    command = [sys.executable, "-m", "pytest_aisbench", "cloud", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cloud:
        assert cloud.stdout is not None
        file.write_text(cloud.stdout.readline())
        yield file
        cloud.terminate()
        cloud.wait(30)


@pytest.fixture
def yard(tmp_path: Path, card: Path) -> Yard:
    return Yard(tmp_path, card)
