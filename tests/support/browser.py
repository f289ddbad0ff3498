"""Debian's Chromium, driven by Playwright: pages as a reader sees them, light or dark, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page, Route

NAMES = ("chromium", "chromium-browser", "google-chrome")
OFFLINE = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


class Browser:
    """Every page is a profile of its own. What a page must not do is noted: ask a stranger, or throw."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self.strangers: list[str] = []
        self.errors: list[str] = []

    def open(
        self, where: str | Path, *, dark: bool = False, width: int = 1280, height: int = 900, locale: str = "en-US"
    ) -> Page:
        """A file, or a URL of this machine."""
        context = self._chromium.new_context(
            color_scheme="dark" if dark else "light", viewport={"width": width, "height": height}, locale=locale
        )
        context.set_default_timeout(20_000)
        context.route("**/*", self._admit)
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        return page

    def close_pages(self) -> None:
        for context in self._chromium.contexts:
            context.close()

    def _admit(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        if url.scheme in {"file", "data", "blob", "about"} or url.hostname in {"127.0.0.1", "localhost"}:
            route.continue_()
        else:
            self.strangers.append(route.request.url)
            route.abort()


@contextmanager
def chromium() -> Iterator[Chromium]:
    """One process for several tests. Skips, and says why, where there is none; `scripts/browser` installs it."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install -e .[test]"
    )
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: run scripts/browser as root")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=list(OFFLINE))
        try:
            yield started
        finally:
            started.close()
