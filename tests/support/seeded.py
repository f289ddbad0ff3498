"""A scheduler in one thread: a seed decides which action is next, and time passes only where none can run."""

from __future__ import annotations

import heapq
import itertools
import random
from types import TracebackType

from pytest_aisbench.engine.scheduler import Action


class Seeded:
    """Scheduler and Clock at once. Actions run while the test waits, as those of threads do."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._time = 1_000_000.0
        self._soon: list[Action] = []
        self._timed: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self.actions = 0  # that have run

    def now(self) -> float:
        return self._time

    def cpu(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self._time += seconds

    def soon(self, action: Action) -> None:
        self._soon.append(action)

    def at(self, when: float, action: Action) -> None:
        heapq.heappush(self._timed, (when, next(self._order), action))

    def wait(self, seconds: float) -> None:
        """Run one action: of those that may run now, any; if there is none, the next that has a time."""
        due = bool(self._timed) and self._timed[0][0] <= self._time
        if self._soon and not (due and self._chance.random() < 0.5):
            action = self._soon.pop(self._chance.randrange(len(self._soon)))
        elif self._timed and self._timed[0][0] <= self._time + seconds:
            self._time = max(self._time, self._timed[0][0])
            action = heapq.heappop(self._timed)[2]
        else:
            self._time += seconds
            return
        self.actions += 1
        action()

    def notify(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> object:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
