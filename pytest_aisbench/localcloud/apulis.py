"""The Apulis platform (a descendant of DLWorkspace): its REST API below /apis/, and the login of its dashboard.

Nearly everything is answered with 200, whatever became of it, as the platform does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_aisbench.localcloud import apulis_charts
from pytest_aisbench.localcloud.apulis_acting import Acting
from pytest_aisbench.localcloud.apulis_jobs import ApulisJobs
from pytest_aisbench.localcloud.apulis_log import JobLog
from pytest_aisbench.localcloud.apulis_login import Login
from pytest_aisbench.localcloud.apulis_reading import BrokenError, Reading
from pytest_aisbench.localcloud.message import Response

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_aisbench.localcloud.accounts import Account
    from pytest_aisbench.localcloud.catalog import Catalog
    from pytest_aisbench.localcloud.jobs import Jobs
    from pytest_aisbench.localcloud.launch import Engine
    from pytest_aisbench.localcloud.message import Request

_APIS = "/apis/"
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
        """`time_limit`: of every job, in seconds, as the administrator of a virtual cluster may set it."""
        login = Login(account)
        self._jobs = ApulisJobs(jobs, account, storage, catalog, time_limit)
        reading, acting = Reading(self._jobs, JobLog(engine), login), Acting(self._jobs, login)
        self._calls: dict[tuple[str, str], tuple[str, Callable[[Request], Response]]] = {
            (method, _APIS + name): (name, call) for (method, name), call in (reading.calls | acting.calls).items()
        }
        self._calls["POST", _DASHBOARD + "login"] = ("login", login.login)
        self._calls["GET", _DASHBOARD + "currentUser"] = ("currentUser", login.current_user)
        self._calls["GET", apulis_charts.PATH] = ("query_range", apulis_charts.Charts(self._jobs, engine).query)
        self.operations = sorted({name for name, _ in self._calls.values()})
        for folder in (storage / "work" / account.user, storage / "data"):
            folder.mkdir(parents=True, exist_ok=True)

    def serve_at(self, url: str) -> None:
        """What pods are told of it."""
        self._jobs.rest_api = url

    def answer(self, request: Request) -> Response:
        found = self._calls.get((request.method, request.path.rstrip("/")))
        if found is None:
            return self.refuse(request, 404, message="The requested URL was not found on the server.")
        try:
            return found[1](request)
        except BrokenError as error:
            return self.crash(request, error)

    def crash(self, request: Request, error: Exception) -> Response:
        return Response(500, _PAGE, {"Content-Type": "text/html"})

    def operation(self, request: Request) -> str:
        found = self._calls.get((request.method, request.path.rstrip("/")))
        return found[0] if found else "other"

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        return Response.json(status, {"message": message or code or f"HTTP {status}"})
