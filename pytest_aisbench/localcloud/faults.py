"""Faults on demand: the rules that stand, and a wrapper that lets them strike the requests of any service."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud.message import HungUp, Request, Response, Service

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.fault import Fault

_PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>Gateway</title></head><body><h1>Please try again later</h1></body></html>\n"
)


class NamedService(Service, Protocol):
    """What a fault must know of a service: its operations, and how it words an error."""

    @property
    def operations(self) -> Collection[str]: ...

    def operation(self, request: Request) -> str:
        """One of `operations`, or `other`."""

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        """An error in this service's dialect; code and message are, by default, the vendor's for the status."""


class _Rule:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._path = re.compile(fault.path)
        self._name = re.compile(fault.name)
        self._random = random.Random(fault.seed)  # noqa: S311 (it must be repeatable)
        self._matched = 0
        self._struck = 0

    def strikes_request(self, service: str, operation: str, request: Request) -> bool:
        fault = self.fault
        return (
            not fault.of_jobs
            and fault.service in {"", service}
            and fault.operation in {"", operation}
            and fault.method.upper() in {"", request.method}
            and self._path.search(request.path) is not None
            and self._strikes()
        )

    def strikes_job(self, name: str, *, waiting: bool) -> bool:
        fault = self.fault
        apt = fault.of_jobs and (waiting or not fault.of_waiting_jobs)
        return apt and self._name.search(name) is not None and self._strikes()

    def as_json(self) -> dict[str, Any]:
        return {**self.fault.as_json(), "matched": self._matched, "struck": self._struck}

    def _strikes(self) -> bool:
        self._matched += 1
        spent = 0 < self.fault.times <= self._struck
        strikes = not spent and self._random.random() < self.fault.probability
        self._struck += strikes
        return strikes


class Faults:
    """The rules that stand. Of those that match, the first that strikes decides."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._operations: dict[str, Collection[str]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def set(self, faults: Iterable[Fault]) -> None:
        """Replace all rules, or none where one cannot be followed. Jobs are struck, or spared, anew."""
        faults = list(faults)
        for number, fault in enumerate(faults, 1):
            self._check(number, fault)
        with self._lock:
            self._rules = [_Rule(fault) for fault in faults]
        for changed in self._listeners:
            changed()

    def clear(self) -> None:
        self.set([])

    def as_json(self) -> list[dict[str, Any]]:
        """The rules, each with how often it matched and how often it struck."""
        with self._lock:
            return [rule.as_json() for rule in self._rules]

    def on_request(self, service: str, operation: str, request: Request) -> Fault | None:
        with self._lock:
            return next((r.fault for r in self._rules if r.strikes_request(service, operation, request)), None)

    def on_job(self, name: str, *, waiting: bool = True) -> Fault | None:
        with self._lock:
            return next((rule.fault for rule in self._rules if rule.strikes_job(name, waiting=waiting)), None)

    def when_set(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def learn(self, service: str, operations: Collection[str]) -> None:
        """From now on a rule for an operation that the service does not have is refused."""
        self._operations[service] = operations

    def pause(self, seconds: float) -> None:
        """Sleep, though not beyond `close`."""
        self._closed.wait(seconds)

    def close(self) -> None:
        self._closed.set()

    def _check(self, number: int, fault: Fault) -> None:
        services = {fault.service} if fault.service else self._operations.keys()
        known = {name for service in services for name in self._operations.get(service, ())}
        if known and fault.operation and fault.operation not in known | {"other"}:
            have = f"there are {', '.join(sorted(known))}"
            raise UsageFault(f"rule {number}: {fault.operation!r} is no operation of {' or '.join(services)}; {have}")


class Faulty:
    """A service whose requests are counted, and struck by the faults that stand."""

    def __init__(self, name: str, service: NamedService, faults: Faults) -> None:
        self.name = name
        self._service = service
        self._faults = faults
        self._requests: Counter[str] = Counter()
        self._lock = threading.Lock()
        faults.learn(name, service.operations)

    def requests(self) -> dict[str, int]:
        """How many of each operation, the struck ones too."""
        with self._lock:
            return dict(sorted(self._requests.items()))

    def answer(self, request: Request) -> Response:
        operation = self._service.operation(request)
        with self._lock:
            self._requests[operation] += 1
        fault = self._faults.on_request(self.name, operation, request)
        return self._struck(fault, request) if fault else self._service.answer(request)

    def crash(self, request: Request, error: Exception) -> Response:
        return self._service.crash(request, error)

    def _struck(self, fault: Fault, request: Request) -> Response:
        self._faults.pause(fault.delay)
        if fault.drop == "request":
            raise HungUp("before the request was served")
        if fault.html:
            return Response(fault.status or 200, _PAGE, {"Content-Type": "text/html"})
        if fault.status:
            refused = self._service.refuse(request, fault.status, fault.code, fault.message)
            later = {"Retry-After": f"{fault.retry_after:g}"} if fault.retry_after else {}
            return replace(refused, headers={**refused.headers, **later})
        response = self._service.answer(request)
        if fault.drop == "answer":
            if not isinstance(response.body, bytes):
                response.body.close()
            raise HungUp("instead of the answer")
        return _cut(response, fault.truncate)


def _cut(response: Response, kept: int | None) -> Response:
    if kept is None:
        return response
    length = len(response.body) if isinstance(response.body, bytes) else response.length or 0
    return replace(response, cut=max(0, min(kept, length - 1)))
