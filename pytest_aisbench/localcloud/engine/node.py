"""The process that is one node of a job: runs the boot file once per card, and ends all of it, always.

    python -m pytest_aisbench.localcloud.node JOB WORKER

The first line of standard input is the node's `Spec` as JSON. Later a line `stop` asks for an orderly end, and the
end of the stream (the cloud is gone) for an immediate one. Standard output carries one JSON line for each event:
`{"event": "running"}` and at last `{"event": "ended", "code": 0, "fault": ""}`; a fault is the node's own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypedDict

from pytest_aisbench.localcloud.engine import processes
from pytest_aisbench.localcloud.engine.private_root import PrivateRoot

if TYPE_CHECKING:
    from collections.abc import Sequence

# -- The log of one worker, as the platform shows it.

_CHUNK = 1 << 20
_LIMIT = 1 << 30  # the platform's own


class WorkerLog:
    """The worker's log: the platform's own lines, and what the followed files have grown by."""

    def __init__(self, path: Path, *, silent: bool = False) -> None:
        """`silent`: the platform has no lines of its own in it."""
        self._silent = silent
        self._file = path.open("ab")
        self._followed: dict[IO[bytes], bytes] = {}  # with the begin of a line that is not complete yet
        self._size = 0

    def say(self, text: str, level: str = "INFO") -> None:
        if self._silent:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now * 1000) % 1000:03d}"
        self._write(f"[ModelArts Service Log]{stamp} - {level} - {text}\n".encode())

    def follow(self, path: Path) -> None:
        self._followed[path.open("rb")] = b""

    def merge(self) -> None:
        """Whole lines only, so that ranks do not write into each other's."""
        for source, begun in self._followed.items():
            while data := source.read(_CHUNK):
                whole, newline, begun = (begun + data).rpartition(b"\n")  # noqa: PLW2901
                if len(begun) > _CHUNK:  # not lines at all
                    whole, begun = whole + newline + begun, b""  # noqa: PLW2901
                self._write(whole + newline)
                self._followed[source] = begun

    def finish(self) -> None:
        """Nobody writes to the followed files any more."""
        self.merge()
        for source, begun in self._followed.items():
            source.close()
            if begun:
                self._write(begun + b"\n")
        self._followed.clear()

    def _write(self, data: bytes) -> None:
        if data and self._size <= _LIMIT:
            self._size += len(data)
            if self._size > _LIMIT:
                data = b"[ModelArts Service Log]log length overflow, process will continue running silently\n"
            self._file.write(data)
            self._file.flush()


TERMINATED = 128 + signal.SIGTERM
_SHELL_ONLY = {"_", "SHLVL", "PWD", "OLDPWD"}
_LOG_PERIOD = 0.5  # seconds between two merges of the ranks' output into the worker's log


class Rank(TypedDict):
    command: list[str]
    folder: str  # as the rank sees it
    log: str  # as the host sees it
    environment: dict[str, str]  # beyond the node's own


class Spec(TypedDict):
    environment: dict[str, str]
    pre_start: list[str]  # the command; empty where the code has no such script
    pre_start_folder: str  # as it sees it
    pre_start_environment: str  # the file that it leaves its environment in, as the host sees it
    ranks: list[Rank]
    log: str  # the worker's
    silent: bool  # it has what the ranks write, and nothing of the platform's
    rank_table: str  # the platform's, version 0.1, `completed` when every node is known
    rank_table_v1: str  # the one for the ranks; empty: what runs waits for the platform's by itself
    grace: float  # seconds between SIGTERM and SIGKILL
    view: str  # an empty folder to build the node's own view of the file system in; empty: the host's view
    binds: list[tuple[str, str]]  # a folder of the host, and where the node sees it


class Node:
    def __init__(self, spec: Spec, said: bytes) -> None:
        self._spec = spec
        self._log = WorkerLog(Path(spec["log"]), silent=spec["silent"])
        self._said = said
        self._stopping = b"stop\n" in said
        self._private = PrivateRoot.build(spec["view"], spec["binds"]) if spec["view"] else None
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "_stopping", True))

    def run(self) -> int:
        environment = dict(self._spec["environment"])
        if self._spec["pre_start"]:
            self._log.say("Begin pre-start script")
            if code := self._pre_start(environment):
                self._log.say(f"pre-start script ended with return code: {code}", "ERROR")
                return code
        if self._spec["rank_table_v1"]:
            self._await_rank_table()
        if self._stopping:
            return TERMINATED
        self._log.say("Begin training processes")
        ranks = [
            self._spawn(rank["command"], rank["folder"], environment | rank["environment"], rank["log"])
            for rank in self._spec["ranks"]
        ]
        tell(event="running")
        code = self._supervise(ranks)
        processes.kill_descendants()
        self._log.finish()
        self._log.say(f"Training end with return code: {code}", "ERROR" if code else "INFO")
        return code

    def _pre_start(self, environment: dict[str, str]) -> int:
        """What it exported is then in `environment`; what it started in the background runs on."""
        exported = Path(self._spec["pre_start_environment"])
        log = self._spec["log"] + ".pre-start"
        command = self._spec["pre_start"]
        code = self._supervise([self._spawn(command, self._spec["pre_start_folder"], environment, log)])
        self._log.finish()
        if code == 0 and exported.exists():  # a script that ends in `exec` leaves nothing
            pairs = (entry.partition("=") for entry in exported.read_text(errors="surrogateescape").split("\0"))
            environment.clear()
            environment.update({name: value for name, equals, value in pairs if equals and name not in _SHELL_ONLY})
        Path(log).unlink()
        return code

    def _await_rank_table(self) -> None:
        path = Path(self._spec["rank_table"])
        while not self._stopping:
            table = json.loads(path.read_bytes())
            if table["status"] == "completed":
                target = Path(self._spec["rank_table_v1"])
                target.write_text(json.dumps(version_1(table), indent=2))
                return
            self._wait(0.02)

    def _spawn(self, command: Sequence[str], folder: str, environment: dict[str, str], log: str) -> int:
        with Path(log).open("ab") as output:
            child = subprocess.Popen(
                command,
                cwd=None if self._private else folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(self._begin, folder),  # noqa: PLW1509 - this process has one thread
            )
        child.returncode = 0  # `reap` collects it: Popen must not
        self._log.follow(Path(log))
        return child.pid

    def _begin(self, folder: str) -> None:
        if self._private:
            self._private.enter(folder)
        processes.die_with_parent()

    def _supervise(self, pids: Sequence[int]) -> int:
        """The first exit code that is not 0 ends the others. What they started and left behind may still run."""
        alive = set(pids)
        failure = 0
        deadline: float | None = None
        while alive:
            self._wait(_LOG_PERIOD if deadline is None else max(0.0, deadline - time.monotonic()))
            for pid, code in processes.reap():
                if pid in alive:
                    alive.remove(pid)
                    failure = failure or code
            self._log.merge()
            if deadline is None and alive and (failure or self._stopping):
                self._log.say("Begin destroy training processes")
                processes.signal_groups(alive, signal.SIGTERM)
                deadline = time.monotonic() + self._spec["grace"]
            elif deadline is not None and time.monotonic() >= deadline:
                processes.signal_groups(alive, signal.SIGKILL)
                break
        return failure or (TERMINATED if self._stopping else 0)

    def _wait(self, seconds: float) -> None:
        """Sleep until a child ends, the cloud says something, or the time is over."""
        ready, _, _ = select.select([0, self._woken], [], [], seconds)
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        if 0 in ready:
            said = os.read(0, 4096)
            if not said:
                abandon()
            self._said += said
            self._stopping = self._stopping or b"stop\n" in self._said


def version_1(table: dict[str, Any]) -> dict[str, Any]:
    """The platform's rank table (version 0.1) as the ranks read it (version 1.0); ranks count through the nodes."""
    instances = table["group_list"][0]["instance_list"]
    instances.sort(key=lambda instance: int(instance["pod_name"].rpartition("-")[2]))
    rank = iter(range(sum(len(instance["devices"]) for instance in instances)))
    servers = [
        {
            "server_id": instance["server_id"],
            "device": [device | {"rank_id": str(next(rank))} for device in instance["devices"]],
            "host_nic_ip": "reserve",
        }
        for instance in instances
    ]
    return {"version": "1.0", "status": "completed", "server_count": str(len(servers)), "server_list": servers}


def tell(**event: object) -> None:
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        abandon()


def abandon() -> NoReturn:
    """The cloud is gone: nobody will ever ask for anything of this node again."""
    processes.kill_descendants()
    if temporary := os.environ.get("TMPDIR"):
        import shutil

        shutil.rmtree(temporary, ignore_errors=True)
    os._exit(128 + signal.SIGKILL)


def main() -> NoReturn:
    processes.adopt_orphans()
    said = b""
    while b"\n" not in said:
        said += (more := os.read(0, 1 << 16))
        if not more:
            abandon()
    line, _, said = said.partition(b"\n")
    code, fault = 1, ""
    try:
        code = Node(json.loads(line), said).run()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        # A full disk, or a program that cannot be executed.
        fault = f"{type(error).__name__}: {error}"
    processes.kill_descendants()
    tell(event="ended", code=code, fault=fault)
    os._exit(code)


if __name__ == "__main__":
    main()
