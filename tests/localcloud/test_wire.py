"""HTTP on loopback: a connection stays in step whatever clients and services do."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.localcloud.http import Listener, _Connection
from pytest_aisbench.localcloud.messages import Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Echo:
    """Tells what it was asked, unless the path says otherwise."""

    def __init__(self, folder: Path, *, quick: bool = True) -> None:
        self._quick = quick
        self.file = folder / "file"
        self.file.write_bytes(bytes(range(256)) * 20_000)

    def answer(self, request: Request) -> Response:
        match request.path:
            case "/unread":
                return Response.json(200, "unread")
            case "/bug":
                raise ZeroDivisionError("bug")
            case "/file":
                file = self.file.open("rb")
                file.seek(10)
                return Response(206, file, {}, self.file.stat().st_size - 10)
            case "/nothing":
                return Response(204)
        told: dict[str, Any] = {"path": request.path, "raw": request.raw_path, "query": request.query}
        told |= {"length": request.length, "read": len(request.bytes()), "host": request.headers.get("host")}
        return Response.json(200, told, {"X-Method": request.method})

    def quick(self, request: Request) -> bool:
        return self._quick

    def crash(self, request: Request, error: Exception) -> Response:
        return Response.json(500, {"dialect": str(error)})


@pytest.fixture(params=[True, False], ids=["at once", "in a thread"])
def address(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    with Listener(Echo(tmp_path, quick=request.param)) as listener:
        host, _, port = listener.url.removeprefix("http://").partition(":")
        yield host, int(port)


@pytest.fixture
def connection(address: tuple[str, int]) -> Iterator[http.client.HTTPConnection]:
    """Never reconnects by itself, so that every answer proves that the connection was in step."""
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.connect()
    connection.auto_open = 0
    yield connection
    connection.close()


def ask(connection: http.client.HTTPConnection, method: str, target: str, body: Any = None, **more: Any) -> Any:
    connection.request(method, target, body, **more)
    response = connection.getresponse()
    content = response.read()
    return response.status, json.loads(content) if content else None


def talk(address: tuple[str, int], *messages: bytes) -> list[bytes]:
    """What comes back for each message, and at last what comes until the server hangs up (b"" if at once)."""
    with socket.create_connection(address, timeout=10) as plain:
        answers = []
        for message in messages:
            plain.sendall(message)
            answers.append(plain.recv(65536))
        return answers


def test_one_connection_serves_many_requests(connection: http.client.HTTPConnection) -> None:
    status, told = ask(connection, "PUT", "/a%2Fb%20%C3%BC?x=1&y&z=%26", b"q" * 100_000)
    assert status == 200
    assert told["path"] == "/a/b ü"
    assert told["raw"] == "/a%2Fb%20%C3%BC?x=1&y&z=%26"
    assert told["query"] == {"x": "1", "y": "", "z": "&"}
    assert told["read"] == told["length"] == 100_000
    assert ask(connection, "POST", "/unread", b"z" * 3_000_000) == (200, "unread")
    assert ask(connection, "GET", "/nothing") == (204, None)
    assert ask(connection, "HEAD", "/x")[0] == 200
    assert ask(connection, "GET", "/last")[1]["path"] == "/last"


def test_chunked_bodies_read_or_not(connection: http.client.HTTPConnection) -> None:
    def chunks() -> Iterator[bytes]:
        yield from (b"abc", b"d" * 70_000, b"e")

    chunked = {"encode_chunked": True, "headers": {"Transfer-Encoding": "chunked"}}
    status, told = ask(connection, "PUT", "/x", chunks(), **chunked)
    assert (status, told["length"], told["read"]) == (200, None, 70_004)
    assert ask(connection, "PUT", "/unread", chunks(), **chunked) == (200, "unread")
    assert ask(connection, "GET", "/after")[1]["path"] == "/after"


def test_a_bug_in_a_service_is_logged_and_told_in_its_dialect(
    connection: http.client.HTTPConnection, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(connection, "POST", "/bug", b"body") == (500, {"dialect": "bug"})
    assert "ZeroDivisionError" in caplog.text
    assert ask(connection, "GET", "/after")[0] == 200


def test_files_are_streamed_from_where_they_stand(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/file")
    response = connection.getresponse()
    assert (response.status, response.read()) == (206, (bytes(range(256)) * 20_000)[10:])
    connection.request("HEAD", "/file")
    response = connection.getresponse()
    assert (response.read(), response.headers["Content-Length"]) == (b"", "5119990")
    assert ask(connection, "GET", "/after")[0] == 200


def test_a_tunnel_leads_back_to_the_listener(address: tuple[str, int]) -> None:
    tunnel = http.client.HTTPConnection(*address, timeout=10)
    tunnel.set_tunnel("bucket.obs.example", 80)
    for path in ("/first", "/second"):
        told = ask(tunnel, "GET", path)[1]
        assert (told["path"], told["host"]) == (path, "bucket.obs.example")
    tunnel.close()


def test_the_absolute_form_of_proxied_requests(connection: http.client.HTTPConnection) -> None:
    assert ask(connection, "GET", "http://elsewhere.example/a/b?c=d")[1]["raw"] == "/a/b?c=d"


HEAD = b"PUT %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"


def test_a_body_is_invited_only_by_who_reads_it(address: tuple[str, int]) -> None:
    invited, answer = talk(address, HEAD % b"/x", b"abc")
    assert invited == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.startswith(b"HTTP/1.1 200 OK")
    refused, end = talk(address, HEAD % b"/unread", b"")
    assert refused.startswith(b"HTTP/1.1 200 OK")
    assert b"Connection: close" in refused
    assert end == b""


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00 hello\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /%ff HTTP/1.1\r\n\r\n",
        b"PUT /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_400(address: tuple[str, int], nonsense: bytes) -> None:
    (answer,) = talk(address, nonsense)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_old_clients_and_those_who_say_so_are_hung_up_on(address: tuple[str, int]) -> None:
    for request in (b"GET /x HTTP/1.0\r\n\r\n", b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n"):
        answer, end = talk(address, request, b"")
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert end == b""


def test_requests_may_come_in_pieces_and_in_bunches(address: tuple[str, int]) -> None:
    one = b"PUT /%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
    with socket.create_connection(address, timeout=10) as plain:
        for byte in one % 0:
            plain.sendall(bytes([byte]))
        plain.sendall(one % 1 + one % 2 + (one % 3)[:-1])
        plain.sendall(b"c")
        answers = b""
        while answers.count(b"\r\n\r\n") < 4 or not answers.endswith(b"}"):
            part = plain.recv(65536)
            assert part, answers
            answers += part
    assert [answers.count(b'"path": "/%d"' % number) for number in range(4)] == [1, 1, 1, 1]
    assert answers.count(b'"read": 3') == 4


def test_a_client_that_does_not_read_holds_nobody_up(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=10) as lazy:
        lazy.sendall(b"GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)  # 100 MiB of answers
        for _ in range(20):
            (answer,) = talk(address, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_slow_answer_holds_nobody_up(tmp_path: Path) -> None:
    class Slow(Echo):
        def __init__(self) -> None:
            super().__init__(tmp_path)
            self.go_on = threading.Event()

        def quick(self, request: Request) -> bool:
            return request.path != "/slow"

        def answer(self, request: Request) -> Response:
            if request.path == "/slow":
                assert self.go_on.wait(10)
            return super().answer(request)

    service = Slow()
    with Listener(service) as listener:
        host, _, port = listener.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as waiting:
            waiting.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            (answer,) = talk((host, int(port)), b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK")
            service.go_on.set()
            assert b'"/slow"' in waiting.recv(65536)
            waiting.sendall(b"GET /again HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b'"/again"' in waiting.recv(65536)


def test_stopping_ends_idle_connections_and_frees_the_port(tmp_path: Path) -> None:
    listener = Listener(Echo(tmp_path))
    listener.start()
    host, _, port = listener.url.removeprefix("http://").partition(":")
    assert host == "127.0.0.1"
    with socket.create_connection((host, int(port)), timeout=10) as idle:
        idle.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        assert idle.recv(65536)
        listener.stop()
        assert idle.recv(1) == b""
    listener.stop()
    with Listener(Echo(tmp_path), int(port)) as successor:
        assert successor.url == listener.url
        with pytest.raises(OSError, match="in use"):
            Listener(Echo(tmp_path), int(port))


def test_a_connection_that_a_thread_gives_back_too_late_is_closed(tmp_path: Path) -> None:
    listener = Listener(Echo(tmp_path))  # its thread takes no connection back any more
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(60)
        listener._returned.put(_Connection(ours))
        listener.stop()
        assert theirs.recv(1) == b""
