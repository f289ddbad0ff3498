"""Threads that make many calls at once, and stay for the next ones: to start 16 takes as long as five requests."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

_MOST_THREADS = 1024


class Workers:
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run_all(self, calls: Iterable[Callable[[], object]], at_once: int) -> None:
        """Make all calls, `at_once` at a time. Raise the first error, and drop the calls that have not begun.

        Calls of different callers do not wait for each other, so that a few results do not wait for a data set: a
        thread is started wherever none is idle.
        """
        waiting = collections.deque(calls)

        def work() -> None:
            while True:
                try:
                    call = waiting.popleft()
                except IndexError:
                    return
                call()

        if min(at_once, len(waiting)) <= 1:
            work()
            return
        threads = [self._threads().submit(work) for _ in range(min(at_once, len(waiting)))]
        try:
            wait(threads, return_when=FIRST_EXCEPTION)
        finally:
            waiting.clear()
            wait(threads)
        for each in threads:
            each.result()

    def close(self) -> None:
        """Lets the threads end; calls that run go on, and later ones start threads anew."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown(wait=False)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="obs")
            return self._pool
