"""`Faults` holds the faults in force. `Faulty` wraps a service, counts its requests and applies the faults to them; the
jobs of `modelarts.jobs` ask `Faults.on_job` for theirs.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud.http import Service
from pytest_aisbench.localcloud.messages import HungUp, Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pytest_aisbench.localcloud.faults import Fault


class Faults:
    """The rules in force. Of the rules that match, the first that strikes decides."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._operations: dict[str, Callable[[], Collection[str]]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.delays = False  # True while a rule makes requests wait

    def set(self, faults: Iterable[Fault]) -> None:
        """Replace all rules; where one is invalid, raise and keep the old ones. Jobs are matched with the new rules."""
        faults = list(faults)
        for number, fault in enumerate(faults, 1):
            self._check(number, fault)
        with self._lock:
            self._rules = [_Rule(fault) for fault in faults]
            self.delays = any(fault.delay for fault in faults)
        for changed in self._listeners:
            changed()

    def clear(self) -> None:
        self.set([])

    def as_json(self) -> list[dict[str, Any]]:
        """The rules, each with the number of times it matched and struck."""
        with self._lock:
            return [rule.as_json() for rule in self._rules]

    def on_request(self, service: str, operation: str, request: Request) -> Fault | None:
        if not self._rules:
            return None
        with self._lock:
            return next((r.fault for r in self._rules if r.strikes_request(service, operation, request)), None)

    def on_job(self, name: str, *, waiting: bool = True) -> Fault | None:
        if not self._rules:
            return None
        with self._lock:
            return next((rule.fault for rule in self._rules if rule.strikes_job(name, waiting=waiting)), None)

    def when_set(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def register(self, service: str, operations: Callable[[], Collection[str]]) -> None:
        """Refuse, from now on, rules for operations that the service does not have."""
        self._operations[service] = operations

    def pause(self, seconds: float) -> None:
        """Sleep, or return early at `close`."""
        self._closed.wait(seconds)

    def close(self) -> None:
        self._closed.set()

    def _check(self, number: int, fault: Fault) -> None:
        if not fault.operation:
            return
        services = [fault.service] if fault.service in self._operations else [] if fault.service else self._operations
        operations = {name for service in services for name in self._operations[service]()}
        if operations and fault.operation not in operations | {"other"}:
            have = f"there are {', '.join(sorted(operations))}"
            raise UsageFault(f"rule {number}: {fault.operation!r} is no operation of {' or '.join(services)}; {have}")


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
        applies = fault.of_jobs and (waiting or not fault.of_waiting_jobs)
        return applies and self._name.search(name) is not None and self._strikes()

    def as_json(self) -> dict[str, Any]:
        return {**self.fault.as_json(), "matched": self._matched, "struck": self._struck}

    def _strikes(self) -> bool:
        self._matched += 1
        spent = 0 < self.fault.times <= self._struck
        strikes = not spent and self._random.random() < self.fault.probability
        self._struck += strikes
        return strikes


class NamedService(Service, Protocol):
    """A service that names its operations and can word any error, which rules need."""

    @property
    def operations(self) -> Collection[str]: ...

    def operation(self, request: Request) -> str:
        """One of `operations`, or `other`."""

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        """Word an error as this service does; by default with the vendor's code and message for the status."""


class Faulty:
    """Wraps a service: counts its requests and applies the rules in force to them."""

    def __init__(self, name: str, service: Callable[[], NamedService], faults: Faults) -> None:
        """`service` is called at the first request: a run asks for few of the services, and imports only those."""
        self.name = name
        self._make_service = service
        self._faults = faults
        self._requests: Counter[str] = Counter()
        self._lock = threading.Lock()
        faults.register(name, lambda: self._service.operations)

    @property
    def _service(self) -> NamedService:
        return self._make_service()

    def requests(self) -> dict[str, int]:
        """The number of requests by operation, including those that a fault struck."""
        with self._lock:
            return dict(sorted(self._requests.items()))

    def answer(self, request: Request) -> Response:
        service = self._service
        operation = service.operation(request)
        with self._lock:
            self._requests[operation] += 1
        fault = self._faults.on_request(self.name, operation, request)
        return self._strike(fault, request) if fault else service.answer(request)

    def quick(self, request: Request) -> bool:
        return not self._faults.delays and self._service.quick(request)

    def crash(self, request: Request, error: Exception) -> Response:
        return self._service.crash(request, error)

    def _strike(self, fault: Fault, request: Request) -> Response:
        self._faults.pause(fault.delay)
        if fault.drop == "request":
            raise HungUp("before the request was served")
        if fault.html:
            return Response(fault.status or 200, _PAGE, {"Content-Type": "text/html"})
        if fault.status:
            error = self._service.refuse(request, fault.status, fault.code, fault.message)
            retry = {"Retry-After": f"{fault.retry_after:g}"} if fault.retry_after else {}
            return error._replace(headers={**error.headers, **retry})
        response = self._service.answer(request)
        if fault.drop == "answer":
            if not isinstance(response.body, bytes):
                response.body.close()
            raise HungUp("instead of the answer")
        return _cut(response, fault.truncate)


def _cut(response: Response, size: int | None) -> Response:
    if size is None:
        return response
    length = len(response.body) if isinstance(response.body, bytes) else response.length or 0
    return response._replace(cut=max(0, min(size, length - 1)))


_PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>Gateway</title></head><body><h1>Please try again later</h1></body></html>\n"
)
