"""The documentation's site, built as `scripts/docs` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_no_other_server(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs_static_i18n", reason="the extra [docs] is not installed")
    pages, built = tmp_path / "pages", tmp_path / "site"
    subprocess.run([sys.executable, ROOT / "docs/site/prepare.py", pages], check=True)
    settings = tmp_path / "mkdocs.yml"
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings.write_text(text.replace("build/pages", str(pages)).replace("build/site", str(built)), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(settings)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, env={"NO_MKDOCS_2_WARNING": "1"})
    assert (run.returncode, run.stderr) == (0, "")
    for page in ("index.html", "zh/index.html", "zh/add-a-workload.html"):
        html = (built / page).read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*src="?([^" >]+)|<link[^>]*href="?([^" >]+)', html)
        assert fetched
        assert not [address for pair in fetched for address in pair if re.match(r"(https?:)?//", address)]
