"""What goes over the wire, and who answers it: a `Service` sees a `Request` and gives a `Response`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

if TYPE_CHECKING:
    import io

LINE_LIMIT = 64 * 1024
DRAIN_LIMIT = 64 * 1024 * 1024  # an unread body larger than this costs the client its connection
BLOCK = 1024 * 1024


class MalformedRequestError(Exception):
    """What arrived is not HTTP; the connection cannot be used any further."""


class HungUp(ConnectionAbortedError):
    """Raised by a service that hangs up instead of answering, on purpose."""


class Headers(Mapping[str, str]):
    """Looked up in any case; iterates over lower-case names; repeated fields are joined as RFC 9110 says."""

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
    """The body of one request, read from the connection no further than its end."""

    def __init__(
        self, stream: io.BufferedIOBase, length: int | None = 0, invite: Callable[[], None] | None = None
    ) -> None:
        self._stream = stream
        self._chunked = length is None
        self._left = length or 0  # of the body, or of the current chunk
        self._ended = length == 0
        self._invite = invite  # answers "Expect: 100-continue", once somebody wants the body

    @property
    def withheld(self) -> bool:
        """The client still waits for 100-continue, so nobody knows whether the body will come."""
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
        """Read what is left over; False where it is too much to be worth it."""
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


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """Percent-decoded, without the query."""
    raw_path: str
    """As on the wire, with the query: what signatures are made of."""
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Body
    length: int | None
    """None: the body is chunked, its length is not known before it was read."""
    _read: list[bytes] = field(default_factory=list, repr=False, compare=False)

    def bytes(self) -> bytes:
        """The whole body; reading it twice is no mistake."""
        if not self._read:
            self._read.append(self.body.read())
        return self._read[0]

    def json(self) -> Any:
        """The body as JSON; ValueError where it is none."""
        return json.loads(self.bytes())


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes | BinaryIO = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    """How much of a file to send, from where it stands; of an answer to HEAD, what GET would have sent."""
    cut: int | None = None
    """Hang up after so many bytes of the body, whatever length was promised."""

    @classmethod
    def json(cls, status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
        content = json.dumps(value, ensure_ascii=False).encode()
        return cls(status, content, {"Content-Type": "application/json;charset=utf-8", **(headers or {})})


class Service(Protocol):
    def answer(self, request: Request) -> Response: ...

    def crash(self, request: Request, error: Exception) -> Response:
        """The 500 of this service's dialect, for an exception that left `answer`."""
