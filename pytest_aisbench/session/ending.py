"""How a run ends before its time: in one line, or by a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_aisbench.errors import AisbenchError, UsageFault
from pytest_aisbench.judge import exit_code


@contextmanager
def one_line() -> Iterator[None]:
    """What was typed wrong is one line and exit 4; a ledger or cloud that cannot be opened is one line and exit 3."""
    try:
        yield
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None
    except AisbenchError as error:
        pytest.exit(str(error), returncode=exit_code.INTERNAL)


class Signals:
    """The first Ctrl-C or SIGTERM ends the run in good order, the second at once.

    By default SIGTERM would leave the jobs running. Both arrive as KeyboardInterrupt, since `except Exception` in a
    test or a reporter would swallow anything less.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.seen: signal.Signals | None = None
        self._say = say
        self._before: dict[int, Any] = {}
        self._calm = False

    @property
    def terminated(self) -> bool:
        return self.seen is signal.SIGTERM

    def open(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            # A shell starts what it puts in the background with Ctrl-C ignored, and means it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._end)

    def calm(self) -> None:
        """Nothing is left to interrupt: a first signal is noted for the exit code, and the reports are written."""
        self._calm = True

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _end(self, number: int, _: object) -> None:
        if self.seen is None:
            self.seen = signal.Signals(number)
            if self._calm:
                return
            raise KeyboardInterrupt
        # The ledger has every job on disk; nothing that is left to do is worth keeping a person waiting.
        with contextlib.suppress(Exception):  # noqa: TID251 - a log may be in the middle of a line, and the process ends
            self._say("left at once; jobs that may still run: aisbench jobs")
            sys.stdout.flush()
        os._exit(exit_code.TERMINATED if self.terminated else exit_code.INTERRUPTED)
