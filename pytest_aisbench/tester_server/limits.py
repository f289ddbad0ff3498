"""How often one token may send: so many a second, and a stock of ten seconds' worth for those who rarely do."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

_STOCK_S = 10.0


class Rate:
    def __init__(self, per_second: float, now: Callable[[], float]) -> None:
        """0 is without limit."""
        self._per_second = per_second
        self._most = max(1.0, per_second * _STOCK_S)
        self._now = now
        self._lock = threading.Lock()
        self._stocks: dict[
            int, tuple[float, float]
        ] = {}  # by token: what was left, and when; as many as there are tokens

    def wait_s(self, token: int) -> int:
        """0, and one request is counted; or after how many whole seconds to come again."""
        if not self._per_second:
            return 0
        with self._lock:
            now = self._now()
            left, at = self._stocks.get(token, (self._most, now))
            left = min(self._most, left + (now - at) * self._per_second)
            taken = left >= 1
            self._stocks[token] = (left - 1 if taken else left, now)
            return 0 if taken else max(1, math.ceil((1 - left) / self._per_second))
