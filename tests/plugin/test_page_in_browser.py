"""The page as a reader meets it, in a real browser: offline, by day and night, on paper, in both languages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import showcase
from browser import Browser
from commands import run
from yard import Yard

from pytest_aisbench.i18n import language
from pytest_aisbench.report.charts import INK, NIGHT
from pytest_aisbench.report.page_case import CaseContext, case_details

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Page

HERE = Path(__file__).parent
SUITE = "def test_trains(entry):\n    assert entry.verdict.value == 'PASSED', entry.reason\n"
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The page of the showcase, in a language; each is made once."""
    pages: dict[str, Path] = {}

    def make(lang: str) -> Path:
        if lang not in pages:
            folder = tmp_path_factory.mktemp(lang)
            (folder / "conftest.py").write_text((HERE / "page_conftest.py").read_text(encoding="utf-8"))
            (folder / "test_suite.py").write_text(SUITE)
            (folder / "pytest.ini").touch()
            request = folder / "reports" / "requests" / "resnet50-2x8.json"
            request.parent.mkdir(parents=True)
            request.write_text("{}")
            path = os.pathsep.join(map(str, (HERE.parents[1], HERE.parent / "support")))
            told = {"LANG_OF_PAGE": lang, "REPORTS": str(folder / "reports"), "PYTHONPATH": path}
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:pytest_aisbench.plugin"]
            run(*command, folder=folder, environment={**os.environ, **told})
            pages[lang] = folder / "reports" / "report.html"
        return pages[lang]

    return make


def column(page: Page, name: str) -> list[str]:
    return [text.strip() for text in page.locator(f"tr.collapsible td.col-{name}").all_inner_texts()]


def colour(page: Page, selector: str, name: str) -> Any:
    return page.eval_on_selector(selector, f"found => getComputedStyle(found).{name}")


def rgb(hexadecimal: str) -> str:
    return f"rgb({', '.join(str(int(hexadecimal[at : at + 2], 16)) for at in (1, 3, 5))})"


def test_the_page_is_read_and_sorted_and_nothing_in_it_acts(browser: Browser, made: Made) -> None:
    page = browser.open(made("en"))

    assert page.title() == "aisbench reports"  # a line of the log wants to change it
    assert page.locator("img").count() == page.locator(".media img").count()  # pytest-html's own, empty
    assert "Verdict turned\tbert-4x8: PASSED → FAILED" in page.inner_text(".summary")
    page.click("th[data-column-type=throughput]")
    speeds = [float(text.split()[0]) for text in column(page, "throughput") if text != "-"]
    assert len(speeds) == 3
    assert speeds == sorted(speeds)
    page.click("th[data-column-type=duration]")
    assert column(page, "duration") == sorted(column(page, "duration"), key=lambda text: text.count(":"))
    assert page.get_attribute("th[data-column-type=duration]", "title") == (
        "how long the jobs of the case ran, all trials together; of other tests, the test itself"
    )
    row = page.locator("tbody.results-table-row", has_text="resnet50-2x8").first
    assert row.locator(".col-links a").all_inner_texts() == ["log", "request", "console"]
    assert row.locator(".col-remarks").inner_text() == "1 note, 2 trials"
    row.locator("td.col-verdict").click()
    row = page.locator("tbody.results-table-row", has_text="resnet50-2x8").first
    assert row.locator("svg").count() == 6
    assert row.locator("svg").first.is_visible()
    assert row.get_by_role("img", name="resnet50-2x8: lifecycle").count() == 1
    assert not row.locator(".logwrapper").is_visible()  # it said nothing
    assert page.locator("tbody.results-table-row", has_text="gpt-1x8").first.locator(".logwrapper").is_visible()
    assert column(page, "duration")[0] == "-"  # of a job that nobody saw run, and it sorts as none
    assert not page.locator(".roll").is_visible()


def test_details_are_there_only_where_a_row_is_open_and_on_paper(browser: Browser, made: Made) -> None:
    page = browser.open(made("en"))

    def full() -> list[str]:
        rooms = page.locator("tbody.results-table-row:has(.aisbench-details > *)")
        return [text.split("[")[1].rstrip("]") for text in rooms.locator("td.col-testId").all_inner_texts()]

    failed = ["resnet50-8x8", "bert-4x8", "gpt-1x8"]
    assert sorted(full()) == sorted(failed)
    page.click("th[data-column-type=throughput]")  # pytest-html draws the table anew
    assert sorted(full()) == sorted(failed)
    page.locator("tbody.results-table-row", has_text="resnet50-2x8").locator("td.col-verdict").first.click()
    assert sorted(full()) == sorted([*failed, "resnet50-2x8"])
    to_paper(page)
    assert len(full()) == page.locator("tbody.results-table-row").count() == 5


def to_paper(page: Page) -> None:
    """Show the page as it is printed, once the browser has told it."""
    page.emulate_media(media="print")
    page.wait_for_function("!document.querySelector('div.aisbench-details:empty')")


def test_ids_are_unique_and_every_picture_has_a_name(browser: Browser, made: Made) -> None:
    page = browser.open(made("en"))
    page.click("#show_all_details")

    ids = page.evaluate("[...document.querySelectorAll('.aisbench [id]')].map(found => found.id)")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('.aisbench svg')].filter(found =>"
        " !found.getAttribute('aria-labelledby').split(' ').every(id => document.getElementById(id)?.textContent))"
    )

    assert len(ids) > 40
    assert len(ids) == len(set(ids))
    assert unnamed == []


def test_what_we_write_is_what_the_browser_reads(browser: Browser, tmp_path: Path) -> None:
    """Valid HTML: well-formed, and a browser that mends nothing has the same elements in the same places."""
    text = case_details(showcase.failed(), CaseContext(lambda file: file, language("zh")))
    file = tmp_path / "part.html"
    file.write_text(f"<!DOCTYPE html><meta charset='utf-8'><title>part</title><body>{text}", encoding="utf-8")

    page = browser.open(file)

    tree = ET.fromstring(text)
    written = [element.tag.rpartition("}")[2] for element in tree.iter()]
    read = page.evaluate("[...document.querySelectorAll('.aisbench, .aisbench *')].map(found => found.localName)")
    assert read == written
    assert len(written) > 200


def test_it_is_dark_where_the_reader_is(browser: Browser, made: Made) -> None:
    day, night = (browser.open(made("en"), dark=dark) for dark in (False, True))

    assert rgb(INK) == colour(day, ".aisbench svg", "fill")
    assert rgb(NIGHT[INK]) == colour(night, ".aisbench svg", "fill")
    assert colour(night, "body", "backgroundColor") == "rgb(18, 22, 27)"
    for page in (day, night):
        page.click("#show_all_details")
        assert faint(page) == []


def faint(page: Page) -> list[Any]:
    """Words on the page that do not stand out from what is behind them, by WCAG's measure for text."""
    found: list[Any] = page.evaluate(
        """() => {
          const light = text => {
            const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
              .map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b };
          const behind = node => { for (; node; node = node.parentElement) {
            const told = getComputedStyle(node).backgroundColor;
            if (!told.endsWith(', 0)')) return told } return 'rgb(255, 255, 255)' };
          return [...document.querySelectorAll('body *')].filter(node => !node.closest('svg') && node.checkVisibility()
            && [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())).map(node => {
              const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
              return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), node.className, node.textContent.slice(0, 40)]
            }).filter(([contrast]) => contrast < 4.5) }"""
    )
    return found


def test_paper_shows_everything_and_clips_nothing(browser: Browser, made: Made) -> None:
    page = browser.open(made("zh"), width=700, dark=True)  # A4 within its margins
    to_paper(page)

    closed = page.evaluate(
        "[...document.querySelectorAll('.extras-row, .aisbench details table')]"
        ".filter(found => !found.checkVisibility()).length"
    )
    wide = page.evaluate(
        "[...document.querySelectorAll('table, pre, svg, .log')].filter(found => found.checkVisibility()"
        " && found.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
        ".map(found => found.outerHTML.slice(0, 200))"
    )
    assert closed == 0
    assert wide == []
    assert page.is_visible("text=审核人")
    signed = page.locator(".roll tbody tr").all_inner_texts()  # what is signed stands together, the worst first
    assert [row.split()[0] for row in signed] == [
        "bert-4x8", "gpt-1x8", "resnet50-8x8", "resnet50-2x8", "resnet50-128x8",
    ]  # fmt: skip
    assert "FAILED 未通过" in signed[0]
    assert colour(page, ".aisbench", "color") == rgb(INK)  # also of a reader whose screen is dark
    pdf = page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 5


def test_it_speaks_chinese(browser: Browser, made: Made) -> None:
    page = browser.open(made("zh"), locale="zh-CN")

    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    headings = page.locator("#results-table-head th").all_inner_texts()
    assert headings == ["结果", "测试", "判定", "吞吐量", "精度", "要求", "实际训练软件", "备注", "作业时长", "链接"]
    assert page.inner_text("#show_all_details") == "展开全部"
    assert re.fullmatch(r"报告生成于 \S+ \S+，由 pytest-html\s+v.*", page.inner_text("#title + p"))
    assert column(page, "result") == ["失败", "失败", "失败", "通过", "通过"]
    page.click("input[data-test-result=passed]")  # what pytest-html filters by are its own words
    assert column(page, "result") == ["失败", "失败", "失败"]
    page.click("input[data-test-result=passed]")
    text = page.inner_text(".summary")
    for part in (
        "5 个用例: 2 PASSED 通过",
        "与上次运行相比",
        "判定变化\tbert-4x8: PASSED 通过 → FAILED 未通过",
        "卡时",
    ):
        assert part in text
    assert "BROKEN 平台故障" in column(page, "verdict")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_needs_nothing_from_elsewhere_and_is_small(made: Made, lang: str) -> None:
    text = made(lang).read_text(encoding="utf-8")

    assert len(text) < 5 * 50_000
    assert not re.search(r"""(?<!<a )(?:src|href)=["']?(?:https?:)?//""", text)  # nothing is loaded


HOSTILE = """
import pytest


IDS = ["<img src=x onerror=document.title='ran'>", "</td><script>document.title='ran'</script>"]


@pytest.mark.parametrize("value", [1, 2], ids=IDS)
def test_of_a_stranger(value):
    assert value == 1, "<img src=x onerror=document.title='ran'>"
"""


def test_no_id_of_a_test_is_run_by_the_browser(browser: Browser, yard: Yard) -> None:
    yard.suite()
    (yard.folder / "suites" / "test_hostile.py").write_text(HOSTILE)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 1, ended.out
    page = browser.open(ended.reports / "report.html")
    page.wait_for_selector("tr.collapsible")
    assert page.title() != "ran"
    assert page.locator("td.col-testId img, td.col-testId script").count() == 0
    assert any("<img src=x" in text for text in column(page, "testId"))
