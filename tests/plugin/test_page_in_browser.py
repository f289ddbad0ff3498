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

from pytest_aisbench.i18n import ENGLISH, language
from pytest_aisbench.report.charts import INK
from pytest_aisbench.report.page_case import CaseContext, case_details
from pytest_aisbench.report.rank_charts import case_charts

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Page

HERE = Path(__file__).parent
SUITE = "def test_trains(entry):\n    assert entry.verdict.value == 'PASSED', entry.reason\n"
Made = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The page of the showcase, or of what the environment names, in a language; each is made once."""
    pages: dict[str, Path] = {}

    def make(lang: str, **environment: str) -> Path:
        if (key := f"{lang}{environment}") not in pages:
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
            run(*command, folder=folder, environment={**os.environ, **told, **environment})
            pages[key] = folder / "reports" / "report.html"
        return pages[key]

    return make


def column(page: Page, name: str) -> list[str]:
    return [text.strip() for text in page.locator(f"tr.collapsible td.col-{name}").all_inner_texts()]


def colour(page: Page, selector: str, name: str) -> Any:
    return page.eval_on_selector(selector, f"found => getComputedStyle(found).{name}")


def rgb(hexadecimal: str) -> str:
    return f"rgb({', '.join(str(int(hexadecimal[at : at + 2], 16)) for at in (1, 3, 5))})"


def row_of(page: Page, name: str) -> Any:
    return page.locator("tbody.results-table-row", has=page.get_by_role("button", name=name, exact=True))


def names(page: Page) -> list[str]:
    """The cases whose rows are seen, from the first to the last."""
    buttons = page.locator("#results-table .col-testId button").all()
    return [button.inner_text() for button in buttons if button.is_visible()]


def test_the_page_is_read_sorted_and_searched_and_nothing_in_it_acts(browser: Browser, made: Made) -> None:
    page = browser.open(made("en"))

    assert page.title() == "aisbench reports"  # a line of the log wants to change it
    assert page.locator("img").count() == page.locator(".media img").count()  # pytest-html's own, empty
    assert page.locator(".extras-row:visible").count() == 0  # failed ones are closed too
    worst_first = ["bert-4x8", "gpt-1x8", "resnet50-8x8", "resnet50-2x8", "resnet50-128x8"]
    assert names(page) == worst_first
    page.click("th[data-column-type=throughput]")
    speeds = [float(text.split()[0]) for text in column(page, "throughput") if text != "-"]
    assert len(speeds) == 3
    assert speeds == sorted(speeds)
    page.click("th[data-column-type=reference_share]")
    shares = [float(text.rstrip("%")) for text in column(page, "reference_share") if text != "-"]
    assert shares == sorted(shares)
    page.click("th[data-column-type=duration]")
    assert column(page, "duration")[0] == "-"  # of a job that nobody saw run, and it sorts as none
    row = row_of(page, "resnet50-2x8")
    assert row.locator(".col-links a").all_inner_texts() == ["log", "request", "console"]
    assert row.locator(".col-remarks").inner_text() == "1 note, 2 trials"
    row.get_by_role("button").click()
    assert row.locator("svg").count() == 6
    assert row.locator("svg").first.is_visible()
    assert row.get_by_role("img", name="resnet50-2x8: lifecycle").count() == 1
    assert not row.locator(".logwrapper").is_visible()  # it said nothing
    page.click("th[data-column-type=throughput]")  # pytest-html draws the table anew
    assert row.locator("svg").first.is_visible()
    assert page.locator(".extras-row:visible").count() == 1

    page.click("#aisbench-verdicts >> text=1 FAILED")
    assert names(page) == ["bert-4x8"]
    page.click("#aisbench-verdicts >> text=all 5")
    page.fill("#aisbench-search", "resnet50 128x8")
    assert names(page) == ["resnet50-128x8"]
    page.fill("#aisbench-search", "no answer from")  # a reason
    assert names(page) == ["gpt-1x8"]
    page.fill("#aisbench-search", "nothing of this kind")
    assert names(page) == []
    assert page.is_visible("text=no row matches")


def test_the_first_screen_is_enough_to_sign(browser: Browser, made: Made) -> None:
    page = browser.open(made("en", ACCEPTANCE="1"), height=1100)

    for selector in (".banner", ".matrix", ".top svg", ".sides h2"):
        box = page.locator(selector).first.bounding_box()
        assert box
        assert box["y"] + box["height"] <= 1100, selector
    text = page.inner_text("body")
    for gone in ("Unexpected passes", "Failed", "Passed,", "tests took", "(Un)check"):
        assert gone not in text  # pytest-html counts tests, and people sign verdicts
    chips = page.locator("#aisbench-verdicts button").all_inner_texts()
    counts = ["5 FAILED", "1 BROKEN", "1 INCONCLUSIVE", "9 PASSED"]
    assert chips == ["all 16", *counts]
    assert sorted(page.locator(".banner .verdict").all_inner_texts()) == sorted(["FAILED", *counts])
    page.click(".matrix td.broken a")  # the matrix leads to the details
    assert row_of(page, "gpt-4x8").locator("svg").first.is_visible()
    page.locator("svg:has(path[data-y])").first.hover()
    assert re.fullmatch(r"\d+ / \d+: [\d.]+", page.inner_text("#aisbench-hint"))
    assert page.is_visible(".sign >> text=Reviewed by")


def test_it_is_usable_on_a_phone(browser: Browser, made: Made) -> None:
    page = browser.open(made("en", ACCEPTANCE="1"), width=390, height=800)

    page.click("#aisbench-verdicts >> text=1 INCONCLUSIVE")
    row_of(page, "gpt-8x8").get_by_role("button").click()
    assert row_of(page, "gpt-8x8").locator("svg").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_many_cases_weigh_little_and_lose_nothing(browser: Browser, made: Made) -> None:
    """`tests/bench/report.py` measures a thousand."""
    few, many = made("en", CASES="60"), made("en", CASES="80")

    per_case = (many.stat().st_size - few.stat().st_size) / 20
    assert few.stat().st_size + 940 * per_case <= 4_000_000
    page = browser.open(few)
    row = row_of(page, "model47-2x8")
    row.get_by_role("button").click()
    row.locator("svg").first.wait_for()
    assert "left out" not in row.inner_text()
    case = showcase.case(name="model47", seed=47)
    drawn = [re.findall("<path data-y='[^']*' d='([^']*)'", chart.draw()) for chart in case_charts(case, ENGLISH)]
    curves = [curve for (curve,) in filter(None, drawn)]
    assert len(curves) == 2
    for shown, curve in zip(row.locator("path[data-y]").all(), curves, strict=True):
        assert coordinates(shown.get_attribute("d") or "") == pytest.approx(coordinates(curve), abs=0.06)
    assert row.locator("svg").count() == len(drawn)


def coordinates(curve: str) -> list[float]:
    return [float(text) for text in re.findall(r"[\d.]+", curve)]


def test_ids_are_unique_and_every_picture_has_a_name(browser: Browser, made: Made) -> None:
    page = browser.open(made("en"))
    page.click("#aisbench-open")

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
    assert colour(night, ".aisbench svg", "fill") == colour(night, "body", "color") == "rgb(230, 234, 240)"
    assert colour(night, "body", "backgroundColor") == "rgb(18, 22, 28)"
    for page in (day, night):
        page.click("#aisbench-open")
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


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def test_paper_has_what_is_signed_and_details_on_demand(browser: Browser, made: Made) -> None:
    page = browser.open(made("zh", ACCEPTANCE="1"), width=700, dark=True)  # A4 within its margins
    page.emulate_media(media="print")

    assert page.is_visible(".sign >> text=审核人")
    signed = page.locator(".roll tbody tr").all_inner_texts()  # what is signed stands together, the worst first
    assert len(signed) == 16
    assert "FAILED 未通过" in signed[0]
    assert colour(page, ".aisbench", "color") == rgb(INK)  # also of a reader whose screen is dark
    assert not page.is_visible("#results-table")
    assert wide(page) == []
    assert pages_of(page.pdf(format="A4")) <= 4

    page.emulate_media(media="screen")
    page.evaluate("window.print = () => document.title = 'printed'")
    page.click("text=打印（含详情）")
    page.wait_for_function("document.title === 'printed'")
    page.emulate_media(media="print")
    closed = page.evaluate("[...document.querySelectorAll('.extras-row')].filter(row => !row.checkVisibility()).length")
    assert closed == 0
    assert page.locator("#results-table svg").count() > 60
    assert wide(page) == []
    assert pages_of(page.pdf(format="A4")) > 10


def wide(page: Page) -> Any:
    """What is cut off at the right."""
    return page.evaluate(
        "[...document.querySelectorAll('table, pre, svg, .log')].filter(found => found.checkVisibility()"
        " && found.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
        ".map(found => found.outerHTML.slice(0, 200))"
    )


def test_it_speaks_chinese(browser: Browser, made: Made) -> None:
    page = browser.open(made("zh"), locale="zh-CN")

    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    headings = page.locator("#results-table-head th:visible").all_inner_texts()
    assert headings == [
        "用例或测试", "判定", "吞吐量", "占参考值", "精度", "要求", "实际训练软件", "备注", "作业时长", "链接",
    ]  # fmt: skip
    assert page.inner_text("#aisbench-open") == "展开全部"
    assert re.fullmatch(r"报告生成于 \S+ \S+，由 pytest-html\s+v.*", page.inner_text("#title + p"))
    text = page.inner_text(".summary")
    for part in ("退出码 1: 有用例 FAILED 或测试失败", "与上次运行相比", "卡时", "偏慢的卡与节点", "扩展效率"):
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
