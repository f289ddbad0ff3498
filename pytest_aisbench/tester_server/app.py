"""The ASGI application: the API, the pages, and what holds for every answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.tester_server.api import Api
from pytest_aisbench.tester_server.database import passing
from pytest_aisbench.tester_server.door import Door
from pytest_aisbench.tester_server.frame import Frame
from pytest_aisbench.tester_server.limits import Rate
from pytest_aisbench.tester_server.pages import Pages

_LOG = logging.getLogger(__name__)
LARGEST = 4 * 1024 * 1024
PER_SECOND = 100.0
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'none'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def application(
    engine: Engine,
    door: Door,
    *,
    largest: int = LARGEST,
    per_second: float = PER_SECOND,
    now: Callable[[], float] = time.time,
) -> Any:
    api = Api(engine, door, Rate(per_second, time.monotonic), largest, now)
    frame = Frame(engine, door)

    async def missing(request: Request, _error: Exception) -> Response:
        return frame.missing(request)

    async def unanswered(request: Request, error: Exception) -> Response:
        if isinstance(error, DBAPIError) and not passing(error):
            raise error
        _LOG.warning("the database does not answer: %s", plain(str(error), 300))
        return api.unanswered() if request.url.path.startswith("/api/") else frame.unanswered(request)

    app = Starlette(
        routes=[
            *api.routes(),
            Route("/login", frame.login, methods=["POST"]),
            Route("/logout", frame.logout, methods=["POST"]),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
            *Pages(frame).routes(),
        ],
        exception_handlers={404: missing, DBAPIError: unanswered, PoolTimeout: unanswered},
    )
    return _Guard(app, door)


class _Guard:
    """Around all of it: only for those who call it by its name, and with the same headers on every answer."""

    def __init__(self, app: Any, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                told = {name.lower() for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *(e for e in extra if e[0] not in told)]}
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        answer = self._app
        if not self._door.knows(host):
            answer = PlainTextResponse("This Tester does not go by that name.\n", 421)
        elif b"%00" in scope["raw_path"] + scope["query_string"]:  # no name has it, and PostgreSQL takes no such text
            answer = PlainTextResponse("A name without NUL, please.\n", 400)
        await answer(scope, receive, send_guarded)
