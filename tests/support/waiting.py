"""The one way in which tests wait for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 300.0  # seconds, for what hangs; a busy machine is no fault of what is tested
_POLL_S = 0.02


def wait_until(ask: Callable[[], T], accept: Callable[[T], object] = bool, seconds: float = PATIENCE) -> T:
    """Ask again and again; return the first answer that `accept` accepts, and fail if none came in time."""
    end = time.monotonic() + seconds
    while not accept(answer := ask()):
        assert time.monotonic() < end, f"waited {seconds:g} s; the last answer was {answer!r}"
        time.sleep(_POLL_S)
    return answer
