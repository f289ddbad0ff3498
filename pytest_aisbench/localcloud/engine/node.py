"""The process that is one node of a job: runs the boot file once per card, and ends everything that it started.

`node_server` forks it and calls `run`. The first line of standard input is the node's `Spec` as JSON. A later line
`stop` asks for an orderly end; at the end of the stream (the cloud is gone) the node ends at once. It writes one JSON
line for each event to standard output: `{"event": "running"}` and at last `{"event": "ended", "code": 0, "fault": ""}`;
a fault is an error of the node itself.
"""

from __future__ import annotations

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


TERMINATED = 128 + signal.SIGTERM
_SHELL_ONLY = {"_", "SHLVL", "PWD", "OLDPWD"}
_LOG_PERIOD = 0.5  # seconds between two merges of the ranks' output into the worker's log
_CHUNK = 1 << 20
_LIMIT = 1 << 30  # bytes; the platform has the same


class Spec(TypedDict):
    environment: dict[str, str]
    pre_start: list[str]  # the command; empty where the code has no such script
    pre_start_folder: str  # the script's path of it
    pre_start_environment: str  # the file in which the script leaves its environment, the host's path of it
    ranks: list[Rank]
    log: str  # the worker's
    silent: bool  # the log has no lines of the platform's own
    rank_table: str  # version 0.1, which the engine completes when all nodes have started
    rank_table_v1: str  # version 1.0, which the node writes for the ranks; empty: the ranks read the other one
    grace: float  # seconds between SIGTERM and SIGKILL
    view: str  # an empty folder to build the node's own file system in; empty: the node uses the host's
    binds: list[tuple[str, str]]  # a folder of the host, and its path in the node
    read_only: list[str]  # folders of the host that the node sees and must not change


class Rank(TypedDict):
    command: list[str]
    folder: str  # the rank's path of it
    log: str  # the host's path of it
    environment: dict[str, str]  # beyond the node's own


class Node:
    def __init__(self, spec: Spec, received: bytes) -> None:
        self._spec = spec
        self._log = WorkerLog(Path(spec["log"]), silent=spec["silent"])
        self._received = received
        self._rank_names: dict[int, str] = {}  # of processes: `proc-rank-3-device-1`
        self._stopping = b"stop\n" in received
        self._private = PrivateRoot.build(spec["view"], spec["binds"], spec["read_only"]) if spec["view"] else None
        self._signals = processes.SignalPipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "_stopping", True))

    def run(self) -> int:
        environment = dict(self._spec["environment"])
        if self._spec["pre_start"]:
            self._log.write_line("Begin pre-start script")
            if code := self._pre_start(environment):
                self._log.write_line(f"pre-start script ended with return code: {code}", "ERROR")
                return code
        if self._spec["rank_table_v1"]:
            self._await_rank_table()
        if self._stopping:
            return TERMINATED
        self._log.write_line("Begin training processes")
        ranks = [
            self._spawn(rank["command"], rank["folder"], environment | rank["environment"], rank["log"])
            for rank in self._spec["ranks"]
        ]
        names = (Path(rank["log"]).stem for rank in self._spec["ranks"])
        self._rank_names = {
            pid: name[name.index("proc-rank") :] for pid, name in zip(ranks, names, strict=True) if "proc-rank" in name
        }
        report(event="running")
        code = self._supervise(ranks)
        processes.kill_descendants()
        self._log.finish()
        self._log.write_line(f"Training end with return code: {code}", "ERROR" if code else "INFO")
        return code

    def _pre_start(self, environment: dict[str, str]) -> int:
        """Run the pre-start script and take over what it exported; what it started in the background runs on."""
        exported = Path(self._spec["pre_start_environment"])
        log = self._spec["log"] + ".pre-start"
        command = self._spec["pre_start"]
        code = self._supervise([self._spawn(command, self._spec["pre_start_folder"], environment, log)])
        self._log.finish()
        if code == 0 and exported.exists():  # a script that ends in `exec` leaves no file
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
        child.returncode = 0  # `reap` collects the child: Popen must not
        self._log.follow(Path(log))
        return child.pid

    def _begin(self, folder: str) -> None:
        if self._private:
            self._private.enter(folder)
        processes.die_with_parent()

    def _supervise(self, pids: Sequence[int]) -> int:
        """Wait for the processes; end them all when one fails or the job is stopped. Their descendants may still
        run."""
        alive = set(pids)
        failure, failed = 0, ""
        deadline: float | None = None
        while alive:
            self._wait(_LOG_PERIOD if deadline is None else max(0.0, deadline - time.monotonic()))
            for pid, code in processes.reap():
                if pid in alive:
                    alive.remove(pid)
                    if code and not failure and pid in self._rank_names:
                        failed = f"{self._rank_names[pid]} (pid: {pid}) has exited with non-zero code: {code}"
                    failure = failure or code
            self._log.merge()
            if failed:
                self._log.write_line(failed, "ERROR")
                failed = ""
            if deadline is None and alive and (failure or self._stopping):
                self._log.write_line("Begin destroy training processes")
                processes.signal_groups(alive, signal.SIGTERM)
                deadline = time.monotonic() + self._spec["grace"]
            elif deadline is not None and time.monotonic() >= deadline:
                processes.signal_groups(alive, signal.SIGKILL)
                break
        return failure or (TERMINATED if self._stopping else 0)

    def _wait(self, seconds: float) -> None:
        """Sleep until a child ends, the cloud sends something, or the time is over."""
        ready, _, _ = select.select([0, self._signals.fileno()], [], [], seconds)
        if self._signals.fileno() in ready:
            self._signals.reset()
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                abandon()
            self._received += data
            self._stopping = self._stopping or b"stop\n" in self._received


class WorkerLog:
    """The log of one worker: the platform's own lines, and the output of the ranks, whose files it follows."""

    def __init__(self, path: Path, *, silent: bool = False) -> None:
        """`silent`: leave out the platform's own lines."""
        self._silent = silent
        self._file = path.open("ab")
        self._followed: dict[IO[bytes], bytes] = {}  # each with the begin of an incomplete line
        self._size = 0

    def write_line(self, text: str, level: str = "INFO") -> None:
        if self._silent:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now * 1000) % 1000:03d}"
        self._write(f"[ModelArts Service Log]{stamp} - {level} - {text}\n".encode())

    def follow(self, path: Path) -> None:
        self._followed[path.open("rb")] = b""

    def merge(self) -> None:
        """Copy the new output of all followed files, whole lines only, so that the lines of ranks do not mix."""
        for source, begun in self._followed.items():
            while data := source.read(_CHUNK):
                whole, newline, begun = (begun + data).rpartition(b"\n")  # noqa: PLW2901
                if len(begun) > _CHUNK:  # the output has no lines
                    whole, begun = whole + newline + begun, b""  # noqa: PLW2901
                self._write(whole + newline)
                self._followed[source] = begun

    def finish(self) -> None:
        """Copy the rest of the followed files, and follow them no longer."""
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


def version_1(table: dict[str, Any]) -> dict[str, Any]:
    """Convert the platform's rank table (version 0.1) to the one that ranks read (version 1.0); ranks count through
    the nodes."""
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


def report(**event: object) -> None:
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        abandon()


def abandon() -> NoReturn:
    """The cloud is gone: end everything at once."""
    processes.kill_descendants()
    if temporary := os.environ.get("TMPDIR"):
        import shutil

        shutil.rmtree(temporary, ignore_errors=True)
    os._exit(128 + signal.SIGKILL)


def run() -> NoReturn:
    """Be a node: read the spec, run it, and end."""
    processes.adopt_orphans()
    received = b""
    while b"\n" not in received:
        received += (more := os.read(0, 1 << 16))
        if not more:
            abandon()
    line, _, received = received.partition(b"\n")
    code, fault = 1, ""
    try:
        code = Node(json.loads(line), received).run()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        # Such as a full disk, or a program that cannot be executed.
        fault = f"{type(error).__name__}: {error}"
    processes.kill_descendants()
    report(event="ended", code=code, fault=fault)
    os._exit(code)
