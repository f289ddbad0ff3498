"""One training job of the local ModelArts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.fault import Fault
    from pytest_aisbench.localcloud.launch import Ended, Launch

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
