"""The machine's clock, and times as text."""

from __future__ import annotations

import time
from datetime import datetime, timezone


class SystemClock:
    """Clock, as the machine keeps it."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def day(at: float) -> str:
    """The date of a moment, as `2027-01-31`: in UTC, so that it is the same day for every machine of a team."""
    return datetime.fromtimestamp(at, timezone.utc).date().isoformat()


def stamp(at: float, timespec: str = "seconds") -> str:
    """A moment as our files have it: `2027-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec=timespec).replace("+00:00", "Z")


def seconds_of(stamp: str) -> float:
    """The seconds since the epoch of such a text."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
