"""The local cloud as a whole: `LocalCloud` starts every service on a free port and issues the card for its clients.

`serve` runs one as a process, for `aisbench cloud` and the platform `local`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hmac
import json
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud.apulis import VC
from pytest_aisbench.localcloud.faulty import Faults, Faulty, NamedService
from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.localcloud.iam import Accounts, AuthenticationFailed, Iam, authenticate
from pytest_aisbench.localcloud.messages import Request, Response
from pytest_aisbench.localcloud.modelarts.api import error_response
from pytest_aisbench.localcloud.obs.storage import Objects

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_aisbench.localcloud.faults import Fault
    from pytest_aisbench.localcloud.modelarts.jobs import Jobs
    from pytest_aisbench.localcloud.modelarts.v2 import ModelArts


log = logging.getLogger(__name__)

ENGINES = ("processes", "simulated")
_FORMER_ENGINES = {"pretend": "simulated"}
ENGINE_CHOICES = (*ENGINES, *_FORMER_ENGINES)
PARENT_DIED = signal.SIGUSR1
_FOLDER_PREFIX = "aisbench-cloud-"
_OWN_CALLS = "/_local/"


class DataInUseError(Exception):
    """Another cloud uses the data folder; two would delete each other's contents."""


class LocalCloud:
    """Runs from `__enter__` to `__exit__`. Without `data` it keeps nothing; in `data` it keeps its objects and its
    keys, so that the next cloud on that folder has them again.

    `engine` says how jobs run, see ENGINES. `faults` are in force from the start; `self.faults` replaces them.
    `clock_skew` puts the clock that dates answers and checks signatures this many seconds ahead. V1 tells states as
    numbers; `v1_status_strings` makes them texts, as the vendor's service does at times. `apulis_time_limit` is the
    longest that a job of Apulis may run, in seconds. `interpreters` are the Pythons of jobs, by framework. Without
    `apulis` that service is not there: the platform `local` has no use for it."""

    def __init__(
        self,
        data: Path | None = None,
        *,
        engine: str = ENGINES[0],
        faults: Iterable[Fault] = (),
        clock_skew: float = 0.0,
        v1_status_strings: bool = False,
        apulis_time_limit: float | None = None,
        interpreters: Mapping[str, str] | None = None,
        apulis: bool = True,
    ) -> None:
        engine = _FORMER_ENGINES.get(engine, engine)
        if engine not in ENGINES:
            raise UsageFault(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}")
        self.faults = Faults()
        self._first_faults = list(faults)
        self._data = data
        self._engine = engine
        self._clock_skew = clock_skew
        self._v1_status_strings = v1_status_strings
        self._apulis_time_limit = apulis_time_limit
        self._interpreters = interpreters
        self._apulis = apulis
        self._running = ExitStack()
        self._card: dict[str, str] = {}
        self._books: Callable[[], dict[str, Any]] = dict

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            self._start(starting)
            self.faults.set(self._first_faults)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def card(self) -> dict[str, str]:
        """Everything that a client needs: endpoints, project, bucket and keys, also the secret one."""
        return dict(self._card)

    def books(self) -> dict[str, Any]:
        """Every job that was accepted, with its true phase, and the number of `requests` by service and operation."""
        return self._books()

    def _start(self, stack: ExitStack) -> None:
        """Start what others need first; the stack ends everything in the opposite order."""
        data = _folder(self._data, stack)
        accounts = Accounts.load_or_generate(data / "accounts.json")
        accounts.clock_skew = self._clock_skew
        account = accounts.first()
        cloud_id = _identity(data / "identity")
        objects = Objects(data / "objects", kept=self._data is not None)
        stack.callback(objects.close)
        objects.create_bucket(account.bucket, account.region)

        storage = data / "apulis"
        for folder in (storage / "work" / account.user, storage / "data") if self._apulis else ():
            folder.mkdir(parents=True, exist_ok=True)
        urls: dict[str, str] = {}

        def make_obs() -> NamedService:
            from pytest_aisbench.localcloud.obs.service import Obs

            return Obs(accounts, objects)

        def make_iam() -> NamedService:
            # OpenStack clients look for V1 under "modelartsv1".
            v1, v2 = (f"{urls['modelarts']}/{version}/{{project}}" for version in ("v1", "v2"))
            keystone = Iam(accounts)
            keystone.endpoints = {"modelarts": v2, "modelartsv1": v1} | {
                "object": urls["obs"],
                "identity": f"{urls['iam']}/v3",
            }
            return keystone

        def make_tester() -> NamedService:
            from pytest_aisbench.localcloud.tester import Tester

            return Tester(data / "tester", account.tester_token)

        def make_apulis() -> NamedService:
            from pytest_aisbench.localcloud.apulis.service import Apulis

            trainer = modelarts()
            limit = self._apulis_time_limit
            platform = Apulis(account, trainer.jobs, trainer.engine, storage, trainer.catalog, time_limit=limit)
            platform.serve_at(urls["apulis"])
            return platform

        modelarts = Once(lambda: self._make_modelarts(accounts, objects, data / "work", urls["obs"]))
        makers: dict[str, Callable[[], NamedService]] = {
            "obs": Once(make_obs),
            "iam": Once(make_iam),
            "tester": Once(make_tester),
            **({"apulis": Once(make_apulis)} if self._apulis else {}),
            "modelarts": modelarts,
        }
        services = {name: Faulty(name, make, self.faults) for name, make in makers.items()}
        control = Control(accounts, self.faults, lambda: modelarts().jobs, services)
        listeners = {
            name: Listener(control if name == "modelarts" else service, clock_skew=self._clock_skew)
            for name, service in services.items()
        }
        takes_jobs = {"apulis", "modelarts"}
        for name in ("obs", "iam", "tester"):
            stack.callback(listeners[name].stop)
        # Jobs end when no service takes new ones any more, and while OBS still answers them.
        stack.callback(lambda: modelarts().close() if modelarts.made else None)
        for name in takes_jobs & listeners.keys():
            stack.callback(listeners[name].stop)
        urls |= {name: listener.url for name, listener in listeners.items()}
        stack.callback(self.faults.close)
        for listener in listeners.values():
            listener.start()
        self._books = control.books
        self._card = {
            "cloud_id": cloud_id,
            "modelarts_endpoint": urls["modelarts"],
            "obs_endpoint": urls["obs"],
            "iam_endpoint": urls["iam"],
            "tester_endpoint": urls["tester"],
            "access_key": account.access_key,
            "secret_key": account.secret_key,
            "project_id": account.project_id,
            "region": account.region,
            "bucket": account.bucket,
            "tester_token": account.tester_token,
        }
        if self._apulis:
            self._card |= {
                "apulis_endpoint": urls["apulis"],
                "apulis_user": account.user,
                "apulis_password": account.password,
                "apulis_vc": VC,
                "apulis_storage": str(storage.resolve()),
            }

    def _make_modelarts(self, accounts: Accounts, objects: Objects, work: Path, obs: str) -> ModelArts:
        from pytest_aisbench.localcloud.modelarts import jobs, rules, v2

        engine, capacity = None, jobs.CAPACITY
        if self._engine == "simulated":
            from pytest_aisbench.localcloud.engine import simulated

            engine, capacity = simulated.SimulatedEngine(objects), simulated.CAPACITY
        return v2.ModelArts(
            accounts,
            objects,
            work,
            obs,
            catalog=rules.Catalog(self._interpreters),
            engine=engine,
            capacity=capacity,
            faults=self.faults,
            v1_status_strings=self._v1_status_strings,
            # V1 counts its jobs. A cloud that is started again on its data must not give a client's old id to another.
            **({"v1_first_id": jobs.now_ms()} if self._data else {}),
        )


_T = TypeVar("_T")


class Once(Generic[_T]):
    """Makes something when it is first called for, and returns the same from then on. Every run waits until its cloud
    has started, and asks for two or three of the five services: the others are not even imported."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._results: list[_T] = []
        self._lock = threading.Lock()

    @property
    def made(self) -> bool:
        return bool(self._results)

    def __call__(self) -> _T:
        if not self._results:
            with self._lock:
                if not self._results:
                    self._results.append(self._make())
        return self._results[0]


# The data folder: the caller's, or a temporary one that ends with the cloud.


def _folder(data: Path | None, stack: ExitStack) -> Path:
    """Return the given folder, or a temporary one that is removed with the cloud; lock it for this cloud."""
    if data is None:
        _sweep()
        data = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        stack.callback(shutil.rmtree, data, ignore_errors=True)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    _lock(data, stack)
    return data.absolute()  # nodes have working folders of their own


def _identity(file: Path) -> str:
    """What tells this cloud from every other: kept with its data, since each start chooses other ports."""
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    return file.read_text().strip()


def _lock(data: Path, stack: ExitStack) -> None:
    """The kernel drops the lock of a dead process."""
    file = stack.enter_context((data / "lock").open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataInUseError(f"{data}: another local cloud runs on this folder; stop it or name another") from None


def _sweep() -> None:
    """Remove the temporary folders that killed clouds of this user left; skip locked ones and those just created."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        try:
            with (folder / "lock").open() as lock:
                started = os.fstat(lock.fileno())
                if started.st_uid == os.getuid() and time.time() - started.st_mtime > 600:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:  # most often the lock of a cloud that runs
            log.debug("%s stays: %s", folder, error)


class Control:
    """Wraps the ModelArts endpoint: answers /_local/ itself and passes everything else on."""

    def __init__(
        self, accounts: Accounts, faults: Faults, jobs: Callable[[], Jobs], services: Mapping[str, Faulty]
    ) -> None:
        self._accounts = accounts
        self._faults = faults
        self._jobs = jobs
        self._endpoint = services["modelarts"]
        self._services = services

    def answer(self, request: Request) -> Response:
        if not request.path.startswith(_OWN_CALLS):
            return self._endpoint.answer(request)
        try:
            self._admit(request)
            return self._serve(request)
        except AuthenticationFailed as failure:
            return error_response(
                failure.status, failure.code, failure.message, "Use the keys on the card of the cloud."
            )
        except UsageFault as wrong:
            return error_response(400, "Local.0001", str(wrong), "See docs/local-cloud.md.")

    def quick(self, request: Request) -> bool:
        return not request.path.startswith(_OWN_CALLS) and self._endpoint.quick(request)

    def crash(self, request: Request, error: Exception) -> Response:
        return self._endpoint.crash(request, error)

    def books(self) -> dict[str, Any]:
        """Every job that was accepted, and the number of requests by service and operation."""
        requests = {name: service.requests() for name, service in self._services.items()}
        return {"jobs": self._jobs().books(), "requests": requests}

    def _serve(self, request: Request) -> Response:
        match request.method, request.path.removeprefix(_OWN_CALLS).rstrip("/"):
            case "GET", "books":
                return Response.json(200, self.books())
            case "GET", "faults":
                return Response.json(200, self._faults.as_json())
            case "PUT", "faults":
                from pytest_aisbench.localcloud import faults

                self._faults.set(faults.parse(_json(request)))
                return Response.json(200, self._faults.as_json())
            case "DELETE", "faults":
                self._faults.clear()
                return Response(204)
        return error_response(404, "Local.0002", f"{request.method} {request.path} is not served here.", "")

    def _admit(self, request: Request) -> None:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            authenticate(request, self._accounts)
            return
        try:
            access_key, _, secret_key = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            access_key = secret_key = ""
        account = self._accounts.by_key(access_key)
        if account is None or not hmac.compare_digest(account.secret_key.encode(), secret_key.encode()):
            raise AuthenticationFailed("Local.0003", "These are not the keys of the account.")


def _json(request: Request) -> object:
    try:
        return request.json()
    except ValueError:
        raise UsageFault("the body is not JSON") from None


# The cloud as a process of its own.


def serve(
    data: Path | None = None,
    *,
    watch_stdin: bool = False,
    show: Callable[[dict[str, str]], str] = json.dumps,
    engine: str = ENGINES[0],
    faults: Iterable[Fault] = (),
    v1_status_strings: bool = False,
    interpreters: Mapping[str, str] | None = None,
    apulis: bool = True,
) -> None:
    """Print the card, by default as one line of JSON, then run until SIGTERM or SIGINT, or until stdin ends."""
    with _signals(signal.SIGTERM, signal.SIGINT, PARENT_DIED) as received:
        parent = os.getppid()
        if watch_stdin:
            _ask_for_parents_death()
        with LocalCloud(
            data,
            engine=engine,
            faults=faults,
            v1_status_strings=v1_status_strings,
            interpreters=interpreters,
            apulis=apulis,
        ) as cloud:
            try:
                sys.stdout.write(show(cloud.card()) + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                log.warning("the card was printed to a closed pipe")
            _await_end(received, parent, watch_stdin=watch_stdin)


def _await_end(received: socket.socket, parent: int, *, watch_stdin: bool) -> None:
    stdin, signals = 0, received.fileno()
    while True:
        ready, _, _ = select.select([signals, stdin] if watch_stdin else [signals], [], [])
        if stdin in ready and not os.read(stdin, 4096):
            return
        # The kernel also signals when only the thread that started us has ended, so look at the parent as well.
        if signals in ready and any(n != PARENT_DIED or os.getppid() != parent for n in received.recv(64)):
            return


@contextlib.contextmanager
def _signals(*numbers: int) -> Iterator[socket.socket]:
    """Yield a socket that receives the number of each signal, so that `select` can wait for it among other things. A
    handler that took a lock, as threading.Event does, could interrupt the holder of that very lock and wait for
    ever."""
    received, sender = socket.socketpair()
    with received, sender:
        sender.settimeout(0)
        signal.set_wakeup_fd(sender.fileno())
        for number in numbers:
            signal.signal(number, lambda *_: None)
        try:
            yield received
        finally:
            signal.set_wakeup_fd(-1)


def _ask_for_parents_death() -> None:
    """Ask the kernel to signal the death of the parent: another process may keep our stdin open after it."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, PARENT_DIED, 0, 0, 0)
