"""The documentation's site: its pages, their links and their translations."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRANSLATED = [
    "README",
    "docs/add-a-workload",
    "docs/from-ais-bench-stubs",
    "docs/how-to",
    "docs/reference",
    "docs/slurm",
]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "docs/site/prepare.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_link_of_the_docs_leads_nowhere_and_no_section_lacks_its_translation(
    site: ModuleType, tmp_path: Path
) -> None:
    assert site.prepare(tmp_path) == []


@pytest.mark.parametrize("page", TRANSLATED)
def test_pages_that_users_begin_with_exist_in_chinese(page: str) -> None:
    assert (ROOT / f"{page}.md").exists()
    assert (ROOT / f"{page}.zh-CN.md").exists()


def test_a_section_that_is_not_translated_is_named(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text("# Page\n## One\n```\n## code\n```\n## Two\n", encoding="utf-8")
    (tmp_path / "page.zh-CN.md").write_text("# 页\n## 一\n", encoding="utf-8")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    assert site.untranslated("page.zh-CN.md") == ["page.zh-CN.md: 'the end' stands where page.md has 'Two'"]
