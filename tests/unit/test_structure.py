"""What the tree promises: layers, sizes, and pages that name what exists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_aisbench.settings import table

ROOT = Path(__file__).resolve().parents[2]
WALL = 400


def test_no_module_is_longer_than_the_wall() -> None:
    sizes = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("pytest_aisbench", "suites")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(sizes) > 50
    assert {path: size for path, size in sizes.items() if size > WALL} == {}


def test_layers_flow_one_way() -> None:
    pytest.importorskip("importlinter", reason="import-linter comes with the extra [dev]")
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", ["docs/reference.md", "README.zh-CN.md"])
def test_the_pages_name_every_option_and_no_other(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for row in table():
        assert f"`{row.flag}" in text, row.flag
    named = {word.rstrip("`,") for word in text.replace("`", " ").split() if word.startswith("--aisbench-")}
    assert named <= {row.flag for row in table()}


def test_both_readmes_start_with_the_same_two_commands() -> None:
    def commands(name: str) -> list[str]:
        blocks = (ROOT / name).read_text(encoding="utf-8").split("```")
        return [block.removeprefix("sh\n").strip() for block in blocks[1::2] if block.startswith("sh\n")][:2]

    english = commands("README.md")
    assert len(english) == 2
    assert "pytest suites/ --nodes 2" in english[0]
    assert english == commands("README.zh-CN.md")
