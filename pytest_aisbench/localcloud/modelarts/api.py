"""What V1 and V2 of the ModelArts API share: finding the operation of a request, and refusing it in the vendor's
words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aisbench.localcloud.messages import Request, Response, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_aisbench.localcloud.iam import Account


class Route(NamedTuple):
    operation: str
    method: str
    path: re.Pattern[str]
    answer: Callable[..., Response]


class Routes:
    """The operations of one version of the API; all their paths begin with `/<version>/<project>/`."""

    def __init__(self, version: str, routes: Iterable[tuple[str, str, str, Callable[..., Response]]]) -> None:
        self._path = re.compile(rf"/{version}/(?P<project>[^/]+)/(?P<rest>.+?)/?")
        self._routes = [Route(name, method, re.compile(path), answer) for name, method, path, answer in routes]
        self.operations = [route.operation for route in self._routes]

    def operation(self, request: Request) -> str:
        match = self._match(request)
        return match[0].operation if match else "other"

    def find(self, request: Request, account: Account) -> tuple[Route, dict[str, Any]]:
        """Return the route and the names in the path; refuse an unknown path and another account's project."""
        path = self._path.fullmatch(request.path)
        if path and path["project"] != account.project_id:
            raise Refusal(404, "2786", f"Project {path['project']} is not the one of the credentials.")
        match = self._match(request)
        if match is None:
            raise _unserved(request)
        return match

    def _match(self, request: Request) -> tuple[Route, dict[str, Any]] | None:
        if request.routed is None:
            request.routed = self._search(request) or ()
        return request.routed or None

    def _search(self, request: Request) -> tuple[Route, dict[str, Any]] | None:
        if (path := self._path.fullmatch(request.path)) is None:
            return None
        for route in self._routes:
            if route.method == request.method and (rest := route.path.fullmatch(path["rest"])):
                return route, rest.groupdict()
        return None


def json_object(request: Request) -> dict[str, Any]:
    try:
        content = request.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise Refusal(400, "2787", "The body of the request is not a JSON object.")
    return content


def query_number(request: Request, name: str, default: int) -> int:
    value = request.query.get(name, str(default))
    if not value.isdigit():
        raise Refusal(400, "2764", f"{name} must be a number.")
    return int(value)


_SOLUTIONS = {
    "2751": "Choose another job name.",
    "2775": "Check the training job ID.",
    "2786": "Use the project ID of the account that signed the request.",
    "2791": "Check the OBS path.",
    "2796": "Only a job that is being created, waits or runs can be terminated.",
}


class Refusal(Exception):
    """Ends a request with an error of ModelArts; `number` is the last part of its code."""

    def __init__(self, status: int, number: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = f"ModelArts.{number}"
        self.message = message
        self.solution = _SOLUTIONS.get(number, "Check the parameters of the request.")


class NotServed(Refusal):
    """The vendor has the operation, the local cloud does not. No code of the vendor says so."""

    def __init__(self, names: str, request: Request) -> None:
        super().__init__(501, "", f"{names} ({request.method} {request.path}) is not served by the local cloud.")
        self.code = "Local.0501"
        self.solution = "See docs/local-cloud.md."


def _unserved(request: Request) -> Refusal:
    from pytest_aisbench.localcloud import vendor_operations as vendor

    apis = (vendor.MODELARTS_V2, vendor.MODELARTS_V1, vendor.MODELARTS_V1_OTC)
    if names := vendor.names(apis, request.method, request.path):
        return NotServed(names, request)
    return Refusal(404, "2836", f"{request.method} {request.path} is not served here.")


def error_response(status: int, code: str, message: str, solution: str) -> Response:
    content = {"error_msg": message, "error_code": code, "error_solution": solution}
    return with_request_id(Response.json(status, content))


def with_request_id(response: Response) -> Response:
    return response._replace(headers={**response.headers, "X-Request-Id": new_id()})
