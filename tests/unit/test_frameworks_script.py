"""What `scripts/frameworks` makes of its arguments, and of an extra that cannot be installed."""

from __future__ import annotations

import argparse
from pathlib import Path

import frameworks
import pytest

from pytest_aisbench.option_types import FRAMEWORKS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("2x8", ["--nodes", "2", "--aisbench-devices", "8"]),
        ("2x1-single", ["--nodes", "2", "--aisbench-devices", "1", "--aisbench-single-server"]),
        ("1x2-v1", ["--nodes", "1", "--aisbench-devices", "2", "--aisbench-modelarts-version", "V1"]),
    ],
)
def test_a_shape_is_options_of_pytest(text: str, options: list[str]) -> None:
    assert frameworks.Shape.parse(text).options() == options


@pytest.mark.parametrize("text", ["2", "x2", "2x2-twice", ""])
def test_what_is_no_shape_is_said(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a shape such as"):
        frameworks.Shape.parse(text)


def test_every_suite_of_a_framework_has_a_section_for_it() -> None:
    for framework, suites in frameworks.SUITES.items():
        assert framework in FRAMEWORKS
        for suite in suites:
            assert f"[local.{framework}]" in (ROOT / "suites" / suite / "workload.toml").read_text()
            assert f"[local.{framework}." in (ROOT / "suites" / suite / "thresholds.toml").read_text()


def test_an_extra_that_cannot_be_installed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frameworks, "ROOT", tmp_path)  # where there is no project
    assert frameworks.environment("paddle") is None
    assert not (tmp_path / ".venv-paddle/installed").exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "paddle: installing pytest-aisbench[paddle] into .venv-paddle"
    assert len(lines) == 2
    assert lines[1].startswith("paddle: not here, its suites are left out: ERROR: ")
