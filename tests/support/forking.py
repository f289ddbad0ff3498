"""Runs of pytest and of `aisbench` in processes of their own that find everything imported.

Python, pytest, the vendor's SDKs and our packages take half a second to import, and the tests start hundreds of
runs. So each process that runs tests keeps a nursery: a process that has imported all of it, has one thread, and
forks a child for every run. The child has the arguments, folder, environment and streams that a new process would
have; it gets signals and ends like one. What a plain start imports cannot be seen in it: tests of that start Python.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from waiting import PATIENCE

if TYPE_CHECKING:
    from typing_extensions import Self

_MODULES = ("pytest", "pytest_aisbench")  # what a nursery runs, as `python -m` does
_LATE = ("obs", "jinja2", "sqlite3", "xdist.dsession", "xdist.workermanage")  # what is imported within functions
_AT_START = ("PYTHON", "LC_", "LANG", "TZ", "LD_")  # variables that a process reads before anything is imported
_WORD = 10  # bytes of a report: the process id, and later the exit code
_starting = threading.Lock()
_nursery: socket.socket | None = None


def can_fork(command: Sequence[object], environment: Mapping[str, str]) -> bool:
    """Whether a child of the nursery is what this command would be."""

    def at_start(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(_AT_START)}

    forkable = command[0] == sys.executable and command[1] == "-m" and command[2] in _MODULES
    return forkable and sys.platform == "linux" and at_start(environment) == at_start(os.environ)


class Child:
    """A run that the nursery began, with as much of `subprocess.Popen` as tests use."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path | None,
        environment: Mapping[str, str],
        *,
        stderr: int | None = None,
        new_session: bool = False,
        planted: Mapping[str, float] | None = None,
    ) -> None:
        """`planted`: other values for constants, each named as `module:NAME`."""
        self.args = [str(part) for part in command]
        self.returncode: Any = None  # or the exit code, as Popen declares it
        self.stdout, out = _pipe()
        self.stderr: IO[str] | None = None
        if stderr == subprocess.PIPE:
            self.stderr, err = _pipe()
        else:
            err = os.dup(out if stderr == subprocess.STDOUT else 2)
        self._reports, theirs = socket.socketpair()
        errand = {
            "module": self.args[2],
            "arguments": self.args[3:],
            "folder": str(folder or Path.cwd()),
            "environment": dict(environment),
            "new_session": new_session,
            "planted": planted or {},
        }
        with _starting:
            socket.send_fds(_running_nursery(), [b"1"], [theirs.fileno(), out, err])
        for each in (out, err):
            os.close(each)
        theirs.close()
        self._reports.sendall(json.dumps(errand).encode() + b"\n")
        self.pid = int(self._reports.recv(_WORD))

    def wait(self, timeout: float = PATIENCE) -> int:
        if self.returncode is None:
            if not select.select([self._reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._reports.recv(_WORD))
            self._reports.close()
        return int(self.returncode)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """All that it writes until nobody can write any more, then wait for its end."""
        streams = [stream for stream in (self.stdout, self.stderr) if stream]
        texts = [""] * len(streams)

        def read(place: int) -> None:
            texts[place] = streams[place].read()

        readers = [threading.Thread(target=read, args=(place,), daemon=True) for place in range(len(streams))]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        for stream in streams:
            stream.close()
        self.wait(timeout)
        return texts[0], texts[1] if self.stderr else ""

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.wait()
        for stream in (self.stdout, self.stderr):
            if stream:
                stream.close()


def run(
    command: Sequence[str | Path],
    folder: Path | None,
    environment: Mapping[str, str],
    seconds: float,
    *,
    merge: bool = False,
    planted: Mapping[str, float] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `merge` takes both of its streams as one."""
    stderr = subprocess.STDOUT if merge else subprocess.PIPE
    with Child(command, folder, environment, stderr=stderr, planted=planted) as child:
        out, err = child.communicate(seconds)
    return subprocess.CompletedProcess(child.args, child.wait(), out, err)


def _pipe() -> tuple[IO[str], int]:
    ours, theirs = os.pipe()
    return os.fdopen(ours, encoding="utf-8"), theirs


def _running_nursery() -> socket.socket:
    global _nursery
    if _nursery is None:
        _nursery, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        atexit.register(process.wait)
        atexit.register(_nursery.close)  # first: it ends the nursery
    return _nursery


def _import_everything() -> None:
    """pytest imports the plugins itself: it rewrites their asserts, and warns of those that somebody else imported."""
    import pytest

    with tempfile.TemporaryDirectory() as empty:
        pytest.main(["-qq", "-pno:cacheprovider", "-pno:hypothesispytest", "--rootdir", empty, "-c", os.devnull, empty])
    import pytest_aisbench

    for module in pkgutil.walk_packages(pytest_aisbench.__path__, "pytest_aisbench."):
        if "container_site" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in _LATE:
        importlib.import_module(name)


def _serve(nursery: socket.socket) -> dict[str, Any]:
    """Fork a child for every request; return what it is to do, in the child alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, streams, _, _ = socket.recv_fds(nursery, 1, 3)
        _bury_the_dead()
        if not data:
            os._exit(0)
        if os.fork() == 0:
            break
        for each in streams:
            os.close(each)
    nursery.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reports = socket.socket(fileno=streams[0])
    with reports.makefile("r") as lines:
        errand: dict[str, Any] = json.loads(lines.readline())
    child = os.fork()
    if child:  # the child's parent, which sees its end
        for each in streams[1:]:
            os.close(each)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        reports.sendall(f"{child:{_WORD}}".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        reports.sendall(f"{code:{_WORD}}".encode())
        os._exit(0)
    reports.close()
    for number, (name, each) in enumerate(zip(("stdout", "stderr"), streams[1:], strict=True), 1):
        os.dup2(each, number)
        os.close(each)
        before = getattr(sys, name)
        stream = open(number, "w", encoding=before.encoding, errors=before.errors, closefd=False)  # noqa: SIM115
        stream.reconfigure(line_buffering=name == "stderr")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return errand


def _bury_the_dead() -> None:
    """So that `time pytest …` counts what they took."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there is none
        return


def _become(errand: Mapping[str, Any]) -> None:
    if errand["new_session"]:
        os.setsid()
    os.chdir(errand["folder"])
    os.environ.clear()
    os.environ.update(errand["environment"])
    tempfile.tempdir = None
    for place, value in errand["planted"].items():
        module, _, name = place.partition(":")
        assert hasattr(sys.modules[module], name), place
        setattr(sys.modules[module], name, value)
    sys.path[0] = errand["folder"]
    sys.argv[1:] = errand["arguments"]
    runpy.run_module(errand["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _import_everything()
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
