"""The page of Allure, rendered by the real program from npm and opened in a real browser without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium
from yard import THRESHOLDS, WORKLOAD, Yard

from pytest_aisbench.cli import report
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.localcloud.server import LocalCloud

FAST = WORKLOAD + '[local]\nparameters = { seconds = "0.1", throughput = "12.5" }\n'
HARD = THRESHOLDS.replace("at_least = 1 ", "at_least = 1e9 ")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the second of two runs."""
    try:
        report.is_allure_installed() or report.install_allure()
    except AisbenchError as error:
        pytest.skip(f"Allure cannot be had here: {error}")
    with LocalCloud(engine="simulated") as cloud:
        card = tmp_path_factory.mktemp("cloud") / "card.json"
        card.write_text(json.dumps(cloud.card()))
        yard = Yard(tmp_path_factory.mktemp("yard"), card)
        yard.suite("well", workload=FAST)
        yard.suite("slow", workload=FAST, thresholds=HARD)
        for _ in range(2):
            assert yard.pytest("suites", "--nodes", "1", "--aisbench-tester", "none").code == 1
        done = yard.aisbench("report", "--allure", seconds=300, CI_JOB_TOKEN="planted-token")
        assert done.returncode == 0, done.stderr
        yield yard.folder / "reports" / "latest" / "allure.html"


def test_the_page_of_allure_is_one_file_that_asks_nobody(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "googletagmanager" not in text
    assert "planted-token" not in text
    with chromium() as program:
        browser = Browser(program)
        shown = browser.open(page.parents[1] / "index.html", dark=True)
        shown.set_default_timeout(120_000)  # four megabytes of scripts, on a machine that may be busy
        files = map(Path.read_bytes, page.parents[1].glob("2*/results.json"))
        runs = [run["run"] for run in sorted(map(json.loads, files), key=lambda run: run["started"])]
        first_column = shown.locator("tbody tr td:first-child")
        assert first_column.all_inner_texts() == runs[::-1]
        shown.get_by_role("button", name="Started").click()
        assert first_column.all_inner_texts() == runs

        shown.get_by_role("link", name="allure.html").click()
        shown.get_by_text("test_trains[slow-1x2]").first.click()
        shown.get_by_text("FAILED: throughput 25 images/s").first.wait_for()
        shown.get_by_text("Category: Workload (FAILED)").first.wait_for()
        shown.get_by_text("trial 1: job").first.wait_for()
        for step in ("stage", "submit", "queue", "train", "harvest", "judge"):
            shown.get_by_text(step, exact=True).first.wait_for()
        assert "1" in shown.get_by_text("History").first.locator("..").inner_text()  # the run before

        shown.get_by_text("Report", exact=True).first.click()
        shown.get_by_text("Metrics", exact=True).first.click()
        shown.get_by_text("well-1x2 throughput").first.wait_for()
        assert (browser.strangers, browser.errors) == ([], [])
