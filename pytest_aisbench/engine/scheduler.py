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
_ALWAYS = 2  # workers, whatever the CPU does
_LOOK_S = 0.02
_BUSY = 0.8  # of one core: Python runs one thread at a time, so more threads would only wait for each other


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

    They start when they are needed. All are daemons: a dead platform must not keep the process alive. Two workers work
    whenever there is work; the others join them while the process leaves CPU unused, so while they wait for answers.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._started = 0
        self._idle = 0
        self._working = 0
        self._watching = False  # an idle worker looks every few milliseconds whether it should join
        self._pace = Pace(workers)
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
            if self._working < self._pace.workers or not self._watching:
                self._call_worker()

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

    def _call_worker(self) -> None:
        if self._idle:
            self._given.notify()
        elif self._started < self._workers:
            self._started += 1
            name = f"aisbench-worker-{self._started}"
            threading.Thread(target=self._do_work, name=name, daemon=True).start()

    def _do_work(self) -> None:
        while action := self._next_action():
            try:
                action()
            finally:
                with self._given:
                    self._working -= 1

    def _next_action(self) -> Action | None:
        """Wait for the next action that this worker should run; None once the scheduler is closed."""
        with self._given:
            while not self._closed:
                if self._work:
                    self._pace.look()
                    if self._working < self._pace.workers:
                        return self._take_action()
                self._wait_for_work()
            return None

    def _take_action(self) -> Action:
        self._working += 1
        action = self._work.popleft()
        if self._work and not self._watching:
            self._call_worker()
        return action

    def _wait_for_work(self) -> None:
        watches = bool(self._work) and not self._watching
        self._watching |= watches
        self._idle += 1
        self._given.wait(_LOOK_S if watches else None)
        self._idle -= 1
        if watches:
            self._watching = False

    def _do_timed(self) -> None:
        while True:
            with self._planned:
                while not self._closed and (not self._timed or self._timed[0][0] > time.monotonic()):
                    self._planned.wait(self._timed[0][0] - time.monotonic() if self._timed else None)
                if self._closed:
                    return
                _, _, action = heapq.heappop(self._timed)
            action()


class Pace:
    """How many workers should work at once: one more after each look that finds the process waiting."""

    def __init__(self, most: int) -> None:
        self._least, self._most = min(_ALWAYS, most), most
        self.workers = self._least
        self._looked, self._cpu = time.monotonic(), time.process_time()

    def look(self) -> None:
        now, cpu = time.monotonic(), time.process_time()
        lasted = now - self._looked
        if lasted < _LOOK_S:
            return
        if lasted < 10 * _LOOK_S:  # else there was no work in between, and the CPU says nothing
            is_busy = cpu - self._cpu > _BUSY * lasted
            self.workers = max(self._least, self.workers - 1) if is_busy else min(self._most, self.workers + 1)
        self._looked, self._cpu = now, cpu
