"""What `scripts/frameworks` makes of its arguments, and of an extra that cannot be installed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import frameworks
import pytest

from pytest_aisbench.config.options import FRAMEWORKS

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


@pytest.mark.slow
def test_an_extra_that_cannot_be_installed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frameworks, "ROOT", tmp_path)  # where there is no project
    assert frameworks.environment("paddle", tmp_path) is None
    assert not (tmp_path / ".venv-paddle/installed").exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "paddle: installing pytest-aisbench[paddle] into .venv-paddle"
    assert len(lines) == 2
    assert lines[1].startswith("paddle: not here, its suites are left out: ERROR: ")


@pytest.mark.parametrize(
    ("shape", "told", "answer"),
    [
        ("1x1", [["a"]], "same on 1 rank"),
        ("2x2", [["a", "a"], ["a", "a"]], "same on 4 ranks"),
        ("2x2", [["a", "a"], ["b", "b"]], "differ"),
        ("2x2-single", [["a", "a"], ["b", "b"]], "same on 2 ranks"),
        ("2x2-single", [["a", "b"], ["c", "c"]], "differ"),
        ("2x2", [["a", "a"], ["a"]], "of 3 ranks only"),
        ("2x1", [["a"]], "of 1 ranks only"),
    ],
)
def test_ranks_that_train_together_must_all_have_the_same_weights(
    shape: str, told: list[list[str]], answer: str
) -> None:
    assert frameworks.compared(told, frameworks.Shape.parse(shape)) == answer
    row = frameworks.Row("case", "paddle 3.3.1", "1.0", "1.0", answer, "1 s", "PASSED")
    assert row.is_good() == answer.startswith("same")
    assert not replace(row, verdict="FAILED").is_good()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["paddle", "--shapes", "2"], "argument --shapes: '2' is not a shape such as 2x1, 2x1-single or 2x1-v1"),
        (["paddle", "--suites", "bert"], "unknown suite 'bert'; there are paddle_mlp"),
        (["caffe"], "unknown framework 'caffe'; there are mindspore, paddle, torch, horovod"),
        (["--python", "/usr/bin/python3"], "--python is for a single framework: name it"),
    ],
)
def test_what_the_script_cannot_do_is_one_line(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scripts/frameworks", *arguments])
    with pytest.raises(SystemExit) as ended:
        frameworks.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"scripts/frameworks: error: {complaint}"


@pytest.mark.parametrize("script", ["frameworks", "chaos", "postgres", "check", "types"])
def test_a_script_without_the_project_says_so_in_one_line(script: str, tmp_path: Path) -> None:
    """Started from a checkout that nobody set up, by a shell without an environment."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    bare = tmp_path / "bin"
    bare.mkdir()
    for program in ("bash", "dirname"):
        (bare / program).symlink_to(str(shutil.which(program)))
    ended = subprocess.run(
        [tmp_path / "scripts" / script], env={"PATH": str(bare)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 4
    assert ended.stderr.splitlines() == [
        "no Python here has the project: python3 -m venv .venv && .venv/bin/pip install -e '.[dev]'"
    ]


def test_a_script_uses_the_environment_of_the_project_though_it_is_not_active() -> None:
    environment = {"PATH": os.defpath, "VIRTUAL_ENV": sys.prefix}
    helped = [str(ROOT / "scripts" / "frameworks"), "--help"]
    ended = subprocess.run(helped, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage: scripts/frameworks")
