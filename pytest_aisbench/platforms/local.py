"""The platform `local`: the adapter of ModelArts against a local cloud, which it starts itself or finds by a card."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import urlsplit

import pytest_aisbench
from pytest_aisbench.config.access import ACCESS_SECRETS, Access
from pytest_aisbench.config.options import machine_cores
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import JobLost, Unreachable, UsageFault
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.job import Job, JobSpec, Phase, Request
from pytest_aisbench.platforms.local_kind import LocalKind, own_interpreters
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.platforms.modelarts.request import ASCEND, Placement, custom_image
from pytest_aisbench.platforms.modelarts.session import load_vendor_http
from pytest_aisbench.secret import NO_SECRET, Secret
from pytest_aisbench.stores.obs_vendor import vendor_class

_LOG = get_logger("platform")
_START_S = 30.0
_END_S = 30.0
_ENGINES = {
    "mindspore": "mindspore_2.0.0-cann_6.3.0-py_3.7-euler_2.8.3-aarch64",
    "tensorflow": "tensorflow_1.15-cann_5.0.2-py_3.7-euler_2.8.3-aarch64",
    "horovod": "horovod-local",
    "torch": "torch-local",
    "paddle": "paddle-local",
}
_PLAIN_ENGINE = "python-local"
_HOW = "start it with `aisbench cloud --json > FILE`"
# Key on the card → key of [access].
_CARD = {
    "access_key": "access_key",
    "secret_key": "secret_access_key",
    "region": "region_name",
    "project_id": "project_id",
    "bucket": "bucket",
    "iam_endpoint": "iam_endpoint",
    "obs_endpoint": "obs_endpoint",
    "modelarts_endpoint": "modelarts_endpoint",
}


@dataclasses.dataclass(frozen=True)
class Card:
    """How to reach a local cloud: what `aisbench cloud --json` prints."""

    access: Access
    tester: str = ""  # the address of its Tester
    tester_token: Secret = NO_SECRET
    private: bool = False  # it ends with the run that started it
    cloud_id: str = ""  # tells it from every other, whatever its ports; an older cloud has none


class Local(ModelArts):
    """A Platform. If no running cloud is named, it starts one, which ends with this process or with `close`."""

    name = LocalKind.name
    options = LocalKind.options
    poll_s = 0.1
    patience_s = 5.0  # loopback has no outages

    def __init__(self, settings: Settings) -> None:
        self.max_jobs = machine_cores()
        self._card_file = settings.cloud
        self._shared_file: Path | None = None
        self._cloud = None if settings.cloud else PrivateCloud(settings.access, own_interpreters(settings))
        try:
            if self._cloud:  # while it starts, in a process of its own
                load_vendor_http()
                vendor_class()
            card = self._cloud.card() if self._cloud else read_card(settings.cloud or Path())
            self._card, self.tester, self.tester_token = card.access, card.tester, card.tester_token
            self._cloud_id = card.cloud_id
            self.private = card.private or self._cloud is not None
            super().__init__(dataclasses.replace(settings, access=self._card))
        except BaseException:
            if self._cloud:
                self._cloud.close()
            raise

    @property
    def platform_id(self) -> str:
        return "" if self._cloud else cloud_platform_id(super().platform_id, self.session.endpoint, self._cloud_id)

    @property
    def former_platform_ids(self) -> Sequence[str]:
        return [super().platform_id] if self._cloud_id and not self._cloud else []

    def share(self) -> Mapping[str, Any]:
        """The card, in a file that only this user can read, for other processes of the run to use the same cloud."""
        if self._card_file is None:
            descriptor, name = tempfile.mkstemp(prefix="aisbench-cloud-", suffix=".json")
            with os.fdopen(descriptor, "w") as file:
                card = Card(self._card, self.tester, self.tester_token, private=True, cloud_id=self._cloud_id)
                json.dump(_card_data(card), file)
            self._card_file = self._shared_file = Path(name)
        return {"cloud": self._card_file}

    def check(self) -> None:
        for endpoint in (self._card.modelarts_endpoint, self._card.obs_endpoint, self._card.iam_endpoint):
            try:
                _require_listener(endpoint)
            except OSError as error:
                if self._cloud:
                    raise Unreachable(f"{error}; {self._cloud.last_words()}") from None
                raise UsageFault(f"{self._card_file}: nothing answers at {endpoint}", advice=_HOW) from None
        try:
            super().check()
        except Unreachable as error:
            raise Unreachable(f"{error}; {self._cloud.last_words()}" if self._cloud else str(error)) from None

    def submit(self, request: Request) -> str:
        self._require_cloud()
        return super().submit(request)

    def find(self, request: Request) -> str | None:
        self._require_cloud()
        return super().find(request)

    def _why_gone(self) -> str:
        """Why a private cloud that ended will never answer again; empty while it runs."""
        return f"the local cloud ended; {self._cloud.last_words()}" if self._cloud and self._cloud.ended else ""

    def _require_cloud(self) -> None:
        if why := self._why_gone():
            raise JobLost(why)

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        """The jobs of a private cloud ended with it: do not wait for an answer."""
        if why := self._why_gone():
            return {job_id: Job(job_id, Phase.LOST, "gone", reason=why) for job_id in job_ids}
        return super().inspect(job_ids)

    def events(self, job_id: str) -> Sequence[str]:
        return () if self._why_gone() else super().events(job_id)

    def cancel(self, job_id: str) -> None:
        if not self._why_gone():
            super().cancel(job_id)

    def close(self) -> None:
        super().close()
        if self._shared_file:
            self._shared_file.unlink(missing_ok=True)
        if self._cloud:
            self._cloud.close()

    def _placement(self, spec: JobSpec) -> Placement:
        own = custom_image(spec)
        return Placement(
            resource={"flavor_id": f"modelarts.local.{spec.shape.devices}", "node_count": spec.shape.nodes},
            engine={"image_url": own["image"]}
            if own
            else {"engine_name": ASCEND, "engine_version": _ENGINES.get(spec.framework, _PLAIN_ENGINE)},
        )


class PrivateCloud:
    """A local cloud as a child process. It ends when its stdin closes, even if this process is killed."""

    def __init__(self, access: Access, interpreters: Mapping[str, str] = MappingProxyType({})) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest_aisbench.localcloud", "--watch-stdin"),
                *(f"--python={framework}={python}" for framework, python in interpreters.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(os.environ, access),
            start_new_session=True,  # Ctrl-C is for this process, which first stops the jobs, then the cloud
            cwd=os.sep,  # `-m` looks for modules in the current folder first, and a user's may hold any name
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def card(self) -> Card:
        """Read the card from stdout. Call it once, at the start."""
        return _parse_card(self._first_line(), "the local cloud")

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        if self._errors.closed:
            return "it has been closed"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"the local cloud said: {lines[-1]}" if lines else "the local cloud said nothing"

    def close(self) -> None:
        self._process.terminate()  # a forked process may hold its stdin open
        try:
            self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired as error:
            log_ignored(_LOG, error, "the orderly end of the private local cloud", level=logging.WARNING)
            self._process.kill()
            self._process.communicate()
        except ValueError:  # closed before
            pass
        self._errors.close()

    def _first_line(self) -> bytes:
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + _START_S, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Unreachable(f"the local cloud did not start within {_START_S:g} s; {self.last_words()}")
                part = os.read(self._process.stdout.fileno(), 65536)
                if not part:
                    self._process.wait(_END_S)
                    raise Unreachable(
                        f"the local cloud ended at its start with exit code {self._process.returncode}; "
                        f"{self.last_words()}"
                    )
                line += part
        return line


def cloud_platform_id(by_address: str, endpoint: str, cloud_id: str) -> str:
    """The platform_id with the cloud's own identity in place of its port, which changes with each start."""
    return by_address.replace(endpoint, f"http://127.0.0.1/{cloud_id}", 1) if cloud_id else by_address


def read_card(file: Path) -> Card:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageFault(f"{file}: {error.strerror or error}", advice=_HOW) from None
    return _parse_card(text, str(file))


def _parse_card(text: bytes, source: str) -> Card:
    try:
        card: Any = json.loads(text)
    except ValueError:
        card = None
    if not isinstance(card, dict):
        raise UsageFault(f"{source}: not the JSON line of a local cloud", advice=_HOW)
    for key in _CARD:
        if not isinstance(card.get(key), str) or not card[key]:
            raise UsageFault(f"{source}: {key} is missing", advice=_HOW)
    values: dict[str, Any] = {field: card[key] for key, field in _CARD.items()}
    for key in ("access_key", "secret_access_key"):
        values[key] = Secret(values[key])
    tester, token = str(card.get("tester_endpoint", "")), Secret(str(card.get("tester_token", "")))
    cloud_id = str(card.get("cloud_id", ""))
    return Card(Access(**values), tester, token, private=card.get("private") is True, cloud_id=cloud_id)


def _card_data(card: Card) -> dict[str, Any]:
    values = {key: getattr(card.access, field) for key, field in _CARD.items()}
    plain = {key: value.reveal() if isinstance(value, Secret) else value for key, value in values.items()}
    tester = {"tester_endpoint": card.tester, "tester_token": card.tester_token.reveal()}
    return {**plain, **tester, "private": card.private, "cloud_id": card.cloud_id}


def _require_listener(endpoint: str) -> None:
    address = urlsplit(endpoint)
    socket.create_connection((address.hostname, address.port or 80), timeout=5).close()


def _environment(own: Mapping[str, str], access: Access) -> dict[str, str]:
    """The cloud's environment: without our keys, and with this package's folder, unless it is installed."""
    words = {"AK", "SK", "KEY", "SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"}
    keys = {getattr(access, key).reveal() for key in ACCESS_SECRETS} - {""}
    environment = {
        name: value for name, value in own.items() if words.isdisjoint(name.upper().split("_")) and value not in keys
    }
    folder = Path(pytest_aisbench.__file__).resolve().parents[1]
    if folder.name not in {"site-packages", "dist-packages"}:
        given = [str(Path(entry).absolute()) for entry in own.get("PYTHONPATH", "").split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *given])
    return environment
