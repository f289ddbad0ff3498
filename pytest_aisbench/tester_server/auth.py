"""Tokens, the access that they give, and the audit of everything that a token sent."""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text, update
from starlette.requests import Request

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.secret import Secret
from pytest_aisbench.tester_server.schema import AUDIT, CHUNK, SESSIONS, TOKENS, dicts

# The audit: one row for each request of a known token, in the transaction that stored the upload

COLUMNS = tuple(column.name for column in AUDIT.c)
_INSERT = text("""
INSERT INTO audit (at, project, token, label, address, act, testid, run_id, key, status, size, why)
VALUES (:at, :project, :token, :label, :address, :act, :testid, :run_id, :key, :status, :size, :why)
""")


def write_audit(connection: Connection, **columns: Any) -> None:
    """Write one row; `address` stays empty for what was done on this machine."""
    blank = {"address": "", "testid": "", "run_id": "", "key": "", "why": "", "status": 0, "size": 0}
    connection.execute(_INSERT, {**blank, **columns})


def newest_actions(connection: Connection, project: str, before: int | None, limit: int) -> list[dict[str, Any]]:
    query = select(AUDIT).where(AUDIT.c.project == project).order_by(AUDIT.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AUDIT.c.id < before)
    return list(dicts(connection.execute(query)))


def every_action(connection: Connection, project: str | None = None) -> Iterator[dict[str, Any]]:
    """Oldest first, a chunk at a time."""
    last = 0
    while True:
        query = select(AUDIT).where(AUDIT.c.id > last).order_by(AUDIT.c.id).limit(CHUNK)
        if project is not None:
            query = query.where(AUDIT.c.project == project)
        rows = list(dicts(connection.execute(query)))
        yield from rows
        if len(rows) < CHUNK:
            return
        last = rows[-1]["id"]


# Tokens

PROJECT = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_FIND = text("SELECT id, project, kind, label, revoked FROM tokens WHERE digest = :digest")
_FIND_SESSION = text("""
SELECT tokens.id, project, kind, label, revoked FROM sessions JOIN tokens ON tokens.id = sessions.token
WHERE sessions.digest = :digest AND expires > :now
""")
_PREFIX = "aisbt_"  # lets scanners of secrets recognise a token


class Kind(enum.Enum):
    SEND = "send"  # may also read back, over the API, what its project was sent
    READ = "read"
    SIGN = "sign"  # may read, and sign runs

    @property
    def reads_pages(self) -> bool:
        return self is not Kind.SEND


@dataclass(frozen=True)
class Holder:
    """The holder of a token that the database has."""

    id: int
    project: str
    kind: Kind
    label: str
    revoked: bool


def add_token(connection: Connection, project: str, kind: Kind, label: str, now: float) -> Secret:
    """Make a token. It is shown once: only its digest is kept."""
    if not PROJECT.fullmatch(project):
        advice = "small letters, digits, '.', '_' and '-', 64 at most"
        raise UsageFault(f"{project[:80]!r} is not the name of a project", advice=advice)
    token = Secret(_PREFIX + secrets.token_urlsafe(32))
    row = {"digest": _digest(token.reveal()), "project": project, "kind": kind.value, "label": label, "created": now}
    number = connection.execute(insert(TOKENS).values(row).returning(TOKENS.c.id)).scalar_one()
    write_audit(connection, at=now, project=project, token=number, label=label, act=f"token added ({kind.value})")
    return token


def revoke_token(connection: Connection, number: int, now: float) -> None:
    row = connection.execute(select(TOKENS).where(TOKENS.c.id == number)).one_or_none()
    if row is None:
        raise UsageFault(f"there is no token {number}", advice="`aisbench tester token list` shows them")
    if row.revoked is None:
        connection.execute(update(TOKENS).where(TOKENS.c.id == number).values(revoked=now))
        write_audit(connection, at=now, project=row.project, token=number, label=row.label, act="token revoked")


def every_token(connection: Connection) -> list[dict[str, Any]]:
    """All tokens without their digests; `used` is when a sender last used the token."""
    used = select(func.max(AUDIT.c.at)).where(AUDIT.c.token == TOKENS.c.id, AUDIT.c.address != "").scalar_subquery()
    columns = [column for column in TOKENS.c if column.name != "digest"]
    rows = connection.execute(select(*columns, used.label("used")).order_by(TOKENS.c.id))
    return list(dicts(rows))


def find_token(connection: Connection, token: str) -> Holder | None:
    """Looked up by digest: the time that it takes reveals nothing."""
    row = connection.execute(_FIND, {"digest": _digest(token)}).one_or_none()
    return Holder(row.id, row.project, Kind(row.kind), row.label, row.revoked is not None) if row else None


def _digest(token: str) -> str:
    """A token has 256 random bits, so it needs neither salt nor a slow hash."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


# Sessions: what a browser keeps instead of the token, so that a reader can end it

SESSION_S = 86_400


def open_session(connection: Connection, holder: Holder, now: float) -> str:
    """A new session of the token; only its digest is kept."""
    connection.execute(delete(SESSIONS).where(SESSIONS.c.expires <= now))
    session = secrets.token_urlsafe(32)
    row = {"digest": _digest(session), "token": holder.id, "expires": now + SESSION_S}
    connection.execute(insert(SESSIONS).values(row))
    return session


def close_session(connection: Connection, session: str) -> None:
    connection.execute(delete(SESSIONS).where(SESSIONS.c.digest == _digest(session)))


def find_session(connection: Connection, session: str, now: float) -> Holder | None:
    row = connection.execute(_FIND_SESSION, {"digest": _digest(session), "now": now}).one_or_none()
    return Holder(row.id, row.project, Kind(row.kind), row.label, row.revoked is not None) if row else None


# Access

COOKIE = "aisbench_tester"
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Denied(Exception):
    """401: no valid token; 403: the token does not permit this."""

    def __init__(self, status: int, message: str, holder: Holder | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.holder = holder


@dataclass(frozen=True)
class AccessPolicy:
    """Who may read and send. `open`: readers need no token, because the server listens on loopback only."""

    open: bool
    names: tuple[str, ...] = ()  # host names that it answers to; empty: any

    def answers_to(self, host: str) -> bool:
        """False for a foreign host name: a hostile page can point its own name at 127.0.0.1."""
        return not self.names or _bare(host) in self.names

    def require_sender(self, connection: Connection, request: Request) -> Holder:
        holder = _holder(connection, _bearer(request.headers))
        if holder.kind is not Kind.SEND:
            raise Denied(403, f"this token may {holder.kind.value}, and not send", holder)
        return holder

    def same_site(self, request: Request) -> bool:
        """False for a form that a page of another site sent. Programs send no Origin."""
        if site := request.headers.get("sec-fetch-site"):
            return site in {"same-origin", "none"}
        origin = request.headers.get("origin")
        if origin is None:
            return True
        host = origin.partition("://")[2]
        return bool(host) and (host == request.headers.get("host", "") or _bare(host) in self.names)

    def require_reader(self, connection: Connection, request: Request) -> str | None:
        """The one project whose pages the request may read; None for all. A send token reads its uploads back, and no
        page."""
        token = _bearer(request.headers)
        if token and not (holder := _holder(connection, token)).kind.reads_pages:
            raise Denied(403, "this token may send, and not read pages", holder)
        return self.readable_project(connection, request)

    def readable_project(self, connection: Connection, request: Request) -> str | None:
        """The one project that the request may read; None for all of them."""
        token = _bearer(request.headers)
        if token:
            return _holder(connection, token).project
        cookie = request.cookies.get(COOKIE, "")
        if cookie:
            holder = find_session(connection, cookie, time.time())
            if holder and not holder.revoked and holder.kind.reads_pages:
                return holder.project
        if self.open and not any(name in request.headers for name in _FORWARDED):
            return None
        raise Denied(401, "a read token is needed")

    def signer(self, connection: Connection, request: Request, project: str) -> Holder | None:
        """The holder of the token that may sign runs of the project, by which the request signed in; None for every
        other reader."""
        if token := _bearer(request.headers):
            holder = find_token(connection, token)
        else:
            holder = find_session(connection, request.cookies.get(COOKIE, ""), time.time())
        signs = holder and not holder.revoked and holder.kind is Kind.SIGN and holder.project == project
        return holder if signs else None

    def require_signer(self, connection: Connection, request: Request, project: str) -> Holder:
        if signer := self.signer(connection, request, project):
            return signer
        raise Denied(403, "A token that may sign is needed; sign in with it.")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _holder(connection: Connection, token: str) -> Holder:
    if not token:
        raise Denied(401, "a token is needed: Authorization: Bearer …")
    holder = find_token(connection, token)
    if holder is None:
        raise Denied(401, "unknown token")
    if holder.revoked:
        raise Denied(403, "this token was revoked", holder)
    return holder


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _bare(host: str) -> str:
    """The host name without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
