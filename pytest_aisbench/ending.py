"""How a run ends before its time: in one line, or by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pytest_aisbench.domain import exitcode
from pytest_aisbench.errors import AisbenchError, UsageFault


@contextmanager
def one_line() -> Iterator[None]:
    """What was typed wrong is one line and exit 4; a ledger or cloud that cannot be opened is one line and exit 3."""
    try:
        yield
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None
    except AisbenchError as error:
        pytest.exit(str(error), returncode=exitcode.INTERNAL)


@contextmanager
def on_sigterm(noticed: Callable[[], None]) -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does; by default it would leave the jobs running.

    As KeyboardInterrupt, since `except Exception` in a test or a reporter would swallow anything less.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        noticed()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
