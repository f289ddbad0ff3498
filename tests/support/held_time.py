"""Time that passes only for those who wait, and at once."""

from __future__ import annotations


class HeldTime:
    """Stands still but for those who wait; serves as the module `time` and as an Event that is never set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def wait(self, seconds: float) -> bool:
        self.sleep(seconds)
        return False

    def is_set(self) -> bool:
        return False

    def set(self) -> None: ...
