"""The pages, as a reader finds them: in a browser, and asked for what a browser would hide."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from open_tester import Serving, history, serving

from pytest_aisbench.tester_server import charts, words

if TYPE_CHECKING:
    from browser import Browser

TEMPLATES = Path(words.__file__).parent / "templates"
RUNS = 56  # more than a page of them
LAST = f"run-{RUNS - 1:05d}"
PAGES = (
    "/p/centre",
    "/p/centre/cases",
    "/p/centre/cases/modelarts/bert-8x8",
    "/p/centre/scaling",
    "/p/centre/stragglers",
    "/p/centre/audit",
    "/p/centre/search?q=bert",
    f"/p/centre/compare?a=run-00000/run-00000&b={LAST}/{LAST}",
    f"/p/centre/t/{LAST}/r/{LAST}",
    f"/p/centre/t/{LAST}/r/{LAST}/c/bert-8x8",
)


@pytest.fixture(scope="module")
def centre(new_database: Callable[[], str]) -> Iterator[Serving]:
    with serving(new_database(), "--rate", "0") as running:
        running.send(running.token("centre"), *history(RUNS))
        yield running


def test_every_page_is_there_and_lets_a_browser_do_nothing_more_than_needed(centre: Serving) -> None:
    for path in PAGES:
        page = centre.get(path)
        assert page.status == 200, path
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert not re.search(r"<[^>]+\s(style|on\w+)=|<script>|https?://(?!127)", page.text), path
        assert page.headers["cache-control"] == "no-store"
    for path in ("/p/nobody", "/p/centre/t/x/r/y", "/p/centre/cases/x/y", "/nothing", "/p/centre/compare?a=x/y&b=z/z"):
        assert "no such page" in centre.get(path).text or path == "/p/nobody"


@pytest.mark.parametrize(
    ("asked", "headers", "said"),
    [
        ("", {}, "Runs"),
        ("", {"Accept_Language": "zh-CN,zh;q=0.9,en;q=0.8"}, "运行"),
        ("", {"Accept_Language": "fr,en;q=0.5,zh;q=0.2"}, "Runs"),
        ("?lang=zh", {}, "运行"),
        ("?lang=en", {"Accept_Language": "zh"}, "Runs"),
        ("", {"Cookie": "aisbench_language=zh"}, "运行"),
        ("?lang=<b>", {"Accept_Language": ";;q=x,,"}, "Runs"),
    ],
)
def test_the_language_is_the_readers(centre: Serving, asked: str, headers: dict[str, Any], said: str) -> None:
    assert f"<h1>{said}</h1>" in centre.get(f"/p/centre{asked}", **headers).text


def test_every_word_of_the_pages_is_there_in_chinese() -> None:
    used = set()
    for file in TEMPLATES.glob("*.html"):
        used |= set(re.findall(r"""\bt\((?:"([^"]+)"|'([^']+)')\)""", file.read_text(encoding="utf-8")))
    found = {one or other for one, other in used}
    assert len(found) > 60
    assert {text for text in found if not words.knows(text)} == set()


def test_a_stranger_who_has_a_browser_call_us_by_another_name_is_turned_away(centre: Serving) -> None:
    assert centre.get("/p/centre", Host="evil.example").status == 421
    assert centre.get("/p/centre", Host="localhost:1").status == 200
    assert centre.get("/p/centre", X_Forwarded_For="10.0.0.1").status == 401  # it came by a proxy


def test_pages_follow_each_other_without_a_gap_and_exports_have_all_of_it(centre: Serving) -> None:
    def named(text: str) -> list[str]:
        return re.findall(r'href="/p/centre/t/[^"]+">(run-\d+)</a>', text)

    first = centre.get("/p/centre").text
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older
    second = centre.get(older[1].replace("&amp;", "&")).text
    seen = named(first) + named(second)
    assert seen == [f"run-{number:05d}" for number in reversed(range(RUNS))]
    rows = list(csv.DictReader(io.StringIO(centre.get("/p/centre?format=csv").text)))
    assert [row["name"] for row in rows] == seen
    assert len(centre.get("/p/centre/results?format=json").json["rows"]) == RUNS * 8
    trend = centre.get("/p/centre/cases/modelarts/bert-8x8?format=json").json["rows"]
    assert len(trend) == RUNS
    assert trend[0]["low"] == 54720.0
    bad = centre.get("/p/centre?bad=1&format=json").json["rows"]
    assert bad
    assert all(run["passed"] < run["cases"] for run in bad)


def test_scaling_is_held_against_the_smallest_shape(centre: Serving) -> None:
    rows = centre.get("/p/centre/scaling?workload=resnet50&platform=modelarts&mode=cluster&format=json").json["rows"]
    assert [row["cards"] for row in rows] == [8, 16, 32, 64]
    assert rows[0]["efficiency"] == 1.0
    assert rows[3]["efficiency"] == pytest.approx(rows[3]["throughput"] / rows[0]["throughput"] / 8)


def test_search_finds_runs_cases_jobs_and_reasons(centre: Serving) -> None:
    assert "run-00007" in centre.get("/p/centre/search?q=N-00007").text
    assert 'cases/modelarts/bert-4x8"' in centre.get("/p/centre/search?q=BERT-4").text
    assert "resnet50-1x8" in centre.get("/p/centre/search?q=job-resnet50-1750000000").text
    assert "HTTP 503" in centre.get("/p/centre/search?q=503").text
    for words_ in ("%25", "_____", "' OR 1=1 --"):
        assert "Nothing was found" in centre.get(f"/p/centre/search?q={words_.replace(' ', '+')}").text


def test_a_reader_clicks_from_runs_to_a_comparison_and_a_trend(centre: Serving, browser: Browser) -> None:
    page = browser.open(centre.url)
    assert page.get_by_role("heading", name="Runs").is_visible()
    chosen = page.get_by_role("button", name="Compare the chosen")
    assert chosen.is_disabled()
    page.get_by_label("A: run-00010").check()
    page.get_by_label(f"B: {LAST}").check()
    chosen.click()
    first = page.locator("tbody tr").first
    assert first.get_attribute("class") == "turned"
    assert "bert" in first.inner_text()
    page.get_by_role("columnheader", name="change").first.click()
    changes = page.locator("tbody tr td:nth-child(6)").all_inner_texts()
    numbers = [float(text.rstrip("%")) for text in changes if text != "–"]
    assert numbers == sorted(numbers)
    page.get_by_role("link", name="Cases").click()
    page.get_by_role("link", name="bert-8x8").click()
    dots = page.locator("circle.dot")
    assert dots.count() >= RUNS - 5
    assert page.locator("polygon.band").count() == 1
    page.locator("circle.dot.failed").last.click()
    assert page.locator("h1 .verdict").inner_text() == "FAILED"
    assert page.locator("circle.current").count() == 1
    page.keyboard.press("/")
    page.keyboard.type("resnet50")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="resnet50-1x8").first.click()
    page.get_by_role("link", name="Scaling").click()
    assert page.locator("circle.dot").count() == 4
    page.get_by_role("link", name="Stragglers").click()
    assert page.locator("rect.cell").count() > 5


def test_a_reader_chooses_language_and_theme_and_they_stay(centre: Serving, browser: Browser) -> None:
    page = browser.open(f"{centre.url}/p/centre/cases", locale="zh-CN")
    assert page.get_by_role("heading", name="用例").is_visible()
    page.get_by_role("link", name="English").click()
    assert page.get_by_role("heading", name="Cases").is_visible()
    page.get_by_role("link", name="Runs").click()
    assert page.get_by_role("heading", name="Runs").is_visible()

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.get_by_role("button", name="Theme").click()
    assert ground() != light
    page.reload()
    assert ground() != light


def test_a_page_needs_no_script_and_fits_a_phone(centre: Serving, browser: Browser) -> None:
    page = browser.open(f"{centre.url}{PAGES[-1]}", dark=True, width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert page.get_by_text("54720").first.is_visible()


def test_charts_hold_whatever_was_sent() -> None:
    assert charts.round_values(*charts.span([1e17, -1e17]))
    assert charts.round_values(*charts.span([5e-310, 6e-310])) is not None
    assert charts.round_values(*charts.span([0.0])) == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert charts.sparkline([1.0]) == ""
