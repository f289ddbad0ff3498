"""Submits, finds, watches and cancels training jobs on ModelArts, by its API V2 or V1.

`JobsV2` is the API of today. `JobsV1` is the older one, in which a job has versions and a version is what runs.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from pytest_aisbench.errors import BadAnswer, JobLost, Rejected, Unreachable
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Phase, Request, StoreUrl
from pytest_aisbench.model.ports import Check, Store
from pytest_aisbench.net.huawei import reading
from pytest_aisbench.net.retry import LOOK_S
from pytest_aisbench.platforms.modelarts.catalog import JOBS_V1, Catalog, CatalogV1, CatalogV2
from pytest_aisbench.platforms.modelarts.request import (
    Placement,
    is_empty_data_folder,
    request_body_v1,
    request_body_v2,
)
from pytest_aisbench.platforms.modelarts.session import Session

_JOBS_V2 = "/v2/{project_id}/training-jobs"
_SEARCH = "/v2/{project_id}/training-job-searches"
_PAGE_V2 = 50  # jobs of one answer
_PAGE_V1 = 1000
_LINES = 500  # of a log, in one answer of V1
_MOST_EVENTS = 50
_LOOKED_UP_SINGLY = 2  # for more jobs than these `inspect` asks for the list first
_LOOK_TIMEOUT_S = 20.0
_NAME_TAKEN = "ModelArts.0103"
_NAME_TAKEN_V2 = "ModelArts.2751"
_UNKNOWN_JOB = "ModelArts.2775"
_ENDED_ALREADY = "ModelArts.2796"
_NO_SAMPLE_YET = "ModelArts.2777"
NO_LOG_YET = ("ModelArts.2776", "ModelArts.2818", "ModelArts.2820")
_ENDED_BY_SIGNAL = {137, 143}  # exit codes
_NOT_KNOWN = "whether the job was created is not known"

_PHASES_V2 = {
    "Creating": Phase.PENDING,
    "Pending": Phase.PENDING,
    "Running": Phase.RUNNING,
    "Terminating": Phase.RUNNING,  # its nodes still work, and cost
    "Completed": Phase.SUCCEEDED,
    "Failed": Phase.FAILED,
    "Terminated": Phase.CANCELLED,
    "Abnormal": Phase.LOST,  # never created, or its nodes were lost: the platform's fault
}
# The vendor's word for each status number of V1. A job that could not be started is LOST: its training code never ran.
_STATES_V1 = (
    ("UNKNOWN", Phase.RUNNING),
    ("INIT", Phase.PENDING),
    ("IMAGE_CREATING", Phase.PENDING),
    ("IMAGE_FAILED", Phase.LOST),
    ("SUBMIT_TRYING", Phase.PENDING),
    ("SUBMIT_FAILED", Phase.LOST),
    ("DELETE_FAILED", Phase.CANCELLED),  # it ran, and could not be deleted
    ("WAITING", Phase.PENDING),
    ("RUNNING", Phase.RUNNING),
    ("KILLING", Phase.RUNNING),  # its nodes still work, and cost
    ("COMPLETED", Phase.SUCCEEDED),
    ("FAILED", Phase.FAILED),
    ("KILLED", Phase.CANCELLED),
    ("CANCELED", Phase.CANCELLED),
    ("LOST", Phase.LOST),
    ("SCALING", Phase.RUNNING),
    ("SUBMIT_MODEL_FAILED", Phase.LOST),
    ("DEPLOY_SERVICE_FAILED", Phase.LOST),
    ("CHECK_INIT", Phase.PENDING),  # the review of an image that is used for the first time
    ("CHECK_RUNNING", Phase.PENDING),
    ("CHECK_RUNNING_COMPLETED", Phase.PENDING),
    ("CHECK_FAILED", Phase.LOST),
    ("MOUNT_FAILED", Phase.LOST),
)
_USAGE = {
    "cpuUsage": "cpu",
    "memUsage": "memory",
    "npuUtil": "npu",
    "npuMemUsage": "npu memory",
    "gpuUtil": "gpu",
    "gpuMemUsage": "gpu memory",
}


class Jobs(ABC):
    """The jobs of one session. `place` returns the machines and the software that a job gets."""

    takes_environment: bool

    def __init__(self, session: Session, place: Callable[[JobSpec], Placement], catalog: Catalog) -> None:
        self._session = session
        self._place = place
        self._catalog = catalog

    def check(self, patience_s: float) -> None:
        self._catalog.check(patience_s)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self._catalog.vet(self._place(spec))

    def to_send(self, request: Request) -> Request:
        return request

    def sent(self, request: Request) -> Request:
        return request

    @abstractmethod
    def render(self, spec: JobSpec) -> Request: ...
    @abstractmethod
    def submit(self, request: Request) -> str: ...
    @abstractmethod
    def find(self, request: Request) -> str | None: ...
    @abstractmethod
    def named(self, name: str) -> str | None: ...
    @abstractmethod
    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart: ...
    @abstractmethod
    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]: ...
    @abstractmethod
    def events(self, job_id: str) -> Sequence[str]: ...
    @abstractmethod
    def cancel(self, job_id: str) -> None: ...

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        wanted = list(dict.fromkeys(job_ids))
        listed = self._list(set(wanted)) if len(wanted) > _LOOKED_UP_SINGLY else {}
        return {job_id: listed.get(job_id) or self._inspect_one(job_id) for job_id in wanted}

    @abstractmethod
    def _list(self, wanted: set[str]) -> dict[str, Job]:
        """Those of the wanted jobs about which the platform's list says enough."""

    def _inspect_one(self, job_id: str) -> Job:
        try:
            return self._show(job_id)
        except JobLost as error:
            return Job(job_id, Phase.LOST, "", reason=str(error))

    @abstractmethod
    def _show(self, job_id: str) -> Job: ...

    def _look(
        self, method: str, path: str, body: Any = None, query: Any = None, ignore: Collection[str] = ()
    ) -> dict[str, Any]:
        """Ask without waiting out an outage: the next look asks again."""
        patience_s = min(LOOK_S, self._session.patience_s)
        return self._session.call(
            method, path, body, query, patience_s=patience_s, timeout_s=_LOOK_TIMEOUT_S, ignore=ignore
        )


class JobsV2(Jobs):
    takes_environment = True

    def __init__(self, session: Session, place: Callable[[JobSpec], Placement]) -> None:
        super().__init__(session, place, CatalogV2(session))

    def render(self, spec: JobSpec) -> Request:
        return Request("POST", _JOBS_V2, request_body_v2(spec, self._place(spec)))

    def submit(self, request: Request) -> str:
        try:
            answer = self._session.call(request.method, request.path, request.body, patience_s=0.0)
            return str(answer["metadata"]["id"])
        except (BadAnswer, KeyError, TypeError) as error:
            # A server answered, but without a job: the job may exist all the same.
            why = error if isinstance(error, BadAnswer) else "an answer without the job's id"
            raise Unreachable(f"{_NOT_KNOWN}: {why}") from None
        except Rejected as error:
            # No other job ever has the name, so it is our own: a gateway sent the request twice, or an earlier one
            # arrived late. The list may not show the job yet.
            if _NAME_TAKEN_V2 not in error.trail:
                raise
            raise Unreachable(f"{_NOT_KNOWN}: {error.message}", trail=error.trail) from None

    def find(self, request: Request) -> str | None:
        name = str(request.body["metadata"]["name"])
        insist = partial(self._session.call, patience_s=self._session.patience_s)
        ids = sorted(set(self._ids_of(insist, name)))
        if len(ids) > 1:
            raise BadAnswer(f"{len(ids)} jobs are called {name}: {', '.join(ids)}", advice="stop the wrong one")
        return ids[0] if ids else None

    def named(self, name: str) -> str | None:
        return next(self._ids_of(self._look, name), None)

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """The platform shows the newest 5 MB; the text says what was missed. Offsets count bytes."""
        path = f"{_path_v2(job_id)}/tasks/worker-{node}/logs/preview"
        answer = self._session.call("GET", path, ignore=NO_LOG_YET)
        with reading("a log"):
            data = str(answer.get("content") or answer.get("context") or "").encode()  # `context` before March 2022
            size = int(answer.get("current_size") or len(data))
            full = int(answer.get("full_size") or len(data))
            start = full - size
        if full <= since:
            return LogPart("", since)
        if len(data) != size:  # U+FFFD stands for what is not UTF-8: one byte of the log, three of the text
            data = data.replace("\ufffd".encode(), b"\xff")
        # Count from the end: this finds what is new even if the earlier text had another length.
        text = data[max(0, len(data) - (full - max(since, start))) :].decode(errors="replace")
        return LogPart(f"[{start - since} bytes are no longer shown]\n{text}" if since < start else text, full)

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        """One average per minute, without the minutes that the platform did not sample."""
        answer = self._look("GET", f"{_path_v2(job_id)}/metrics/worker-{node}", ignore=(_NO_SAMPLE_YET,))
        with reading("the use of a node"):
            return _usage({str(row["metric"]): row.get("value") for row in answer.get("metrics") or ()})

    def events(self, job_id: str) -> Sequence[str]:
        answer = self._look("GET", f"{_path_v2(job_id)}/events", query={"limit": _MOST_EVENTS, "order": "desc"})
        with reading("the events of a job"):
            rows = [(str(row["time"]), str(row["level"]), str(row["message"])) for row in answer.get("events") or ()]
        return [f"{time} {level}: {message}" for time, level, message in reversed(rows)]

    def cancel(self, job_id: str) -> None:
        body = {"action_type": "terminate"}
        self._look("POST", f"{_path_v2(job_id)}/actions", body, ignore=(_UNKNOWN_JOB, _ENDED_ALREADY))

    def _show(self, job_id: str) -> Job:
        return _job_v2(self._look("GET", _path_v2(job_id)))

    def _list(self, wanted: set[str]) -> dict[str, Job]:
        """Looks among the newest jobs. Leaves out those that failed, since a list may not say why."""
        jobs, left = {}, set(wanted)
        for job, _ in self._search(self._look, [], pages=math.ceil(len(wanted) / _PAGE_V2) + 1):
            if job.id in wanted and job.phase not in {Phase.FAILED, Phase.LOST}:
                jobs[job.id] = job
            left.discard(job.id)
            if not left:
                break
        return jobs

    def _ids_of(self, ask: Callable[..., dict[str, Any]], name: str) -> Iterator[str]:
        """The ids of the jobs of exactly this name; `like` also finds names that contain it."""
        jobs = self._search(ask, [{"key": "name", "operator": "like", "value": [name]}])
        return (job.id for job, its_name in jobs if its_name == name)

    def _search(
        self, ask: Callable[..., dict[str, Any]], filters: list[dict[str, Any]], pages: int = 200
    ) -> Iterator[tuple[Job, str]]:
        """Jobs and their names, newest first.

        The documents differ on whether the offset counts jobs or pages, so a job may come twice.
        """
        for page in range(pages):
            body = {
                "offset": page * _PAGE_V2,
                "limit": _PAGE_V2,
                "sort_by": "create_time",
                "order": "desc",
                "filters": filters,
            }
            items = ask("POST", _SEARCH, body).get("items") or []
            with reading("a list of jobs"):
                yield from [(_job_v2(item), str(item["metadata"].get("name"))) for item in items]
            if len(items) < _PAGE_V2:
                return


class JobsV1(Jobs):
    """The id of a job is `<job>/<version>`."""

    takes_environment = False  # except with a custom image, where the parameters become variables

    def __init__(self, session: Session, place: Callable[[JobSpec], Placement], store: Store) -> None:
        self._catalog: CatalogV1
        super().__init__(session, place, CatalogV1(session))
        self._store = store
        self._sent: dict[str, Request] = {}  # by `train_url`, which no two trials share

    def render(self, spec: JobSpec) -> Request:
        """With names of flavor and engine; `submit` replaces them by this platform's numbers."""
        return Request("POST", JOBS_V1, request_body_v1(spec, self._place(spec)))

    def to_send(self, request: Request) -> Request:
        """With numbers; and as one more version of the job of that name, if there is one."""
        numbered = self._with_numbers(request)
        job = self._job_called(str(request.body["job_name"]))
        versions = list(self._versions(job)) if job else []
        return _as_version(numbered, str(job), versions[0]) if versions else numbered

    def sent(self, request: Request) -> Request:
        return self._sent.pop(_train_url(request), request)

    def submit(self, request: Request) -> str:
        numbered = self._with_numbers(request)
        data = StoreUrl.parse(f"obs:/{numbered.body['config']['data_url']}")
        if is_empty_data_folder(data) and self._store.head(data) is None:
            self._store.write(data, b"")
        try:
            return self._create(numbered)
        except Rejected as error:
            # The name belongs to another job, which then gets one more version, or to our own earlier request.
            if _NAME_TAKEN not in error.trail:
                raise
        name = str(request.body["job_name"])
        job = self._job_called(name)
        if job is None:
            raise Unreachable(f"a job is called {name}, and the platform does not list it")
        versions = list(self._versions(job))
        if ours := self._find_ours(job, versions, request):
            return ours
        if not versions:
            raise BadAnswer(f"job {job} has no version")
        return self._create(_as_version(numbered, job, versions[0]))

    def find(self, request: Request) -> str | None:
        job = self._job_called(str(request.body["job_name"]))
        return self._find_ours(job, self._versions(job), request) if job else None

    def named(self, name: str) -> str | None:
        """The newest version of the job that has this name, or this number."""
        for row in self._rows(self._look, "" if name.isdecimal() else name):
            if name in {row["job_name"], str(row["job_id"])}:
                newest = next(self._versions(str(row["job_id"])), None)
                return f"{row['job_id']}/{newest['version_id']}" if newest else None
        return None

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """Line by line; the platform shows only the end of a long log. Offsets are positions of lines, plus one."""
        name = self._log_name(job_id, node)
        texts: list[str] = []
        while name:
            query = {"log_file": name, "lines": _LINES, "order": "desc"}
            query |= {"base_line": str(since - 1)} if since else {}
            page = self._session.call("GET", f"{_path_v1(job_id)}/aom-log", query=query, ignore=NO_LOG_YET)
            with reading("a log"):
                lines, content = int(page.get("lines") or 0), str(page.get("content") or "")
                if not lines:
                    break
                if not since and int(page["start_line"]):
                    texts.append("[earlier lines are not shown]\n")
                texts.append(content)
                since = int(page["end_line"]) + 1
            if lines < _LINES:
                break
        return LogPart("".join(texts), since)

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        """V1 samples the whole job, not its nodes."""
        answer = self._look("GET", _path_v1(job_id))
        with reading("the use of nodes"):
            return _usage(answer.get("system_metric_list") or {})

    def events(self, job_id: str) -> Sequence[str]:
        return ()  # V1 has none

    def cancel(self, job_id: str) -> None:
        self._look("POST", f"{_path_v1(job_id)}/stop", ignore=(_UNKNOWN_JOB, _ENDED_ALREADY))

    def delete(self, job_id: str) -> None:
        """Delete a job with all its versions, or one version. A job that does not exist is no error."""
        self._session.call("DELETE", _path_v1(job_id), ignore=(_UNKNOWN_JOB,))

    def _show(self, job_id: str) -> Job:
        if "/" not in job_id:
            return Job(job_id, Phase.LOST, "", reason="no job of V1 is called so, and an id is JOB/VERSION")
        return _job_v1(job_id, self._look("GET", _path_v1(job_id)))

    def _list(self, wanted: set[str]) -> dict[str, Job]:
        """Those of the wanted jobs that wait or run. The list does not say how a job ended."""
        with reading("a list of jobs"):
            rows = {f"{row['job_id']}/{row['version_id']}": row for row in self._rows(self._look)}
            jobs = {job_id: _job_v1(job_id, rows[job_id]) for job_id in wanted & rows.keys()}
        return {job_id: job for job_id, job in jobs.items() if not job.phase.is_final}

    def _with_numbers(self, request: Request) -> Request:
        body = {**request.body, "config": self._catalog.replace_names(request.body["config"])}
        return Request(request.method, request.path, body)

    def _create(self, request: Request) -> str:
        self._sent[_train_url(request)] = request
        try:
            answer = self._session.call(request.method, request.path, request.body, patience_s=0.0)
            return f"{answer['job_id']}/{answer['version_id']}"
        except BadAnswer as error:
            raise Unreachable(f"{_NOT_KNOWN}: {error}") from None
        except KeyError:
            raise Unreachable(f"{_NOT_KNOWN}: an answer without its id") from None

    def _job_called(self, name: str) -> str | None:
        """The id of the job of exactly this name; the platform's search also finds names that contain it."""
        ask = partial(self._session.call, patience_s=self._session.patience_s)
        ids = {str(row["job_id"]) for row in self._rows(ask, name) if row["job_name"] == name}
        if len(ids) > 1:
            raise BadAnswer(f"{len(ids)} jobs are called {name}: {', '.join(sorted(ids))}")
        return next(iter(ids), None)

    def _find_ours(self, job: str, versions: Iterable[Mapping[str, Any]], request: Request) -> str | None:
        """The id of the version that this request made. Versions share the job's name, but only ours writes to the
        request's `train_url`; where the platform does not tell it, the description has the trial's id."""
        for version in versions:
            job_id = f"{job}/{version['version_id']}"
            details = version if version.get("train_url") else self._look("GET", _path_v1(job_id))
            if "train_url" not in details:
                ours = str(details.get("job_desc", "")) == str(request.body["job_desc"])
            else:
                ours = str(details["train_url"]).strip("/") == str(request.body["config"]["train_url"]).strip("/")
            if ours:
                return job_id
        return None

    def _rows(self, ask: Callable[..., dict[str, Any]], name: str = "") -> Iterator[dict[str, Any]]:
        query = {"sortBy": "create_time", "order": "desc", **({"search_content": name} if name else {})}
        for rows in self._pages(ask, JOBS_V1, "jobs", query):
            with reading("a list of jobs"):
                yield from [{**row, "job_id": row["job_id"], "job_name": row["job_name"]} for row in rows]

    def _versions(self, job: str) -> Iterator[dict[str, Any]]:
        """Newest first."""
        for rows in self._pages(self._session.call, f"{_path_v1(job)}/versions", "versions", {}):
            with reading("a list of versions"):
                yield from sorted(rows, key=lambda row: -int(row["version_id"]))

    def _pages(
        self, ask: Callable[..., dict[str, Any]], path: str, key: str, query: Mapping[str, Any]
    ) -> Iterator[list[dict[str, Any]]]:
        for page in itertools.count(1):
            rows: list[dict[str, Any]] = (
                ask("GET", path, query={"per_page": _PAGE_V1, "page": page, **query}).get(key) or []
            )
            yield rows
            if len(rows) < _PAGE_V1:
                return

    def _log_name(self, job_id: str, node: int) -> str:
        """The name of the node's log; empty while there is none."""
        answer = self._session.call("GET", f"{_path_v1(job_id)}/log/file-names", ignore=NO_LOG_YET)
        with reading("the names of logs"):
            return next((str(name) for name in answer.get("log_file_list") or () if str(name).endswith(f".{node}")), "")


def _as_version(request: Request, job: str, newest: Mapping[str, Any]) -> Request:
    """The request for one more version of a job, in place of the one for a new job."""
    config = {**request.body["config"], "pre_version_id": newest["version_id"]}
    body = {"job_desc": request.body["job_desc"], "config": config}
    return Request(request.method, f"{_path_v1(job)}/versions", body)


def _train_url(request: Request) -> str:
    return str(request.body["config"]["train_url"])


def _path_v2(job_id: str) -> str:
    return f"{_JOBS_V2}/{quote(job_id, safe='')}"


def _path_v1(job_id: str) -> str:
    """The path of a job, or of a version: `<job>/<version>`."""
    job, _, version = job_id.partition("/")
    return f"{JOBS_V1}/{quote(job, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _job_v2(answer: Mapping[str, Any]) -> Job:
    with reading("a job"):
        metadata, status = answer["metadata"], answer["status"]
        word = str(status["phase"])
        phase = _PHASES_V2.get(word, Phase.RUNNING)
        started = status.get("start_time")
        exit_code, reason = _end_of(status) if phase.is_final else (None, "")
        return Job(
            id=str(metadata["id"]),
            phase=phase,
            platform_phase=word,
            known=word in _PHASES_V2,
            reason="" if phase is Phase.SUCCEEDED else reason,
            exit_code=exit_code,
            queued_s=_queued_s(metadata.get("create_time"), started),
            ran_s=(status.get("duration") or 0) / 1000 if started else None,
            name=str(metadata.get("name") or ""),
        )


def _job_v1(job_id: str, answer: Mapping[str, Any]) -> Job:
    with reading("a job"):
        code = int(answer["status"])  # a number, or a text with one
        word, phase = _STATES_V1[code] if 0 <= code < len(_STATES_V1) else (f"status {code}", Phase.RUNNING)
        ran_s = float(answer.get("duration") or 0) / 1000
        return Job(
            id=job_id,
            phase=phase,
            platform_phase=word,
            known=0 < code < len(_STATES_V1),
            reason=f"V1 says {word}" if phase in {Phase.FAILED, Phase.LOST} else "",
            queued_s=_queued_s(answer.get("create_time"), answer.get("start_time")),
            ran_s=ran_s if phase is not Phase.PENDING else None,
            name=str(answer.get("job_name") or ""),
        )


def _queued_s(created_ms: Any, started_ms: Any) -> float | None:
    return max(0.0, (int(started_ms) - int(created_ms)) / 1000) if started_ms and created_ms else None


def _end_of(status: Mapping[str, Any]) -> tuple[int | None, str]:
    """The exit code of the node that failed, and why the job ended, as far as the platform tells."""
    tasks = [task for task in status.get("task_statuses") or [] if task.get("exit_code") is not None]
    record = (status.get("running_records") or [{}])[-1]

    def innocence(task: Mapping[str, Any]) -> tuple[bool, bool]:
        """When one node fails, the platform ends the others by a signal: do not quote those."""
        return task.get("task") != record.get("end_related_task"), task["exit_code"] in _ENDED_BY_SIGNAL

    failed = min((task for task in tasks if task["exit_code"] != 0), key=innocence, default=None)
    if failed:
        reason = f"{failed.get('task')} ended with exit code {failed['exit_code']}: {failed.get('message') or ''}"
        return int(failed["exit_code"]), reason.rstrip(": ")
    return (0 if tasks else None), str(record.get("end_reason") or status.get("secondary_phase") or "")


def _usage(samples: Mapping[str, Iterable[Any] | None]) -> dict[str, list[float]]:
    """Percentages by our names, without minutes that the platform did not sample."""
    usage = {
        name: [value for value in map(float, samples.get(theirs) or ()) if 0 <= value < math.inf]
        for theirs, name in _USAGE.items()
    }
    return {name: values for name, values in usage.items() if values}
