"""The calls of Apulis that change something: they submit, kill, pause and delete jobs, and set what a job has."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.apulis_cluster import ADMIN
from pytest_aisbench.localcloud.apulis_jobs import DELETABLE
from pytest_aisbench.localcloud.apulis_reading import BrokenError
from pytest_aisbench.localcloud.apulis_rules import Rejected
from pytest_aisbench.localcloud.message import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_aisbench.localcloud.apulis_jobs import ApulisJobs, Entry
    from pytest_aisbench.localcloud.apulis_login import Login
    from pytest_aisbench.localcloud.message import Request

_SUBMIT_NEEDS = ("jobName", "vcName", "resourcegpu", "gpuType", "dataPath", "image", "jobType")
_ENDPOINTS = ("ssh", "ipython", "tensorboard", "vscode")
_POD_PORTS = range(40000, 50000)
_LONGEST_NAME = 16
_RANGES = {False: (100, 200), True: (1, 1000)}  # of priorities: a user's, an administrator's


class Acting:
    def __init__(self, jobs: ApulisJobs, login: Login) -> None:
        self._jobs = jobs
        self._login = login
        self.calls: dict[tuple[str, str], Callable[[Request], Response]] = {
            ("POST", "PostJob"): self._post,
            ("GET", "SubmitJob"): self._submit_by_query,
            ("GET", "KillJob"): self._kill,
            ("GET", "PauseJob"): self._pause,
            ("GET", "ResumeJob"): self._resume,
            ("GET", "ApproveJob"): self._approve,
            ("GET", "CloneJob"): self._clone,
            ("DELETE", "DeleteJob"): self._delete,
            ("GET", "endpoints"): self._endpoints,
            ("POST", "endpoints"): self._add_endpoints,
            ("GET", "jobs/priorities"): self._priorities,
            ("POST", "jobs/priorities"): self._set_priorities,
        }

    def _post(self, request: Request) -> Response:
        """A failure is an answer without jobId: code and error are always those of a success."""
        body = _body(request)
        if body is None:
            return Response.json(400, {"message": "Failed to decode JSON object"})
        answer: dict[str, Any] = {"code": 0, "error": ""}
        if "authorization" in request.headers and self._login.bearer(request) is None:
            return Response.json(200, answer)
        try:
            return Response.json(200, {"jobId": self._submit(body).id} | answer)
        except Rejected:
            return Response.json(200, answer)

    def _submit_by_query(self, request: Request) -> Response:
        if missing := [name for name in _SUBMIT_NEEDS if not request.query.get(name)]:
            return Response.json(200, {"error": f"Cannot create job!{', '.join(missing)} cannot be empty"})
        try:
            return Response.json(200, {"jobId": self._submit({"numps": 1, **request.query}).id})
        except Rejected as error:
            return Response.json(200, {"error": f"Cannot create job!{error}"})

    def _submit(self, body: dict[str, Any]) -> Entry:
        try:
            return self._jobs.submit(body, may_use=self._login.is_known(body.get("userName")))
        except (ValueError, TypeError):
            raise BrokenError from None

    def _kill(self, request: Request) -> Response:
        entry = self._of(request)
        if entry and self._jobs.kill(entry):
            return _result("Success, the job is scheduled to be terminated.")
        return _result(f"Cannot Kill the job. Job ID:{request.query.get('jobId')}")

    def _pause(self, request: Request) -> Response:
        entry = self._of(request)
        if entry and self._jobs.pause(entry):
            return _result("Success, the job is scheduled to be paused.")
        return _result(f"Cannot pause the job. Job ID:{request.query.get('jobId')}")

    def _resume(self, request: Request) -> Response:
        entry = self._of(request)
        if entry and self._jobs.resume(entry):
            return _result("Success, the job is scheduled to be resumed.")
        return _result(f"Cannot resume the job. Job ID:{request.query.get('jobId')}")

    def _approve(self, request: Request) -> Response:
        """Every job is approved by itself, so this comes too late."""
        return _result(f"Cannot approve the job. Job ID:{request.query.get('jobId')}")

    def _clone(self, request: Request) -> Response:
        entry = self._of(request)
        if entry is None:
            return _result(f"Cannot clone the job. Job ID:{request.query.get('jobId')}")
        params = copy.deepcopy(entry.params)
        for name in ("jobId", "jobPath"):  # given anew
            del params[name]
        params["workPath"] = params["workPath"].removeprefix(f"{params['userName']}/")
        return _result(f"Success, the job is cloned. Job ID:{self._submit(params).id}")

    def _delete(self, request: Request) -> Response:
        job_id = request.query.get("jobId")
        with self._jobs.lock:
            entry = self._jobs.find(job_id)
            if entry is None or entry.status not in DELETABLE:
                return Response.json(200, {"code": -1, "result": f"Cannot delete the job. Job ID:{job_id}"})
            self._jobs.delete(entry)
        return Response.json(200, {"code": 0, "result": "Success, the job is deleted."})

    def _endpoints(self, request: Request) -> Response:
        with self._jobs.lock:
            entry = self._of(request)
            return Response.json(200, list(entry.endpoints.values()) if entry else [])

    def _add_endpoints(self, request: Request) -> Response:
        body = _body(request) or {}
        with self._jobs.lock:
            entry = self._jobs.of(body.get("jobId"), request.query.get("userName"))
            wanted = [_endpoint(given) for given in body.get("endpoints") or ()]
            if entry is None or None in wanted:
                return Response.json(200, {"error": "Cannot create endpoints"})
            for endpoint in filter(None, wanted):
                key = f"e-{entry.id}-{endpoint['name']}"
                own = {"id": key, "jobId": entry.id, "username": entry.params["userName"], "status": "pending"}
                entry.endpoints.setdefault(key, endpoint | own)
            return Response.json(200, entry.endpoints)

    def _priorities(self, request: Request) -> Response:
        with self._jobs.lock:
            return Response.json(200, {entry.id: entry.priority for entry in self._jobs.all()})

    def _set_priorities(self, request: Request) -> Response:
        user = request.query.get("userName")
        lowest, highest = _RANGES[user == ADMIN]
        changed = {}
        with self._jobs.lock:
            for job_id, wanted in (_body(request) or {}).items():
                if (entry := self._jobs.of(job_id, user)) and isinstance(wanted, int):
                    changed[job_id] = entry.priority = min(max(wanted, lowest), highest)
        return Response.json(200, changed)

    def _of(self, request: Request) -> Entry | None:
        return self._jobs.of(request.query.get("jobId"), request.query.get("userName"))


def _endpoint(given: object) -> dict[str, Any] | None:
    """None where it is not one."""
    if given in _ENDPOINTS:
        return {"name": given}
    if not isinstance(given, dict):
        return None
    name, port = given.get("name"), given.get("podPort")
    fits = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and port in _POD_PORTS
    return {"name": name, "podPort": port} if fits else None


def _body(request: Request) -> dict[str, Any] | None:
    try:
        body = request.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _result(text: str) -> Response:
    return Response.json(200, {"result": text})
