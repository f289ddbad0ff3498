"""A small, fast HTTP/1.1 server on loopback. A `Listener` serves one `Service`: it turns a `Request` into a `Response`.

The server reads and drops what a service leaves unread of a request, so that the connection can be used again. It
opens CONNECT tunnels to itself: a client that names it as the proxy reaches the virtual host `bucket.obs.example`
without DNS.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    import io

    from typing_extensions import Self


log = logging.getLogger(__name__)


LINE_LIMIT = 64 * 1024
HEADER_LIMIT = 200
DRAIN_LIMIT = 64 * 1024 * 1024  # close the connection rather than read more of an unwanted body
BLOCK = 1024 * 1024


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """Percent-decoded, without the query."""
    raw_path: str
    """As on the wire, with the query; signatures are computed from it."""
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Body
    length: int | None
    """None for a chunked body."""
    _read: list[bytes] = field(default_factory=list, repr=False, compare=False)

    def bytes(self) -> bytes:
        """The whole body; may be called repeatedly."""
        if not self._read:
            self._read.append(self.body.read())
        return self._read[0]

    def json(self) -> Any:
        """The body as JSON; ValueError where it is not JSON."""
        return json.loads(self.bytes())


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes | BinaryIO = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    """How many bytes of a file to send from its position; in an answer to HEAD, what GET would have sent."""
    cut: int | None = None
    """Hang up after this many bytes of the body, whatever Content-Length says."""

    @classmethod
    def json(cls, status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
        content = json.dumps(value, ensure_ascii=False).encode()
        return cls(status, content, {"Content-Type": "application/json;charset=utf-8", **(headers or {})})


class Service(Protocol):
    def answer(self, request: Request) -> Response: ...

    def crash(self, request: Request, error: Exception) -> Response:
        """Word the 500 for an exception that `answer` let through."""


class MalformedRequestError(Exception):
    """The client did not send HTTP; the connection must be closed."""


class HungUp(ConnectionAbortedError):
    """A service raises it to hang up instead of answering."""


class Headers(Mapping[str, str]):
    """Names in any case; iterates over lower-case names; joins repeated fields as RFC 9110 says."""

    def __init__(self, fields: Mapping[str, str] | None = None) -> None:
        self._fields: dict[str, str] = {}
        for name, value in (fields or {}).items():
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        name = name.lower()
        self._fields[name] = f"{self._fields[name]},{value}" if name in self._fields else value

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class Body:
    """The body of one request; reads from the connection up to its end and no further."""

    def __init__(
        self, stream: io.BufferedIOBase, length: int | None = 0, invite: Callable[[], None] | None = None
    ) -> None:
        self._stream = stream
        self._chunked = length is None
        self._left = length or 0  # of the body, or of the current chunk
        self._ended = length == 0
        self._invite = invite  # answers "Expect: 100-continue" before the first read

    @property
    def withheld(self) -> bool:
        """True while the client waits for 100-continue: it may or may not send the body."""
        return self._invite is not None and not self._ended

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return b"".join(iter(functools.partial(self.read, BLOCK), b""))
        if self._ended or size == 0:
            return b""
        if self._invite:
            self._invite()
            self._invite = None
        if self._chunked and self._left == 0 and not self._next_chunk():
            return b""
        data = self._stream.read(min(size, self._left))
        if not data:
            raise ConnectionResetError("the client left in the middle of a body")
        self._left -= len(data)
        if self._left == 0:
            if self._chunked:
                self._stream.readline(LINE_LIMIT)
            else:
                self._ended = True
        return data

    def drain(self) -> bool:
        """Read and drop the rest of the body; return False where it is too large for that."""
        left = DRAIN_LIMIT
        while left > 0:
            data = self.read(BLOCK)
            if not data:
                return True
            left -= len(data)
        return False

    def _next_chunk(self) -> bool:
        line = self._stream.readline(LINE_LIMIT).split(b";")[0].strip()
        try:
            self._left = int(line, 16)
        except ValueError as error:
            raise MalformedRequestError("a chunk without a size") from error
        if self._left == 0:
            while self._stream.readline(LINE_LIMIT).strip():
                pass  # trailers
            self._ended = True
        return not self._ended


class Listener:
    """One service on one port of 127.0.0.1. The constructor binds the port, and raises where it is taken."""

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
        """Accept and answer no more connections. May be called twice."""
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


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], service: Service, clock_skew: float) -> None:
        self.service = service
        self.clock_skew = clock_skew  # seconds by which the Date of answers is ahead
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
        """End every open connection; leave the threads that take longer than `patience` seconds (they are daemons)."""
        deadline = time.monotonic() + patience
        with self._changed:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            while self._open and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)


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
        except (ConnectionError, TimeoutError) as error:
            log.debug("the client has left: %s", error)

    def finish(self) -> None:
        try:
            super().finish()
        except OSError as error:
            log.debug("the last answer did not reach the client: %s", error)

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
                log.exception("the service could not word its own error")
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
            elif length <= BLOCK:  # one packet less than sendfile: faster for small files
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
