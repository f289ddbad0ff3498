"""HTTP/1.1 on loopback, small enough to be quick: what every service of the local cloud listens with.

The listener keeps a connection in step whatever a service leaves unread. It opens CONNECT tunnels to itself:
a client that wants the virtual host `bucket.obs.example` reaches it without DNS, by naming it as the proxy.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import socketserver
import sys
import threading
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from pytest_aisbench.localcloud.message import (
    BLOCK,
    LINE_LIMIT,
    Body,
    Headers,
    MalformedRequestError,
    Request,
    Response,
    Service,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Headers", "Listener", "Request", "Response", "Service"]

log = logging.getLogger(__name__)

HEADER_LIMIT = 200


class _Connection(socketserver.StreamRequestHandler):
    rbufsize = 64 * 1024
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        try:
            while self._serve_one():
                pass
        except MalformedRequestError as error:
            self._send(Response(400, f"{error}\n".encode()), head=False, close=True)
        except (ConnectionError, TimeoutError):
            pass  # the client is gone; there is nobody to tell

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def _serve_one(self) -> bool:
        line = self._line()
        while line == "\r\n":  # RFC 9112 2.2: be lenient about an empty line before a request
            line = self._line()
        if not line:
            return False
        try:
            method, target, version = line.split()
        except ValueError:
            raise MalformedRequestError("no HTTP request line") from None
        if not version.startswith("HTTP/1."):
            raise MalformedRequestError(f"{version[:20]!r} is not spoken here, HTTP/1.1 is")
        headers = self._headers()
        if method == "CONNECT":
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return True

        request = self._request(method, target, headers)
        response = self._answer(request)
        connection = headers.get("connection", "").lower()
        close = "close" in connection or (version == "HTTP/1.0" and "keep-alive" not in connection)
        close = close or request.body.withheld
        self._send(response, head=method == "HEAD", close=close)
        return not close and response.cut is None and request.body.drain()

    def _line(self) -> str:
        line = self.rfile.readline(LINE_LIMIT + 1)
        if len(line) > LINE_LIMIT:
            raise MalformedRequestError(f"a line of more than {LINE_LIMIT} bytes")
        return line.decode("latin-1")

    def _headers(self) -> Headers:
        headers = Headers()
        for _ in range(HEADER_LIMIT):
            line = self._line()
            if not line:
                raise ConnectionResetError("the client left in the middle of the headers")
            if line in {"\r\n", "\n"}:
                return headers
            name, colon, value = line.partition(":")
            if not colon or name != name.strip():
                raise MalformedRequestError("a header line without a name")
            headers.add(name, value.strip())
        raise MalformedRequestError(f"more than {HEADER_LIMIT} headers")

    def _request(self, method: str, target: str, headers: Headers) -> Request:
        if "://" in target.partition("?")[0]:  # the absolute form, as sent to a proxy
            target = "/" + target.split("://", 1)[1].partition("/")[2]
        path, _, query = target.partition("?")
        try:
            path = unquote(path, errors="strict")
            pairs = dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
        except UnicodeDecodeError:
            raise MalformedRequestError("a path that is not UTF-8") from None
        length = _body_length(headers)
        expects = headers.get("expect", "").lower() == "100-continue"
        body = Body(self.rfile, length, self._invite if expects else None)
        return Request(method, path, target, pairs, headers, body, length)

    def _invite(self) -> None:
        self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer(self, request: Request) -> Response:
        service = self.server.service
        try:
            return service.answer(request)
        except (ConnectionError, MalformedRequestError):
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            try:
                return service.crash(request, error)
            except Exception:
                log.exception("and so did the report of it")
                return Response(500, b"internal error\n")

    def _send(self, response: Response, *, head: bool, close: bool) -> None:
        body = response.body
        length = response.length
        if length is None:
            length = len(body) if isinstance(body, bytes) else 0
        date = formatdate(time.time() + self.server.clock_skew, usegmt=True)
        lines = [f"HTTP/1.1 {response.status} {_reason(response.status)}", f"Date: {date}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if response.status not in {204, 304}:
            lines.append(f"Content-Length: {length}")
        if close:
            lines.append("Connection: close")
        start = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        if response.cut is not None:
            length = min(length, response.cut)
        if isinstance(body, bytes):
            self.wfile.write(start if head else start + body[:length])
            return
        with body:
            if head:
                self.wfile.write(start)
            elif length <= BLOCK:  # one packet less than sendfile, which matters where files are small
                self.wfile.write(start + body.read(length))
            else:
                self.wfile.write(start)
                self.connection.sendfile(body, body.tell(), length)


def _body_length(headers: Headers) -> int | None:
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
            raise MalformedRequestError("the end of the body cannot be told")
        return None
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise MalformedRequestError("Content-Length is not a number")
    return int(length)


@functools.cache
def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], service: Service, clock_skew: float) -> None:
        self.service = service
        self.clock_skew = clock_skew  # seconds that the dates of answers are ahead
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()
        super().__init__(address, _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._open.discard(request)
                self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.error("a connection died", exc_info=sys.exc_info()[1])

    def hang_up(self, patience: float) -> None:
        """End every open connection; threads that do not let go in time are daemons and may be left."""
        deadline = time.monotonic() + patience
        with self._changed:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            while self._open and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)


class Listener:
    """One service on one port of 127.0.0.1. Bound when made: a taken port is the caller's exception."""

    def __init__(self, service: Service, port: int = 0, *, clock_skew: float = 0.0) -> None:
        self._server = _Server(("127.0.0.1", port), service, clock_skew)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name=self.url, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """No connection is accepted or answered any more. Stopping twice is no mistake."""
        if self._thread:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()
        self._server.hang_up(patience=5)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
