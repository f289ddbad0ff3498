"""The machine's clock, and times as text."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def _passed() -> float:
    """Seconds on a clock that is never set, and that counts while the machine sleeps where it can: jobs run on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SystemClock:
    """Clock: the machine's time when this object was made, and what has passed since.

    Time that is set back by an hour in mid-run must not make a job an hour longer, nor a pause.
    """

    def __init__(self) -> None:
        self._zero = time.time() - _passed()

    def now(self) -> float:
        return self._zero + _passed()

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
