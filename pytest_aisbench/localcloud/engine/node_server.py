"""Starts nodes: one process that has imported what a node needs forks all of them, so that no job waits for the start
of an interpreter besides its own.

`NodeServer` and `NodeProcess` are the engine's side; `serve` is that process:

    python -S -m pytest_aisbench.localcloud.engine.node_server DESCRIPTOR

The descriptor is a socket. A request is a line of JSON: a `Start`, which the descriptors of the node's standard streams
and of a pipe for its exit code come with, or the number of a node that is to be killed. The answer is the number of the
node. The server ends when the socket is closed; a node learns from its own standard input that the cloud is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from pytest_aisbench.localcloud.engine import node, processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_aisbench.localcloud.engine.container import Container


log = logging.getLogger(__name__)
PATIENCE = 5.0  # seconds that a node may take to kill its processes before it is killed
_PACKAGES = Path(__file__).parents[3]
_ROOM = " " * 160  # in the command line of the server; its nodes write their titles there
_KILLED = 128 + signal.SIGKILL


class Start(TypedDict):
    name: str  # shown by `ps`
    folder: str
    temporary: str  # the folder that it removes if the cloud dies
    namespace: processes.Namespace | None


class NodeServer:
    """The process that forks the nodes of one engine; it begins with the first node."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment) | {"PYTHONPATH": str(_PACKAGES)}
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self, request: Start, streams: Sequence[int]) -> int:
        """Fork a node; return its number for the host. `streams`: the standard ones, and one for the exit code."""
        with self._lock:
            return self._ask(request, streams)

    def kill(self, pid: int) -> None:
        """End a node of this server; do nothing where it has ended already."""
        with self._lock:
            self._ask(pid)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, request: Start | int, streams: Sequence[int] = ()) -> int:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._begin()
        assert self._channel
        socket.send_fds(self._channel, [json.dumps(request).encode() + b"\n"], streams)
        answer = self._channel.recv(64)
        if not answer:
            raise OSError("the process that starts nodes has died")
        return int(answer)

    def _begin(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            # -S: it needs only the standard library, and starts in half the time.
            command = [sys.executable, "-S", "-m", __name__, str(theirs.fileno()), _ROOM]
            self._process = subprocess.Popen(
                command,
                cwd="/",
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def _end(self) -> None:
        if self._channel and self._process:
            self._channel.close()
            self._process.wait()
        self._channel = self._process = None


class NodeProcess:
    """A node process, seen from the cloud. It ends when its standard input is closed, also by the death of the
    cloud."""

    def __init__(
        self, server: NodeServer, container: Container, spec: node.Spec, namespace: processes.Namespace | None
    ) -> None:
        self.task = container.task
        self._server = server
        self._mark = container.mark
        self._namespace = namespace
        self._unread = b""
        self._last_event: dict[str, Any] | None = None
        self._code: int | None = None
        request: Start = {
            "name": self._mark[1],
            "folder": str(container.root),
            "temporary": str(container.temporary),
            "namespace": namespace,
        }
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            given, self._input = _pipe(theirs, ours)
            self._output, written = _pipe(ours, theirs)
            self._ending, ending = _pipe(ours, theirs)
            errors = theirs.enter_context(container.worker_log.open("ab"))
            self.pid = server.start(request, [stream.fileno() for stream in (given, written, errors, ending)])
            ours.pop_all()
        self._send(json.dumps(spec).encode())

    def fileno(self) -> int:
        """Readable when `events` has something to return."""
        return self._output.fileno()

    def events(self) -> list[dict[str, Any]]:
        """The events since the last call. The last one is `ended`, also for a node that was killed."""
        data = os.read(self.fileno(), 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        events = []
        for event in map(json.loads, lines):
            if event["event"] == "ended":
                self._last_event = event  # returned when the process is gone
            else:
                events.append(event)
        if not data:
            self._wait()
            events.append(self._last_event or {"event": "ended", "code": self._code, "fault": ""})
        return events

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._send(b"stop")

    def kill(self) -> None:
        """End the node and all its processes; `events` still returns its last event."""
        self._input.close()
        if not self._wait(PATIENCE):
            self._server.kill(self.pid)
            self._wait()
        if self._last_event is None and self._namespace is None:
            processes.kill_marked("=".join(self._mark))

    def close(self) -> None:
        self.kill()
        self._output.close()
        self._ending.close()

    def _wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the process; return False if it has not ended in time."""
        if self._code is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ending, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return False
            # Nothing but an end where the server was killed: it has reaped no node.
            self._code = int(os.read(self._ending.fileno(), 64) or _KILLED)
        return True

    def _send(self, line: bytes) -> None:
        try:
            self._input.write(line + b"\n")
        except (BrokenPipeError, ValueError) as error:  # the node has ended, or its input was closed
            log.debug("%s of %s gets no more lines: %s", self.task, self._mark[1], error)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    """The ends of a pipe, each closed by its stack."""
    reading, writing = os.pipe()
    return reader.enter_context(FileIO(reading, "rb")), writer.enter_context(FileIO(writing, "wb"))


# The server.


def serve(channel: socket.socket) -> NoReturn:
    signals = processes.SignalPipe()
    endings: dict[int, int] = {}  # for each node the pipe that its exit code goes to
    gc.freeze()  # so that nodes go on sharing memory with this process
    while True:
        ready, _, _ = select.select([channel.fileno(), signals.fileno()], [], [])
        signals.reset()
        for pid, code in processes.reap():
            ending = endings.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(ending, b"%d" % code)
            os.close(ending)
        if channel.fileno() in ready:
            request, streams = _receive(channel)
            if isinstance(request, int):
                pid = request
                if pid in endings:
                    os.kill(pid, signal.SIGKILL)
            elif (pid := os.fork()) == 0:
                signals.close()
                _become_node(request, streams, [channel.detach(), *endings.values()])
            else:
                *standard, endings[pid] = streams
                for stream in standard:
                    os.close(stream)
            channel.send(b"%d" % pid)


def _receive(channel: socket.socket) -> tuple[Start | int, list[int]]:
    line, streams = b"", []
    while not line.endswith(b"\n"):
        data, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 4)
        if not data:
            os._exit(0)
        line += data
        streams += descriptors
    return json.loads(line), streams


def _become_node(start: Start, streams: Sequence[int], others: Iterable[int]) -> NoReturn:
    """Everything that the child does; it must not return into its copy of the server."""
    try:
        for number, stream in enumerate(streams[:3]):
            os.dup2(stream, number)
        for descriptor in (*streams, *others):
            os.close(descriptor)
        os.setsid()
        os.chdir(start["folder"])
        os.environ["TMPDIR"] = start["temporary"]
        _set_title(f"{sys.executable} -S -m {node.__name__} {start['name']}")
        if start["namespace"]:
            processes.enter(processes.Namespace(*start["namespace"]))
        node.run()
    except OSError as error:
        node.report(event="ended", code=1, fault=str(error))
    finally:
        os._exit(1)


def _set_title(title: str) -> None:
    """Have `ps` show it as the command line of this process, which has that of the server so far."""
    file = Path("/proc/self/stat")
    if file.exists():
        start, end = map(int, file.read_bytes().rpartition(b")")[2].split()[45:47])
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
