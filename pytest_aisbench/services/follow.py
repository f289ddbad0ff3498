"""Listening to the jobs that run: how far each is, and which of them stands still.

Nothing depends on it: a log that cannot be read is read later, and no job is ever stopped for what it does not say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_aisbench.domain import forecast
from pytest_aisbench.domain.heard import Heard, judged, with_log, with_usage
from pytest_aisbench.domain.job import LogPart, Phase
from pytest_aisbench.domain.messages import message, plain
from pytest_aisbench.domain.ports import Clock, Platform
from pytest_aisbench.domain.progress import Progress
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.logs import get_logger, ignored

_LOG = get_logger("monitor")
_QUICKEST = 0.5  # seconds between two rounds
_ROUND = 6  # jobs of one round, however many run
_SLOWEST = 60.0  # seconds between two readings of one log because of its size
_BYTES_PER_S = 100_000  # a platform may send the whole log, up to 5 MB, for the sake of one line
_END_S = 2.0


@dataclass
class _Ear:
    """Where the listening to one job stands."""

    heard: Heard
    due: float = 0.0
    looked: int = 0  # how often another node than the first had its turn
    asked: int = 0  # how often the use of a node was asked for
    asked_at: float = 0.0


class Follower:
    """One thread for all jobs; the more they are, the less often each is heard."""

    def __init__(
        self,
        platform: Platform,
        clock: Clock,
        trials: Callable[[], Iterable[Trial]],
        stall_s: float,
        *,
        say: Callable[[str], None],
        note: Callable[[Trial, str], None],
        keep: Callable[[Trial, int, LogPart], None] = lambda *_: None,
    ) -> None:
        """`say` takes lines for whoever waits, `note` what the report keeps of a trial, `keep` what a node said."""
        self._platform = platform
        self._clock = clock
        self._trials = trials
        self._stall_s = stall_s
        self._say = say
        self._note = note
        self._keep = keep
        self._rest = max(platform.poll_s, _QUICKEST)
        self._ears: dict[str, _Ear] = {}  # by trial
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aisbench-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)  # a daemon: a platform that does not answer keeps nobody

    def heard(self, trial: Trial) -> Heard | None:
        ear = self._ears.get(trial.id)
        return ear.heard if ear else None

    def _run(self) -> None:
        while not self._closing.wait(self._rest):
            with ignored(_LOG, Exception, "one round of reading logs"):
                self.round()

    def round(self) -> None:
        """Hear the few that have waited longest."""
        now = self._clock.now()
        running = {trial.id: trial for trial in self._trials() if _runs(trial)}
        self._ears = {
            key: self._ears.get(key) or _Ear(Heard(now, Progress(ranks=trial.case.shape.devices)))
            for key, trial in running.items()
        }
        due = sorted((ear.due, key) for key, ear in self._ears.items() if ear.due <= now)
        for _, key in due[:_ROUND]:
            if self._closing.is_set():
                return
            self._ears[key].due = now + self._rest
            # Whatever a platform raises: the watch deals with its outages.
            with ignored(_LOG, Exception, "%s: one reading of its log", running[key].name):
                self._hear(running[key], self._ears[key])

    def _hear(self, trial: Trial, ear: _Ear) -> None:
        before, nodes = ear.heard, trial.case.shape.nodes
        after = self._log(trial, before, 0)
        # Less is known then, and it is less that matters.
        with ignored(_LOG, Exception, "%s: one look at its other nodes", trial.name):
            if nodes > 1:
                ear.looked += 1
                after = self._log(trial, after, ear.looked % (nodes - 1) + 1)
            if self._is_silent(after, ear):
                ear.asked_at, ear.asked = self._clock.now(), ear.asked + 1
                node = ear.asked % nodes
                usage = self._platform.usage(trial.job_id or "", node)
                after = with_usage(after, node, usage, ear.asked_at)
        now = self._clock.now()
        ear.heard = after = judged(after, now, self._stall_s)
        ear.due = now + max(self._rest, min(_SLOWEST, after.sizes[0] / _BYTES_PER_S))
        if after.stalled != before.stalled:
            self._tell(trial, before, after)

    def _log(self, trial: Trial, known: Heard, node: int) -> Heard:
        part = self._platform.logs(trial.job_id or "", node, known.sizes.get(node, 0))
        with ignored(_LOG, OSError, "%s: a part of its log on disk", trial.name):  # a full disk shows elsewhere
            self._keep(trial, node, part)
        return with_log(known, node, part, self._clock.now())

    def _is_silent(self, known: Heard, ear: _Ear) -> bool:
        """The use of a node is asked for where its log says nothing: most jobs speak."""
        now = self._clock.now()
        return now - known.moved > self._stall_s / 3 and now - ear.asked_at >= self._stall_s / 6

    def _tell(self, trial: Trial, before: Heard, after: Heard) -> None:
        if after.stalled:
            where = place(trial, after)
            self._say(
                f"{trial.case.id} stalls: job {trial.job_id} has shown no sign of life since {_clock(after.moved)}"
                f"{where and f', at {where}'}; see `aisbench logs {trial.job_id}`"
            )
            since = _stamp(after.moved)
            self._note(trial, message("silent at", when=since, where=where) if where else message("silent", when=since))
        else:
            self._say(f"{trial.case.id} goes on: job {trial.job_id} had stood still since {_clock(before.moved)}")
            self._note(trial, message("went on", when=_stamp(after.moved)))


def place(trial: Trial, told: Heard) -> str:
    """Where its training stands, as far as its log tells."""
    progress, total = told.progress, forecast.epochs(trial.case)
    if progress.epoch:
        return f"epoch {progress.epoch}{f'/{total}' if total else ''}, step {progress.step}"
    return plain(told.said.strip(), 80)


def _runs(trial: Trial) -> bool:
    running = trial.job is not None and trial.job.phase is Phase.RUNNING
    return running and trial.step is Step.WATCH and trial.fault is None


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))
