"""Who is let in: senders by their token, readers by a read token, or anybody on this machine where that is allowed."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection
from starlette.requests import Request

from pytest_aisbench.tester_server.tokens import Holder, Kind, find

COOKIE = "aisbench_tester"
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Denied(Exception):
    """401: nobody knows who you are; 403: you may not do this."""

    def __init__(self, status: int, message: str, holder: Holder | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.holder = holder


@dataclass(frozen=True)
class Door:
    """`open` where whoever reaches the server may read: it listens on loopback only, and was not told otherwise."""

    open: bool
    names: tuple[str, ...] = ()  # host names that it answers to; empty: any

    def knows(self, host: str) -> bool:
        """A page of a stranger's can make a browser call 127.0.0.1 by the stranger's name; it then says that name."""
        return not self.names or _bare(host) in self.names

    def sender(self, connection: Connection, request: Request) -> Holder:
        holder = _holder(connection, _bearer(request.headers))
        if holder.kind is not Kind.SEND:
            raise Denied(403, "this token may read, and not send", holder)
        return holder

    def reader(self, connection: Connection, request: Request) -> str | None:
        """The one project that may be read; None for all of them."""
        token = _bearer(request.headers)
        if token:
            return _holder(connection, token).project
        shown = request.cookies.get(COOKIE, "")
        if shown:
            holder = find(connection, shown)
            if holder and not holder.revoked and holder.kind is Kind.READ:
                return holder.project
        if self.open and not any(name in request.headers for name in _FORWARDED):
            return None
        raise Denied(401, "a read token is needed")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _holder(connection: Connection, token: str) -> Holder:
    if not token:
        raise Denied(401, "a token is needed: Authorization: Bearer …")
    holder = find(connection, token)
    if holder is None:
        raise Denied(401, "nobody knows this token")
    if holder.revoked:
        raise Denied(403, "this token was revoked", holder)
    return holder


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _bare(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
