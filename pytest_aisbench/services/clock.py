"""The machine's clock."""

from __future__ import annotations

import time


class SystemClock:
    """Clock, as the machine keeps it."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
