"""`aisbench init`: a folder that runs at once, from the wheel too; and what is said in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from commands import AISBENCH, run
from yard import Yard

from pytest_aisbench import registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.toml_document import parse_or_empty

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "pytest_aisbench" / "starter"
HINT = "this folder is empty; `aisbench init` writes a suite that runs"


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow(seconds=5)
def test_two_commands_in_an_empty_folder_give_a_green_run(yard: Yard) -> None:
    made = yard.aisbench("init")
    assert made.returncode == 0, made.stderr
    assert "now run:  pytest\n" in made.stdout
    ended = yard.pytest()
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"points-1x1": "PASSED", "points-2x1": "PASSED"}


def test_the_starter_is_the_suite_of_the_how_to() -> None:
    page = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^`suites/points/(\S+)`:\n\n```\w+\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    starter = STARTER / "suites" / "points"
    assert blocks["code/train.py"] == (starter / "code" / "train.py").read_text(encoding="utf-8")
    for name in ("workload.toml", "thresholds.toml"):
        assert parse_or_empty(blocks[name]) == parse_or_empty((starter / name).read_text(encoding="utf-8"))


def test_every_key_that_the_settings_file_shows_is_one(tmp_path: Path) -> None:
    text = (STARTER / "aisbench.toml").read_text(encoding="utf-8")
    assert parse_or_empty(text) == {"platform": "local"}
    shown = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    assert set(parse_or_empty(shown)) > {"platform", "nodes", "budget", "access", "tester"}
    (tmp_path / "aisbench.toml").write_text(shown.replace('"local"', '"modelarts"', 1), encoding="utf-8")
    (tmp_path / "required.txt").write_text("points-1x1\n")
    keys = {"HUAWEICLOUD_SDK_AK": "a", "HUAWEICLOUD_SDK_SK": "b"}
    settings = load_settings({}, {}, keys, tmp_path, registry.of_commands())
    assert settings.nodes == (1, 2)
    assert settings.access.bucket == "acceptance"


@pytest.mark.slow
def test_shipped_suites_come_with_the_code_that_they_share_and_a_ci_file_with_its_manifest(tmp_path: Path) -> None:
    made = run(*AISBENCH, "init", "new", "--suites", "resnet50,torch_mlp", "--ci", "gitlab", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    folders = {folder.name for folder in (tmp_path / "new" / "suites").iterdir()}
    assert folders == {"resnet50", "torch_mlp", "miniature", "ascend", "perceptron", "image"}
    assert (tmp_path / "new" / ".gitlab-ci.yml").read_text() == (ROOT / "docs/ci/gitlab-ci.yml").read_text()
    required = (tmp_path / "new" / "required.txt").read_text().split()
    assert required == ["resnet50-1x8", "resnet50-2x8", "torch_mlp-1x1", "torch_mlp-1x8", "torch_mlp-2x8"]


def test_the_manifest_is_of_the_node_counts_that_the_ci_files_run() -> None:
    for file in (ROOT / "docs" / "ci").iterdir():
        runs = re.findall(r"pytest suites/ (--nodes \S+)", file.read_text(encoding="utf-8"))
        assert set(runs) == {"--nodes 1,2"}, file


def test_nothing_of_the_user_is_overwritten_and_each_thing_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "aisbench.toml").symlink_to("nowhere.toml")
    (tmp_path / "suites" / "mine").mkdir(parents=True)
    (tmp_path / "suites" / "mine" / "test_mine.py").write_text("def test_mine(): pass\n")
    before = files_below(tmp_path)
    made = run(*AISBENCH, "init", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    for name in ("aisbench.toml", "pyproject.toml", "suites/"):
        assert f"kept  {name}, which is there already\n" in made.stdout
    assert files_below(tmp_path) == {**before, ".gitignore": (tmp_path / ".gitignore").read_bytes()}
    assert not (tmp_path / "nowhere.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--suites", "resnet"), "--suites: there is no suite 'resnet'; did you mean 'resnet50'?"),
        (("--suites", ","), "--suites names no suite; known: bert, "),
        (("file",), "file cannot be written: File exists"),
    ],
)
def test_what_cannot_be_written_is_one_line(tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    (tmp_path / "file").write_text("")
    made = run(*AISBENCH, "init", *arguments, folder=tmp_path)
    assert made.returncode == 4
    assert made.stderr.startswith(f"aisbench init: {line}")
    assert len(made.stderr.splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_an_empty_folder_gets_a_hint_and_another_does_not(yard: Yard) -> None:
    (yard.folder / ".venv").mkdir()
    (yard.folder / "env").mkdir()
    (yard.folder / "env" / "pyvenv.cfg").write_text("")
    for arguments, code in (((), 5), (("suites",), 4)):
        ended = yard.pytest(*arguments)
        assert ended.code == code
        assert f"aisbench: {HINT}\n" in ended.out
    assert HINT in yard.aisbench().stderr
    (yard.folder / "notes.txt").write_text("")
    assert HINT not in yard.pytest().out + yard.aisbench().stderr


@pytest.mark.slow(seconds=8)
def test_from_the_wheel_two_commands_give_a_green_run(tmp_path: Path) -> None:
    """The wheel is unpacked before everything else on the path: its own files, and the packages of this Python."""
    pytest.importorskip("hatchling", reason="pip install hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site, work = tmp_path / "site", tmp_path / "work"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert files_below(site / "pytest_aisbench" / "shipped" / "ci") == files_below(ROOT / "docs" / "ci")
    work.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AISBENCH_", "PYTEST_"))}
    environment["PYTHONPATH"] = str(site)

    def python(*arguments: str) -> str:
        done = run(sys.executable, *arguments, folder=work, environment=environment, merge=True, fork=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    module = python("-c", "import pytest_aisbench; print(pytest_aisbench.__file__)")
    assert Path(module.strip()).is_relative_to(site)
    python("-m", "pytest_aisbench", "init")
    assert "2 cases: 2 passed" in python("-m", "pytest")
    python("-m", "pytest_aisbench", "init", "other", "--suites", "bert")
    assert (work / "other/suites/bert/test_bert.py").read_bytes() == (ROOT / "suites/bert/test_bert.py").read_bytes()
