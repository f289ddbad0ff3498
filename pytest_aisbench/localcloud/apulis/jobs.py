"""The jobs of the local Apulis, how its API shows them, and their logs.

An `Entry` is a job as clients see it. It runs as a `Job` in the queue of `modelarts.jobs`, and as another after a
pause.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.apulis.rules import ADMIN, Rejected, UnlaunchableError, checked, launch
from pytest_aisbench.localcloud.messages import DAYS, MONTHS
from pytest_aisbench.localcloud.modelarts.api import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_aisbench.localcloud.engine.launch import Engine, Launch
    from pytest_aisbench.localcloud.iam import Account
    from pytest_aisbench.localcloud.modelarts.jobs import Job, Jobs
    from pytest_aisbench.localcloud.modelarts.rules import Catalog


ENDED = {"finished", "failed", "error", "killed"}
QUEUED = {"unapproved", "queued", "scheduling", "pausing", "paused", "killing"}
DELETABLE = ENDED | {"unapproved", "killing", "paused"}
PRIORITY = 100
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
        self.rest_api = ""  # the url of the service, for the variables of pods
        self.lock = jobs.lock

    def submit(self, body: Mapping[str, Any], *, may_use: bool) -> Entry:
        params = checked(copy.deepcopy(dict(body)), may_use=may_use)
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
            if entry and entry.job and entry.job.gone:  # a fault made the platform lose it
                del self._entries[entry.id]
                return None
            return entry

    def all(self) -> list[Entry]:
        """All jobs, the newest first."""
        with self.lock:
            entries = [entry for job_id in list(self._entries) if (entry := self.find(job_id))]
        return sorted(entries, key=lambda entry: entry.order, reverse=True)

    def find_for(self, user: object, job_id: object) -> Entry | None:
        """The job if the user may see and change it: his own, or any for an administrator."""
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
        """Run the job again from its beginning."""
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
            return launch(
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


@dataclass(eq=False)
class Entry:
    """Read and change it only under the lock of `Jobs`."""

    params: dict[str, Any]
    order: int
    job: Job | None = None
    logged: Job | None = None  # the run whose whole log is on disk
    problem: str = ""  # why it could not be launched
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
        # A fault may show any other word, such as `Killed`, which the platform also writes.
        status = _STATUS.get(self.job.reported_phase, self.job.reported_phase)
        return _PAUSED.get(status, status) if self.paused else status

    @property
    def message(self) -> str | None:
        """Why the job failed or was stopped; None where there is nothing to say."""
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

    def count_answer(self) -> None:
        if self.job:
            self.job.count_answer()


# Jobs as the API shows them. Apulis gives local times, though it stamps them as UTC.


def status_json(entry: Entry) -> dict[str, Any]:
    return {"jobStatus": entry.status, "jobTime": http_date(entry.submitted), "errorMsg": entry.message}


def detail_json(entry: Entry) -> dict[str, Any]:
    """A job in the answer of GetJobDetailV2."""
    params = entry.params
    return {
        "jobId": entry.id,
        "jobName": params["jobName"],
        "userName": params["userName"],
        "vcName": params["vcName"],
        "jobStatus": entry.status,
        "jobStatusDetail": _status_detail(entry),
        "jobType": params["jobType"],
        "jobTime": http_date(entry.submitted),
        "jobParams": params,
    }


def row_json(entry: Entry) -> dict[str, Any]:
    """A job in the lists ListJobsV2 and ListJobsV3."""
    return detail_json(entry) | {"errorMsg": entry.message, "priority": entry.priority, "duration": entry.duration}


def encoded_row_json(entry: Entry) -> dict[str, Any]:
    """A job in ListJobs, where structured fields are encoded as the platform's database keeps them."""
    row = detail_json(entry) | {"errorMsg": entry.message}
    for name in ("jobParams", "jobStatusDetail"):
        row[name] = base64.b64encode(json.dumps(row[name]).encode()).decode()
    return row


def lists_json(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The answer of ListJobs and ListJobsV2: jobs in separate lists by their status."""
    rows = list(rows)
    trained = [row for row in rows if row["jobType"] != "visualization"]
    lists = {
        "queuedJobs": [row for row in trained if row["jobStatus"] in QUEUED],
        "runningJobs": [row for row in trained if row["jobStatus"] == "running"],
        "finishedJobs": [row for row in trained if row["jobStatus"] not in QUEUED | {"running"}],
        "visualizationJobs": [row for row in rows if row["jobType"] == "visualization"],
    }
    return lists | {"meta": {name: len(entries) for name, entries in lists.items()}}


def page_json(rows: list[dict[str, Any]], page: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer of ListJobsV3: `allJobs` is right; the other lists count every job that does not run as finished."""
    lists: dict[str, Any] = {
        "queuedJobs": [],
        "runningJobs": [],
        "finishedJobs": [row for row in page if row["jobStatus"] != "running"],
        "visualizationJobs": [],
    }
    meta = {name: len(entries) for name, entries in lists.items()} | {"totalJobs": len(rows)}
    return lists | {"allJobs": page, "meta": meta}


def _status_detail(entry: Entry) -> list[dict[str, Any]]:
    detail: dict[str, Any] = {}
    if entry.started:
        detail["startedAt"] = stamp(entry.started)
    if entry.ended:
        detail["finishedAt"] = stamp(entry.ended)
    if detail or entry.message:
        return [detail | {"message": entry.message or entry.status}]
    return []


def http_date(moment: float) -> str:
    at = time.localtime(moment)
    return f"{DAYS[at.tm_wday]}, {at.tm_mday:02d} {MONTHS[at.tm_mon - 1]} {time.strftime('%Y %H:%M:%S', at)} GMT"


def stamp(moment: float) -> str:
    fraction = int(moment * 1_000_000) % 1_000_000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(moment))}.{fraction:06d}+00:00"


# The log of a job: one text of all pods, cut into pages, in the job's shared folder.

LINES = 2000  # in a page
_RULE = ("=" * 57 + "\n") * 3
_INDENT = " " * 8


class JobLog:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()

    def pages(self, entry: Entry) -> list[str]:
        """The pages as they now are; none while one of the pods has written nothing. Also writes them to disk, for the
        last time when the job has ended: the folder is its user's, who may have removed it."""
        ended = entry.status in ENDED
        lines = self._text(entry).splitlines(keepends=True)
        pages = ["".join(lines[start : start + LINES]) for start in range(0, len(lines), LINES)]
        with self._lock:
            if pages and entry.job and entry.job.launch.pods and entry.logged is not entry.job:
                _write(entry.job.launch.pods.mounts["/job"] / "logs", entry.id, pages)
                if ended:
                    entry.logged = entry.job
        return pages

    def _text(self, entry: Entry) -> str:
        job = entry.job
        if job is None or job.launch.pods is None:
            return ""
        pods, parts = job.launch.pods, []
        for role in sorted(pods.roles, key=lambda role: (role.name, role.index)):
            content, _ = self._engine.log(job.id, role.task) or (b"", 0)
            if not content:
                return ""
            text = content.decode(errors="replace")
            text += "" if text.endswith("\n") else "\n"
            name = pods.name(role)
            parts.append(f"{_RULE}{_INDENT}logs from pod: {name}\n{_RULE}{text}")
            parts.append(f"{_RULE}{_INDENT}end of logs from pod: {name}\n{_RULE}\n")
        return "".join(parts)


def in_raw_order(pages: list[str]) -> str:
    """Join the pages as the platform does: by the names of their files, so page 10 comes before page 2."""
    return "".join(pages[number - 1] for number in sorted(range(1, len(pages) + 1), key=str))


def _write(folder: Path, job_id: str, pages: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"log-container-{job_id}.txt"
    for number, page in enumerate(pages, 1):
        _replace(folder / f"{name}.{number}", page)
    if len(pages) > 1:
        _replace(folder / "max_page", str(len(pages)))


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)
