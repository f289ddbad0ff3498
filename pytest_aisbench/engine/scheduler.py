"""Where the Fleet's work runs, and by which clock.

The Fleet starts no thread and reads no clock to plan its work: it asks a `Scheduler`. In production that is `Threads`:
a few worker threads, one thread for everything that has a time, and the monotonic clock. A simulation can drive the
same Fleet in one thread, in an order that a seed decides.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

Action = Callable[[], None]


class Scheduler(Protocol):
    """Runs actions. Its lock guards the state that they share: `with scheduler:`."""

    def now(self) -> float:
        """Seconds on a clock that never steps; its zero means nothing."""

    def cpu(self) -> float:
        """CPU seconds that the calling thread has used."""

    def soon(self, action: Action) -> None:
        """Run the action on a worker, after those that were given before."""

    def at(self, when: float, action: Action) -> None:
        """Run the action at that time; such actions run one at a time."""

    def wait(self, seconds: float) -> None:
        """Give the lock away until `notify` is called, or for so long; the caller has the lock."""

    def notify(self) -> None:
        """Wake all who wait; the caller has the lock."""

    def close(self) -> None:
        """Run no further action."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Threads:
    """Scheduler of worker threads and one timer thread, by the monotonic clock.

    They start when they are needed. All are daemons: a dead platform must not keep the process alive.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._started = 0
        self._idle = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._work: deque[Action] = deque()
        self._given = threading.Condition(threading.Lock())
        self._timed: list[tuple[float, int, Action]] = []
        self._timer: threading.Thread | None = None
        self._planned = threading.Condition(threading.Lock())
        self._order = itertools.count()
        self._closed = False

    def now(self) -> float:
        return time.monotonic()

    def cpu(self) -> float:
        return time.thread_time()

    def soon(self, action: Action) -> None:
        with self._given:
            self._work.append(action)
            if self._idle:
                self._given.notify()
            elif self._started < self._workers:
                self._started += 1
                name = f"aisbench-worker-{self._started}"
                threading.Thread(target=self._do_work, name=name, daemon=True).start()

    def at(self, when: float, action: Action) -> None:
        with self._planned:
            heapq.heappush(self._timed, (when, next(self._order), action))
            if self._timer is None:
                self._timer = threading.Thread(target=self._do_timed, name="aisbench-fleet", daemon=True)
                self._timer.start()
            elif self._timed[0][2] is action:
                self._planned.notify()

    def wait(self, seconds: float) -> None:
        self._changed.wait(seconds)

    def notify(self) -> None:
        self._changed.notify_all()

    def close(self) -> None:
        self._closed = True
        with self._given:
            self._given.notify_all()
        with self._planned:
            self._planned.notify()

    def __enter__(self) -> object:
        return self._lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def _do_work(self) -> None:
        while True:
            with self._given:
                while not self._work and not self._closed:
                    self._idle += 1
                    self._given.wait()
                    self._idle -= 1
                if self._closed:
                    return
                action = self._work.popleft()
            action()

    def _do_timed(self) -> None:
        while True:
            with self._planned:
                while not self._closed and (not self._timed or self._timed[0][0] > time.monotonic()):
                    self._planned.wait(self._timed[0][0] - time.monotonic() if self._timed else None)
                if self._closed:
                    return
                _, _, action = heapq.heappop(self._timed)
            action()
