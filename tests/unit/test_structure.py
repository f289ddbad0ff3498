"""What the tree promises: layers, and pages that name what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aisbench.settings import table

ROOT = Path(__file__).resolve().parents[2]


def test_layers_flow_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    linter = pytest.importorskip("importlinter.cli", reason="import-linter comes with the extra [dev]")
    monkeypatch.chdir(ROOT)
    # Not its lint_imports(): that configures logging anew, which silences all loggers of this process.
    assert linter.use_cases.lint_imports(cache_dir=None)


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
