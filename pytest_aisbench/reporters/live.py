"""What a person sees while the jobs run: bars on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import pytest
from _pytest.terminal import TerminalReporter

from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.reporters import bars
from pytest_aisbench.services import logs
from pytest_aisbench.services.follow import Follower

_LOG = get_logger("session")

if TYPE_CHECKING:
    from pytest_aisbench.domain.ports import Clock
    from pytest_aisbench.services.run import Run
    from pytest_aisbench.settings import Settings

_FRAME_S = 0.5
_CI = ("CI", "BUILD_NUMBER")  # as pytest reads them
_ROOM = 4  # lines of the terminal that are not bars


class Live:
    """A pytest plugin object. Everything is written by `tick` and `close`: outside of tests, when nothing is captured.

    Under xdist nobody is there to call `tick`: a thread does.
    """

    def __init__(self, config: pytest.Config, run: Run, settings: Settings, clock: Clock, *, threaded: bool) -> None:
        self._terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._fleet = run.fleet
        self._max_jobs = settings.max_jobs or run.platform.max_jobs
        self._clock = clock
        self._heartbeat_s = settings.heartbeat
        self._began = self._beaten = clock.now()
        self._said: deque[str] = deque()
        self._bars = Bars(self._terminal) if not threaded and has_room_for_bars(config, self._terminal) else None
        self._follower = Follower(
            run.platform,
            clock,
            run.fleet.trials,
            settings.stall,
            say=self.say,
            note=run.fleet.remark,
            keep=partial(logs.follow, run.folder),
        )
        self._follower.start()
        self._log = LiveLog(config) if not threaded and is_log_live(config) else None
        self._closing = threading.Event()
        if threaded:
            threading.Thread(target=self._run, name="aisbench-heartbeat", daemon=True).start()

    def say(self, line: str) -> None:
        """Shown as soon as nothing else is being written."""
        self._said.append(line)

    def tick(self) -> None:
        """Show what there is to show; called as often as one likes."""
        if self._log:
            self._log.write()
        if self._terminal is None:
            return
        while self._said:
            self._write(f"aisbench: {self._said.popleft()}")
        now = self._clock.now()
        if self._bars and now - self._beaten >= _FRAME_S:
            self._beaten = now
            self._bars.draw(self._scene(now))
        elif not self._bars and now - self._beaten >= self._heartbeat_s:
            self._beaten = now
            self._write(bars.heartbeat(self._scene(now)))

    def close(self) -> None:
        self._closing.set()
        self._follower.close()
        self._clear()
        while self._terminal and self._said:
            self._write(f"aisbench: {self._said.popleft()}")
        if self._log:
            self._log.close()

    def write_log(self) -> None:
        """Show what other threads logged; for the main thread while it waits inside a test."""
        if self._log:
            self._log.write()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._clear()
        self.write_log()

    def _run(self) -> None:
        while not self._closing.wait(min(_FRAME_S, self._heartbeat_s)):
            with ignored(_LOG, Exception, "one line of progress"):  # a terminal that is gone is no reason to end a run
                self.tick()

    def _scene(self, now: float) -> bars.Scene:
        newest = {trial.case.id: trial for trial in self._fleet.trials()}
        heard = {trial.id: self._follower.heard(trial) for trial in newest.values()}
        told = {key: value for key, value in heard.items() if value}
        return bars.Scene(now, self._began, list(newest.values()), told, self._max_jobs)

    def _write(self, line: str) -> None:
        """On a line of its own, at once: whoever reads a log of CI waits for it."""
        self._clear()
        self._terminal.ensure_newline()
        if self._terminal._tw.width_of_current_line:  # noqa: SLF001 - xdist's dots are known to the writer only
            self._terminal.write("\n")
        self._terminal.write(f"{line}\n", flush=True)

    def _clear(self) -> None:
        if self._bars:
            self._bars.clear()


def has_room_for_bars(config: pytest.Config, terminal: Any) -> bool:
    """Not where somebody else draws, such as pytest-sugar or live logs, nor where nobody looks."""
    return (
        type(terminal) is TerminalReporter
        and bool(terminal.isatty)
        and terminal.verbosity > -2
        and os.environ.get("TERM") != "dumb"
        and not any(map(os.environ.get, _CI))
        and not is_log_live(config)
        and hasattr(terminal._tw, "_file")  # noqa: SLF001
    )


def is_log_live(config: pytest.Config) -> bool:
    """True if pytest shows the log while the tests run."""
    with contextlib.suppress(ValueError):  # noqa: TID251 - -p no:logging
        return config.getoption("log_cli_level", None) is not None or bool(config.getini("log_cli"))
    return False


class LiveLog:
    """Keeps what other threads log for pytest's live log until the main thread writes it.

    To show a record pytest suspends its capture of the tests' output and resumes it. When another thread does that
    while the main thread ends a test, lines of the log and outcomes of tests are lost.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._records: deque[logging.LogRecord] = deque()
        self._handler: logging.Handler = config.pluginmanager.get_plugin("logging-plugin").log_cli_handler
        self._handler.addFilter(self._admit)

    def write(self) -> None:
        """Only the main thread may."""
        while self._records and threading.current_thread() is threading.main_thread():
            self._handler.acquire()
            try:
                self._handler.emit(self._records.popleft())
            finally:
                self._handler.release()

    def close(self) -> None:
        self._handler.removeFilter(self._admit)
        self.write()

    def _admit(self, record: logging.LogRecord) -> bool:
        if threading.current_thread() is threading.main_thread():
            self.write()  # what came before
            return True
        self._records.append(record)
        return False


class Bars:
    """Lines below what pytest wrote, drawn over and over, and taken away without a trace.

    They bypass pytest's own writer: it counts columns, and must go on where it was.
    """

    def __init__(self, terminal: Any) -> None:
        self._writer = terminal._tw  # noqa: SLF001
        self._file: TextIO = self._writer._file  # noqa: SLF001
        self._undo = ""

    def draw(self, scene: bars.Scene) -> None:
        width, height = self._size()
        # The last column stays empty: some terminals begin a new line as soon as it is filled.
        most = max(0, min(bars.MOST_BARS, height - _ROOM))
        lines = bars.block(scene, width - 1, most, curves=self._shows_curves())
        column = self._writer.width_of_current_line
        undo = f"\x1b[{len(lines)}A\x1b[{column + 1}G\x1b[J" if column else f"\x1b[{len(lines)}F\x1b[J"
        drawn = "".join(f"\n{line}" for line in lines) if column else "".join(f"{line}\n" for line in lines)
        self._put(self._undo + drawn)
        self._undo = undo

    def clear(self) -> None:
        if self._undo:
            self._put(self._undo)
            self._undo = ""

    def _shows_curves(self) -> bool:
        with contextlib.suppress(LookupError, UnicodeEncodeError):  # noqa: TID251 - that is the question
            return bool("▁█".encode(self._file.encoding or "ascii"))
        return False

    def _put(self, text: str) -> None:
        encoding = self._file.encoding or "ascii"
        # A terminal that is gone is no reason to end a run.
        with ignored(_LOG, (OSError, ValueError), "bars that were drawn"):
            self._file.write(text.encode(encoding, "replace").decode(encoding))
            self._file.flush()

    def _size(self) -> tuple[int, int]:
        """Of the terminal itself: while a test is captured, standard output is something else."""
        with ignored(_LOG, (OSError, ValueError), "the size of the terminal"):
            size = os.get_terminal_size(self._file.fileno())
            if size.columns and size.lines:
                return size.columns, size.lines
        return 80, 24
