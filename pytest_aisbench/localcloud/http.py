"""A small, fast HTTP/1.1 server on loopback. A `Listener` serves one `Service`: it turns a `Request` into a `Response`.

One thread of the listener reads all connections, and answers at once what the service calls quick: a hand-over to
another thread costs more than most answers. Everything that may wait goes to a thread of its own for one request: a
large or chunked body, a large file, a client that is slow to read, a service that is not quick.

The server reads and drops what a service leaves unread of a request, so that the connection can be used again. It
opens CONNECT tunnels to itself: a client that names it as the proxy reaches the virtual host `bucket.obs.example`
without DNS.

A browser on this machine reaches loopback for any web page. So the server refuses a request that a page of another
origin sent, and one for a Host that is not loopback: the page's own name, with the address of this machine.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from pytest_aisbench.localcloud.messages import (
    BLOCK,
    HEAD_LIMIT,
    NO_BODY,
    Body,
    ForbiddenError,
    MalformedRequestError,
    Request,
    Response,
    WholeBody,
    body_length,
    is_loopback,
    parse_head,
    parse_target,
    response_head,
)

if TYPE_CHECKING:
    from typing_extensions import Self


log = logging.getLogger(__name__)


SMALL = 256 * 1024  # bodies up to here are read whole before the request is answered
_BACKLOG = 256
_RECEIVE = 64 * 1024  # at a time; a larger buffer is memory that the kernel must map anew each time
_AT_ONCE = socket.MSG_DONTWAIT


class Service(Protocol):
    def answer(self, request: Request) -> Response: ...

    def quick(self, request: Request) -> bool:
        """True where `answer` neither waits nor works for more than a moment; other clients wait meanwhile."""

    def crash(self, request: Request, error: Exception) -> Response:
        """Word the 500 for an exception that `answer` let through."""


class _Connection:
    """What was read of a connection and not yet used; while a body is incomplete, also its request."""

    __slots__ = ("buffer", "close", "request", "socket", "tunnel", "wanted")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.buffer = b""
        self.wanted = 0  # bytes of the body that must be there before the request is answered
        self.request: Request | None = None
        self.close = False  # after the answer to this request
        self.tunnel = False  # the client has named this server as its proxy, which no web page can

    # As a `Stream`, for the thread that reads a body. The socket blocks there.

    def read(self, size: int) -> bytes:
        if not self.buffer:
            return self.socket.recv(min(size, BLOCK), socket.MSG_WAITALL)
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def readline(self, size: int) -> bytes:
        while (end := self.buffer.find(b"\n")) < 0 and len(self.buffer) < size:
            data = self.socket.recv(_RECEIVE)
            if not data:
                break
            self.buffer += data
        return self.read(end + 1 if end >= 0 else size) if self.buffer else b""

    def invite(self) -> None:
        self.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def hang_up(self) -> None:
        """Close the socket, after the client was told that nothing more comes."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()


class Listener:
    """One service on one port of 127.0.0.1. The constructor binds the port, and raises where it is taken."""

    def __init__(self, service: Service, port: int = 0, *, clock_skew: float = 0.0) -> None:
        self._service = service
        self._clock_skew = clock_skew  # seconds by which the Date of answers is ahead
        self._socket = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        self._socket.settimeout(0)
        self._url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._woken, self._waker = socket.socketpair()
        self._poll = select.poll()
        self._connections: dict[int, _Connection] = {}  # by descriptor, those that this thread reads
        self._returned: SimpleQueue[_Connection] = SimpleQueue()  # by a thread that had them for one request
        self._lent: set[_Connection] = set()  # to such a thread
        self._changed = threading.Condition()
        self._threads = Threads()
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def url(self) -> str:
        return self._url

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.url, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Accept and answer no more connections. May be called twice."""
        self._stopping = True
        if self._thread:
            self._wake()
            self._thread.join()
            self._thread = None
        self._socket.close()
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        self._hang_up(patience=5)
        self._threads.close()
        self._woken.close()
        self._waker.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed: no thread waits any more
            self._waker.send(b"x", _AT_ONCE)

    def _hang_up(self, patience: float) -> None:
        """End the connections that threads have; leave the threads that take longer than `patience` seconds (they are
        daemons)."""
        deadline = time.monotonic() + patience
        with self._changed:
            for connection in self._lent:
                with contextlib.suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_RDWR)
            while self._lent and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        while not self._returned.empty():  # the listener takes none back any more
            self._returned.get().hang_up()

    # In the listener's thread.

    def _run(self) -> None:
        poll, connections = self._poll, self._connections
        accepting, woken = self._socket.fileno(), self._woken.fileno()
        poll.register(accepting, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while not self._stopping:
            for descriptor, _ in poll.poll():
                if descriptor in connections:
                    self._receive(connections[descriptor])
                elif descriptor == accepting:
                    self._accept()
                elif descriptor == woken:
                    self._woken.recv(4096)
                    self._take_back()

    def _accept(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except OSError as error:  # it has gone again, or this process has no descriptor left
            log.warning("a connection was not accepted: %s", error)
            time.sleep(0.05)
            return
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch(_Connection(connected))

    def _watch(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        self._connections[descriptor] = connection
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        self._poll.unregister(descriptor)
        del self._connections[descriptor]

    def _take_back(self) -> None:
        while not self._returned.empty():
            connection = self._returned.get()
            self._watch(connection)
            if connection.buffer:
                self._proceed(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_RECEIVE, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("the client has left: %s", error)
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.buffer = connection.buffer + data if connection.buffer else data
        self._proceed(connection)

    def _drop(self, connection: _Connection) -> None:
        self._unwatch(connection)
        connection.hang_up()

    def _proceed(self, connection: _Connection) -> None:
        """Answer the requests that have arrived, as far as that takes no waiting."""
        try:
            while connection.buffer and self._serve_one(connection):
                pass
        except MalformedRequestError as error:
            self._lend(connection, functools.partial(self._refuse, connection, error))
        except (ConnectionError, TimeoutError) as error:
            log.debug("the client has left: %s", error)
            self._drop(connection)
        except Exception:
            log.exception("a connection died")
            self._drop(connection)

    def _serve_one(self, connection: _Connection) -> bool:
        """False where the next request must be waited for, or where a thread has it."""
        request = connection.request
        if request is None:
            request = self._read_head(connection)
            if request is None:
                return False
            length = request.length
            if length is None or length > SMALL or request.body.withheld:
                self._lend(connection, functools.partial(self._serve_slowly, connection, request))
                return False
            connection.wanted = length
        if wanted := connection.wanted:
            buffer = connection.buffer
            if len(buffer) < wanted:
                connection.request = request
                return False
            request.body = WholeBody(buffer[:wanted])
            connection.buffer = buffer[wanted:]
        connection.request = None
        if not self._service.quick(request):
            self._lend(connection, functools.partial(self._serve_slowly, connection, request))
            return False
        response = self._answer(request)
        return self._send(connection, response, head=request.method == "HEAD", close=connection.close)

    def _read_head(self, connection: _Connection) -> Request | None:
        """The next request of the connection, with a body that is still to be read; None until its head is there."""
        buffer = connection.buffer
        end = buffer.find(b"\r\n\r\n")
        after = end + 4
        if end < 0:
            end = buffer.find(b"\n\n")  # RFC 9112 2.2: be lenient about the ends of lines
            after = end + 2
        if end > HEAD_LIMIT or (end < 0 and len(buffer) > HEAD_LIMIT):
            raise MalformedRequestError(f"a head of more than {HEAD_LIMIT} bytes")
        if end < 0:
            return None
        head, connection.buffer = buffer[:end].lstrip(b"\r\n"), buffer[after:]
        method, target, version, headers = parse_head(head)
        if method == "CONNECT":
            connection.socket.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            connection.tunnel = True
            return self._read_head(connection) if connection.buffer else None
        self._refuse_web_pages(headers, proxied=connection.tunnel or not target.startswith("/"))
        path, target, query = parse_target(target)
        length = body_length(headers)
        option = headers.get("connection", "").lower()
        connection.close = "close" in option or (version == "HTTP/1.0" and "keep-alive" not in option)
        if length == 0:
            body: Body = NO_BODY
        else:
            expects = "expect" in headers and headers["expect"].lower() == "100-continue"
            body = Body(connection, length, connection.invite if expects else None)
        return Request(method, path, target, query, headers, body, length)

    def _refuse_web_pages(self, headers: Mapping[str, str], *, proxied: bool) -> None:
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin != self._url:
            raise ForbiddenError(f"a web page of {origin[:200]} may not use the local cloud")
        if host and not proxied and not is_loopback(host):
            raise ForbiddenError(f"Host is {host[:200]}, and the local cloud serves loopback only")

    def _send(self, connection: _Connection, response: Response, *, head: bool, close: bool) -> bool:
        """Send what the connection takes at once, and lend the rest to a thread; True where the next may follow."""
        body = response.body
        start, length = self._start(response, close=close)
        if not isinstance(body, bytes):
            if not head and length > SMALL:
                self._lend(connection, functools.partial(self._send_slowly, connection, response, close=close))
                return False
            with body:
                data = start if head else start + body.read(length)
        else:
            data = start if head else start + body[:length]
        close = close or response.cut is not None
        try:
            sent = connection.socket.send(data, _AT_ONCE)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._lend(connection, functools.partial(self._send_rest, connection, data[sent:], close=close))
            return False
        if close:
            self._drop(connection)
            return False
        return True

    def _start(self, response: Response, *, close: bool) -> tuple[bytes, int]:
        return response_head(response, time.time() + self._clock_skew, close=close)

    def _answer(self, request: Request) -> Response:
        try:
            return self._service.answer(request)
        except (ConnectionError, MalformedRequestError):
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            try:
                return self._service.crash(request, error)
            except Exception:
                log.exception("the service could not word its own error")
                return Response(500, b"internal error\n")

    # In a thread that has the connection for one request.

    def _lend(self, connection: _Connection, work: Callable[[], bool]) -> None:
        """Have a thread do the work; it returns whether the connection goes on."""
        self._unwatch(connection)
        with self._changed:
            self._lent.add(connection)
        try:
            self._threads.run(functools.partial(self._work, connection, work))
        except RuntimeError as error:  # the machine has no thread left
            log.warning("a request was not answered: %s", error)
            connection.hang_up()
            self._lent.discard(connection)

    def _work(self, connection: _Connection, work: Callable[[], bool]) -> None:
        goes_on = False
        try:
            goes_on = work()
        except (ConnectionError, TimeoutError) as error:
            log.debug("the client has left: %s", error)
        except Exception:
            log.exception("a connection died")
        goes_on = goes_on and not self._stopping
        if not goes_on:
            connection.hang_up()
        with self._changed:
            if goes_on:  # before it leaves those that threads have: a server that stops looks at both
                self._returned.put(connection)
            self._lent.discard(connection)
            self._changed.notify_all()
        if goes_on:
            self._wake()

    def _serve_slowly(self, connection: _Connection, request: Request) -> bool:
        try:
            response = self._answer(request)
            close = connection.close or request.body.withheld
            goes_on = self._send_slowly(connection, response, head=request.method == "HEAD", close=close)
            return goes_on and request.body.drain()
        except MalformedRequestError as error:  # in its body
            return self._refuse(connection, error)

    def _refuse(self, connection: _Connection, error: MalformedRequestError) -> bool:
        return self._send_slowly(connection, Response(error.status, f"{error}\n".encode()), close=True)

    def _send_slowly(self, connection: _Connection, response: Response, *, head: bool = False, close: bool) -> bool:
        start, length = self._start(response, close=close)
        body = response.body
        goes_on = not close and response.cut is None
        if isinstance(body, bytes):
            connection.socket.sendall(start if head else start + body[:length])
            return goes_on
        with body:
            if head:
                connection.socket.sendall(start)
            elif length <= SMALL:  # one packet less than sendfile: faster for small files
                connection.socket.sendall(start + body.read(length))
            else:
                connection.socket.sendall(start)
                connection.socket.sendfile(body, body.tell(), length)
        return goes_on

    def _send_rest(self, connection: _Connection, data: bytes, *, close: bool) -> bool:
        connection.socket.sendall(data)
        return not close


class Threads:
    """Makes calls in threads that stay for the next call; starts one where none is idle."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0  # threads that wait, less the calls that wait for them
        self._lock = threading.Lock()

    def run(self, call: Callable[[], None]) -> None:
        with self._lock:
            start = self._idle == 0
            self._idle -= not start
        if start:
            threading.Thread(target=self._work, daemon=True).start()  # raises RuntimeError where none can be had
        self._calls.put(call)

    def close(self) -> None:
        """End the idle threads; those at work are daemons."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._calls.put(None)

    def _work(self) -> None:
        while call := self._calls.get():
            call()
            with self._lock:
                self._idle += 1
