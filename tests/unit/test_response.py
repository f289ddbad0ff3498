"""`QuickResponse` against Python's own class: the same bytes give the same answer, or the same error."""

from __future__ import annotations

import http.client
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.net.http import QuickResponse

_ORDINARY = b'HTTP/1.1 200 OK\r\nDate: Wed, 18 Nov 2026 10:00:00 GMT\r\nContent-Length: 2\r\nETag: "x"\r\n\r\nok'


def seen(kind: type[http.client.HTTPResponse], data: bytes, method: str, pieces: int = 1) -> Any:
    """What a client sees of an answer that arrives in so many pieces before the server hangs up."""
    ours, servers = socket.socketpair()
    with ours, servers:
        for part in range(pieces):
            servers.sendall(data[part * len(data) // pieces : (part + 1) * len(data) // pieces])
        servers.shutdown(socket.SHUT_WR)
        ours.settimeout(5)
        response = kind(ours, method=method)
        try:
            response.begin()
            head = (response.status, response.getcode(), response.reason, response.version, response.getheaders())
            ends = (response.length, response.chunked, response.will_close, response.getheader("content-length"))
            return (
                head,
                ends,
                str(response.msg),
                list(map(repr, response.msg.defects)),
                response.read(),
                response.isclosed(),
            )
        except http.client.HTTPException as error:
            return type(error), str(error)
        finally:
            response.close()


def assert_same(data: bytes, method: str = "GET") -> None:
    assert seen(QuickResponse, data, method) == seen(http.client.HTTPResponse, data, method)


@pytest.mark.parametrize(
    "data",
    [
        _ORDINARY,
        b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404  Not  Found \r\nContent-Length: 0\r\nx-amz: \xe9 \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: Close\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 1\r\nY: b\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 120 + b"Content-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20_000 + b"\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_every_answer_is_what_http_client_makes_of_it(data: bytes, method: str) -> None:
    assert_same(data, method)


def test_an_answer_in_pieces_is_whole() -> None:
    assert seen(QuickResponse, _ORDINARY, "GET", pieces=20) == seen(http.client.HTTPResponse, _ORDINARY, "GET")


_LINE = st.sampled_from(
    [
        b"Content-Length: 3",
        b"Content-Length:3 ",
        b"X:",
        b"X: \t y ",
        b": z",
        b"X\x00: y",
        b"X: \x85",
        b"Connection: keep-alive",
    ]
)


@given(st.lists(_LINE, max_size=6), st.sampled_from([b"\r\n", b"\n", b"\r", b"\r\r\n"]), st.binary(max_size=8))
def test_heads_of_all_kinds_are_what_http_client_makes_of_them(lines: list[bytes], end: bytes, body: bytes) -> None:
    assert_same(b"HTTP/1.1 200 OK\r\n" + b"\r\n".join([*lines, b"Y: y" + end + b"Z: z"]) + b"\r\n\r\n" + body)
