"""Jobs by ModelArts' training-job API V1: a job has versions, and it is a version that runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from pytest_aisbench.adapters import training_job, training_job_v1
from pytest_aisbench.adapters.answers import reading
from pytest_aisbench.adapters.jobs_v2 import ENDED_ALREADY, LOOK_S, LOOK_TIMEOUT_S, NO_LOG_YET, UNKNOWN_JOB, USAGE
from pytest_aisbench.adapters.offer_v1 import JOBS, OfferV1
from pytest_aisbench.adapters.signed import Session
from pytest_aisbench.domain.checkup import Check
from pytest_aisbench.domain.job import Job, JobSpec, LogPart, Phase, Request
from pytest_aisbench.domain.ports import Store
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.errors import BadAnswer, JobLost, Rejected, Unreachable

_NAME_TAKEN = "ModelArts.0103"
_PAGE = 1000
_LINES = 500
_SHOWN_SINGLY = 2

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

    def __init__(self, session: Session, place: Callable[[JobSpec], training_job.Placement], store: Store) -> None:
        self._session = session
        self._place = place
        self._store = store
        self._offer = OfferV1(session)

    def check(self, patience_s: float) -> None:
        self._offer.check(patience_s)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self._offer.vet(self._place(spec))

    def render(self, spec: JobSpec) -> Request:
        """With names where the request that is sent has the numbers that this platform gives them."""
        return Request("POST", JOBS, training_job_v1.body(spec, self._place(spec)))

    def submit(self, request: Request) -> str:
        body = {**request.body, "config": self._offer.numbered(request.body["config"])}
        nothing = StoreUrl.parse(f"obs:/{body['config']['data_url']}")
        if training_job_v1.is_nothing(nothing) and self._store.head(nothing) is None:
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
        return self._created(self._send(f"{_path(job)}/versions", {"job_desc": body["job_desc"], "config": config}))

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
        listed = self._listed(set(wanted)) if len(wanted) > _SHOWN_SINGLY else {}
        return {job_id: listed.get(job_id) or self._shown(job_id) for job_id in wanted}

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """Line by line; of a long log only the end is shown. Offsets are positions of lines, plus one."""
        names = self._session.call("GET", f"{_path(job_id)}/log/file-names", ignore=NO_LOG_YET)
        with reading("the names of logs"):
            name = next((str(name) for name in names.get("log_file_list") or () if str(name).endswith(f".{node}")), "")
        if not name:
            return LogPart("", since)
        told: list[str] = []
        while True:
            query = {"log_file": name, "lines": _LINES, "order": "desc"}
            query |= {"base_line": str(since - 1)} if since else {}
            page = self._session.call("GET", f"{_path(job_id)}/aom-log", query=query, ignore=NO_LOG_YET)
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
        answer = self._glance(_path(job_id))
        with reading("the use of nodes"):
            listed = answer.get("system_metric_list") or {}
            told = {name: [float(value) for value in listed.get(theirs) or ()] for theirs, name in USAGE.items()}
        sampled = {name: [value for value in values if 0 <= value < math.inf] for name, values in told.items()}
        return {name: samples for name, samples in sampled.items() if samples}

    def events(self, job_id: str) -> Sequence[str]:
        return ()  # V1 has none

    def cancel(self, job_id: str) -> None:
        path, patience_s = f"{_path(job_id)}/stop", min(LOOK_S, self._session.patience_s)
        ended = (UNKNOWN_JOB, ENDED_ALREADY)
        self._session.call("POST", path, patience_s=patience_s, timeout_s=LOOK_TIMEOUT_S, ignore=ended)

    def delete(self, job_id: str) -> None:
        """A job with all its versions, or one version of it; what is not there is not missed."""
        self._session.call("DELETE", _path(job_id), ignore=(UNKNOWN_JOB,))

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
            query = {"per_page": _PAGE, "page": page, "sortBy": "create_time", "order": "desc"}
            rows = ask(JOBS, query=query | ({"search_content": name} if name else {})).get("jobs") or []
            with reading("a list of jobs"):
                yield from [{**row, "job_id": row["job_id"], "job_name": row["job_name"]} for row in rows]
            if len(rows) < _PAGE:
                return
            page += 1

    def _versions(self, job: str) -> Iterator[dict[str, Any]]:
        """Newest first."""
        page = 1
        while True:
            query = {"per_page": _PAGE, "page": page}
            rows = self._session.call("GET", f"{_path(job)}/versions", query=query).get("versions") or []
            with reading("a list of versions"):
                yield from sorted(rows, key=lambda row: -int(row["version_id"]))
            if len(rows) < _PAGE:
                return
            page += 1

    def _is_ours(self, job: str, version: Mapping[str, Any], request: Request) -> bool:
        """By the place that only this trial writes to; where that is not told, by the trial's id in the description."""
        told = version if version.get("train_url") else self._glance(_path(f"{job}/{version['version_id']}"))
        if "train_url" not in told:
            return str(told.get("job_desc", "")) == str(request.body["job_desc"])
        return str(told["train_url"]).strip("/") == str(request.body["config"]["train_url"]).strip("/")

    def _shown(self, job_id: str) -> Job:
        if "/" not in job_id:
            return Job(job_id, Phase.LOST, "", reason="no job of V1 is called so, and an id is JOB/VERSION")
        try:
            return _job(job_id, self._glance(_path(job_id)))
        except JobLost as error:
            return Job(job_id, Phase.LOST, "", reason=str(error))

    def _listed(self, wanted: set[str]) -> dict[str, Job]:
        """Those of the wanted that still wait or run; how one ended is shown singly."""
        rows = self._rows(self._glance)
        with reading("a list of jobs"):
            seen = {f"{row['job_id']}/{row['version_id']}": row for row in rows}
            jobs = {job_id: _job(job_id, seen[job_id]) for job_id in wanted & seen.keys()}
        return {job_id: job for job_id, job in jobs.items() if not job.phase.is_final}

    def _glance(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        patience_s = min(LOOK_S, self._session.patience_s)
        return self._session.call("GET", path, query=query, patience_s=patience_s, timeout_s=LOOK_TIMEOUT_S)


def _path(job_id: str) -> str:
    """Of a job, or of a version: `<job>/<version>`."""
    job, _, version = job_id.partition("/")
    return f"{JOBS}/{quote(job, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _job(job_id: str, told: Mapping[str, Any]) -> Job:
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
