"""How values look on a page."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from pytest_aisbench.tester_server.contract import number as finite


def number(value: Any, digits: int = 5) -> str:
    """Short enough to be read, and never rounded to another story: 14151.5, 0.7612, 1.2e-07."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= 10**digits and abs(value) < 1e15:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def share(value: Any) -> str:
    """Of what somebody sent too, which may be no number, or an absurd one."""
    found = finite(value)
    return "–" if found is None else f"{found:.1%}"


def change(before: float | None, after: float | None) -> float | None:
    """By what share `after` is above `before`."""
    return (after - before) / abs(before) if before and after is not None else None


def signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}"


def clock(value: float | None) -> str:
    if value is None:
        return "–"
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M")


def path(*parts: str) -> str:
    """An address on this server; each part may be any name."""
    return "/" + "/".join(_quoted(part) for part in parts)


@lru_cache(4096)  # a page says the same names again and again
def _quoted(part: str) -> str:
    return quote(part, safe=":@!$,;")


def run_path(project: str, testid: str, name: str) -> str:
    return path("p", project, "t", testid, "r", name)


def result_path(row: Any) -> str:
    return run_path(row.project, row.testid, row.run_name) + path("c", row.name)


def series_path(project: str, platform: str, name: str) -> str:
    return path("p", project, "cases", platform, name)
