"""The jobs that the local ModelArts knows: created, queued, run by the engine, searched, stopped and deleted."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine.launch import Alarm, Ended, Started, TaskEnded, TaskStarted
from pytest_aisbench.localcloud.http import Refusal
from pytest_aisbench.localcloud.modelarts import rules

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.engine.launch import Engine, Event, Launch
    from pytest_aisbench.localcloud.faults import Fault, Faults
    from pytest_aisbench.localcloud.iam import Account
    from pytest_aisbench.localcloud.modelarts.rules import Rules


# -- One training job of the local ModelArts.

FINAL = {"Completed", "Failed", "Terminated", "Abnormal"}
_DISGUISED = {"Running", "Completed", "Failed", "Abnormal"}
_SECONDARY = {"Pending": "Queuing"}  # elsewhere the same word, but for Abnormal


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(eq=False)
class Job:
    """Read and changed under the lock of `Jobs` only."""

    launch: Launch
    name: str
    project_id: str
    user: str
    request: dict[str, Any]
    order: int  # of creation
    description: str
    alias: str = ""  # "<job>/<version>" in V1
    created: int = field(default_factory=now_ms)
    phase: str = "Creating"
    started: int = 0
    ended: int = 0
    task_statuses: list[dict[str, Any]] = field(default_factory=list)
    end: Ended | None = None
    events: list[tuple[int, str, str, str]] = field(default_factory=list)  # time, level, message, source
    drawn: Fault | None = None  # the one that is to strike it, now or later
    fault: Fault | None = None  # the one that has struck it
    times_seen: int = 0  # since then
    gone: str = ""  # deleted or lost: known to the books only

    @property
    def id(self) -> str:
        return self.launch.job_id

    @property
    def public_id(self) -> str:
        return self.alias or self.id

    @property
    def tasks(self) -> list[str]:
        return [f"worker-{node}" for node in range(self.launch.nodes)]

    @property
    def duration(self) -> int:
        return (self.ended or now_ms()) - self.started if self.started else 0

    @property
    def held(self) -> bool:
        """A fault keeps it in the queue."""
        return self.fault is not None and self.fault.job == "pending"

    @property
    def shown_phase(self) -> str:
        """The phase as clients are told it; the true one but for a fault."""
        if self.fault is None or self.phase not in _DISGUISED:
            return self.phase
        told = self.fault.phases[self.times_seen :]
        return told[0] if told else self.fault.phase or self.phase

    @property
    def secondary_phase(self) -> str:
        phase = self.shown_phase
        if phase == "Abnormal":
            return "Lost" if self.started else "CreateFailed"
        return _SECONDARY.get(phase, phase)

    def seen(self) -> None:
        """A client was told of the job."""
        if self.phase in _DISGUISED:
            self.times_seen += 1

    def struck(self, fault: Fault | None) -> None:
        self.fault = fault
        self.times_seen = 0

    def note(self, message: str, level: str = "Info", source: str = "Job") -> None:
        self.events.append((now_ms(), level, message, source))


CAPACITY = 64


class Jobs:
    def __init__(self, engine: Engine, rules: Rules, capacity: int = CAPACITY, faults: Faults | None = None) -> None:
        self._engine = engine
        self._rules = rules
        self._capacity = capacity
        self._faults = faults
        self._alarm = Alarm("faults of jobs")
        self._accepted: list[Job] = []
        self._jobs: dict[str, Job] = {}
        self._names: Counter[tuple[str, str, str]] = Counter()  # how many jobs, by contract, project and name
        self._queue: deque[Job] = deque()
        self._stopped: list[Job] = []  # while they waited
        self._active: set[str] = set()  # in the engine's hands, deleted ones too
        self._orders = itertools.count()
        self._closed = False
        self.lock = threading.RLock()
        if faults:
            faults.when_set(self._strike_anew)

    def create(self, account: Account, body: dict[str, Any]) -> Job:
        metadata = rules.section(body, "metadata")
        name = rules.job_name(metadata)
        description = rules.description(metadata.get("description"))
        launch = self._rules.launch(str(uuid.uuid4()), body)
        with self.lock:
            if self.named(account.project_id, name):
                raise Refusal(400, "2751", f"Duplicate job name {name}.")
            return self.accept(account, launch, body, name, description)

    def accept(
        self, account: Account, launch: Launch, body: dict[str, Any], name: str, description: str, *, alias: str = ""
    ) -> Job:
        with self.lock:
            request, order = copy.deepcopy(body), next(self._orders)
            job = Job(launch, name, account.project_id, account.user, request, order, description, alias)
            job.note("Training job is created.")
            self._accepted.append(job)
            self._jobs[job.id] = job
            self._names[launch.contract, job.project_id, name] += 1
            self._queue.append(job)
            self._draw(job)
        return job

    def admit(self) -> None:
        """Start what waits, as far as there is room; the rest is pending. What was stopped while it waited, ends."""
        with self.lock:
            while self._stopped:
                self._hear(self._stopped.pop(), Ended("Terminated", "The job was stopped before it began."))
            held = []
            while self._queue and len(self._active) < self._capacity and not self._closed:
                job = self._queue.popleft()
                if job.held:
                    held.append(job)
                elif job.fault and job.fault.job == "unstartable":
                    self._hear(job, Ended("Abnormal", "The platform failed: no node could be started."))
                else:
                    self._start(job)
            self._queue.extendleft(reversed(held))
            for job in reversed(self._queue):
                if job.phase != "Creating":
                    break
                job.phase = "Pending"
                job.note("Training job is queuing.")

    def _start(self, job: Job) -> None:
        self._active.add(job.id)
        try:
            self._engine.start(job.launch, functools.partial(self._hear, job))
        except (OSError, RuntimeError) as error:  # no descriptor or no thread is left
            self._hear(job, Ended("Abnormal", f"The platform failed: {error}"))

    def get(self, project_id: str, job_id: str) -> Job:
        with self.lock:
            job = self._jobs.get(job_id)
        if job is None or job.project_id != project_id or job.launch.contract != "V2":
            raise Refusal(400, "2775", f"Training job {job_id} not found.")
        return job

    def of(self, project_id: str) -> list[Job]:
        with self.lock:
            jobs = self._jobs.values()
            return [job for job in jobs if job.project_id == project_id and job.launch.contract == "V2"]

    def named(self, project_id: str, name: str, contract: str = "V2") -> bool:
        """Jobs of V1 and of V2 do not know each other."""
        with self.lock:
            return self._names[contract, project_id, name] > 0

    def terminate(self, job: Job) -> None:
        with self.lock:
            if job.phase not in {"Creating", "Pending", "Running"}:
                raise Refusal(409, "2796", f"Training job {job.public_id} is {job.phase} and cannot be terminated.")
            job.phase = "Terminating"
            job.note("Training job is terminating.")
            if job in self._queue:
                self._queue.remove(job)
                self._stopped.append(job)
            else:
                self._engine.stop(job.id)

    def delete(self, job: Job) -> None:
        """A job that still runs is stopped; it is gone from every answer at once."""
        with self.lock:
            if job.gone:
                raise Refusal(400, "2775", f"Training job {job.public_id} not found.")
            self._remove(job, "deleted")
        self._engine.forget(job.id)

    def books(self) -> list[dict[str, Any]]:
        with self.lock:
            return [
                {
                    "id": job.public_id,
                    "name": job.name,
                    "description": job.description,
                    "phase": job.phase,
                    "created": job.created,
                    "started": job.started,
                    "ended": job.ended,
                    "gone": job.gone,
                }
                for job in self._accepted
            ]

    def describe(self, job: Job, description: object) -> None:
        checked = rules.description(description)
        with self.lock:
            job.description = checked

    def close(self) -> None:
        with self.lock:
            self._closed = True
        self._alarm.close()
        self._engine.close()

    def _remove(self, job: Job, gone: str) -> None:
        job.gone = gone
        del self._jobs[job.id]
        self._names[job.launch.contract, job.project_id, job.name] -= 1
        if job in self._queue:
            self._queue.remove(job)
            self._hear(job, Ended("Terminated", f"The job was {gone} before it began."))
        self._engine.stop(job.id)

    def _strike_anew(self) -> None:
        """The faults are others now: what they did to jobs is undone, as far as it can be, and they do theirs."""
        with self.lock:
            for job in list(self._jobs.values()):
                if job.fault and job.fault.job == "log-frozen":
                    self._engine.freeze_log(job.id, frozen=False)
                job.struck(None)
                job.drawn = None
                if job.phase not in FINAL:
                    self._draw(job)
            self.admit()

    def _draw(self, job: Job) -> None:
        if self._faults is None:
            return
        job.drawn = fault = self._faults.on_job(job.name, waiting=job in self._queue)
        if fault and fault.after:
            self._alarm.at(time.monotonic() + fault.after, functools.partial(self._strike, job, fault))
        elif fault:
            self._strike(job, fault)

    def _strike(self, job: Job, fault: Fault) -> None:
        with self.lock:
            if job.gone or job.drawn is not fault:
                return
            job.struck(fault)
            if fault.job == "lost":
                self._remove(job, "lost")
                self._engine.forget(job.id)
            elif fault.job == "log-frozen":
                self._engine.freeze_log(job.id, frozen=True)

    def _hear(self, job: Job, event: Event) -> None:
        with self.lock:
            job.note(*_told(event))
            if isinstance(event, Started):
                job.started = now_ms()
                if job.phase != "Terminating":
                    job.phase = "Running"
            elif isinstance(event, TaskEnded):
                status = {"task": event.task, "exit_code": event.exit_code, "message": event.message}
                job.task_statuses.append(status)
            elif isinstance(event, Ended):
                self._finish(job, event)
                if job.id in self._active:
                    self._active.remove(job.id)
                    self.admit()

    def _finish(self, job: Job, end: Ended) -> None:
        # A job that ends by itself while it is being stopped counts as stopped: so its user was told.
        stopped = job.phase == "Terminating" and end.phase != "Abnormal"
        job.phase = "Terminated" if stopped else end.phase
        job.end = end
        job.ended = now_ms()
        job.task_statuses.sort(key=lambda status: job.tasks.index(status["task"]))


def _told(event: Event) -> tuple[str, str, str]:
    """The vendor's words for it, with level and source."""
    if isinstance(event, Started):
        return "Training job is running.", "Info", "Job"
    if isinstance(event, TaskStarted):
        return f"[{event.task}] training started.", "Info", "Task"
    if isinstance(event, TaskEnded):
        level = "Error" if event.exit_code else "Info"
        return f"[{event.task}] Training finished. Exit code {event.exit_code}.", level, "Task"
    level = "Error" if event.phase in {"Failed", "Abnormal"} else "Info"
    return f"Training job {event.phase.lower()}. {event.message}".rstrip(), level, "Job"
