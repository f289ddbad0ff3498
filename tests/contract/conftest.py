"""A server that gives the answers of a script, and keeps the requests it gets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Reply(NamedTuple):
    """One answer; status 0 drops the connection."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = {}
    missing: int = 0  # bytes that are announced and never sent
    hold: threading.Event | None = None  # answer only then


class Server(ThreadingHTTPServer):
    """Answers with the replies it was given, the last for ever, and keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[Reply] = [Reply(body={})]
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, *replies: tuple[Any, ...]) -> None:
        """With these in turn: (status, body, headers, missing, hold) as far as they matter."""
        self.replies = [Reply(*reply) for reply in replies]

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield
        self.shutdown()
        thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _any(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, dict(self.headers.items()), content))
        reply = self.server.replies.pop(0) if len(self.server.replies) > 1 else self.server.replies[0]
        if reply.hold:
            reply.hold.wait(20)
        if not reply.status:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        begin = self.send_response_only if "Date" in reply.headers else self.send_response
        begin(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) + reply.missing))
        self.end_headers()
        self.wfile.write(data)
        if reply.missing:
            self.close_connection = True

    do_GET = do_POST = do_CONNECT = _any  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server, server.serving():
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Every platform is held against the same contract, whose one long test waits until a node was sampled."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.name.startswith("test_usage_is_in_percent"):
            item.add_marker(pytest.mark.slow)
