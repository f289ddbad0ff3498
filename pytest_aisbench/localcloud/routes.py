"""Which operation a request is, by its method and its path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aisbench.localcloud.message import Response
from pytest_aisbench.localcloud.refusal import Refusal

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.accounts import Account
    from pytest_aisbench.localcloud.message import Request


class Route(NamedTuple):
    operation: str
    method: str
    path: re.Pattern[str]
    answer: Callable[..., Response]


class Routes:
    """Of one version of the API: everything below `/<version>/<project>/`."""

    def __init__(self, version: str, routes: Iterable[tuple[str, str, str, Callable[..., Response]]]) -> None:
        self._path = re.compile(rf"/{version}/(?P<project>[^/]+)/(?P<rest>.+?)/?")
        self._routes = [Route(name, method, re.compile(path), answer) for name, method, path, answer in routes]
        self.operations = [route.operation for route in self._routes]

    def operation(self, request: Request) -> str:
        found = self._find(request)
        return found[0].operation if found else "other"

    def find(self, request: Request, account: Account) -> tuple[Route, dict[str, Any]]:
        """The route, with the names in the path; refused where there is none, or it is not the account's."""
        match = self._path.fullmatch(request.path)
        if match and match["project"] != account.project_id:
            raise Refusal(404, "2786", f"Project {match['project']} is not the one of the credentials.")
        found = self._find(request)
        if found is None:
            raise Refusal(404, "2836", f"{request.method} {request.path} is not served here.")
        return found

    def _find(self, request: Request) -> tuple[Route, dict[str, Any]] | None:
        if (match := self._path.fullmatch(request.path)) is None:
            return None
        for route in self._routes:
            if route.method == request.method and (found := route.path.fullmatch(match["rest"])):
                return route, found.groupdict()
        return None


def body(request: Request) -> dict[str, Any]:
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
