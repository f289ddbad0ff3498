"""The jobs of the local cloud: `Jobs` queues them, has the engine run them, stops and deletes them, and applies faults.

V1, V2 and Apulis show the same jobs, each its own.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine.launch import (
    Alarm,
    Ended,
    Engine,
    Event,
    Launch,
    Started,
    TaskEnded,
    TaskStarted,
)
from pytest_aisbench.localcloud.messages import new_id
from pytest_aisbench.localcloud.modelarts import rules
from pytest_aisbench.localcloud.modelarts.api import Refusal

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.faults import Fault
    from pytest_aisbench.localcloud.faulty import Faults
    from pytest_aisbench.localcloud.iam import Account
    from pytest_aisbench.localcloud.modelarts.rules import Rules


CAPACITY = 64  # jobs that may run at once; the others wait
FINAL = {"Completed", "Failed", "Terminated", "Abnormal"}
_DISGUISED = {"Running", "Completed", "Failed", "Abnormal"}  # true phases that a fault may hide
_SECONDARY = {"Pending": "Queuing"}  # the secondary phases that differ from the phase, beside those of Abnormal


def job_id() -> str:
    """A random UUID, as the vendor's ids are."""
    digits = new_id()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(eq=False)
class Job:
    """Read and change it only under the lock of `Jobs`."""

    launch: Launch
    name: str
    project_id: str
    user: str
    request: dict[str, Any]
    order: int  # counts the jobs by creation
    description: str
    alias: str = ""  # "<job>/<version>" in V1
    created: int = field(default_factory=now_ms)
    phase: str = "Creating"
    started: int = 0
    ended: int = 0
    task_statuses: list[dict[str, Any]] = field(default_factory=list)
    end: Ended | None = None
    events: list[tuple[int, str, str, str]] = field(default_factory=list)  # time, level, message, source
    planned_fault: Fault | None = None  # strikes it now or later
    fault: Fault | None = None  # has struck it
    times_shown: int = 0  # answers about the job since the fault struck
    gone: str = ""  # `deleted` or `lost`: only the books still have it
    worded: tuple[object, str, str] | None = field(default=None, repr=False)  # by `v2.job_text`, for its next answer

    @property
    def id(self) -> str:
        return self.launch.job_id

    @property
    def public_id(self) -> str:
        return self.alias or self.id

    @property
    def tasks(self) -> list[str]:
        return self.launch.tasks

    @property
    def duration(self) -> int:
        return (self.ended or now_ms()) - self.started if self.started else 0

    @property
    def held(self) -> bool:
        """True while a fault keeps it in the queue."""
        return self.fault is not None and self.fault.job == "pending"

    @property
    def reported_phase(self) -> str:
        """The phase that clients see: the true one unless a fault replaces it."""
        if self.fault is None or self.phase not in _DISGUISED:
            return self.phase
        phases = self.fault.phases[self.times_shown :]
        return phases[0] if phases else self.fault.phase or self.phase

    @property
    def secondary_phase(self) -> str:
        phase = self.reported_phase
        if phase == "Abnormal":
            return "Lost" if self.started else "CreateFailed"
        return _SECONDARY.get(phase, phase)

    def count_answer(self) -> None:
        """Call it after each answer that shows the phase: faults with `phases` go on to the next one."""
        if self.phase in _DISGUISED:
            self.times_shown += 1

    def set_fault(self, fault: Fault | None) -> None:
        self.fault = fault
        self.times_shown = 0

    def note(self, message: str, level: str = "Info", source: str = "Job") -> None:
        self.events.append((now_ms(), level, message, source))


class Jobs:
    def __init__(self, engine: Engine, rules: Rules, capacity: int = CAPACITY, faults: Faults | None = None) -> None:
        self._engine = engine
        self._rules = rules
        self._capacity = capacity
        self._faults = faults
        self._alarm = Alarm("faults of jobs")
        self._accepted: list[Job] = []
        self._jobs: dict[str, Job] = {}
        self._listed: dict[tuple[str, str], dict[str, Job]] = {}  # the same by contract and project, in their order
        self._names: Counter[tuple[str, str, str]] = Counter()  # number of jobs by contract, project and name
        self._queue: deque[Job] = deque()
        self._stopped: list[Job] = []  # before they began; `admit` ends them
        self._active: set[str] = set()  # jobs that the engine runs, deleted ones too
        self._orders = itertools.count()
        self._closed = False
        self.lock = threading.RLock()
        if faults:
            faults.when_set(self._plan_faults_anew)

    def create(self, account: Account, body: dict[str, Any]) -> Job:
        metadata = rules.section(body, "metadata")
        name = rules.job_name(metadata)
        description = rules.description(metadata.get("description"))
        launch = self._rules.launch(job_id(), body)
        with self.lock:
            if self.has_name(account.project_id, name):
                raise Refusal(400, "2751", f"Duplicate job name {name}.")
            return self.accept(account, launch, body, name, description)

    def accept(
        self, account: Account, launch: Launch, body: dict[str, Any], name: str, description: str, *, alias: str = ""
    ) -> Job:
        with self.lock:
            order = next(self._orders)
            job = Job(launch, name, account.project_id, account.user, body, order, description, alias)
            job.note("Training job is created.")
            self._accepted.append(job)
            self._jobs[job.id] = job
            self._listed.setdefault((launch.contract, job.project_id), {})[job.id] = job
            self._names[launch.contract, job.project_id, name] += 1
            self._queue.append(job)
            self._plan_fault(job)
        return job

    def admit(self) -> None:
        """Start waiting jobs up to the capacity, mark the others Pending, and end those stopped while they waited."""
        with self.lock:
            while self._stopped:
                self._handle(self._stopped.pop(), Ended("Terminated", "The job was stopped before it began."))
            held = []
            while self._queue and len(self._active) < self._capacity and not self._closed:
                job = self._queue.popleft()
                if job.held:
                    held.append(job)
                elif job.fault and job.fault.job == "unstartable":
                    self._handle(job, Ended("Abnormal", "The platform failed: no node could be started."))
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
            self._engine.start(job.launch, functools.partial(self._handle, job))
        except (OSError, RuntimeError) as error:  # the machine has no descriptor or thread left
            self._handle(job, Ended("Abnormal", f"The platform failed: {error}"))

    def get(self, project_id: str, job_id: str) -> Job:
        with self.lock:
            job = self._jobs.get(job_id)
        if job is None or job.project_id != project_id or job.launch.contract != "V2":
            raise Refusal(400, "2775", f"Training job {job_id} not found.")
        return job

    def of_project(self, project_id: str) -> list[Job]:
        """In the order of creation."""
        with self.lock:
            return list(self._listed.get(("V2", project_id), {}).values())

    def has_name(self, project_id: str, name: str, contract: str = "V2") -> bool:
        """V1 and V2 count names separately."""
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
        """Take the job out of every answer at once; stop it if it still runs."""
        with self.lock:
            if job.gone:
                raise Refusal(400, "2775", f"Training job {job.public_id} not found.")
            self._remove(job, "deleted")
        self._engine.forget(job.id)

    def books(self) -> list[dict[str, Any]]:
        """Every job that was ever accepted, in the order of creation, with its true phase; deleted and lost ones
        too."""
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
        del self._listed[job.launch.contract, job.project_id][job.id]
        self._names[job.launch.contract, job.project_id, job.name] -= 1
        if job in self._queue:
            self._queue.remove(job)
            self._handle(job, Ended("Terminated", f"The job was {gone} before it began."))
        self._engine.stop(job.id)

    def _plan_faults_anew(self) -> None:
        """The rules have changed: undo what the old ones did to jobs, as far as possible, and apply the new ones."""
        with self.lock:
            for job in list(self._jobs.values()):
                if job.fault and job.fault.job == "log-frozen":
                    self._engine.freeze_log(job.id, frozen=False)
                job.set_fault(None)
                job.planned_fault = None
                if job.phase not in FINAL:
                    self._plan_fault(job)
            self.admit()

    def _plan_fault(self, job: Job) -> None:
        if self._faults is None:
            return
        job.planned_fault = fault = self._faults.on_job(job.name, waiting=job in self._queue)
        if fault and fault.after:
            self._alarm.at(time.monotonic() + fault.after, functools.partial(self._strike, job, fault))
        elif fault:
            self._strike(job, fault)

    def _strike(self, job: Job, fault: Fault) -> None:
        with self.lock:
            if job.gone or job.planned_fault is not fault:
                return
            job.set_fault(fault)
            if fault.job == "lost":
                self._remove(job, "lost")
                self._engine.forget(job.id)
            elif fault.job == "log-frozen":
                self._engine.freeze_log(job.id, frozen=True)

    def _handle(self, job: Job, event: Event) -> None:
        with self.lock:
            job.note(*_event_text(event))
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
        # A job that ends by itself while it is being stopped counts as stopped: its user was told that it will be.
        stopped = job.phase == "Terminating" and end.phase != "Abnormal"
        job.phase = "Terminated" if stopped else end.phase
        job.end = end
        job.ended = now_ms()
        job.task_statuses.sort(key=lambda status: job.tasks.index(status["task"]))


def _event_text(event: Event) -> tuple[str, str, str]:
    """The vendor's message for an event, its level and its source."""
    if isinstance(event, Started):
        return "Training job is running.", "Info", "Job"
    if isinstance(event, TaskStarted):
        return f"[{event.task}] training started.", "Info", "Task"
    if isinstance(event, TaskEnded):
        level = "Error" if event.exit_code else "Info"
        return f"[{event.task}] Training finished. Exit code {event.exit_code}.", level, "Task"
    level = "Error" if event.phase in {"Failed", "Abnormal"} else "Info"
    return f"Training job {event.phase.lower()}. {event.message}".rstrip(), level, "Job"
