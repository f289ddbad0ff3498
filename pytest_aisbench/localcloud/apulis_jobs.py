"""The jobs of the local Apulis: each is a run among those of the other platforms, or several where it was paused."""

from __future__ import annotations

import copy
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud import apulis_rules
from pytest_aisbench.localcloud.apulis_cluster import ADMIN
from pytest_aisbench.localcloud.apulis_rules import Rejected, UnlaunchableError
from pytest_aisbench.localcloud.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_aisbench.localcloud.accounts import Account
    from pytest_aisbench.localcloud.catalog import Catalog
    from pytest_aisbench.localcloud.job import Job
    from pytest_aisbench.localcloud.jobs import Jobs
    from pytest_aisbench.localcloud.launch import Launch

_STATUS = {
    "Creating": "scheduling",
    "Pending": "queued",
    "Running": "running",
    "Terminating": "killing",
    "Completed": "finished",
    "Failed": "failed",
    "Terminated": "killed",
    "Abnormal": "error",
}
_PAUSED = {"killing": "pausing", "killed": "paused"}
ENDED = {"finished", "failed", "error", "killed"}
DELETABLE = ENDED | {"unapproved", "killing", "paused"}
PRIORITY = 100


@dataclass(eq=False)
class Entry:
    """Read and changed under the lock of `Jobs` only."""

    params: dict[str, Any]
    order: int
    job: Job | None = None
    logged: Job | None = None  # the run whose log is on disk as a whole
    problem: str = ""  # why it was never launched
    paused: bool = False
    priority: int = PRIORITY
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    submitted: float = field(default_factory=time.time)

    @property
    def id(self) -> str:
        return str(self.params["jobId"])

    @property
    def status(self) -> str:
        if self.job is None:
            return "error"
        # A fault may show a word that is none of ours: such as `Killed`, which the platform also writes.
        status = _STATUS.get(self.job.shown_phase, self.job.shown_phase)
        return _PAUSED.get(status, status) if self.paused else status

    @property
    def message(self) -> str | None:
        """Why it ended as it did."""
        if self.job is None:
            return self.problem
        end, limit = self.job.end, self.job.launch.time_limit
        if end is None or end.phase == "Completed":
            return None
        if end.phase == "Failed":
            return "pod failed"
        if end.phase == "Abnormal":
            return end.message
        return f"running exceed pre-defined {limit:g}s" if limit and "auto_stop" in end.message else None

    @property
    def started(self) -> float:
        return self.job.started / 1000 if self.job else 0.0

    @property
    def ended(self) -> float:
        return self.job.ended / 1000 if self.job else self.submitted

    @property
    def duration(self) -> int:
        return int((self.ended or time.time()) - self.started) if self.started else 0

    def seen(self) -> None:
        """A client was told of it."""
        if self.job:
            self.job.seen()


class ApulisJobs:
    def __init__(
        self, jobs: Jobs, account: Account, storage: Path, catalog: Catalog, time_limit: float | None = None
    ) -> None:
        self._jobs = jobs
        self._account = account
        self._storage = storage
        self._catalog = catalog
        self._time_limit = time_limit
        self._entries: dict[str, Entry] = {}
        self._orders = itertools.count()
        self.rest_api = ""  # where pods are told that it is
        self.lock = jobs.lock

    def submit(self, body: Mapping[str, Any], *, may_use: bool) -> Entry:
        params = apulis_rules.checked(copy.deepcopy(dict(body)), may_use=may_use)
        with self.lock:
            if self.find(params["jobId"]):
                raise Rejected("Cannot schedule job. Cannot add job into database.")
            entry = Entry(params, next(self._orders))
            self._run(entry)
            self._entries[entry.id] = entry
        self._jobs.admit()
        return entry

    def find(self, job_id: object) -> Entry | None:
        with self.lock:
            entry = self._entries.get(str(job_id))
            if entry and entry.job and entry.job.gone:  # a fault has lost it
                del self._entries[entry.id]
                return None
            return entry

    def all(self) -> list[Entry]:
        """The newest first."""
        with self.lock:
            found = [entry for job_id in list(self._entries) if (entry := self.find(job_id))]
        return sorted(found, key=lambda entry: entry.order, reverse=True)

    def of(self, job_id: object, user: object) -> Entry | None:
        """The job, if the user may see and change it: his own, or any for an administrator."""
        entry = self.find(job_id)
        return entry if entry and user in {entry.params["userName"], ADMIN} else None

    def kill(self, entry: Entry) -> bool:
        with self.lock:
            if entry.job is None or entry.status in ENDED | {"killing", "Killed"}:
                return False
            entry.paused = False
            stopped = entry.status in {"killing", "killed"} or self._stop(entry.job)
        self._jobs.admit()
        return stopped

    def pause(self, entry: Entry) -> bool:
        with self.lock:
            if entry.job is None or entry.paused or not self._stop(entry.job):
                return False
            entry.paused = True
        self._jobs.admit()
        return True

    def resume(self, entry: Entry) -> bool:
        """It begins anew."""
        with self.lock:
            if entry.status != "paused":
                return False
            entry.paused = False
            self._run(entry)
        self._jobs.admit()
        return True

    def delete(self, entry: Entry) -> None:
        with self.lock:
            del self._entries[entry.id]
            if entry.job:
                self._jobs.delete(entry.job)

    def _run(self, entry: Entry) -> None:
        try:
            launch = self._launch(entry.params)
        except UnlaunchableError as error:
            entry.problem = str(error)
            return
        name = launch.name
        entry.job = self._jobs.accept(self._account, launch, entry.params, name, name, alias=entry.id)

    def _launch(self, params: Mapping[str, Any]) -> Launch:
        try:
            return apulis_rules.launch(
                params,
                self._storage,
                self.rest_api,
                email=f"{params['userName']}@{self._account.domain}",
                interpreter=self._catalog.interpreter_in(str(params.get("image"))),
                time_limit=self._time_limit,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnlaunchableError(f"Cannot submit job! {error}") from None

    def _stop(self, job: Job) -> bool:
        try:
            self._jobs.terminate(job)
        except Refusal:
            return False
        return True
