"""The local cloud as a whole: its services on free ports, its account, and the card that a client needs."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.accounts import Accounts
from pytest_aisbench.localcloud.iam import Iam
from pytest_aisbench.localcloud.modelarts import ModelArts
from pytest_aisbench.localcloud.objects import Objects
from pytest_aisbench.localcloud.obs import Obs
from pytest_aisbench.localcloud.wire import Listener

if TYPE_CHECKING:
    from typing_extensions import Self


class DataInUseError(Exception):
    """Two clouds on one folder would delete each other's contents."""


class LocalCloud:
    """Runs from `__enter__` to `__exit__`. With a data folder of its own it keeps nothing; with the caller's it
    keeps its objects and its keys, so that the next cloud there is the same one."""

    def __init__(self, data: Path | None = None) -> None:
        self._data = data
        self._running = ExitStack()
        self._card: dict[str, str] = {}

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            self._card = _start(self._data, starting)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def card(self) -> dict[str, str]:
        """Everything a client must know. The secret key is in it: it is what the card is for."""
        return dict(self._card)


def _start(data: Path | None, stack: ExitStack) -> dict[str, str]:
    """Start in the order in which things lean on one another; the stack ends them in the opposite one."""
    if data is None:
        data = Path(tempfile.mkdtemp(prefix="aisbench-cloud-"))
        stack.callback(shutil.rmtree, data, ignore_errors=True)
    data.mkdir(parents=True, exist_ok=True)
    _lock(data, stack)
    accounts = Accounts.kept(data / "accounts.json")
    account = accounts.first()
    objects = Objects(data / "objects")
    stack.callback(objects.close)
    objects.create_bucket(account.bucket, account.region)

    obs = Listener(Obs(accounts, objects))
    stack.callback(obs.stop)
    iam = Listener(Iam(accounts))
    stack.callback(iam.stop)
    service = ModelArts(accounts, objects, data / "work", obs.url)
    stack.callback(service.close)
    modelarts = Listener(service)
    stack.callback(modelarts.stop)
    for listener in (obs, iam, modelarts):
        listener.start()
    return {
        "modelarts_endpoint": modelarts.url,
        "obs_endpoint": obs.url,
        "iam_endpoint": iam.url,
        "access_key": account.access_key,
        "secret_key": account.secret_key,
        "project_id": account.project_id,
        "region": account.region,
        "bucket": account.bucket,
    }


def _lock(data: Path, stack: ExitStack) -> None:
    """The kernel drops the lock of a dead process, so none is left in the way."""
    file = stack.enter_context((data / "lock").open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataInUseError(f"{data}: another local cloud runs on this folder; stop it or name another") from None


def serve(data: Path | None = None, *, watch_stdin: bool = False) -> None:
    """Print the card as one line of JSON, then run until SIGTERM or SIGINT, or until stdin ends."""
    done = threading.Event()
    if watch_stdin:
        _end_with_parent(done)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with LocalCloud(data) as cloud:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(json.dumps(cloud.card()) + "\n")
            sys.stdout.flush()
        if watch_stdin:
            threading.Thread(target=_await_end_of_stdin, args=(done,), daemon=True).start()
        done.wait()


def _await_end_of_stdin(done: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    done.set()


def _end_with_parent(done: threading.Event) -> None:
    """Another process may hold our stdin open when the parent is killed, so the kernel is asked to tell as well.

    It also tells when only the thread that started us ends; hence a signal of its own, and a second look.
    """
    if sys.platform != "linux":
        return
    parent, set_parent_death_signal = os.getppid(), 1
    signal.signal(signal.SIGUSR1, lambda *_: done.set() if os.getppid() != parent else None)
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGUSR1, 0, 0, 0)
