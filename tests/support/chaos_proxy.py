"""A proxy on 127.0.0.1 between a run and its servers: it cuts, delays, repeats, damages and resets what passes.

Its ports stay the same while a server is killed and started again on another. It forwards each request on a connection
of its own and reads the whole answer before it passes it on.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self

_LIMIT = 16 * 1024 * 1024
_LENGTH = re.compile(rb"(?im)^content-length:\s*(\d+)\s*$")
_CHUNKED = re.compile(rb"(?im)^transfer-encoding:.*chunked")
_CONNECTION = re.compile(rb"(?im)^connection:[^\r\n]*\r\n")
_NAME = re.compile(rb'"(?:name|job_name|jobName)":\s*"([\w.-]+)"')
_CREATE = re.compile(rb"POST [^ ]*/(?:training-jobs(?:/[^/ ]+/versions)?|PostJob)[ ?]")

CUT, DELAY, REQUEST_TWICE, ANSWER_TWICE, DAMAGE, REQUEST_LOST, RESET = KINDS = (
    "cut",  # the connection ends inside the answer, often inside its headers
    "delay",
    "request twice",  # as a gateway does that repeats what it thinks was lost
    "answer twice",  # the next request on this connection may read it
    "damage",  # of the body: one byte that no JSON or XML has, or in an object one that its checksum does not have
    "request lost",  # reset before the request is forwarded
    "reset",  # the request is carried out, and a reset comes instead of the answer
)


class Proxy:
    """Listens from `__enter__` to `__exit__`, in a thread of its own; `point` says where a port leads to."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.ports: dict[str, int] = {}
        self.counts: Counter[str] = Counter()  # by kind, of faults that struck
        self.created: set[str] = set()  # names in requests to create a job that were forwarded
        self._names = names
        self._targets: dict[str, tuple[str, int]] = {}
        self._chances: Mapping[str, float] = {}
        self._random = random.Random(0)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself holds no task that waits for a dead peer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def point(self, name: str, url: str) -> None:
        parts = urlsplit(url)
        self._targets[name] = (parts.hostname or "", parts.port or 80)

    def disturb(self, chances: Mapping[str, float], seed: int = 0) -> None:
        """Strike each answer with these chances by kind; with none, pass on everything."""
        self._random = random.Random(seed)
        self._chances = chances

    async def _listen(self) -> None:
        for name in self._names:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name) -> None:
                task = asyncio.current_task()
                assert task is not None
                self._tasks.add(task)
                try:
                    while await self._pass_one(name, reader, writer):
                        pass
                except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    pass  # the client is gone
                finally:
                    self._tasks.discard(task)
                    writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_LIMIT)
            self._servers.append(server)
            self.ports[name] = server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_one(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False if the connection ended, or has to."""
        head = await reader.readuntil(b"\r\n\r\n")
        if b"\r\nexpect: 100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request = head + await _body(head, reader)
        kind = self._strike()
        if kind == REQUEST_LOST:
            return _reset(writer)
        if kind == DELAY:
            await asyncio.sleep(self._random.uniform(0.2, 1.5))
        if _CREATE.match(head):
            self.created.update(found.decode() for found in _NAME.findall(request))
        answer = await self._forward(name, request)
        if kind == REQUEST_TWICE:
            answer = await self._forward(name, request)
        if not answer or kind == RESET:
            return _reset(writer)
        if kind == DAMAGE:
            answer = self._damaged(answer)
        if kind == CUT:
            answer = answer[: self._random.randrange(len(answer))]
        writer.write(answer * (2 if kind == ANSWER_TWICE else 1))
        await writer.drain()
        return kind != CUT and b"\r\nconnection: close" not in head.lower()

    def _strike(self) -> str:
        draw = self._random.random()
        for kind, chance in self._chances.items():
            draw -= chance
            if draw < 0:
                self.counts[kind] += 1
                return kind
        return ""

    async def _forward(self, name: str, request: bytes) -> bytes:
        """The whole answer; empty if the server is gone, or goes while it answers."""
        writer = None
        try:
            reader, writer = await asyncio.open_connection(*self._targets[name], limit=_LIMIT)
            # So that the answer ends where the connection ends. The header is in no signature.
            head, _, body = request.partition(b"\r\n\r\n")
            head = _CONNECTION.sub(b"", head + b"\r\n") + b"Connection: close\r\n"
            writer.write(head + b"\r\n" + body)
            answer = await reader.read()
        except OSError:
            return b""
        finally:
            if writer is not None:
                writer.close()
        head, mark, body = answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        is_whole = not length or request.startswith(b"HEAD ") or len(body) == int(length[1])
        return _CONNECTION.sub(b"", head + b"\r\n") + mark[2:] + body if mark and is_whole else b""

    def _damaged(self, answer: bytes) -> bytes:
        head, mark, body = answer.partition(b"\r\n\r\n")
        if not body:
            return answer
        at = self._random.randrange(len(body))
        byte = 0 if body[:1] in b"{[<" else body[at] ^ 1
        return head + mark + body[:at] + bytes([byte]) + body[at + 1 :]


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    if length := _LENGTH.search(head):
        return await reader.readexactly(int(length[1]))
    if not _CHUNKED.search(head):
        return b""
    body = b""
    while not body.endswith(b"\r\n0\r\n\r\n") and body != b"0\r\n\r\n":
        body += await reader.readuntil(b"\r\n")
    return body


def _reset(writer: asyncio.StreamWriter) -> bool:
    """End the connection by RST: whatever was not read is lost on both sides."""
    peer: Any = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
