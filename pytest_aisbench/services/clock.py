"""The machine's clock."""

from __future__ import annotations

import time
from datetime import datetime, timezone


class SystemClock:
    """Clock, as the machine keeps it."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def day(now: float) -> str:
    """The date of a moment, as `2027-01-31`: in UTC, so that it is the same day for every machine of a team."""
    return datetime.fromtimestamp(now, timezone.utc).date().isoformat()
