"""When a line of a log was printed, by the stamp that it begins with."""

from __future__ import annotations

import re

_STAMP = re.compile(r"\[(\d{4})[/-](\d{1,2})[/-](\d{1,2}) (\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,6}))?\]")


def moment(line: str) -> float | None:
    """Seconds of a stamp like `[2022/04/04 17:51:12]`, of whatever zone: only differences count."""
    found = _STAMP.match(line)
    if not found:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)  # a year that begins in March
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day
    return 86400.0 * days + 3600 * hour + 60 * minute + second + float(f"0.{found[7] or 0}")
