"""The Tester's web application, and the server that runs it (`aisbench tester`)."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.messages import plain
from pytest_aisbench.tester_server.api import Api, RateLimit
from pytest_aisbench.tester_server.auth import AccessPolicy, is_loopback
from pytest_aisbench.tester_server.pages import Frame, Pages
from pytest_aisbench.tester_server.schema import address, is_transient, open_engine, upgrade, writing

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
    "referrer-policy": "same-origin",  # without any, a browser sends forms with the Origin null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_LOOK = Path(__file__).parents[1] / "look.css"  # shared with the pages that a run writes


def make_application(
    engine: Engine,
    access: AccessPolicy,
    *,
    largest: int = LARGEST,
    per_second: float = PER_SECOND,
    now: Callable[[], float] = time.time,
) -> Any:
    api = Api(engine, access, RateLimit(per_second, time.monotonic), largest, now)
    frame = Frame(engine, access)

    async def missing(request: Request, _error: Exception) -> Response:
        return frame.missing(request)

    async def unanswered(request: Request, error: Exception) -> Response:
        if isinstance(error, DBAPIError) and not is_transient(error):
            raise error
        _LOG.warning("the database does not answer: %s", plain(str(error), 300))
        return api.unanswered() if request.url.path.startswith("/api/") else frame.unanswered(request)

    async def look(_request: Request) -> Response:
        return FileResponse(_LOOK)

    app = Starlette(
        routes=[
            *api.routes(),
            Route("/login", frame.enter, methods=["GET"]),
            Route("/login", frame.form(frame.login), methods=["POST"]),
            Route("/p/{project}/t/{testid}/r/{run}/sign", frame.form(frame.sign), methods=["POST"]),
            Route("/logout", frame.logout, methods=["POST"]),
            Route("/static/look.css", look),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
            *Pages(frame).routes(),
        ],
        exception_handlers={404: missing, DBAPIError: unanswered, PoolTimeout: unanswered},
    )
    return _Guard(app, access)


class _Guard:
    """Wraps the application: refuses requests for other host names, and adds the security headers to every answer."""

    def __init__(self, app: Any, access: AccessPolicy) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *(e for e in extra if e[0] not in present)]}
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        answer = self._app
        if not self._access.answers_to(host):
            answer = PlainTextResponse("This Tester does not go by that name.\n", 421)
        elif b"%00" in scope["raw_path"] + scope["query_string"]:  # PostgreSQL takes no text with NUL
            answer = PlainTextResponse("A name without NUL, please.\n", 400)
        await answer(scope, receive, send_guarded)


# Serving

PORT = 9527  # ais-bench-stubs' own tester_server_port
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_AT_ONCE = 512  # requests; the next gets 503
_HALF_OPEN = 64  # connections of one client whose request has not arrived; then the oldest ends
_HEAD_S = 20.0  # for the head of a request
_GRACE_S = 10


@dataclass(frozen=True)
class ServeOptions:
    """What the options of `aisbench tester serve` say."""

    db: str
    host: str = "127.0.0.1"
    port: int = PORT
    closed: bool = False  # readers need a token on loopback too
    names: tuple[str, ...] = ()
    largest: int = LARGEST
    per_second: float = PER_SECOND


@contextlib.contextmanager
def open_database(db: str) -> Iterator[Engine]:
    """The database; its tables are brought to the current version first."""
    url = address(db)
    engine = open_engine(url)
    try:
        upgrade(engine)
        yield engine
    except (SQLAlchemyError, OverflowError) as error:  # OverflowError: a number that SQLite cannot hold
        reason = plain(str(getattr(error, "orig", None) or error), 300)
        raise UsageFault(f"the database {url.render_as_string(hide_password=True)}: {reason}") from None
    finally:
        engine.dispose()


@contextlib.contextmanager
def transaction(db: str) -> Iterator[Connection]:
    """A transaction that may write to the database."""
    with open_database(db) as engine, writing(engine).begin() as connection:
        yield connection


def serve(options: ServeOptions, show: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM, then finish what is under way. `show` gets the address once requests are taken."""
    access = access_policy(options)
    with open_database(options.db) as engine, _listening(options.host, options.port) as listener:
        application = make_application(engine, access, largest=options.largest, per_second=options.per_second)
        config = uvicorn.Config(
            application,
            log_level=logging.WARNING,
            access_log=False,  # the audit has more
            server_header=False,
            proxy_headers=False,  # a sender can invent them
            http=_patient_protocol(),
            lifespan="off",
            ws="none",
            limit_concurrency=_AT_ONCE,
            timeout_graceful_shutdown=_GRACE_S,
        )
        port = listener.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        show(f"http://{host}:{port}")
        uvicorn.Server(config).run(sockets=[listener])


def _patient_protocol() -> Any:
    """uvicorn's protocol, with a limit to connections on which no whole request has arrived.

    uvicorn waits for ever for the head of a request, and refuses all clients once there are `_AT_ONCE` connections: one
    client that opens many and sends nothing would close the server to everybody.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    waiting: dict[str, dict[Any, None]] = {}  # by the address of the client, oldest first

    class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _deadline: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
            else:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._deadline is not None or self.transport.is_closing():
                return
            self._deadline = self.loop.call_later(_HEAD_S, self._give_up)
            peers = waiting.setdefault(self.client[0] if self.client else "", {})
            peers[self] = None
            if len(peers) > _HALF_OPEN:
                next(iter(peers))._give_up()  # noqa: SLF001 - of the same class

        def _give_up(self) -> None:
            self._stop_waiting()
            self.transport.abort()

        def _stop_waiting(self) -> None:
            if self._deadline is None:
                return
            self._deadline.cancel()
            self._deadline = None
            address = self.client[0] if self.client else ""
            waiting[address].pop(self, None)
            if not waiting[address]:
                del waiting[address]

    return PatientProtocol


def access_policy(options: ServeOptions) -> AccessPolicy:
    loopback = is_loopback(options.host)
    names = tuple(name.lower() for name in options.names)
    return AccessPolicy(loopback and not options.closed, (*_LOOPBACK_NAMES, *names) if loopback or names else ())


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio does not turn Nagle's algorithm off, and every answer waits 40 ms for an acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageFault(f"{host}:{port}: {reason}", advice="name another --host or --port") from None
        listener.listen(128)
        yield listener
