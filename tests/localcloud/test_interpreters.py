"""Whether a Python has a framework: as much of it as the suites need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_aisbench import Settings
from pytest_aisbench.platforms import local_kind

ASKED = Settings(frameworks=(f"horovod={sys.executable}",))


def test_horovod_without_tensorflow_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It installs without a word where it was built for nothing."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    package = tmp_path / "horovod"
    (package / "tensorflow").mkdir(parents=True)
    for folder in (package, package / "tensorflow"):
        (folder / "__init__.py").touch()
    local_kind._has.cache_clear()
    said = local_kind.explain_missing_framework("horovod", ASKED)
    assert said.startswith(f"horovod is not installed for {sys.executable}; pip install 'pytest-aisbench[horovod]'")
    assert "\n" not in said
    (package / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so").touch()
    local_kind._has.cache_clear()
    assert local_kind.explain_missing_framework("horovod", ASKED) == ""


def test_a_cloud_that_runs_knows_best(tmp_path: Path) -> None:
    cloud = Settings(frameworks=("horovod=/nowhere/python",), cloud=tmp_path / "card.json")
    assert local_kind.explain_missing_framework("horovod", cloud) == ""
    assert local_kind.explain_missing_framework("python", Settings()) == ""
