"""Jobs by ModelArts' training-job API V1: a job has versions, and it is a version that runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from pytest_aisbench.errors import BadAnswer, JobLost, Rejected, Unreachable
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Phase, Request, StoreUrl
from pytest_aisbench.model.ports import Check, Store
from pytest_aisbench.net.huawei import reading
from pytest_aisbench.net.retry import LOOK_S
from pytest_aisbench.platforms.modelarts.catalog import JOBS, CatalogV1, CatalogV2
from pytest_aisbench.platforms.modelarts.request import (
    Placement,
    is_empty_data_folder,
    request_body_v1,
    request_body_v2,
)
from pytest_aisbench.platforms.modelarts.session import Session

# -- Jobs by ModelArts' training-job API V2.

PHASES = {
    "Creating": Phase.PENDING,
    "Pending": Phase.PENDING,
    "Running": Phase.RUNNING,
    "Terminating": Phase.RUNNING,  # its nodes still work, and cost
    "Completed": Phase.SUCCEEDED,
    "Failed": Phase.FAILED,
    "Terminated": Phase.CANCELLED,
    "Abnormal": Phase.LOST,  # never created, or its nodes were lost: the platform's fault
}
_JOBS = "/v2/{project_id}/training-jobs"
_SEARCH = "/v2/{project_id}/training-job-searches"
LOOK_TIMEOUT_S = 20.0
_PAGE_V2 = 50
_MOST_EVENTS = 50
_LOOKED_UP_SINGLY_V2 = 2  # more jobs than these are looked for in the list first
UNKNOWN_JOB = "ModelArts.2775"
_ENDED_BY_SIGNAL = {137, 143}
ENDED_ALREADY = "ModelArts.2796"
NO_LOG_YET = ("ModelArts.2776", "ModelArts.2818", "ModelArts.2820")
_NO_SAMPLE_YET = "ModelArts.2777"
USAGE = {
    "cpuUsage": "cpu",
    "memUsage": "memory",
    "npuUtil": "npu",
    "npuMemUsage": "npu memory",
    "gpuUtil": "gpu",
    "gpuMemUsage": "gpu memory",
}


class JobsV2:
    """Of one session. `place` says which machines and software a job gets."""

    takes_environment = True

    def __init__(self, session: Session, place: Callable[[JobSpec], Placement]) -> None:
        self._session = session
        self._place = place
        self._offer = CatalogV2(session)

    def check(self, patience_s: float) -> None:
        self._offer.check(patience_s)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self._offer.vet(self._place(spec))

    def render(self, spec: JobSpec) -> Request:
        return Request("POST", _JOBS, request_body_v2(spec, self._place(spec)))

    def submit(self, request: Request) -> str:
        try:
            answer = self._session.call(request.method, request.path, request.body, patience_s=0.0)
            return str(answer["metadata"]["id"])
        except (BadAnswer, KeyError, TypeError) as error:
            # Something answered, but not with a job: it may be there all the same.
            why = error if isinstance(error, BadAnswer) else "an answer without the job's id"
            raise Unreachable(f"whether the job was created is not known: {why}") from None

    def find(self, request: Request) -> str | None:
        name = str(request.body["metadata"]["name"])
        # `like` also finds names that contain it.
        insist = partial(self._session.call, patience_s=self._session.patience_s)
        named = self._search(insist, [{"key": "name", "operator": "like", "value": [name]}])
        found = sorted({job.id for job, its_name in named if its_name == name})
        if len(found) > 1:
            raise BadAnswer(f"{len(found)} jobs are called {name}: {', '.join(found)}", advice="stop the wrong one")
        return found[0] if found else None

    def named(self, name: str) -> str | None:
        named = self._search(self._glance, [{"key": "name", "operator": "like", "value": [name]}])
        return next((job.id for job, its_name in named if its_name == name), None)

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        wanted = list(dict.fromkeys(job_ids))
        listed = self._listed(set(wanted)) if len(wanted) > _LOOKED_UP_SINGLY_V2 else {}
        return {job_id: listed.get(job_id) or self._shown(job_id) for job_id in wanted}

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """The platform shows the newest 5 MB; what was missed is said in the text. Offsets count bytes."""
        path = f"{_path_v2(job_id)}/tasks/worker-{node}/logs/preview"
        answer = self._session.call("GET", path, ignore=NO_LOG_YET)
        with reading("a log"):
            data = str(answer.get("content") or answer.get("context") or "").encode()  # `context` before March 2022
            size = int(answer.get("current_size") or len(data))
            full = int(answer.get("full_size") or len(data))
            start = full - size
        if full <= since:
            return LogPart("", since)
        if len(data) != size:  # what was not UTF-8 is shown as U+FFFD: one byte of the log, three of the text
            data = data.replace("\ufffd".encode(), b"\xff")
        # Counted from the end: what is new is told, even if what was told before had another length.
        text = data[max(0, len(data) - (full - max(since, start))) :].decode(errors="replace")
        return LogPart(f"[{start - since} bytes are no longer shown]\n{text}" if since < start else text, full)

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        """One average per minute; a minute that was not sampled is left out."""
        answer = self._session.call(
            "GET",
            f"{_path_v2(job_id)}/metrics/worker-{node}",
            patience_s=min(LOOK_S, self._session.patience_s),  # nobody waits out an outage for it
            timeout_s=LOOK_TIMEOUT_S,
            ignore=(_NO_SAMPLE_YET,),
        )
        with reading("the use of a node"):
            told = {
                str(row["metric"]): [float(v) for v in row.get("value") or ()] for row in answer.get("metrics") or ()
            }
        sampled = {name: [v for v in told.get(theirs, ()) if 0 <= v < math.inf] for theirs, name in USAGE.items()}
        return {name: samples for name, samples in sampled.items() if samples}

    def events(self, job_id: str) -> Sequence[str]:
        query = {"limit": _MOST_EVENTS, "order": "desc"}
        answer = self._glance("GET", f"{_path_v2(job_id)}/events", query=query)
        with reading("the events of a job"):
            told = [(str(row["time"]), str(row["level"]), str(row["message"])) for row in answer.get("events") or ()]
        return [f"{time} {level}: {message}" for time, level, message in reversed(told)]

    def cancel(self, job_id: str) -> None:
        self._session.call(
            "POST",
            f"{_path_v2(job_id)}/actions",
            {"action_type": "terminate"},
            patience_s=min(LOOK_S, self._session.patience_s),  # asked again at the next look
            timeout_s=LOOK_TIMEOUT_S,
            ignore=(UNKNOWN_JOB, ENDED_ALREADY),
        )

    def _shown(self, job_id: str) -> Job:
        try:
            return _job_v2(self._glance("GET", _path_v2(job_id)))
        except JobLost as error:
            return Job(job_id, Phase.LOST, "", reason=str(error))

    def _listed(self, wanted: set[str]) -> dict[str, Job]:
        """Those of the wanted that are among the newest jobs. A list may leave out why a job ended: then it is
        shown singly."""
        found = {}
        for job, _ in self._search(self._glance, [], pages=math.ceil(len(wanted) / _PAGE_V2) + 1):
            if job.id in wanted and job.phase not in {Phase.FAILED, Phase.LOST}:
                found[job.id] = job
            wanted = wanted - {job.id}
            if not wanted:
                break
        return found

    def _glance(self, method: str, path: str, body: Any = None, query: Any = None) -> dict[str, Any]:
        patience_s = min(LOOK_S, self._session.patience_s)
        return self._session.call(method, path, body, query, patience_s=patience_s, timeout_s=LOOK_TIMEOUT_S)

    def _search(
        self, ask: Callable[..., dict[str, Any]], filters: list[dict[str, Any]], pages: int = 200
    ) -> Iterator[tuple[Job, str]]:
        """Jobs and their names, newest first.

        Documents differ on whether the offset counts jobs or pages: a job may come twice.
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


def _path_v2(job_id: str) -> str:
    return f"{_JOBS}/{quote(job_id, safe='')}"


def _job_v2(answer: Mapping[str, Any]) -> Job:
    with reading("a job"):
        metadata, status = answer["metadata"], answer["status"]
        word = str(status["phase"])
        phase = PHASES.get(word, Phase.RUNNING)
        created, started = metadata.get("create_time"), status.get("start_time")
        exit_code, reason = _end(status) if phase.is_final else (None, "")
        return Job(
            id=str(metadata["id"]),
            phase=phase,
            platform_phase=word,
            known=word in PHASES,
            reason="" if phase is Phase.SUCCEEDED else reason,
            exit_code=exit_code,
            queued_s=max(0.0, (started - created) / 1000) if started and created else None,
            ran_s=(status.get("duration") or 0) / 1000 if started else None,
            name=str(metadata.get("name") or ""),
        )


def _end(status: Mapping[str, Any]) -> tuple[int | None, str]:
    """The exit code of the node that failed, and why the job ended, as far as the platform tells."""
    tasks = [task for task in status.get("task_statuses") or [] if task.get("exit_code") is not None]
    record = (status.get("running_records") or [{}])[-1]

    def innocence(task: Mapping[str, Any]) -> tuple[bool, bool]:
        """When one node fails the platform ends the others by signal: they are not to be quoted."""
        return task.get("task") != record.get("end_related_task"), task["exit_code"] in _ENDED_BY_SIGNAL

    failed = min((task for task in tasks if task["exit_code"] != 0), key=innocence, default=None)
    if failed:
        reason = f"{failed.get('task')} ended with exit code {failed['exit_code']}: {failed.get('message') or ''}"
        return int(failed["exit_code"]), reason.rstrip(": ")
    return (0 if tasks else None), str(record.get("end_reason") or status.get("secondary_phase") or "")


_NAME_TAKEN = "ModelArts.0103"
_PAGE_V1 = 1000
_LINES = 500
_LOOKED_UP_SINGLY_V1 = 2

# By number: the vendor's word and what it means to us. Whatever keeps a job from being started is a loss: the
# training code was never run. 6 is a job that ran, and that could not be deleted.
STATES = (
    ("UNKNOWN", Phase.RUNNING),
    ("INIT", Phase.PENDING),
    ("IMAGE_CREATING", Phase.PENDING),
    ("IMAGE_FAILED", Phase.LOST),
    ("SUBMIT_TRYING", Phase.PENDING),
    ("SUBMIT_FAILED", Phase.LOST),
    ("DELETE_FAILED", Phase.CANCELLED),
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


class JobsV1:
    """Of one session. A job's id is `<job>/<version>`."""

    takes_environment = False  # except with an image of one's own, where the parameters become variables

    def __init__(self, session: Session, place: Callable[[JobSpec], Placement], store: Store) -> None:
        self._session = session
        self._place = place
        self._store = store
        self._offer = CatalogV1(session)

    def check(self, patience_s: float) -> None:
        self._offer.check(patience_s)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self._offer.vet(self._place(spec))

    def render(self, spec: JobSpec) -> Request:
        """With names where the request that is sent has the numbers that this platform gives them."""
        return Request("POST", JOBS, request_body_v1(spec, self._place(spec)))

    def submit(self, request: Request) -> str:
        body = {**request.body, "config": self._offer.numbered(request.body["config"])}
        nothing = StoreUrl.parse(f"obs:/{body['config']['data_url']}")
        if is_empty_data_folder(nothing) and self._store.head(nothing) is None:
            self._store.write(nothing, b"")
        try:
            return self._created(self._send(request.path, body))
        except Rejected as taken:
            # Its name is another job's, which then gets a version more; or our own first request's.
            if _NAME_TAKEN not in taken.trail:
                raise
        job = self._named(str(body["job_name"]))
        if job is None:
            raise Unreachable(f"a job is called {body['job_name']}, and the platform does not list it")
        versions = list(self._versions(job))
        for version in versions:
            if self._is_ours(job, version, request):
                return f"{job}/{version['version_id']}"
        if not versions:
            raise BadAnswer(f"job {job} has no version")
        config = {**body["config"], "pre_version_id": versions[0]["version_id"]}
        return self._created(self._send(f"{_path_v1(job)}/versions", {"job_desc": body["job_desc"], "config": config}))

    def find(self, request: Request) -> str | None:
        """Versions share the job's name: ours is the one that writes where only this trial writes."""
        job = self._named(str(request.body["job_name"]))
        for version in self._versions(job) if job else ():
            if self._is_ours(job or "", version, request):
                return f"{job}/{version['version_id']}"
        return None

    def named(self, name: str) -> str | None:
        """The newest version; the number of a job is taken for its name too."""
        for row in self._rows(self._glance, "" if name.isdecimal() else name):
            if name in {row["job_name"], str(row["job_id"])}:
                newest = next(self._versions(str(row["job_id"])), None)
                return f"{row['job_id']}/{newest['version_id']}" if newest else None
        return None

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        wanted = list(dict.fromkeys(job_ids))
        listed = self._listed(set(wanted)) if len(wanted) > _LOOKED_UP_SINGLY_V1 else {}
        return {job_id: listed.get(job_id) or self._shown(job_id) for job_id in wanted}

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """Line by line; of a long log only the end is shown. Offsets are positions of lines, plus one."""
        names = self._session.call("GET", f"{_path_v1(job_id)}/log/file-names", ignore=NO_LOG_YET)
        with reading("the names of logs"):
            name = next((str(name) for name in names.get("log_file_list") or () if str(name).endswith(f".{node}")), "")
        if not name:
            return LogPart("", since)
        told: list[str] = []
        while True:
            query = {"log_file": name, "lines": _LINES, "order": "desc"}
            query |= {"base_line": str(since - 1)} if since else {}
            page = self._session.call("GET", f"{_path_v1(job_id)}/aom-log", query=query, ignore=NO_LOG_YET)
            with reading("a log"):
                lines, content = int(page.get("lines") or 0), str(page.get("content") or "")
                if not lines:
                    return LogPart("".join(told), since)
                if not since and int(page["start_line"]):
                    told.append("[earlier lines are not shown]\n")
                told.append(content)
                since = int(page["end_line"]) + 1
            if lines < _LINES:
                return LogPart("".join(told), since)

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        """V1 samples the whole job, not its nodes."""
        answer = self._glance(_path_v1(job_id))
        with reading("the use of nodes"):
            listed = answer.get("system_metric_list") or {}
            told = {name: [float(value) for value in listed.get(theirs) or ()] for theirs, name in USAGE.items()}
        sampled = {name: [value for value in values if 0 <= value < math.inf] for name, values in told.items()}
        return {name: samples for name, samples in sampled.items() if samples}

    def events(self, job_id: str) -> Sequence[str]:
        return ()  # V1 has none

    def cancel(self, job_id: str) -> None:
        path, patience_s = f"{_path_v1(job_id)}/stop", min(LOOK_S, self._session.patience_s)
        ended = (UNKNOWN_JOB, ENDED_ALREADY)
        self._session.call("POST", path, patience_s=patience_s, timeout_s=LOOK_TIMEOUT_S, ignore=ended)

    def delete(self, job_id: str) -> None:
        """A job with all its versions, or one version of it; what is not there is not missed."""
        self._session.call("DELETE", _path_v1(job_id), ignore=(UNKNOWN_JOB,))

    def _send(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._session.call("POST", path, body, patience_s=0.0)
        except BadAnswer as error:
            raise Unreachable(f"whether the job was created is not known: {error}") from None

    def _created(self, answer: Mapping[str, Any]) -> str:
        try:
            return f"{answer['job_id']}/{answer['version_id']}"
        except KeyError:
            raise Unreachable("whether the job was created is not known: an answer without its id") from None

    def _named(self, name: str) -> str | None:
        """The id of the job of exactly this name: the platform's own search finds names that contain it."""
        ask = partial(self._session.call, "GET", patience_s=self._session.patience_s)
        found = {str(row["job_id"]) for row in self._rows(ask, name) if row["job_name"] == name}
        if len(found) > 1:
            raise BadAnswer(f"{len(found)} jobs are called {name}: {', '.join(sorted(found))}")
        return next(iter(found), None)

    def _rows(self, ask: Callable[..., dict[str, Any]], name: str = "") -> Iterator[dict[str, Any]]:
        page = 1
        while True:
            query = {"per_page": _PAGE_V1, "page": page, "sortBy": "create_time", "order": "desc"}
            rows = ask(JOBS, query=query | ({"search_content": name} if name else {})).get("jobs") or []
            with reading("a list of jobs"):
                yield from [{**row, "job_id": row["job_id"], "job_name": row["job_name"]} for row in rows]
            if len(rows) < _PAGE_V1:
                return
            page += 1

    def _versions(self, job: str) -> Iterator[dict[str, Any]]:
        """Newest first."""
        page = 1
        while True:
            query = {"per_page": _PAGE_V1, "page": page}
            rows = self._session.call("GET", f"{_path_v1(job)}/versions", query=query).get("versions") or []
            with reading("a list of versions"):
                yield from sorted(rows, key=lambda row: -int(row["version_id"]))
            if len(rows) < _PAGE_V1:
                return
            page += 1

    def _is_ours(self, job: str, version: Mapping[str, Any], request: Request) -> bool:
        """By the place that only this trial writes to; where that is not told, by the trial's id in the description."""
        told = version if version.get("train_url") else self._glance(_path_v1(f"{job}/{version['version_id']}"))
        if "train_url" not in told:
            return str(told.get("job_desc", "")) == str(request.body["job_desc"])
        return str(told["train_url"]).strip("/") == str(request.body["config"]["train_url"]).strip("/")

    def _shown(self, job_id: str) -> Job:
        if "/" not in job_id:
            return Job(job_id, Phase.LOST, "", reason="no job of V1 is called so, and an id is JOB/VERSION")
        try:
            return _job_v1(job_id, self._glance(_path_v1(job_id)))
        except JobLost as error:
            return Job(job_id, Phase.LOST, "", reason=str(error))

    def _listed(self, wanted: set[str]) -> dict[str, Job]:
        """Those of the wanted that still wait or run; how one ended is shown singly."""
        rows = self._rows(self._glance)
        with reading("a list of jobs"):
            seen = {f"{row['job_id']}/{row['version_id']}": row for row in rows}
            jobs = {job_id: _job_v1(job_id, seen[job_id]) for job_id in wanted & seen.keys()}
        return {job_id: job for job_id, job in jobs.items() if not job.phase.is_final}

    def _glance(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        patience_s = min(LOOK_S, self._session.patience_s)
        return self._session.call("GET", path, query=query, patience_s=patience_s, timeout_s=LOOK_TIMEOUT_S)


def _path_v1(job_id: str) -> str:
    """Of a job, or of a version: `<job>/<version>`."""
    job, _, version = job_id.partition("/")
    return f"{JOBS}/{quote(job, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _job_v1(job_id: str, told: Mapping[str, Any]) -> Job:
    with reading("a job"):
        code = int(told["status"])  # a number, or a text with one
        known = 0 < code < len(STATES)
        word, phase = STATES[code] if 0 <= code < len(STATES) else (f"status {code}", Phase.RUNNING)
        created, started = told.get("create_time"), told.get("start_time")
        ran = float(told.get("duration") or 0) / 1000
        return Job(
            id=job_id,
            phase=phase,
            platform_phase=word,
            known=known,
            reason=f"V1 says {word}" if phase in {Phase.FAILED, Phase.LOST} else "",
            queued_s=max(0.0, (int(started) - int(created)) / 1000) if started and created else None,
            ran_s=ran if phase is not Phase.PENDING else None,
            name=str(told.get("job_name") or ""),
        )
