"""The jobs of the local Apulis: each is a run among those of the other platforms, or several where it was paused."""

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
from pytest_aisbench.localcloud.http import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_aisbench.localcloud.engine.launch import Engine, Launch
    from pytest_aisbench.localcloud.iam import Account
    from pytest_aisbench.localcloud.modelarts.jobs import Job, Jobs
    from pytest_aisbench.localcloud.modelarts.rules import Catalog


# -- Jobs in the words of Apulis. Its times are the server's own, though they are stamped as if they were UTC.

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
QUEUED = {"unapproved", "queued", "scheduling", "pausing", "paused", "killing"}


def http_date(moment: float) -> str:
    at = time.localtime(moment)
    return f"{_DAYS[at.tm_wday]}, {at.tm_mday:02d} {_MONTHS[at.tm_mon - 1]} {time.strftime('%Y %H:%M:%S', at)} GMT"


def stamp(moment: float) -> str:
    fraction = int(moment * 1_000_000) % 1_000_000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(moment))}.{fraction:06d}+00:00"


def status_json(entry: Entry) -> dict[str, Any]:
    return {"jobStatus": entry.status, "jobTime": http_date(entry.submitted), "errorMsg": entry.message}


def detail_json(entry: Entry) -> dict[str, Any]:
    """As GetJobDetailV2 has it."""
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
    """As the lists of version 2 and 3 have it."""
    return detail_json(entry) | {
        "errorMsg": entry.message,
        "priority": entry.priority,
        "duration": entry.duration,
    }


def encoded_row_json(entry: Entry) -> dict[str, Any]:
    """As the first list has it: what is structured comes as the database keeps it."""
    row = detail_json(entry) | {"errorMsg": entry.message}
    for name in ("jobParams", "jobStatusDetail"):
        row[name] = base64.b64encode(json.dumps(row[name]).encode()).decode()
    return row


def sorted_out(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    trained = [row for row in rows if row["jobType"] != "visualization"]
    lists = {
        "queuedJobs": [row for row in trained if row["jobStatus"] in QUEUED],
        "runningJobs": [row for row in trained if row["jobStatus"] == "running"],
        "finishedJobs": [row for row in trained if row["jobStatus"] not in QUEUED | {"running"}],
        "visualizationJobs": [row for row in rows if row["jobType"] == "visualization"],
    }
    return lists | {"meta": {name: len(found) for name, found in lists.items()}}


def page_json(rows: list[dict[str, Any]], page: list[dict[str, Any]]) -> dict[str, Any]:
    """The third list: `allJobs` is right; of the others, what is not running counts as finished."""
    lists: dict[str, Any] = {
        "queuedJobs": [],
        "runningJobs": [],
        "finishedJobs": [row for row in page if row["jobStatus"] != "running"],
        "visualizationJobs": [],
    }
    meta = {name: len(found) for name, found in lists.items()} | {"totalJobs": len(rows)}
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


# -- The log of a job as Apulis keeps it: one text of all pods, cut into pages, in the job's shared folder.

LINES = 2000  # of a page
_RULE = ("=" * 57 + "\n") * 3
_INDENT = " " * 8


class JobLog:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()

    def pages(self, entry: Entry) -> list[str]:
        """As they now are; none while one of the pods has written nothing. Those on disk are rewritten until the job
        has ended, once more then, and never again: the folder is its user's, who may have removed it."""
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
    """As the platform joins them: by the names of their files, so page 10 comes before page 2."""
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
