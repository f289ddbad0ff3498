"""The browser that other tests look through: it shows pages of this machine, and tells of all others."""

from __future__ import annotations

from pathlib import Path

from browser import Browser


def test_a_page_is_read_clicked_and_seen_in_the_dark(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(
        "<meta charset='utf-8'><style>@media(prefers-color-scheme:dark){body{background:#000}}</style>"
        "<button onclick='this.textContent=`已看`'>look</button>",
        encoding="utf-8",
    )

    page = browser.open(file, dark=True)
    page.click("button")

    assert page.inner_text("button") == "已看"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(0, 0, 0)"
    assert page.screenshot().startswith(b"\x89PNG")


def test_strangers_and_errors_are_told(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<script src='https://cdn.example/x.js'></script><script>nothing.here</script>", encoding="utf-8")

    browser.open(file)

    assert browser.strangers == ["https://cdn.example/x.js"]
    assert browser.errors == ["nothing is not defined"]
    browser.strangers.clear()
    browser.errors.clear()
