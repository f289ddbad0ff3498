"""The pages in a browser, as a reader clicks through them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from open_tester import LONG_AGO, Serving, bound, case, fill, history, parcel, serving

from pytest_aisbench.model.results import RunEnd
from pytest_aisbench.tester.payload import end_upload

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from browser import Browser

RUNS = 40
LAST = f"run-{RUNS - 1:05d}"


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    db = f"{tmp_path_factory.mktemp('tester')}/tester.db"
    fill(db, "centre", history(RUNS))
    with serving(db) as running:
        yield running


def test_a_reader_clicks_from_runs_to_a_comparison_and_a_trend(centre: Serving, browser: Browser) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    page = browser.open(centre.url)
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    chosen = page.get_by_role("button", name="Compare the chosen")
    assert chosen.is_disabled()
    page.get_by_label("A: run-00010").check()
    page.get_by_label(f"B: {LAST}").check()
    chosen.click()
    expect(page.locator("tbody tr").first).to_have_class("turned")
    expect(page.locator("tbody tr").first).to_contain_text("bert")
    page.get_by_role("columnheader", name="change").first.click()
    changes = page.locator("tbody tr td:nth-child(6)").all_inner_texts()
    numbers = [float(text.rstrip("%")) for text in changes if text != "–"]
    assert numbers == sorted(numbers)
    page.get_by_role("link", name="Cases").click()
    page.get_by_role("link", name="bert-8x8").click()
    expect(page.locator("polygon.band")).to_have_count(2)  # of throughput, and of accuracy
    throughput = page.get_by_role("img", name="Throughput").locator("circle.dot")
    assert throughput.count() >= RUNS - 5
    page.get_by_role("img", name="Throughput").locator("circle.dot.failed").last.click()
    expect(page.locator("h1 .verdict")).to_have_text("FAILED")
    expect(page.locator("circle.current")).to_have_count(1)
    page.keyboard.press("/")
    page.keyboard.type("resnet50")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="resnet50-1x8").first.click()
    page.get_by_role("link", name="Scaling").click()
    expect(page.locator("circle.dot")).to_have_count(4)
    page.get_by_role("link", name="Stragglers").click()
    expect(page.locator("rect.cell").nth(5)).to_be_visible()


def test_a_reader_chooses_language_and_theme_and_they_stay(centre: Serving, browser: Browser) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    page = browser.open(f"{centre.url}/p/centre/cases", locale="zh-CN")
    expect(page.get_by_role("heading", name="用例")).to_be_visible()
    page.get_by_role("link", name="English").click()
    expect(page.get_by_role("heading", name="Cases")).to_be_visible()
    page.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.get_by_role("button", name="Theme").click()
    assert ground() != light
    page.reload()
    assert ground() != light


def test_a_page_fits_a_phone(centre: Serving, browser: Browser) -> None:
    page = browser.open(f"{centre.url}/p/centre/t/{LAST}/r/{LAST}/c/bert-8x8", dark=True, width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert page.get_by_text("54720").first.is_visible()


def test_a_reader_enters_a_token_sees_how_a_run_ended_takes_it_away_and_leaves(
    tmp_path: Path, browser: Browser
) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    with serving(f"{tmp_path}/tester.db", "--closed") as tester:
        stopped = RunEnd("run-1", LONG_AGO, LONG_AGO + 60, 2, {"bert-2x8": "not judged: the run ended"}, 0.5)
        tester.send(tester.token("centre"), parcel("run-1", case()), end_upload(bound(), stopped, 1))
        page = browser.open(tester.url)
        page.get_by_label("token").fill("aisbt_of-nobody")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_role("alert")).to_have_text("This token may not read.")
        page.get_by_label("token").fill(tester.token("centre", read=True))
        page.get_by_role("button", name="Enter").click()
        page.get_by_label("only with something not passed").check()
        page.get_by_role("button", name="Show").click()  # all that was judged passed, and it is no good run
        page.get_by_role("link", name="run-1").click()
        expect(page.get_by_text("2 · interrupted")).to_be_visible()
        expect(page.get_by_role("row", name="bert-2x8")).to_contain_text("not judged: the run ended")
        with page.expect_download() as taken:
            page.get_by_role("link", name="CSV").click()
        assert "resnet50-2x8" in Path(taken.value.path()).read_text(encoding="utf-8")
        page.get_by_role("button", name="Leave").click()
        expect(page.get_by_role("heading", name="A read token is needed")).to_be_visible()
        page.go_back()
        page.reload()
        expect(page.get_by_role("heading", name="A read token is needed")).to_be_visible()
