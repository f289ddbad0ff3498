"""The engine without processes: a job is a few timed calls, so thousands of jobs cost almost nothing.

The hyper-parameters of a job decide how long it runs and what it results in: `seconds` (default 1), `epochs` (3, each
adds lines to the log), `throughput` of a rank (100), `accuracy` (0.9), `exit_code` (0).
"""

from __future__ import annotations

import functools
import math
import threading
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine.launch import Alarm, Ended, Launch, Report, Started, TaskEnded, TaskStarted
from pytest_aisbench.localcloud.engine.process_engine import MAX_SAMPLES
from pytest_aisbench.localcloud.obs.index import ObjectError
from pytest_aisbench.localcloud.obs.storage import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


CAPACITY = 100_000  # jobs that may run at once
_TERMINATED = 128 + 15
_BAD_PARAMETERS = 2
_STEPS = 100  # in an epoch


@dataclass(frozen=True)
class _Parameters:
    seconds: float = 1.0
    epochs: int = 3
    throughput: float = 100.0
    accuracy: float = 0.9
    exit_code: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> _Parameters:
        """Read the parameters above, ignore all others; raise ValueError where a value does not fit."""
        chosen = cls(**{name: kind(parameters[name]) for name, kind in _KINDS.items() if name in parameters})
        if not 0 <= chosen.seconds < math.inf or chosen.epochs < 1 or not 0 <= chosen.exit_code <= 255:
            raise ValueError("seconds must be finite and not negative, epochs from 1, exit_code from 0 to 255")
        return chosen


_KINDS: dict[str, Any] = {each.name: type(each.default) for each in fields(_Parameters)}


@dataclass(eq=False)
class _Job:
    launch: Launch
    report: Report
    parameters: _Parameters = _Parameters()
    log: bytearray = field(default_factory=bytearray)  # the same for each of its tasks
    began: float = 0.0
    ended: float = 0.0
    over: bool = False
    forgotten: bool = False

    @property
    def tasks(self) -> list[str]:
        return self.launch.tasks

    def write_platform_line(self, text: str) -> None:
        """Mark the line as the platform's own, as ModelArts does; Apulis marks nothing."""
        self.write_line(text if self.launch.pods else f"[ModelArts Service Log]{text}")

    def write_line(self, line: str) -> None:
        self.log += f"{line}\n".encode()


class SimulatedEngine:
    """A job begins in the thread that starts it; everything else that happens to it happens on the alarm's."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._alarm = Alarm("simulated jobs")
        self._jobs: dict[str, _Job] = {}
        self._frozen: dict[str, tuple[int, float]] = {}  # the size of each frozen log, and since when
        self._lock = threading.Lock()

    def start(self, launch: Launch, report: Report) -> None:
        job = _Job(launch, report)
        with self._lock:
            self._jobs[launch.job_id] = job
        self._begin(job)

    def stop(self, job_id: str) -> None:
        if job := self._jobs.get(job_id):
            end = Ended("Terminated", "The job was stopped by its user.")
            self._plan(job, 0, functools.partial(self._end, job, end, _TERMINATED))

    def log(self, job_id: str, task: str) -> tuple[bytes, int] | None:
        job = self._jobs.get(job_id)
        if job is None or not job.log:
            return None
        size, _ = self._frozen.get(job_id, (None, 0.0))
        content = bytes(job.log)[:size]
        return content, len(content)

    def usage(self, job_id: str, task: str) -> Mapping[str, Sequence[float]]:
        """Invent figures: busy while the job runs, 0 from the moment its log is frozen."""
        job = self._jobs.get(job_id)
        if job is None or not job.began:
            return {}
        end = int((job.ended or time.monotonic()) - job.began) + 1
        _, frozen = self._frozen.get(job_id, (0, math.inf))
        seconds = range(max(0, end - MAX_SAMPLES), end)
        busy = [0.0 if job.began + second >= frozen else 90.0 + second % 7 for second in seconds]
        return {
            "cpuUsage": [value / 4 for value in busy],
            "memUsage": [12.0 for _ in busy],
            "npuUtil": busy,
            "npuMemUsage": [60.0 for _ in busy],
        }

    def freeze_log(self, job_id: str, *, frozen: bool) -> None:
        if frozen:
            job = self._jobs.get(job_id)
            self._frozen[job_id] = (len(job.log) if job else 0, time.monotonic())
        else:
            self._frozen.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        self._frozen.pop(job_id, None)
        with self._lock:
            job = self._jobs.get(job_id)
            if job and job.over:
                del self._jobs[job_id]
            elif job:
                job.forgotten = True

    def close(self) -> None:
        self._alarm.close()
        for job in list(self._jobs.values()):
            if not job.over:
                self._finish(job, Ended("Terminated", "The local cloud was closed."))

    def _plan(self, job: _Job, moment: float, step: Callable[[], None]) -> None:
        self._alarm.at(moment, functools.partial(self._do, job, step))

    def _do(self, job: _Job, step: Callable[[], None]) -> None:
        """Run a planned step, unless the job has ended in the meantime."""
        if job.over:
            return
        try:
            step()
        except (OSError, ObjectError) as error:
            self._finish(job, Ended("Abnormal", f"The platform failed: {error}"))

    def _begin(self, job: _Job) -> None:
        job.began = time.monotonic()
        job.report(Started())
        for task in job.tasks:
            job.report(TaskStarted(task))
        job.write_platform_line(f"the training of {job.launch.ranks} ranks is simulated")
        try:
            job.parameters = _Parameters.of(dict(job.launch.parameters))
        except ValueError as error:
            job.write_line(f"error: {error}")
            self._plan(job, 0, functools.partial(self._fail, job, _BAD_PARAMETERS))
            return
        limit = job.launch.time_limit
        if limit is not None and limit < job.parameters.seconds:
            end = Ended("Terminated", "The job ran as long as its auto_stop allows.")
            self._plan(job, job.began + limit, functools.partial(self._end, job, end, _TERMINATED))
        self._plan_epoch(job, 1)

    def _plan_epoch(self, job: _Job, epoch: int) -> None:
        due = job.began + job.parameters.seconds * epoch / job.parameters.epochs
        self._plan(job, due, functools.partial(self._epoch, job, epoch))

    def _epoch(self, job: _Job, epoch: int) -> None:
        parameters = job.parameters
        if epoch == parameters.epochs and parameters.exit_code:
            self._fail(job, parameters.exit_code)
            return
        took = parameters.seconds * 1000 / parameters.epochs
        job.write_line(f"epoch: {epoch} step: {_STEPS}, loss is {2.3 / (epoch + 1):.7g}")
        job.write_line(f"Train epoch time: {took:.3f} ms, per step time: {took / _STEPS:.3f} ms")
        if epoch < parameters.epochs:
            self._write_logs(job)
            self._plan_epoch(job, epoch + 1)
        else:
            self._write_results(job)
            self._end(job, Ended("Completed"), 0)

    def _fail(self, job: _Job, code: int) -> None:
        first = job.tasks[0]
        self._end(job, Ended("Failed", f"{first}: {_end_message(code)}", first), code)

    def _end(self, job: _Job, end: Ended, code: int) -> None:
        if job.began:
            job.write_platform_line(f"{end.phase}. {end.message}".rstrip())
            self._write_logs(job)
            for task in job.tasks:
                # The others of a failed task are stopped.
                own = code if task == (end.task or task) else _TERMINATED
                job.report(TaskEnded(task, own, _end_message(own)))
        self._finish(job, end)

    def _finish(self, job: _Job, end: Ended) -> None:
        with self._lock:
            job.over = True
            job.ended = time.monotonic()
            if job.forgotten:
                del self._jobs[job.launch.job_id]
        job.report(end)

    def _write_logs(self, job: _Job) -> None:
        launch = job.launch
        if launch.logs and launch.job_id not in self._frozen:
            for task in job.tasks:
                key = launch.logs.prefix + launch.log_name(task)
                self._objects.put(launch.logs.bucket, key, bytes(job.log))

    def _write_results(self, job: _Job) -> None:
        results: dict[str, float] = {
            f"throughput_{rank}": job.parameters.throughput for rank in range(job.launch.ranks)
        }
        results |= {"ranksize": job.launch.ranks, "accuracy": job.parameters.accuracy}
        if job.launch.pods and (folder := job.launch.pods.results):
            folder.mkdir(parents=True, exist_ok=True)
            for name, value in results.items():
                (folder / f"{name}.json").write_text(str(value))
        for output in job.launch.outputs[:1]:
            for name, value in results.items():
                self._objects.put(output.place.bucket, f"{output.place.prefix}{name}.json", str(value).encode())


def _end_message(code: int) -> str:
    return f"Training end with return code: {code}" if code else ""
