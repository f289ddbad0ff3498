"""report.html of 10, 100 and 1,000 cases: what it costs beside pytest-html without us, what it weighs, how it opens.

    python tests/bench/report.py [--quick]

Every case has everything that a page can show: two trials, curves, a past, four shapes, 16 ranks. The tests do nothing,
so that the difference between both runs is the page. Opening is the time until Chromium has drawn the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import track
from figures import Figure, table

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
SUITE = "def test_trains(entry):\n    assert entry.verdict.value == 'PASSED', entry.reason\n"


def measure(sizes: Sequence[int] = (10, 100, 1000)) -> list[Figure]:
    program = shutil.which("chromium")
    if program is None:
        return [figure for cases in sizes for figure in _figures(cases, None)]
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        figures = [figure for cases in sizes for figure in _figures(cases, browser)]
        browser.close()
    return figures


def _figures(cases: int, browser: Browser | None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "conftest.py").write_bytes((ROOT / "tests" / "plugin" / "page_conftest.py").read_bytes())
        (folder / "test_suite.py").write_text(SUITE)
        (folder / "pytest.ini").touch()
        (folder / "reports").mkdir()
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support")))
        settings = {"CASES": str(cases), "REPORTS": str(folder / "reports"), "PYTHONPATH": path, "LANG_OF_PAGE": ""}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:pytest_aisbench.plugin", "-p", "no:cacheprovider"]
        track.measured(command, folder, settings={**settings, "CASES": "1"})  # everything is read from disk once
        without = track.measured([*command, "--html=plain.html", "--self-contained-html"], folder, settings=settings)
        ours = track.measured(command, folder, settings={**settings, "LANG_OF_PAGE": "en"})
        page = folder / "reports" / "report.html"
        size, plain = page.stat().st_size, (folder / "plain.html").stat().st_size
        opened = _opened(browser, page, cases) if browser else None
    title = f"{cases:,} cases"
    own, all_ = 1000 * without.cpu / cases, 1000 * ours.cpu / cases
    yield Figure(f"cpu_{cases}", f"{title}: CPU per case", all_, "ms", "pytest-html without us", own)
    yield Figure(
        f"weight_{cases}", f"{title}: the page grows per case by", (size - plain) / cases / 1000, "kB", target=50
    )
    if opened is not None:
        yield Figure(f"opens_{cases}", f"{title}: Chromium shows the table after", opened, "s")


def _opened(browser: Browser, page: Path, cases: int) -> float:
    tab = browser.new_page()
    began = time.perf_counter()
    tab.goto(page.as_uri(), timeout=600_000)
    assert tab.locator("tbody.results-table-row").count() == cases
    lasted = time.perf_counter() - began
    tab.close()
    return lasted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    print(table(measure((10,) if parser.parse_args().quick else (10, 100, 1000))))


if __name__ == "__main__":
    main()
