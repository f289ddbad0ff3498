"""HTTP/1.1 messages: a `Request` with its `Body`, a `Response`, and how the head of each is read and written."""

from __future__ import annotations

import functools
import json
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

HEAD_LIMIT = 64 * 1024
HEADER_LIMIT = 200
DRAIN_LIMIT = 64 * 1024 * 1024  # close the connection rather than read more of an unwanted body
BLOCK = 1024 * 1024


_LONG_DIGITS = 300  # a number of more is no float, and after 4,300 Python reads it no more
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (_LONG_DIGITS + 1))


class Request:
    __slots__ = ("_read", "body", "headers", "length", "method", "path", "query", "raw_path", "routed")

    def __init__(  # noqa: PLR0917 (a plain class: a dataclass costs more to make and to import)
        self,
        method: str,
        path: str,
        raw_path: str,
        query: dict[str, str],
        headers: Mapping[str, str],
        body: Body,
        length: int | None,
    ) -> None:
        """`path` is percent-decoded and has no query. `raw_path` is as on the wire, with the query; signatures are
        computed from it. The names of `headers` are in lower case. `length` is None for a chunked body."""
        self.method = method
        self.path = path
        self.raw_path = raw_path
        self.query = query
        self.headers = headers
        self.body = body
        self.length = length
        self._read: bytes | None = None
        self.routed: Any = None
        """What its service made of its path, kept because it is asked for twice: to count the request and to answer."""

    def bytes(self) -> bytes:
        """The whole body; may be called repeatedly."""
        if self._read is None:
            self._read = self.body.read()
        return self._read

    def json(self) -> Any:
        """The body as JSON; ValueError where it is not JSON, or no program could work with its numbers."""
        content = self.bytes()
        if len(content) > _LONG_DIGITS and _LONG_NUMBER.search(content):
            raise ValueError(f"a number of more than {_LONG_DIGITS} digits")
        try:
            return json.loads(content)
        except RecursionError:
            raise ValueError("nested too deeply") from None


class Response(NamedTuple):
    status: int
    body: bytes | BinaryIO = b""
    headers: Mapping[str, str] = {}
    length: int | None = None
    """How many bytes of a file to send from its position; in an answer to HEAD, what GET would have sent."""
    cut: int | None = None
    """Hang up after this many bytes of the body, whatever Content-Length says."""

    @classmethod
    def json(cls, status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
        return cls.json_text(status, json_text(value), headers)

    @classmethod
    def json_text(cls, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
        """For JSON that has been worded already."""
        return cls(status, text.encode(), {"Content-Type": "application/json;charset=utf-8", **(headers or {})})


json_text = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder for each call


def new_id() -> str:
    """32 hex digits that are given out once. They are no secret, so the kernel need not be asked for each."""
    return f"{random.getrandbits(128):032x}"


class MalformedRequestError(Exception):
    """The client did not send HTTP; the connection must be closed."""

    status = 400


class ForbiddenError(MalformedRequestError):
    """A web page sent the request, and not the user who started the cloud."""

    status = 403


class HungUp(ConnectionAbortedError):
    """A service raises it to hang up instead of answering."""


class Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def readline(self, size: int, /) -> bytes: ...


class Body:
    """The body of one request; reads from the connection up to its end and no further."""

    def __init__(self, stream: Stream, length: int | None = 0, invite: Callable[[], None] | None = None) -> None:
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
                self._stream.readline(HEAD_LIMIT)
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
        line = self._stream.readline(HEAD_LIMIT).split(b";")[0].strip()
        try:
            self._left = int(line, 16)
        except ValueError as error:
            raise MalformedRequestError("a chunk without a size") from error
        if self._left == 0:
            while self._stream.readline(HEAD_LIMIT).strip():
                pass  # trailers
            self._ended = True
        return not self._ended


class WholeBody(Body):
    """A body that has been read already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def withheld(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        data = self._data
        if size < 0 or size >= len(data):
            self._data = b""
            return data
        self._data = data[size:]
        return data[:size]


NO_BODY = WholeBody(b"")


# Reading the head of a request, and writing that of a response.


def parse_head(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    """The method, the target, the version and the headers, their names in lower case; repeated fields are joined as
    RFC 9110 says."""
    if len(head) > _LONG_DIGITS and _LONG_NUMBER.search(head):
        raise MalformedRequestError(f"a number of more than {_LONG_DIGITS} digits")
    first, *lines = head.decode("latin-1").split("\n")
    try:
        method, target, version = first.split()
    except ValueError:
        raise MalformedRequestError("no HTTP request line") from None
    if not version.startswith("HTTP/1."):
        raise MalformedRequestError(f"{version[:20]!r} is not spoken here, HTTP/1.1 is")
    if len(lines) > HEADER_LIMIT:
        raise MalformedRequestError(f"more than {HEADER_LIMIT} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise MalformedRequestError("a header line without a name")
        name = name.lower()
        headers[name] = f"{headers[name]},{value.strip()}" if name in headers else value.strip()
    return method, target, version, headers


def parse_target(target: str) -> tuple[str, str, dict[str, str]]:
    """The decoded path, the target as signed, and the query."""
    if not target.startswith("/") and "://" in target.partition("?")[0]:  # the absolute form, as sent to a proxy
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    path, _, query = target.partition("?")
    try:
        if "%" in path:
            path = unquote(path, errors="strict")
        pairs = dict(parse_qsl(query, keep_blank_values=True, errors="strict")) if query else {}
    except UnicodeDecodeError:
        raise MalformedRequestError("a path that is not UTF-8") from None
    return path, target, pairs


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """True for a Host header that names this machine: 127.0.0.1:8080, localhost, bucket.localhost, [::1]:80."""
    name = host.lower().rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host.lower()
    octets = name.split(".")
    address = octets[0] == "127" and len(octets) == 4 and all(octet.isdigit() for octet in octets)
    return address or name in {"localhost", "[::1]"} or name.endswith(".localhost")


def body_length(headers: Mapping[str, str]) -> int | None:
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
            raise MalformedRequestError("the end of the body cannot be told")
        return None
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise MalformedRequestError("Content-Length is not a number")
    return int(length)


def http_date(moment: float) -> str:
    """As RFC 9110 wants it; one second is worded once."""
    return _word_date(int(moment))


# Not strftime's, which follow the locale.
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@functools.lru_cache(maxsize=256)
def _word_date(second: int) -> str:
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(second)
    return f"{DAYS[weekday]}, {day:02} {MONTHS[month - 1]} {year:04} {hour:02}:{minute:02}:{second:02} GMT"


def response_head(response: Response, moment: float, *, close: bool) -> tuple[bytes, int]:
    """The head of an answer that is sent at this time, and how many bytes of the body to send."""
    status, body, headers, length, cut = response
    if length is None:
        length = len(body) if isinstance(body, bytes) else 0
    lines = [_status_line(status), f"Date: {http_date(moment)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if status not in {204, 304}:
        lines.append(f"Content-Length: {length}")
    if close:
        lines.append("Connection: close")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1", "replace"), length if cut is None else min(length, cut)


@functools.cache
def _status_line(status: int) -> str:
    from http import HTTPStatus

    try:
        return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP/1.1 {status} Unknown"
