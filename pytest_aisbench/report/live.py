"""Shows progress while the jobs run: bars on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import pytest
from _pytest.terminal import TerminalReporter

from pytest_aisbench.engine.collect import append_log
from pytest_aisbench.engine.watch import OUTAGE_S, LogMonitor, local_time, silent_since
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.job import Phase
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import THROUGHPUT, counts_the_same
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import number
from pytest_aisbench.report.terminal import sparkline
from pytest_aisbench.report.text import clip, display_width, fit, padded
from pytest_aisbench.traininglog.activity import (
    JobActivity,
    epochs_of,
    seconds_in_phase,
    seconds_left,
    seconds_until_all_end,
    share_done,
    throughput,
)

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.engine.run import Run
    from pytest_aisbench.model.ports import Clock

_LOG = get_logger("session")
MOST_BARS = 10
_FRAME_S = 0.5
_CI = ("CI", "BUILD_NUMBER")  # as pytest reads them
_ROOM = 4  # lines of the terminal that are not bars


class Live:
    """Shows the progress of a run; also a pytest plugin. It writes only in `tick` and `close`, which the session calls
    outside of tests, when pytest captures nothing. Under xdist a thread of its own calls `tick`.
    """

    def __init__(self, config: pytest.Config, run: Run, settings: Settings, clock: Clock, *, threaded: bool) -> None:
        self._terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._fleet = run.fleet
        self._max_jobs = settings.max_jobs or run.platform.max_jobs
        self._clock = clock
        self._heartbeat_s = settings.heartbeat
        self._began = self._beaten = clock.now()
        self._lines: deque[str] = deque()
        self._bars = Bars(self._terminal) if not threaded and has_room_for_bars(config, self._terminal) else None
        self._follower = LogMonitor(
            run.platform,
            clock,
            run.fleet.watched,
            settings.stall,
            say=self.say,
            note=run.fleet.remark,
            amend=run.fleet.amend,
            keep=partial(append_log, run.folder),
        )
        self._follower.start()
        self._log = LiveLog(config) if not threaded and is_log_live(config) else None
        self._closing = threading.Event()
        if threaded:
            threading.Thread(target=self._run, name="aisbench-heartbeat", daemon=True).start()

    def say(self, line: str) -> None:
        """Write a line at the next `tick`."""
        self._lines.append(line)

    def tick(self) -> None:
        """Write lines, log and progress that are due; cheap enough to be called often."""
        if self._log:
            self._log.write()
        if self._terminal is None:
            return
        while self._lines:
            self._write(f"aisbench: {self._lines.popleft()}")
        now = self._clock.now()
        if self._bars and now - self._beaten >= _FRAME_S:
            self._beaten = now
            self._bars.draw(self._scene(now))
        elif not self._bars and now - self._beaten >= self._heartbeat_s:
            self._beaten = now
            self._write(heartbeat_line(self._scene(now)))

    def close(self) -> None:
        self._closing.set()
        self._follower.close()
        self._clear()
        while self._terminal and self._lines:
            self._write(f"aisbench: {self._lines.popleft()}")
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
            with ignored(_LOG, Exception, "one line of progress"):  # a closed terminal must not end a run
                self.tick()

    def _scene(self, now: float) -> Scene:
        newest = {trial.case.id: trial for trial in self._fleet.trials()}
        activities = {trial.id: job for trial in newest.values() if (job := self._follower.activity(trial))}
        return Scene(now, self._began, list(newest.values()), activities, self._max_jobs)

    def _write(self, line: str) -> None:
        """Write a line of its own, and flush it for people who follow a log of CI."""
        self._clear()
        self._terminal.ensure_newline()
        if self._terminal._tw.width_of_current_line:  # noqa: SLF001 - only the writer knows of xdist's dots
            self._terminal.write("\n")
        self._terminal.write(f"{line}\n", flush=True)

    def _clear(self) -> None:
        if self._bars:
            self._bars.clear()


def has_room_for_bars(config: pytest.Config, terminal: Any) -> bool:
    """False if another plugin draws (pytest-sugar, live logs), and if no person looks at a terminal."""
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
        plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
        self._handler: logging.Handler = plugin.log_cli_handler
        self._handler.addFilter(self._admit)

    def write(self) -> None:
        """Write the kept records; does nothing outside of the main thread."""
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
            self.write()  # the records before this one
            return True
        self._records.append(record)
        return False


class Bars:
    """Lines below the output of pytest, redrawn again and again, and removed without a trace.

    They bypass pytest's own writer, which counts columns and must continue where it was.
    """

    def __init__(self, terminal: Any) -> None:
        self._writer = terminal._tw  # noqa: SLF001
        self._file: TextIO = self._writer._file  # noqa: SLF001
        self._undo = ""

    def draw(self, scene: Scene) -> None:
        width, height = self._size()
        # The last column stays empty: some terminals begin a new line as soon as it is filled.
        most = max(0, min(MOST_BARS, height - _ROOM))
        lines = bar_lines(scene, width - 1, most, curves=self._shows_curves())
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
        # A closed terminal must not end a run.
        with ignored(_LOG, (OSError, ValueError), "bars that were drawn"):
            self._file.write(text.encode(encoding, "replace").decode(encoding))
            self._file.flush()

    def _size(self) -> tuple[int, int]:
        """The size of the terminal, not of standard output, which pytest replaces during a test."""
        with ignored(_LOG, (OSError, ValueError), "the size of the terminal"):
            size = os.get_terminal_size(self._file.fileno())
            if size.columns and size.lines:
                return size.columns, size.lines
        return 80, 24


# The progress of a run as lines of text

_NAMED = 8  # running cases that a heartbeat names
_LEAST_NAME = 12
_WIDE, _NARROW = 130, 100  # columns; where there are fewer, figures take the place of bars
_CURVE = 8  # columns of a curve
_FEWEST = 3  # points of one


@dataclass(frozen=True)
class Scene:
    """The state of a run at one moment."""

    now: float
    began: float
    trials: Sequence[Trial]  # the newest of each case
    activities: Mapping[str, JobActivity]  # by trial
    max_jobs: int


def bar_lines(scene: Scene, width: int, most: int = MOST_BARS, *, curves: bool = True) -> list[str]:
    """Bars of the cases that have a job, then one line for all; none wider than `width` columns."""
    in_flight = [trial for trial in scene.trials if Step.SUBMIT < trial.step < Step.DONE]
    in_flight.sort(key=lambda trial: not _is_at_work(trial))
    hidden = in_flight[most:]
    name = min(
        max((display_width(trial.case.id) for trial in in_flight[:most]), default=0), max(_LEAST_NAME, width // 3)
    )
    lines = [_bar(scene, trial, name, width, curves=curves) for trial in in_flight[:most]]
    if hidden:
        lines.append(f"and {len(hidden)} more in flight")
    return [clip(line, width).rstrip() for line in [*lines, _counts(scene)]]


def heartbeat_line(scene: Scene) -> str:
    """The progress of all cases in one line, for a log."""
    running = [trial for trial in scene.trials if _is_at_work(trial)]
    named = ", ".join(_short(scene, trial) for trial in running[:_NAMED])
    more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
    line = f"aisbench +{_hours(scene.now - scene.began)} {_counts(scene)}"
    return f"{line} | {named}{more}" if named else line


def _bar(scene: Scene, trial: Trial, name: int, width: int, *, curves: bool) -> str:
    activity = scene.activities.get(trial.id)
    lasted = seconds_in_phase(trial, scene.now)
    start = f"{padded(fit(plain(trial.case.id), name), name)}  {_state(trial, activity):<7}  {_hours(lasted):>7}"
    if silence := _silence(scene, [trial]):
        return f"{start}  {silence}"
    if not _is_running(trial):
        return start
    share = share_done(trial, activity, scene.now)
    left = seconds_left(trial, activity, scene.now)
    size = 20 if width >= _WIDE else 10 if width >= _NARROW else 0
    bar = f"[{'#' * int(size * share):-<{size}}] {share:>4.0%}" if share is not None and size else ""
    done = "" if share is None else bar or f"{share:>4.0%}"
    eta = "" if left is None else f"eta {_hours(left)}"
    row = start
    for beside in _beside(trial, activity, curves=curves):
        row = "  ".join(filter(None, (start, done, eta, beside)))
        if display_width(row) <= width:
            break
    return row


def _silence(scene: Scene, trials: Iterable[Trial]) -> str:
    """Since when the platform says nothing of these trials' jobs, and until when we wait; empty while it answers."""
    since = min((at for trial in trials if (at := silent_since(trial)) is not None), default=None)
    if since is None:
        return ""
    lasted = _hours(scene.now - since)
    return f"no answer since {local_time(since)} ({lasted}), waiting until {local_time(since + OUTAGE_S)}"


def _beside(trial: Trial, activity: JobActivity | None, *, curves: bool) -> Iterator[str]:
    """The figures beside a bar, then fewer and fewer of them: a figure is never cut in half."""
    if activity:
        epoch, speed, loss, curve = (
            _epoch(trial, activity),
            _speed(trial, activity),
            _loss(activity),
            _curve(activity) if curves else "",
        )
        for parts in ((epoch, speed, f"{loss} {curve}".strip()), (epoch, speed, loss), (speed, loss), (speed,)):
            yield ", ".join(filter(None, parts))
    yield ""


def _epoch(trial: Trial, activity: JobActivity) -> str:
    progress, total = activity.progress, epochs_of(trial.case)
    step = f"step {progress.step}{f'/{progress.steps}' if progress.steps else ''}" if progress.step else ""
    if not progress.epoch:
        return step
    return f"epoch {progress.epoch}/{total}" if total else f"epoch {progress.epoch} {step or 'step 0'}"


def _speed(trial: Trial, activity: JobActivity) -> str:
    fast = throughput(trial.case, activity.progress)
    metric = trial.case.workload.metrics.get(THROUGHPUT)
    if fast is not None and metric:
        unit = activity.progress.unit
        return f"~{_figure(fast)} {plain(metric.unit, 20) if counts_the_same(metric.unit, unit) else unit}"
    return "" if activity.progress.ms_per_step is None else f"{_figure(activity.progress.ms_per_step)} ms/step"


def _loss(activity: JobActivity) -> str:
    if activity.progress.loss is not None:
        return f"loss {_figure(activity.progress.loss)}"
    return "loss nan" if activity.curve.loss.points else ""  # it was a number before


def _curve(activity: JobActivity) -> str:
    values = activity.curve.loss.values
    return sparkline(values, _CURVE) if len(values) >= _FEWEST else ""


def _figure(value: float) -> str:
    return number(float(f"{value:.4g}"))


def _short(scene: Scene, trial: Trial) -> str:
    if silent_since(trial) is not None:
        return f"{plain(trial.case.id)} silent"
    activity = scene.activities.get(trial.id)
    share = share_done(trial, activity, scene.now) if _is_running(trial) else 1.0
    how_far = f" {share:.0%}" if share is not None else f" {_hours(seconds_in_phase(trial, scene.now))}"
    figures = (_speed(trial, activity), _loss(activity)) if activity and _is_running(trial) else ()
    stalled = "stalled" if activity and activity.stalled else ""
    return " ".join(filter(None, (plain(trial.case.id) + how_far, stalled, *figures)))


def _counts(scene: Scene) -> str:
    done = sum(trial.step is Step.DONE for trial in scene.trials)
    running = sum(map(_is_at_work, scene.trials))
    waiting = len(scene.trials) - done - running
    counts = f"{done}/{len(scene.trials)} done, {running} running, {waiting} waiting"
    if silence := _silence(scene, scene.trials):
        return f"{counts}; {silence}"  # when all will be over, only the platform could say
    left = _until_all(scene)
    return f"{counts}, eta {_hours(left)}" if left is not None else counts


def _until_all(scene: Scene) -> float | None:
    running: list[float | None] = []
    waiting: list[float | None] = []
    for trial in scene.trials:
        if _is_running(trial):
            running.append(seconds_left(trial, scene.activities.get(trial.id), scene.now))
        elif _is_at_work(trial):
            running.append(0.0)
        elif trial.step is not Step.DONE:
            waiting.append(trial.expected_s or None)
    return seconds_until_all_end(running, waiting, scene.max_jobs)


def _is_at_work(trial: Trial) -> bool:
    """True if its job runs, or its results are being collected or judged."""
    return _is_running(trial) or trial.step in {Step.HARVEST, Step.JUDGE}


def _is_running(trial: Trial) -> bool:
    return trial.step is Step.WATCH and trial.job is not None and trial.job.phase is Phase.RUNNING


def _state(trial: Trial, activity: JobActivity | None) -> str:
    if _is_running(trial):
        return "stalled" if activity and activity.stalled else "stops" if trial.fault else "running"
    return "queued" if trial.step is Step.WATCH else "harvest"


def _hours(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
