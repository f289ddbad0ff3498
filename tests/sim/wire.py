"""The network: brings requests to the simulated services, and loses, delays, repeats, reorders and tears them.

A request is delivered by the machine, not by the thread that sent it, so that it arrives even if its sender has died or
has given up. What the client sees is what its HTTP library would show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

import requests
from requests.structures import CaseInsensitiveDict
from typing_extensions import Self

from pytest_aisbench.errors import Garbled, Throttled, Unreachable
from pytest_aisbench.localcloud.messages import Request, Response, WholeBody, http_date
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Head, Upload
from pytest_aisbench.net import retry
from pytest_aisbench.net.huawei import Answer
from pytest_aisbench.stores.local_files import relative_path
from tests.sim.faults import Faults
from tests.sim.machine import EPOCH, Machine, Process

_TRIP_S = (0.002, 0.2)
_LATEST_S = 30.0  # a request that its client has given up may still arrive so much later
_PATIENCE_S = 60.0  # as the platforms have it
KINDS = (
    *("connection refused", "request lost", "answer lost", "late request", "slow answer", "repeated request"),
    *("torn answer", "server error", "throttled", "killed at a request"),
)
_CHANCES = dict.fromkeys(KINDS, 0.016)
LISTS = ("search", "ListJobsV3")  # operations that list jobs, and may not show the newest yet
_CHANCES_OF_LISTS = {**_CHANCES, "list lags": 0.05}
# docs/roadmap.md: a version of a shared V1 job name that arrives after it was sent again makes a second job.
_VERSION = "create-version"
_CHANCES_OF_VERSIONS = {kind: chance for kind, chance in _CHANCES.items() if kind != "late request"}
_MORE = {"TAKEOVER": 4.0, "JUDGE": 4.0, "CANCEL": 2.0, "UPLOAD": 2.0}  # these steps ask for little
_DELIVERED_ANYWAY = 0.5  # of requests that a gateway answers with an error


class NoAnswer(Exception):
    """What the HTTP library raises."""


class Service(Protocol):
    def answer(self, request: Request) -> Response: ...
    def operation(self, request: Request) -> str: ...
    def crash(self, request: Request, error: Exception) -> Response: ...


class Delivered(NamedTuple):
    """One request that a service has carried out."""

    sender: Process
    service: str
    operation: str
    request: Request
    status: int
    content: bytes


@dataclass
class Wire:
    machine: Machine
    faults: Faults
    step: Callable[[], str]
    seen: Callable[[Delivered], None]
    lagging: Callable[[Response], Response]  # the answer of a list as it was a few seconds ago

    def ask(self, name: str, service: Service, request: Request, timeout: float) -> Response:
        """Send a request to a service; NoAnswer if none came."""
        thread = self.machine.current
        assert thread
        operation = service.operation(request)
        return self.call(
            f"{name}.{operation}", partial(self._carry_out, thread.process, name, service, request), timeout
        )

    def call(self, what: str, deliver: Callable[[], Response], timeout: float) -> Response:
        machine, faults = self.machine, self.faults
        thread = machine.current
        assert thread
        place = f"{thread.process.name}.{what}"
        chances = _CHANCES_OF_LISTS if what.endswith(LISTS) else _CHANCES
        chances = _CHANCES_OF_VERSIONS if what.endswith(_VERSION) else chances
        step = self.step()
        kind = faults.strike(place, chances, step, _MORE.get(step, 1.0))
        up, down = faults.between(f"{place}.up", *_TRIP_S), faults.between(f"{place}.down", *_TRIP_S)
        if kind == "connection refused":
            machine.sleep(up)
            raise NoAnswer("Connection refused")
        if kind == "throttled":
            machine.sleep(up + down)
            return Response(429, b"{}", {"Retry-After": str(1 + int(faults.draw(place) * 20))})
        if kind == "late request":
            machine.after(timeout + faults.between(place, 0.0, _LATEST_S), deliver)
        if kind in {"late request", "request lost"}:
            machine.sleep(timeout)
            raise NoAnswer("timed out")
        if kind == "slow answer":
            up, down = up + faults.between(place, 0.0, timeout / 2), down + faults.between(place, 0.0, timeout / 2)
        if kind == "repeated request":  # a gateway sent it twice, and passes one of the answers on
            if faults.draw(place) < 0.5:
                machine.after(up + faults.between(place, 0.0, _LATEST_S), deliver)
            else:
                machine.after(up * faults.draw(place), deliver)
        if kind == "killed at a request":
            machine.after(faults.between(place, 0.0, up + down), thread.process.kill)
        answers: list[Response] = []

        def arrive() -> None:
            machine.after(down, partial(answered, deliver()))

        def answered(answer: Response) -> None:
            answers.append(answer)
            machine.wake(thread)

        if kind != "server error" or faults.draw(place) < _DELIVERED_ANYWAY:
            machine.after(up, arrive)
        deadline = machine.now + timeout
        if kind in {"server error", "answer lost"}:
            machine.sleep(up + down if faults.draw(place) < 0.5 else timeout)  # reset at once, or no word
        else:
            while not answers:
                if machine.now >= deadline:
                    raise NoAnswer("timed out")
                machine.wait(deadline - machine.now)
        if kind == "answer lost":
            raise NoAnswer("Connection reset by peer")
        if kind == "server error":
            return Response(502 + int(faults.draw(place) * 3), b"<html><h1>Bad gateway</h1></html>")
        answer = answers[0]
        if kind == "list lags":
            return self.lagging(answer)
        if kind == "torn answer" and isinstance(answer.body, bytes):
            if faults.draw(place) < 0.5:
                raise NoAnswer("Connection broken: IncompleteRead")
            return answer._replace(body=answer.body[: 1 + int(len(answer.body) * faults.draw(place))])
        return answer

    def _carry_out(self, sender: Process, name: str, service: Service, request: Request) -> Response:
        try:
            answer = service.answer(request)
        except Exception as error:  # noqa: BLE001 - as the local cloud's server does
            answer = service.crash(request, error)
        body = answer.body if isinstance(answer.body, bytes) else answer.body.read()
        self.machine.news = True
        self.seen(Delivered(sender, name, service.operation(request), request, answer.status, body))
        return answer._replace(body=body)


def make_request(method: str, url: str, query: Mapping[str, Any], headers: Mapping[str, str], body: bytes) -> Request:
    path = urlsplit(url).path
    given = {key: str(value) for key, value in query.items() if value is not None}
    raw = f"{path}?{urlencode(given)}" if given else path
    return Request(method, path, raw, given, headers, WholeBody(body), len(body))


@dataclass
class ModelArtsHttp:
    """Stands in for `VendorHttp`: sends the requests of one session over the wire."""

    wire: Wire
    service: Service
    token: str
    timeout: float = 60.0

    def send(
        self,
        method: str,
        url: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        *,
        project_id: str = "",
        timeout_s: float | None = None,
    ) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        request = make_request(method, url, query or {}, {"x-auth-token": self.token}, data)
        place = f"{method} {urlsplit(url).path}"
        try:
            answer = self.wire.ask("modelarts", self.service, request, min(self.timeout, timeout_s or self.timeout))
        except NoAnswer as error:
            raise Unreachable(f"{place}: {error}") from None
        headers = answer.headers
        assert isinstance(answer.body, bytes)
        date = http_date(EPOCH + self.wire.machine.now)
        return Answer(
            place, answer.status, answer.body, headers.get("X-Request-Id", ""), headers.get("Retry-After", ""), date
        )

    def close(self) -> None: ...


class HttpAnswer:
    """What our clients use of `requests.Response`."""

    def __init__(self, answer: Response) -> None:
        assert isinstance(answer.body, bytes)
        self.status_code = answer.status
        self.content = answer.body
        self.headers = CaseInsensitiveDict(answer.headers)

    def iter_content(self, _: int) -> Iterator[bytes]:
        yield self.content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass
class HttpSession:
    """Stands in for `requests.Session`."""

    wire: Wire
    name: str
    service: Service
    cookies: Any = None

    def __post_init__(self) -> None:
        self.cookies = {}

    def request(
        self, method: str, url: str, *, params: Any = None, json: Any = None, headers: Any = None, **options: Any
    ) -> HttpAnswer:
        body = _dumps(json) if json is not None else options.get("data") or b""
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        request = make_request(method, url, params or {}, lower, body)
        try:
            return HttpAnswer(self.wire.ask(self.name, self.service, request, options["timeout"][1]))
        except NoAnswer as error:
            raise requests.ConnectionError(str(error)) from None

    def post(self, url: str, **options: Any) -> HttpAnswer:
        return self.request("POST", url, **options)

    def close(self) -> None: ...


def _dumps(value: object) -> bytes:
    return json.dumps(value).encode()


class Meta(NamedTuple):
    key: str
    size: int


class Objects:
    """The contents of the Store, as the local cloud's services use them."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.contents: dict[str, tuple[bytes, Mapping[str, str]]] = {}

    def has_bucket(self, name: str) -> bool:
        return name == self.bucket

    def walk(self, bucket: str, prefix: str) -> Iterator[Meta]:
        return (Meta(key, len(data)) for key, (data, _) in sorted(self.contents.items()) if key.startswith(prefix))

    def head(self, bucket: str, key: str) -> Meta | None:
        found = self.contents.get(key)
        return Meta(key, len(found[0])) if found else None

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self.contents[key] = (data, {})


@dataclass
class RemoteStore:
    """A Store whose requests go over the wire. It repeats them as the OBS adapter does."""

    wire: Wire
    remote: Objects

    def check(self, url: StoreUrl) -> None:
        self._ask("check", lambda: None)

    def head(self, url: StoreUrl) -> Head | None:
        found = self._ask("head", lambda: self.remote.contents.get(url.key))
        return Head(url, len(found[0]), None, found[1]) if found else None

    def read(self, url: StoreUrl) -> bytes | None:
        found = self._ask("read", lambda: self.remote.contents.get(url.key))
        return found[0] if found else None

    def write(self, url: StoreUrl, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self._ask("write", lambda: self.remote.contents.update({url.key: (data, metadata or {})}))

    def upload(self, uploads: Sequence[Upload]) -> None:
        for upload in uploads:
            self.write(upload.url, Path(upload.path).read_bytes())

    def objects(self, url: StoreUrl) -> Iterator[Head]:
        listed = self._ask("list", lambda: list(self.remote.walk(url.bucket, url.key)))
        return (Head(StoreUrl(url.bucket, meta.key), meta.size) for meta in listed)

    def download(self, url: StoreUrl, folder: str) -> list[str]:
        names = []
        for head in self.objects(url):
            name = relative_path(head.url.key, url.key)
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.read(head.url) or b"")
            names.append(name)
        return names

    def delete(self, url: StoreUrl) -> None:
        self._ask("delete", lambda: self.remote.contents.pop(url.key, None))

    def close(self) -> None: ...

    def _ask(self, what: str, carry_out: Callable[[], Any]) -> Any:
        found: list[Any] = []

        def deliver() -> Response:
            found.append(carry_out())
            return Response(200, b"object")

        def attempt() -> Any:
            try:
                answer = self.wire.call(f"store.{what}", deliver, 20.0)
            except NoAnswer as error:
                raise Unreachable(f"{what} in the Store: {error}") from None
            if answer.status == 429:
                raise Throttled("the Store is busy")
            if answer.status != 200:
                raise Unreachable(f"HTTP {answer.status}")
            if answer.body != b"object":
                raise Garbled("the Store's answer ended early")
            return found[-1]

        return retry.call(attempt, patience_s=_PATIENCE_S)
