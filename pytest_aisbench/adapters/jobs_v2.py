"""Jobs by ModelArts' training-job API V2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from pytest_aisbench.adapters import training_job
from pytest_aisbench.adapters.answers import reading
from pytest_aisbench.adapters.offer_v2 import OfferV2
from pytest_aisbench.adapters.signed import Session
from pytest_aisbench.domain.checkup import Check
from pytest_aisbench.domain.job import Job, JobSpec, LogPart, Phase, Request
from pytest_aisbench.errors import BadAnswer, JobLost, Unreachable

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
LOOK_S = 5.0  # one look waits for no outage, since others are waiting behind it; the next look asks again
LOOK_TIMEOUT_S = 20.0
_PAGE = 50
_MOST_EVENTS = 50
_SHOWN_SINGLY = 2  # more jobs than these are looked for in the list first
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

    def __init__(self, session: Session, place: Callable[[JobSpec], training_job.Placement]) -> None:
        self._session = session
        self._place = place
        self._offer = OfferV2(session)

    def check(self, patience_s: float) -> None:
        self._offer.check(patience_s)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self._offer.vet(self._place(spec))

    def render(self, spec: JobSpec) -> Request:
        return Request("POST", _JOBS, training_job.body(spec, self._place(spec)))

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
        listed = self._listed(set(wanted)) if len(wanted) > _SHOWN_SINGLY else {}
        return {job_id: listed.get(job_id) or self._shown(job_id) for job_id in wanted}

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """The platform shows the newest 5 MB; what was missed is said in the text. Offsets count bytes."""
        path = f"{_path(job_id)}/tasks/worker-{node}/logs/preview"
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
            f"{_path(job_id)}/metrics/worker-{node}",
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
        answer = self._glance("GET", f"{_path(job_id)}/events", query=query)
        with reading("the events of a job"):
            told = [(str(row["time"]), str(row["level"]), str(row["message"])) for row in answer.get("events") or ()]
        return [f"{time} {level}: {message}" for time, level, message in reversed(told)]

    def cancel(self, job_id: str) -> None:
        self._session.call(
            "POST",
            f"{_path(job_id)}/actions",
            {"action_type": "terminate"},
            patience_s=min(LOOK_S, self._session.patience_s),  # asked again at the next look
            timeout_s=LOOK_TIMEOUT_S,
            ignore=(UNKNOWN_JOB, ENDED_ALREADY),
        )

    def _shown(self, job_id: str) -> Job:
        try:
            return _job(self._glance("GET", _path(job_id)))
        except JobLost as error:
            return Job(job_id, Phase.LOST, "", reason=str(error))

    def _listed(self, wanted: set[str]) -> dict[str, Job]:
        """Those of the wanted that are among the newest jobs. A list may leave out why a job ended: then it is
        shown singly."""
        found = {}
        for job, _ in self._search(self._glance, [], pages=math.ceil(len(wanted) / _PAGE) + 1):
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
                "offset": page * _PAGE,
                "limit": _PAGE,
                "sort_by": "create_time",
                "order": "desc",
                "filters": filters,
            }
            items = ask("POST", _SEARCH, body).get("items") or []
            with reading("a list of jobs"):
                yield from [(_job(item), str(item["metadata"].get("name"))) for item in items]
            if len(items) < _PAGE:
                return


def _path(job_id: str) -> str:
    return f"{_JOBS}/{quote(job_id, safe='')}"


def _job(answer: Mapping[str, Any]) -> Job:
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
