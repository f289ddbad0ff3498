"""The Apulis platform: its REST API below /apis/, the login of its dashboard and its charts. `Apulis` routes the
requests.

As the platform does, it answers nearly every request with 200, also those that fail.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import hmac
import json
import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_aisbench.localcloud.apulis import VC
from pytest_aisbench.localcloud.apulis.jobs import (
    DELETABLE,
    ENDED,
    QUEUED,
    ApulisJobs,
    Entry,
    JobLog,
    detail_json,
    encoded_row_json,
    in_raw_order,
    lists_json,
    page_json,
    row_json,
    status_json,
)
from pytest_aisbench.localcloud.apulis.rules import ADMIN, DEVICES, POD_PORTS, Rejected
from pytest_aisbench.localcloud.engine.process_engine import USAGE_PERIOD_S
from pytest_aisbench.localcloud.messages import Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_aisbench.localcloud.engine.launch import Engine
    from pytest_aisbench.localcloud.iam import Account
    from pytest_aisbench.localcloud.modelarts.jobs import Jobs
    from pytest_aisbench.localcloud.modelarts.rules import Catalog


_APIS = "/apis/"
_FOLDERS = (_APIS, "/api/", "/ai_arts/", "/custom-user-dashboard-backend/", "/endpoints/")
_DASHBOARD = "/custom-user-dashboard-backend/auth/"
_PAGE = b"<!DOCTYPE HTML>\n<title>500 Internal Server Error</title>\n<h1>Internal Server Error</h1>\n"


class Apulis:
    def __init__(
        self,
        account: Account,
        jobs: Jobs,
        engine: Engine,
        storage: Path,
        catalog: Catalog,
        *,
        time_limit: float | None = None,
    ) -> None:
        """`time_limit`: the longest that a job may run, in seconds, which administrators of virtual clusters can
        set."""
        login = Login(account)
        self._jobs = ApulisJobs(jobs, account, storage, catalog, time_limit)
        queries, actions = JobQueries(self._jobs, JobLog(engine), login), JobActions(self._jobs, login)
        calls = queries.calls | {key: login.required(key[1], call) for key, call in actions.calls.items()}
        self._calls: dict[tuple[str, str], tuple[str, Callable[[Request], Response]]] = {
            (method, _APIS + name): (name, call) for (method, name), call in calls.items()
        }
        self._calls["POST", _DASHBOARD + "login"] = ("login", login.login)
        self._calls["GET", _DASHBOARD + "currentUser"] = ("currentUser", login.current_user)
        self._calls["GET", CHARTS_PATH] = ("query_range", Charts(self._jobs, engine).query)
        self.operations = sorted({name for name, _ in self._calls.values()})

    def serve_at(self, url: str) -> None:
        """Tell pods this url of the service."""
        self._jobs.rest_api = url

    def answer(self, request: Request) -> Response:
        call = self._call(request)
        if call is None:
            return self._unserved(request)
        try:
            return call[1](request)
        except BrokenError as error:
            return self.crash(request, error)

    def quick(self, request: Request) -> bool:
        """Its jobs keep their logs and results as files, which are read for the answer."""
        return False

    def crash(self, request: Request, error: Exception) -> Response:
        return Response(500, _PAGE, {"Content-Type": "text/html"})

    def operation(self, request: Request) -> str:
        call = self._call(request)
        return call[0] if call else "other"

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        return Response.json(status, {"message": message or code or f"HTTP {status}"})

    def _unserved(self, request: Request) -> Response:
        """There is no list of what the platform has, so whatever is below its folders may be."""
        path = request.path.rstrip("/")
        if any(path == served for _, served in self._calls):
            return self.refuse(request, 405, message="The method is not allowed for the requested URL.")
        if path.startswith(_FOLDERS):
            return self.refuse(request, 501, message=f"{request.method} {path} is not served by the local cloud.")
        return self.refuse(request, 404, message="The requested URL was not found on the server.")

    def _call(self, request: Request) -> tuple[str, Callable[[Request], Response]] | None:
        return self._calls.get((request.method, request.path.rstrip("/")))


class BrokenError(Exception):
    """The platform's own code would fail here: the answer is its 500, a page."""


# Who logs in: one user with a password, and the signed tokens that stand for him.

TOKEN_LIFE = 2 * 24 * 3600
LOGINS, PERIOD = 10, 600.0
_REFUSED: dict[str, Any] = {"code": 0, "error": ""}
"""The answer to a job that is refused: code and error are those of a success, and there is no jobId."""
_UNAUTHORIZED = {"success": False, "message": "UNAUTHORIZED"}
_COOKIE = re.compile(r"(?:^|;\s*)token=([\w.-]+)")
_PERMISSIONS = ["SUBMIT_TRAINING_JOB", "VIEW_CLUSTER_STATUS"]


class Login:
    def __init__(self, account: Account) -> None:
        self._user = account.user
        self._digest = hashlib.md5(account.password.encode(), usedforsecurity=False).hexdigest()
        self._key = hmac.digest(account.secret_key.encode(), b"apulis", "sha256")
        self._failed: deque[float] = deque()
        self._lock = threading.Lock()

    def has_user(self, user: object) -> bool:
        return user in {self._user, ADMIN}

    def login(self, request: Request) -> Response:
        with self._lock:
            if self._failures() >= LOGINS:
                return Response.json(429, {"success": False, "message": "Too Many Requests"})
            fields = _body(request) or {}
            digest = str(fields.get("password", "")).encode()
            if fields.get("userName") != self._user or not hmac.compare_digest(digest, self._digest.encode()):
                self._failed.append(time.monotonic())
                return Response.json(401, _UNAUTHORIZED)
        token = self._token()
        answer = {"success": True, "token": token, "currentRole": ["User"], "permissionList": _PERMISSIONS}
        return Response.json(200, answer, {"Set-Cookie": f"token={token}; path=/; SameSite=Strict; HttpOnly"})

    def current_user(self, request: Request) -> Response:
        if self.bearer(request) is None:
            return Response.json(401, _UNAUTHORIZED)
        user = {"success": True, "id": 1, "userName": self._user, "nickName": self._user, "currentRole": ["User"]}
        return Response.json(200, user | {"permissionList": _PERMISSIONS, "currentVC": [VC]})

    def required(self, name: str, call: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """The call for signed-in users only. The platform takes a user's name without proof; here every process of
        this machine can send requests, and a job runs commands with the rights of the user who started the cloud."""

        def checked(request: Request) -> Response:
            if self.bearer(request) is not None:
                return call(request)
            if name == "PostJob" and "authorization" in request.headers:
                return Response.json(200, _REFUSED)  # as the platform words an expired token
            return Response.json(401, _UNAUTHORIZED)

        return checked

    def bearer(self, request: Request) -> str | None:
        """The user whose token came with the request, as `Authorization: Bearer` or in the cookie of the login; None
        where there is none, or it is invalid or has expired."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not scheme and (cookie := _COOKIE.search(request.headers.get("cookie", ""))):
            scheme, token = "bearer", cookie[1]
        head, _, rest = token.partition(".")
        claims, _, signature = rest.partition(".")
        signed = hmac.compare_digest(self._sign(f"{head}.{claims}").encode(), signature.encode())
        if scheme.lower() != "bearer" or not signed:
            return None
        content = _decoded(claims)
        return str(content["userName"]) if content and content["exp"] > time.time() else None

    def _failures(self) -> int:
        """How many logins failed lately. Those that succeed do not count: every process of a run logs in."""
        while self._failed and self._failed[0] <= time.monotonic() - PERIOD:
            self._failed.popleft()
        return len(self._failed)

    def _token(self) -> str:
        claims = {"uid": 1, "userName": self._user, "exp": int(time.time()) + TOKEN_LIFE}
        body = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        return f"{body}.{self._sign(body)}"

    def _sign(self, body: str) -> str:
        return _base64(hmac.digest(self._key, body.encode(), "sha256"))


def _encoded(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content, separators=(",", ":")).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("exp"), int) else None


# Calls that read: one job, its log, lists of jobs, machines.

_HOLDING = {"Running", "Terminating"}  # cards
_PAGE_SIZE = 10
_ORDERS = {"jobName", "jobStatus", "jobType", "priority"}


class JobQueries:
    def __init__(self, jobs: ApulisJobs, log: JobLog, login: Login) -> None:
        self._jobs = jobs
        self._log = log
        self._login = login
        self.calls: dict[tuple[str, str], Callable[[Request], Response]] = {
            ("GET", "GetJobStatus"): self._status,
            ("GET", "GetJobDetail"): self._detail,
            ("GET", "GetJobDetailV2"): self._detail_v2,
            ("GET", "GetJobLog"): self._page,
            ("GET", "GetJobRawLog"): self._raw_log,
            ("GET", "ListJobs"): self._list,
            ("GET", "ListJobsV2"): self._list_v2,
            ("GET", "ListJobsV3"): self._list_v3,
            ("GET", "ListVCs"): self._vcs,
            ("GET", "GetVC"): self._vc,
            ("GET", "GetAllDevice"): self._devices,
            ("GET", "GetVCPendingJobs"): self._pending,
        }

    def _status(self, request: Request) -> Response:
        """Needs no userName: the platform tells the status to every client."""
        with self._jobs.lock:
            entry = self._jobs.find(request.query.get("jobId"))
            if entry is None:
                return Response.json(200, None)
            answer = status_json(entry)
            entry.count_answer()
        if answer["jobStatus"] in ENDED:
            self._log.pages(entry)  # a client that sees the end must find the whole log in the shared folder
        return Response.json(200, answer)

    def _detail(self, request: Request) -> Response:
        with self._jobs.lock:
            entry = _entry(self._jobs, request)
            if entry is None:
                raise BrokenError
            answer = detail_json(entry) | {"errorMsg": entry.message, "priority": entry.priority}
            entry.count_answer()
        return Response.json(200, answer | {"log": "".join(self._log.pages(entry)[-1:])})

    def _detail_v2(self, request: Request) -> Response:
        with self._jobs.lock:
            entry = _entry(self._jobs, request)
            if entry is None:
                return Response.json(200, {})
            answer = detail_json(entry)
            entry.count_answer()
        return Response.json(200, answer)

    def _page(self, request: Request) -> Response:
        if missing := _missing(request):
            return missing
        page = request.query.get("page") or "1"
        if not page.lstrip("-").isdigit():
            return Response.json(400, {"message": {"page": f"invalid literal for int() with base 10: '{page}'"}})
        entry = _entry(self._jobs, request)
        pages = self._log.pages(entry) if entry else []
        text = pages[min(max(int(page), 1), len(pages)) - 1] if pages else ""
        return Response.json(200, {"log": text, "cursor": None, "max_page": len(pages)})

    def _raw_log(self, request: Request) -> Response:
        if missing := _missing(request):
            return missing
        entry = _entry(self._jobs, request)
        return Response.json(200, {"log": in_raw_order(self._log.pages(entry)) if entry else ""})

    def _list(self, request: Request) -> Response:
        return Response.json(200, lists_json(self._rows(request, encoded_row_json)))

    def _list_v2(self, request: Request) -> Response:
        return Response.json(200, lists_json(self._rows(request, row_json)))

    def _list_v3(self, request: Request) -> Response:
        query, rows = request.query, self._rows(request, row_json)
        for field in ("jobType", "jobStatus"):
            values = query.get(field, "all").split(",")
            rows = [row for row in rows if "all" in values or row[field] in values]
        rows = [row for row in rows if query.get("searchWord", "") in row["jobName"]]
        if (key := query.get("orderBy", "")) in _ORDERS:
            rows.sort(key=lambda row: str(row[key]), reverse=True)
        if query.get("order", "desc").lower() == "asc":
            rows.reverse()
        size = _number(query.get("pageSize"), _PAGE_SIZE)
        start = (max(_number(query.get("pageNum"), 1), 1) - 1) * size
        return Response.json(200, page_json(rows, rows[start : start + size]))

    def _rows(self, request: Request, row: Callable[[Entry], dict[str, Any]]) -> list[dict[str, Any]]:
        query = request.query
        if not self._login.has_user(query.get("userName")) or query.get("vcName") not in {VC, "all"}:
            return []
        owner = query.get("jobOwner") or query["userName"]
        with self._jobs.lock:
            entries = [entry for entry in self._jobs.all() if owner in {"all", entry.params["userName"]}]
            entries = entries[: _number(query.get("num"), len(entries))]
            rows = [row(entry) for entry in entries]
            for entry in entries:
                entry.count_answer()
        return rows

    def _vcs(self, request: Request) -> Response:
        may_see = self._login.has_user(request.query.get("userName"))
        return Response.json(200, {"result": [self._vc_json()] if may_see else []})

    def _vc(self, request: Request) -> Response:
        may_see = self._login.has_user(request.query.get("userName")) and request.query.get("vcName") == VC
        return Response.json(200, self._vc_json() if may_see else None)

    def _vc_json(self) -> dict[str, Any]:
        devices = self._devices_json()
        free = {name: sum(node["allocatable"] for node in device["detail"]) for name, device in devices.items()}
        quota = {name: device["capacity"] for name, device in devices.items()}
        return {"vcName": VC, "quota": quota, "gpu_capacity": quota, "gpu_avaliable": free, "metadata": {}}

    def _devices(self, request: Request) -> Response:
        may_see = self._login.has_user(request.query.get("userName"))
        return Response.json(200, self._devices_json() if may_see else {})

    def _devices_json(self) -> dict[str, Any]:
        with self._jobs.lock:
            jobs = [entry.job for entry in self._jobs.all() if entry.job]
            running = [job.launch.pods for job in jobs if job.launch.pods and job.phase in _HOLDING]
        return {name: device.as_json(running) for name, device in DEVICES.items()}

    def _pending(self, request: Request) -> Response:
        rows = self._rows(request, row_json)
        return Response.json(200, {"result": [row for row in rows if row["jobStatus"] in QUEUED]})


def _entry(jobs: ApulisJobs, request: Request) -> Entry | None:
    return jobs.find_for(request.query.get("userName"), request.query.get("jobId"))


def _missing(request: Request) -> Response | None:
    for name in ("jobId", "userName"):
        if not request.query.get(name):
            return Response.json(400, {"message": {name: f"Missing required parameter: {name}"}})
    return None


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default


# Calls that change something: they submit, kill, pause and delete jobs, and set what a job has.

_SUBMIT_NEEDS = ("jobName", "vcName", "resourcegpu", "gpuType", "dataPath", "image", "jobType")
_ENDPOINTS = ("ssh", "ipython", "tensorboard", "vscode")
_LONGEST_NAME = 16
_RANGES = {False: (100, 200), True: (1, 1000)}  # the priorities that a user, an administrator may set


class JobActions:
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
        body = _body(request)
        if body is None:
            return Response.json(400, {"message": "Failed to decode JSON object"})
        try:
            return Response.json(200, {"jobId": self._submit(body).id} | _REFUSED)
        except Rejected:
            return Response.json(200, _REFUSED)

    def _submit_by_query(self, request: Request) -> Response:
        if missing := [name for name in _SUBMIT_NEEDS if not request.query.get(name)]:
            return Response.json(200, {"error": f"Cannot create job!{', '.join(missing)} cannot be empty"})
        try:
            return Response.json(200, {"jobId": self._submit({"numps": 1, **request.query}).id})
        except Rejected as error:
            return Response.json(200, {"error": f"Cannot create job!{error}"})

    def _submit(self, body: dict[str, Any]) -> Entry:
        try:
            return self._jobs.submit(body, may_use=self._login.has_user(body.get("userName")))
        except (ValueError, TypeError):
            raise BrokenError from None

    def _kill(self, request: Request) -> Response:
        entry = _entry(self._jobs, request)
        if entry and self._jobs.kill(entry):
            return _result("Success, the job is scheduled to be terminated.")
        return _result(f"Cannot Kill the job. Job ID:{request.query.get('jobId')}")

    def _pause(self, request: Request) -> Response:
        entry = _entry(self._jobs, request)
        if entry and self._jobs.pause(entry):
            return _result("Success, the job is scheduled to be paused.")
        return _result(f"Cannot pause the job. Job ID:{request.query.get('jobId')}")

    def _resume(self, request: Request) -> Response:
        entry = _entry(self._jobs, request)
        if entry and self._jobs.resume(entry):
            return _result("Success, the job is scheduled to be resumed.")
        return _result(f"Cannot resume the job. Job ID:{request.query.get('jobId')}")

    def _approve(self, request: Request) -> Response:
        """Always fails: the platform approves every job by itself."""
        return _result(f"Cannot approve the job. Job ID:{request.query.get('jobId')}")

    def _clone(self, request: Request) -> Response:
        entry = _entry(self._jobs, request)
        if entry is None:
            return _result(f"Cannot clone the job. Job ID:{request.query.get('jobId')}")
        params = copy.deepcopy(entry.params)
        for name in ("jobId", "jobPath"):  # the copy gets its own
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
            entry = _entry(self._jobs, request)
            rows = list(entry.endpoints.values()) if entry else []
            if entry and entry.status == "running":
                rows = [row | self._address(row) for row in rows]
            return Response.json(200, rows)

    def _address(self, endpoint: dict[str, Any]) -> dict[str, Any]:
        """Where an endpoint of a running job is. A port of the pod's is one of this machine; a notebook or charts would
        be below the platform's own address, where the answer is that none runs here. There is no sshd to name."""
        if endpoint["name"] == "ssh":
            return {}
        if "podPort" in endpoint:
            return {"status": "running", "nodeName": "127.0.0.1", "domain": "", "port": endpoint["podPort"]}
        host = urlsplit(self._jobs.rest_api).netloc
        return {"status": "running", "nodeName": host, "domain": "", "port": endpoint["id"]}

    def _add_endpoints(self, request: Request) -> Response:
        body = _body(request) or {}
        with self._jobs.lock:
            entry = self._jobs.find_for(request.query.get("userName"), body.get("jobId"))
            endpoints = [_endpoint(each) for each in body.get("endpoints") or ()]
            if entry is None or None in endpoints:
                return Response.json(200, {"error": "Cannot create endpoints"})
            for endpoint in filter(None, endpoints):
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
            for job_id, priority in (_body(request) or {}).items():
                if (entry := self._jobs.find_for(user, job_id)) and isinstance(priority, int):
                    changed[job_id] = entry.priority = min(max(priority, lowest), highest)
        return Response.json(200, changed)


def _endpoint(request: object) -> dict[str, Any] | None:
    """The endpoint that the request describes; None where it describes none."""
    if request in _ENDPOINTS:
        return {"name": request}
    if not isinstance(request, dict):
        return None
    name, port = request.get("name"), request.get("podPort")
    fits = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and port in POD_PORTS
    return {"name": name, "podPort": port} if fits else None


def _body(request: Request) -> dict[str, Any] | None:
    try:
        body = request.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _result(text: str) -> Response:
    return Response.json(200, {"result": text})


# Charts: Prometheus behind Grafana, which tells how busy the pods of a job are.

CHARTS_PATH = "/endpoints/grafana/api/datasources/proxy/1/api/v1/query_range"
_QUERY = re.compile(r'(\w+)\{job_name="([^"]*)"\}')
_METRICS = {"task_cpu_percent": "cpuUsage", "task_mem_usage_percent": "memUsage"}


class Charts:
    def __init__(self, jobs: ApulisJobs, engine: Engine) -> None:
        self._jobs = jobs
        self._engine = engine

    def query(self, request: Request) -> Response:
        query = _QUERY.fullmatch(request.query.get("query", ""))
        if query is None:
            error = {"status": "error", "errorType": "bad_data", "error": 'only metric{job_name="id"} is known here'}
            return Response.json(400, error)
        with self._jobs.lock:
            entry = self._jobs.find(query[2])
        result = self._series(entry, query[1]) if entry else []
        return Response.json(200, {"status": "success", "data": {"resultType": "matrix", "result": result}})

    def _series(self, entry: Entry, metric: str) -> list[dict[str, Any]]:
        """One series for each pod that trains."""
        pods = entry.job.launch.pods if entry.job else None
        if entry.job is None or pods is None:
            return []
        series = []
        for role in pods.trainers:
            samples = self._engine.usage(entry.job.id, role.task).get(_METRICS.get(metric, ""), ())
            values = [
                [entry.started + place * USAGE_PERIOD_S, f"{value:.2f}"] for place, value in enumerate(samples, 1)
            ]
            labels = {"__name__": metric, "job_name": entry.id, "pod_name": pods.name(role)}
            series += [{"metric": labels, "values": values}] if values else []
        return series
