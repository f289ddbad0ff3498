"""The API: POST and GET /api/v1/tests/…, by which runs upload results and programs read them back."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, select, text
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import UPLOAD_SCHEMA
from pytest_aisbench.tester_server import contract
from pytest_aisbench.tester_server.auth import AccessPolicy, Denied, Holder, write_audit
from pytest_aisbench.tester_server.contract import StoredUpload, derive_rows
from pytest_aisbench.tester_server.schema import PARCELS, writing

# Storing an upload: the upload, its rows and its line of the audit are one transaction, on disk before 201 is sent

CREATED, REPLAYED, CONFLICT = 201, 200, 409
OTHER = "something else was stored under this key"
_INSERT = text("""
INSERT INTO parcels (project, key, kind, testid, run_id, attempt, digest, received, token, body)
VALUES (:project, :key, :kind, :testid, :run_id, :attempt, :digest, :received, :token, :body)
ON CONFLICT (project, key) DO NOTHING RETURNING id
""")
_STORED_DIGEST = text("SELECT digest FROM parcels WHERE project = :project AND key = :key")


@dataclass(frozen=True)
class ReceivedUpload:
    """An upload whose body was checked."""

    holder: Holder
    address: str
    kind: str
    key: str
    content: bytes
    body: dict[str, Any]


def store_upload(connection: Connection, sent: ReceivedUpload, now: float) -> int:
    """The HTTP status: 201 stored, 200 stored before, 409 the key belongs to another upload."""
    names = {"project": sent.holder.project, "token": sent.holder.id, "key": sent.key}
    names |= {name: sent.body[name] for name in ("testid", "run_id")}
    digest = hashlib.sha256(sent.content).hexdigest()
    upload = {"kind": sent.kind, "attempt": sent.body["attempt"], "digest": digest, "body": sent.content.decode()}
    # A second sender of the same key waits here for the first to commit.
    number = connection.execute(_INSERT, {**names, **upload, "received": now}).scalar_one_or_none()
    if number is not None:
        status = CREATED
        derive_rows(connection, StoredUpload(number, sent.kind, sent.holder.project, sent.body, now))
    else:
        status = REPLAYED if connection.execute(_STORED_DIGEST, names).scalar_one() == digest else CONFLICT
    why, size = OTHER if status == CONFLICT else "", len(sent.content)
    sender = {"label": sent.holder.label, "address": sent.address}
    write_audit(connection, at=now, act=sent.kind, status=status, size=size, why=why, **names, **sender)
    return status


_STOCK_S = 10.0


class RateLimit:
    """How often one token may send: so many requests a second, and up to ten seconds' worth at once after a pause."""

    def __init__(self, per_second: float, now: Callable[[], float]) -> None:
        """0 a second means no limit."""
        self._per_second = per_second
        self._most = max(1.0, per_second * _STOCK_S)
        self._now = now
        self._lock = threading.Lock()
        self._stocks: dict[int, tuple[float, float]] = {}  # by token: what was left, and when

    def wait_s(self, token: int) -> int:
        """0 if the request may be made, and count it; else the whole seconds to wait."""
        if not self._per_second:
            return 0
        with self._lock:
            now = self._now()
            left, at = self._stocks.get(token, (self._most, now))
            left = min(self._most, left + (now - at) * self._per_second)
            allowed = left >= 1
            self._stocks[token] = (left - 1 if allowed else left, now)
            return 0 if allowed else max(1, math.ceil((1 - left) / self._per_second))


# The routes

_LOG = logging.getLogger(__name__)
_RETRY_S = 5
_MOST = 1000  # uploads of one answer
_READ_BEYOND = 64 * 1024 * 1024  # bytes of a body that is too large
_BODY_S = 60.0  # for a whole body; the sender's own patience is half of it
_CLOSE = {"Connection": "close"}  # the rest of a body is not read: the connection ends with the answer
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Api:
    engine: Engine
    access: AccessPolicy
    rate: RateLimit
    largest: int  # bytes of a body
    now: Callable[[], float]

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/tests", self.tests, methods=["GET"]),
            Route("/api/v1/tests/{testid}/{kind}", self.post, methods=["POST"]),
            Route("/api/v1/tests/{testid}/{kind}", self.show, methods=["GET"]),
            Route("/api/v1/tests/{testid}/{kind}/{run_id:path}", self.show, methods=["GET"]),
            Route("/api/{rest:path}", _not_found, methods=["GET", "POST", "PUT", "DELETE"]),
        ]

    async def post(self, request: Request) -> Response:
        """Store an upload. A body without a valid token, or that takes too long, is never held in memory."""
        admitted = await run_in_threadpool(self._guarded, self._admit, request)
        largest = 0 if isinstance(admitted, Response) else self.largest
        try:
            content = await asyncio.wait_for(_read(request, largest), _BODY_S)
        except ClientDisconnect:
            return _error(400, "half a request")  # the sender is gone and reads no answer
        except asyncio.TimeoutError:
            return _error(408, f"the body did not arrive within {_BODY_S:.0f} s", headers=_CLOSE)
        if isinstance(admitted, Response):
            return admitted
        return await run_in_threadpool(self._guarded, self._take, request, admitted, content)

    async def show(self, request: Request) -> Response:
        return await run_in_threadpool(self._guarded, self._show, request)

    async def tests(self, request: Request) -> Response:
        return await run_in_threadpool(self._guarded, self._tests, request)

    def _guarded(self, answer: Callable[..., _Answer], *arguments: Any) -> _Answer | Response:
        try:
            return answer(*arguments)
        except Denied as denied:
            headers = {"WWW-Authenticate": "Bearer"} if denied.status == 401 else {}
            return _error(denied.status, str(denied), headers=headers)

    def unanswered(self) -> Response:
        return _error(503, "the database does not answer", headers={"Retry-After": str(_RETRY_S)})

    def _admit(self, request: Request) -> Holder | Response:
        with self.engine.connect() as connection:
            holder = self._sender(connection, request)
        wait_s = self.rate.wait_s(holder.id)
        return _error(429, "this token sends too often", headers={"Retry-After": str(wait_s)}) if wait_s else holder

    def _take(self, request: Request, holder: Holder, content: bytes | None) -> Response:
        testid, kind = request.path_params["testid"], request.path_params["kind"]
        key = request.headers.get("idempotency-key", "")
        if content is None:
            why = f"more than {self.largest} bytes"
            return self._refuse(request, holder, 413, "", why, headers=_CLOSE)
        if kind not in contract.KINDS:
            return _error(404, f"{plain(kind, 40)} is not taken here")
        if not contract.is_key(key):
            return self._refuse(request, holder, 400, "Idempotency-Key", "the header Idempotency-Key is missing")
        try:
            body = contract.parse_body(content, testid, kind)
        except contract.InvalidBody as unfit:
            return self._refuse(request, holder, 422, unfit.field, str(unfit), size=len(content))
        sent = ReceivedUpload(holder, _address(request), kind, key, content, body)
        with writing(self.engine).begin() as connection:
            status = store_upload(connection, sent, self.now())
        if status == CONFLICT:
            return _error(status, OTHER)
        return JSONResponse({"schema": UPLOAD_SCHEMA, "key": key}, status)

    def _sender(self, connection: Any, request: Request) -> Holder:
        try:
            return self.access.require_sender(connection, request)
        except Denied as denied:
            _LOG.warning("%s: %s", _address(request), denied)
            if denied.holder:
                connection.rollback()
                self._refuse(request, denied.holder, denied.status, "", str(denied))
            raise

    def _refuse(
        self,
        request: Request,
        holder: Holder,
        status: int,
        field: str,
        why: str,
        *,
        size: int = 0,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """Refuse an upload of a known sender, and write it to the audit."""
        with writing(self.engine).begin() as connection:
            write_audit(
                connection,
                at=self.now(),
                project=holder.project,
                token=holder.id,
                label=holder.label,
                address=_address(request),
                act=plain(request.path_params["kind"], 40),
                testid=plain(request.path_params["testid"], 128),
                key=plain(request.headers.get("idempotency-key", ""), 200),
                status=status,
                size=size,
                why=plain(why, 300),
            )
        return _error(status, plain(why, 300), field, headers=headers)

    def _show(self, request: Request) -> Response:
        """Uploads in the order of arrival; of very many, the newest."""
        where = dict(request.path_params)
        if where["kind"] not in contract.KINDS:
            return _error(404, "not served here")
        with self.engine.connect() as connection:
            project = self.access.readable_project(connection, request)
            query = select(PARCELS.c.body).where(*(PARCELS.c[name] == value for name, value in where.items()))
            if project is not None:
                query = query.where(PARCELS.c.project == project)
            bodies = connection.execute(query.order_by(PARCELS.c.id.desc()).limit(_MOST)).scalars().all()
        if not bodies and "run_id" in where:
            return _error(404, f"nothing of {plain(where['run_id'], 100)}")
        as_sent = ", ".join(reversed(bodies))
        document = f'{{"schema": "{UPLOAD_SCHEMA}", "{where["kind"]}": [{as_sent}]}}'
        return Response(document, media_type="application/json")

    def _tests(self, request: Request) -> Response:
        with self.engine.connect() as connection:
            project = self.access.readable_project(connection, request)
            query = select(PARCELS.c.testid).distinct().order_by(PARCELS.c.testid).limit(_MOST)
            if project is not None:
                query = query.where(PARCELS.c.project == project)
            return JSONResponse({"tests": list(connection.execute(query).scalars())})


async def _read(request: Request, largest: int) -> bytes | None:
    """The body; None if it is too large. It never holds more than `largest` bytes, but reads on for a while: a sender
    that is still sending does not read the answer."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size <= largest:
            parts.append(part)
        elif size > largest + _READ_BEYOND:
            break
        else:
            parts.clear()
    return b"".join(parts) if size <= largest else None


async def _not_found(request: Request) -> Response:
    return _error(404, f"{request.method} {plain(request.url.path, 100)} is not served here")


def _address(request: Request) -> str:
    """The address of the connection, not of a header, which the sender can invent."""
    return request.client.host if request.client else "unknown"


def _error(status: int, message: str, field: str = "", headers: dict[str, str] | None = None) -> JSONResponse:
    document = {"schema": UPLOAD_SCHEMA, "error": message, **({"field": field} if field else {})}
    return JSONResponse(document, status, headers)
