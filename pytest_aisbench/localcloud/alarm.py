"""Calls at given times, all from one thread: what thousands of waits cost almost nothing with."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Alarm:
    """Its thread begins with the first call that is asked for."""

    def __init__(self, name: str) -> None:
        self._calls: list[tuple[float, int, Callable[[], None]]] = []  # a heap
        self._numbers = itertools.count()  # of two calls at the same time, the one asked for first comes first
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """`moment` is of time.monotonic; one that has passed means at once. After `close` nothing is called."""
        with self._changed:
            heapq.heappush(self._calls, (moment, next(self._numbers), call))
            if self._thread.ident is None and not self._closed:
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Returns when no call runs any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            started = self._thread.ident is not None
        if started:
            self._thread.join()

    def _run(self) -> None:
        while call := self._next():
            _survive(call)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                wait = self._calls[0][0] - time.monotonic() if self._calls else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._calls)[2]
                self._changed.wait(wait)
        return None


def _survive(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("a call that was due")
