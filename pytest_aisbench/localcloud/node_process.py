"""A node process, seen from the cloud."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from pytest_aisbench.localcloud import processes
from pytest_aisbench.localcloud.container_environment import inherited

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.container import Container
    from pytest_aisbench.localcloud.node import Spec

_PACKAGES = Path(__file__).parents[2]
_PATIENCE = 5.0  # seconds that a node may take to kill its processes before the kernel is asked to


class NodeProcess:
    """Its standard input is its life line: closed, on purpose or by the death of the cloud, it ends."""

    def __init__(self, container: Container, spec: Spec) -> None:
        self.task = container.task
        self._mark = container.mark
        self._unread = b""
        self._farewell: dict[str, Any] | None = None
        environment = inherited() | dict([self._mark])
        environment |= {"PYTHONPATH": str(_PACKAGES), "TMPDIR": str(container.temporary)}
        # -S: it needs nothing but the standard library, and starts in half the time.
        command = [sys.executable, "-S", "-m", "pytest_aisbench.localcloud.node", self._mark[1]]
        with container.worker_log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*processes.namespace(), *command],
                cwd=container.root,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)
        self._say(json.dumps(spec).encode())

    @property
    def pid(self) -> int:
        """As this process sees it."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when `events` has something to tell."""
        return self._output.fileno()

    def events(self) -> list[dict[str, Any]]:
        """What the node said since the last call. The last event is `ended`, whatever became of the node."""
        data = os.read(self.fileno(), 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        events = []
        for event in map(json.loads, lines):
            if event["event"] == "ended":
                self._farewell = event  # told when all of it is gone
            else:
                events.append(event)
        if not data:
            code = self._process.wait()
            killed = {"event": "ended", "code": code if code >= 0 else 128 - code, "fault": ""}
            events.append(self._farewell or killed)
        return events

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._say(b"stop")

    def kill(self) -> None:
        """Afterwards nothing of it is left; `events` still has its last words."""
        self._input.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._farewell is None and not processes.namespace():
            processes.kill_marked("=".join(self._mark))

    def close(self) -> None:
        self.kill()
        self._output.close()

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended, or was closed, already
            self._input.write(line + b"\n")
