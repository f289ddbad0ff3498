"""The calls of Apulis that look: at one job, its log, or the lists of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud import apulis_answers as answers
from pytest_aisbench.localcloud.apulis_cluster import DEVICES, VC
from pytest_aisbench.localcloud.apulis_jobs import ENDED
from pytest_aisbench.localcloud.apulis_log import in_raw_order
from pytest_aisbench.localcloud.message import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_aisbench.localcloud.apulis_jobs import ApulisJobs, Entry
    from pytest_aisbench.localcloud.apulis_log import JobLog
    from pytest_aisbench.localcloud.apulis_login import Login
    from pytest_aisbench.localcloud.message import Request

_HOLDING = {"Running", "Terminating"}  # cards
_PAGE_SIZE = 10
_ORDERS = {"jobName", "jobStatus", "jobType", "priority"}


class BrokenError(Exception):
    """The platform's own code fails: a 500 that is a page."""


class Reading:
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
        """Nobody asks who asks."""
        with self._jobs.lock:
            entry = self._jobs.find(request.query.get("jobId"))
            if entry is None:
                return Response.json(200, None)
            answer = answers.status_json(entry)
            entry.seen()
        if answer["jobStatus"] in ENDED:
            self._log.pages(entry)  # whoever is told of the end finds all of the log in the shared folder
        return Response.json(200, answer)

    def _detail(self, request: Request) -> Response:
        with self._jobs.lock:
            entry = self._of(request)
            if entry is None:
                raise BrokenError
            answer = answers.detail_json(entry) | {"errorMsg": entry.message, "priority": entry.priority}
            entry.seen()
        return Response.json(200, answer | {"log": "".join(self._log.pages(entry)[-1:])})

    def _detail_v2(self, request: Request) -> Response:
        with self._jobs.lock:
            entry = self._of(request)
            if entry is None:
                return Response.json(200, {})
            answer = answers.detail_json(entry)
            entry.seen()
        return Response.json(200, answer)

    def _page(self, request: Request) -> Response:
        if missing := _missing(request):
            return missing
        page = request.query.get("page") or "1"
        if not page.lstrip("-").isdigit():
            return Response.json(400, {"message": {"page": f"invalid literal for int() with base 10: '{page}'"}})
        entry = self._of(request)
        pages = self._log.pages(entry) if entry else []
        text = pages[min(max(int(page), 1), len(pages)) - 1] if pages else ""
        return Response.json(200, {"log": text, "cursor": None, "max_page": len(pages)})

    def _raw_log(self, request: Request) -> Response:
        if missing := _missing(request):
            return missing
        entry = self._of(request)
        return Response.json(200, {"log": in_raw_order(self._log.pages(entry)) if entry else ""})

    def _list(self, request: Request) -> Response:
        return Response.json(200, answers.sorted_out(self._rows(request, answers.encoded_row_json)))

    def _list_v2(self, request: Request) -> Response:
        return Response.json(200, answers.sorted_out(self._rows(request, answers.row_json)))

    def _list_v3(self, request: Request) -> Response:
        query, rows = request.query, self._rows(request, answers.row_json)
        for field in ("jobType", "jobStatus"):
            wanted = query.get(field, "all").split(",")
            rows = [row for row in rows if "all" in wanted or row[field] in wanted]
        rows = [row for row in rows if query.get("searchWord", "") in row["jobName"]]
        if (key := query.get("orderBy", "")) in _ORDERS:
            rows.sort(key=lambda row: str(row[key]), reverse=True)
        if query.get("order", "desc").lower() == "asc":
            rows.reverse()
        size = _number(query.get("pageSize"), _PAGE_SIZE)
        start = (max(_number(query.get("pageNum"), 1), 1) - 1) * size
        return Response.json(200, answers.page_json(rows, rows[start : start + size]))

    def _rows(self, request: Request, row: Callable[[Entry], dict[str, Any]]) -> list[dict[str, Any]]:
        query = request.query
        if not self._login.is_known(query.get("userName")) or query.get("vcName") not in {VC, "all"}:
            return []
        owner = query.get("jobOwner") or query["userName"]
        with self._jobs.lock:
            found = [entry for entry in self._jobs.all() if owner in {"all", entry.params["userName"]}]
            found = found[: _number(query.get("num"), len(found))]
            rows = [row(entry) for entry in found]
            for entry in found:
                entry.seen()
        return rows

    def _vcs(self, request: Request) -> Response:
        known = self._login.is_known(request.query.get("userName"))
        return Response.json(200, {"result": [self._vc_json()] if known else []})

    def _vc(self, request: Request) -> Response:
        known = self._login.is_known(request.query.get("userName")) and request.query.get("vcName") == VC
        return Response.json(200, self._vc_json() if known else None)

    def _vc_json(self) -> dict[str, Any]:
        devices = self._devices_json()
        free = {name: sum(node["allocatable"] for node in device["detail"]) for name, device in devices.items()}
        quota = {name: device["capacity"] for name, device in devices.items()}
        return {"vcName": VC, "quota": quota, "gpu_capacity": quota, "gpu_avaliable": free, "metadata": {}}

    def _devices(self, request: Request) -> Response:
        known = self._login.is_known(request.query.get("userName"))
        return Response.json(200, self._devices_json() if known else {})

    def _devices_json(self) -> dict[str, Any]:
        with self._jobs.lock:
            jobs = [entry.job for entry in self._jobs.all() if entry.job]
            running = [job.launch.pods for job in jobs if job.launch.pods and job.phase in _HOLDING]
        return {name: device.as_json(running) for name, device in DEVICES.items()}

    def _pending(self, request: Request) -> Response:
        rows = self._rows(request, answers.row_json)
        return Response.json(200, {"result": [row for row in rows if row["jobStatus"] in answers.QUEUED]})

    def _of(self, request: Request) -> Entry | None:
        return self._jobs.of(request.query.get("jobId"), request.query.get("userName"))


def _missing(request: Request) -> Response | None:
    for name in ("jobId", "userName"):
        if not request.query.get(name):
            return Response.json(400, {"message": {name: f"Missing required parameter: {name}"}})
    return None


def _number(text: str | None, usual: int) -> int:
    return int(text) if text and text.isdigit() else usual
