"""An engine without processes: a job is some entries in a calendar, so thousands of them cost almost nothing.

It takes the time it is told to, then has the results it is told to. Hyper-parameters decide: `seconds` (default 1),
`epochs` (3, each a line in the log), `throughput` of a rank (100), `accuracy` (0.9), `exit_code` (0).
"""

from __future__ import annotations

import functools
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.engine.launch import Alarm, Ended, Started, TaskEnded, TaskStarted
from pytest_aisbench.localcloud.engine.process_engine import LONGEST
from pytest_aisbench.localcloud.obs.storage import ObjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_aisbench.localcloud.engine.launch import Launch, Report
    from pytest_aisbench.localcloud.obs.storage import Objects

ROOM = 100_000  # jobs at once
_TERMINATED = 128 + 15
_MISUSED = 2
_STEPS = 100  # of an epoch


@dataclass(frozen=True)
class _Script:
    seconds: float = 1.0
    epochs: int = 3
    throughput: float = 100.0
    accuracy: float = 0.9
    exit_code: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> _Script:
        """ValueError where one is not what it should be; those that are not ours are somebody else's."""
        script = cls(
            seconds=float(parameters.get("seconds", cls.seconds)),
            epochs=int(parameters.get("epochs", cls.epochs)),
            throughput=float(parameters.get("throughput", cls.throughput)),
            accuracy=float(parameters.get("accuracy", cls.accuracy)),
            exit_code=int(parameters.get("exit_code", cls.exit_code)),
        )
        if not 0 <= script.seconds < math.inf or script.epochs < 1 or not 0 <= script.exit_code <= 255:
            raise ValueError("seconds must be finite and not negative, epochs from 1, exit_code from 0 to 255")
        return script


@dataclass(eq=False)
class _Play:
    launch: Launch
    report: Report
    script: _Script = _Script()
    log: bytearray = field(default_factory=bytearray)  # of each of its tasks
    began: float = 0.0
    ended: float = 0.0
    over: bool = False
    forgotten: bool = False

    @property
    def tasks(self) -> list[str]:
        return [f"worker-{node}" for node in range(self.launch.nodes)]

    @property
    def ranks(self) -> int:
        return self.launch.ranks

    def announce(self, text: str) -> None:
        """A line of the platform's own; pods have none."""
        self.say(text if self.launch.pods else f"[ModelArts Service Log]{text}")

    def say(self, line: str) -> None:
        self.log += f"{line}\n".encode()


class PretendEngine:
    """Everything that happens to a job happens on the thread of the alarm, one thing at a time."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._alarm = Alarm("pretended jobs")
        self._plays: dict[str, _Play] = {}
        self._frozen: dict[str, tuple[int, float]] = {}  # the sizes of logs, and since when
        self._lock = threading.Lock()

    def start(self, launch: Launch, report: Report) -> None:
        play = _Play(launch, report)
        with self._lock:
            self._plays[launch.job_id] = play
        self._plan(play, 0, functools.partial(self._begin, play))

    def stop(self, job_id: str) -> None:
        if play := self._plays.get(job_id):
            end = Ended("Terminated", "The job was stopped by its user.")
            self._plan(play, 0, functools.partial(self._end, play, end, _TERMINATED))

    def log(self, job_id: str, task: str) -> tuple[bytes, int] | None:
        play = self._plays.get(job_id)
        if play is None or not play.log:
            return None
        size, _ = self._frozen.get(job_id, (None, 0.0))
        content = bytes(play.log)[:size]
        return content, len(content)

    def usage(self, job_id: str, task: str) -> Mapping[str, Sequence[float]]:
        """Invented; a job whose log is frozen does nothing from then on."""
        play = self._plays.get(job_id)
        if play is None or not play.began:
            return {}
        end = int((play.ended or time.monotonic()) - play.began) + 1
        _, frozen = self._frozen.get(job_id, (0, math.inf))
        seconds = range(max(0, end - LONGEST), end)
        busy = [0.0 if play.began + second >= frozen else 90.0 + second % 7 for second in seconds]
        return {
            "cpuUsage": [value / 4 for value in busy],
            "memUsage": [12.0 for _ in busy],
            "npuUtil": busy,
            "npuMemUsage": [60.0 for _ in busy],
        }

    def freeze_log(self, job_id: str, *, frozen: bool) -> None:
        if frozen:
            play = self._plays.get(job_id)
            self._frozen[job_id] = (len(play.log) if play else 0, time.monotonic())
        else:
            self._frozen.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        self._frozen.pop(job_id, None)
        with self._lock:
            play = self._plays.get(job_id)
            if play and play.over:
                del self._plays[job_id]
            elif play:
                play.forgotten = True

    def close(self) -> None:
        self._alarm.close()
        for play in list(self._plays.values()):
            if not play.over:
                self._finish(play, Ended("Terminated", "The local cloud was closed."))

    def _plan(self, play: _Play, moment: float, step: Callable[[], None]) -> None:
        self._alarm.at(moment, functools.partial(self._do, play, step))

    def _do(self, play: _Play, step: Callable[[], None]) -> None:
        """What was planned for a job that has ended meanwhile is void."""
        if play.over:
            return
        try:
            step()
        except (OSError, ObjectError) as error:
            self._finish(play, Ended("Abnormal", f"The platform failed: {error}"))

    def _begin(self, play: _Play) -> None:
        play.began = time.monotonic()
        play.report(Started())
        for task in play.tasks:
            play.report(TaskStarted(task))
        play.announce(f"the training of {play.ranks} ranks is pretended")
        try:
            play.script = _Script.of(dict(play.launch.parameters))
        except ValueError as error:
            play.say(f"error: {error}")
            self._fail(play, _MISUSED)
            return
        if (limit := play.launch.time_limit) is not None:
            end = Ended("Terminated", "The job ran as long as its auto_stop allows.")
            self._plan(play, play.began + limit, functools.partial(self._end, play, end, _TERMINATED))
        self._plan_epoch(play, 1)

    def _plan_epoch(self, play: _Play, epoch: int) -> None:
        due = play.began + play.script.seconds * epoch / play.script.epochs
        self._plan(play, due, functools.partial(self._epoch, play, epoch))

    def _epoch(self, play: _Play, epoch: int) -> None:
        script = play.script
        if epoch == script.epochs and script.exit_code:
            self._fail(play, script.exit_code)
            return
        took = script.seconds * 1000 / script.epochs
        play.say(f"epoch: {epoch} step: {_STEPS}, loss is {2.3 / (epoch + 1):.7g}")
        play.say(f"Train epoch time: {took:.3f} ms, per step time: {took / _STEPS:.3f} ms")
        if epoch < script.epochs:
            self._write_logs(play)
            self._plan_epoch(play, epoch + 1)
        else:
            self._write_results(play)
            self._end(play, Ended("Completed"), 0)

    def _fail(self, play: _Play, code: int) -> None:
        first = play.tasks[0]
        self._end(play, Ended("Failed", f"{first}: {_words(code)}", first), code)

    def _end(self, play: _Play, end: Ended, code: int) -> None:
        if play.began:
            play.announce(f"{end.phase}. {end.message}".rstrip())
            self._write_logs(play)
            for task in play.tasks:
                # Where one task fails, the others are stopped.
                own = code if task == (end.task or task) else _TERMINATED
                play.report(TaskEnded(task, own, _words(own)))
        self._finish(play, end)

    def _finish(self, play: _Play, end: Ended) -> None:
        with self._lock:
            play.over = True
            play.ended = time.monotonic()
            if play.forgotten:
                del self._plays[play.launch.job_id]
        play.report(end)

    def _write_logs(self, play: _Play) -> None:
        launch = play.launch
        if launch.logs and launch.job_id not in self._frozen:
            for task in play.tasks:
                key = launch.logs.prefix + launch.log_name(task)
                self._objects.put(launch.logs.bucket, key, bytes(play.log))

    def _write_results(self, play: _Play) -> None:
        results: dict[str, float] = {f"throughput_{rank}": play.script.throughput for rank in range(play.ranks)}
        results |= {"ranksize": play.ranks, "accuracy": play.script.accuracy}
        if play.launch.pods and (folder := play.launch.pods.results):
            folder.mkdir(parents=True, exist_ok=True)
            for name, value in results.items():
                (folder / f"{name}.json").write_text(str(value))
        for output in play.launch.outputs[:1]:
            for name, value in results.items():
                self._objects.put(output.place.bucket, f"{output.place.prefix}{name}.json", str(value).encode())


def _words(code: int) -> str:
    return f"Training end with return code: {code}" if code else ""
