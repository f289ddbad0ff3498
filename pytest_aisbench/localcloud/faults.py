"""Faults on demand: a `Fault` is a rule that says which requests or jobs fail, how often and how.

`Faults` holds the rules in force. `Faulty` wraps a service, counts its requests and applies the rules to them; the jobs
of `modelarts.jobs` ask `Faults.on_job` for theirs.
"""

from __future__ import annotations

import json
import math
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from pytest_aisbench.config import toml_document
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud.http import Service
from pytest_aisbench.localcloud.messages import HungUp, Request, Response

SERVICES = ("modelarts", "obs", "iam", "tester", "apulis")
JOB_FAULTS = ("lost", "pending", "unstartable", "log-frozen")
_OF_REQUESTS = {"service", "operation", "method", "path", "delay", "status", "html", "drop", "truncate"}
_OF_JOBS = {"name", "after", "job", "phase", "phases"}
_OUTCOMES = {"status", "html", "drop", "truncate", "job", "phase", "phases"}


@dataclass(frozen=True)
class Fault:
    """One rule. An empty field does not restrict; times are in seconds."""

    service: str = ""
    operation: str = ""
    method: str = ""
    path: str = ""
    """A regular expression that matches anywhere in the path without its query."""
    name: str = ""
    """A regular expression that matches anywhere in the name of a job."""

    times: int = 0
    """How often it strikes at most; 0 means without limit."""
    probability: float = 1.0
    seed: int = 0

    delay: float = 0.0
    status: int = 0
    code: str = ""
    message: str = ""
    retry_after: float = 0.0
    html: bool = False
    """Answer with a page, as gateways and captive portals do; with 200 unless a status is given."""
    drop: str = ""
    """`request`: hang up before serving the request; `answer`: serve it and hang up instead of answering."""
    truncate: int | None = None
    """Hang up after this many bytes of the answer's body, and before its last."""

    job: str = ""
    phase: str = ""
    """Show this phase instead of the true one, from the start of the job until it is stopped."""
    phases: tuple[str, ...] = ()
    """Show these phases one by one, a new one at each request, from the start of the job; then the true one."""
    after: float = 0.0
    """Strike this long after the job was created, or after the rule was set if that is later."""

    @classmethod
    def parse(cls, rule: object) -> Fault:
        if not isinstance(rule, Mapping):
            raise UsageFault("a rule is a table of keys and values")
        types = {field.name: str(field.type) for field in fields(cls)}
        for key, value in rule.items():
            if key not in types:
                raise UsageFault(f"{key!r} is no key of a rule; there are {', '.join(types)}")
            if not _fits(types[key], value):
                raise UsageFault(f"{key} cannot be {value!r}; it is {_TYPE_NAMES[types[key]]}")
        return cls(**{**rule, "phases": tuple(rule.get("phases", ()))})

    def __post_init__(self) -> None:
        _expression("path", self.path)
        _expression("name", self.name)
        _one_of("service", self.service, SERVICES)
        _one_of("drop", self.drop, ("request", "answer"))
        _one_of("job", self.job, JOB_FAULTS)
        keys = self.as_json().keys()
        outcomes = sorted(keys & _OUTCOMES - ({"html"} if self.status else set()))
        if len(outcomes) != 1 and (outcomes or not self.delay):
            problem = f"not {' and '.join(outcomes)} together" if outcomes else "there is none"
            raise UsageFault(f"a rule needs one outcome ({', '.join(sorted(_OUTCOMES))}, or delay alone): {problem}")
        if self.of_jobs and (strange := keys & _OF_REQUESTS):
            raise UsageFault(f"{', '.join(sorted(strange))}: of requests, but the rule is about jobs; use name, after")
        if not self.of_jobs and (strange := keys & _OF_JOBS):
            raise UsageFault(f"{', '.join(sorted(strange))}: of jobs, but the rule is about requests")
        if not self.status and (strange := keys & {"code", "message", "retry_after"}):
            raise UsageFault(f"{', '.join(sorted(strange))}: needs a status")
        if self.status and not 400 <= self.status <= 599 and not self.html:
            raise UsageFault(f"status {self.status} is no error; those are 400 to 599")
        if not 0 < self.probability <= 1:
            raise UsageFault("probability must be above 0 and at most 1")
        for key in ("times", "delay", "retry_after", "after", "truncate"):
            if (getattr(self, key) or 0) < 0:
                raise UsageFault(f"{key} cannot be negative")

    @property
    def of_jobs(self) -> bool:
        return bool(self.job or self.phase or self.phases)

    @property
    def of_waiting_jobs(self) -> bool:
        """True for faults that cannot strike a job that has begun."""
        return self.job in {"pending", "unstartable"}

    def as_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}


def read(file: Path) -> list[Fault]:
    """Read a .toml file, or JSON."""
    rules: object
    if file.suffix == ".toml":
        rules = toml_document.read(file).data
    else:
        try:
            rules = json.loads(file.read_bytes())
        except ValueError as error:
            raise UsageFault(f"{file}: not valid JSON: {error}") from None
        except OSError as error:
            raise UsageFault(f"{file}: cannot be read ({error.strerror})") from None
    try:
        return parse(rules)
    except UsageFault as error:
        raise UsageFault(f"{file}: {error}") from None


def parse(rules: object) -> list[Fault]:
    """Read the rules of a file or a request; an error names the number of its rule."""
    if isinstance(rules, Mapping) and rules.keys() == {"fault"}:  # as TOML writes a list of tables
        rules = rules["fault"]
    if not isinstance(rules, list):
        raise UsageFault("expected a list of rules (in TOML: tables [[fault]])")
    return [_numbered(number, rule) for number, rule in enumerate(rules, 1)]


def _numbered(number: int, rule: object) -> Fault:
    try:
        return Fault.parse(rule)
    except UsageFault as error:
        raise UsageFault(f"rule {number}: {error}") from None


_TYPE_NAMES = {
    "str": "a text",
    "int": "a whole number",
    "int | None": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple[str, ...]": "a list of texts",
}


def _fits(kind: str, value: object) -> bool:
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind == "tuple[str, ...]":
        return isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value)
    if kind == "float":
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, str if kind == "str" else int)


def _expression(key: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageFault(f"{key} is no regular expression: {error}") from None


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value and value not in choices:
        raise UsageFault(f"{key} cannot be {value!r}; it is {', '.join(choices)}")


class Faults:
    """The rules in force. Of the rules that match, the first that strikes decides."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._operations: dict[str, Collection[str]] = {}
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
        with self._lock:
            return next((rule.fault for rule in self._rules if rule.strikes_job(name, waiting=waiting)), None)

    def when_set(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def register(self, service: str, operations: Collection[str]) -> None:
        """Refuse, from now on, rules for operations that the service does not have."""
        self._operations[service] = operations

    def pause(self, seconds: float) -> None:
        """Sleep, or return early at `close`."""
        self._closed.wait(seconds)

    def close(self) -> None:
        self._closed.set()

    def _check(self, number: int, fault: Fault) -> None:
        services = {fault.service} if fault.service else self._operations.keys()
        operations = {name for service in services for name in self._operations.get(service, ())}
        if operations and fault.operation and fault.operation not in operations | {"other"}:
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

    def __init__(self, name: str, service: NamedService, faults: Faults) -> None:
        self.name = name
        self._service = service
        self._faults = faults
        self._requests: Counter[str] = Counter()
        self._lock = threading.Lock()
        faults.register(name, service.operations)

    def requests(self) -> dict[str, int]:
        """The number of requests by operation, including those that a fault struck."""
        with self._lock:
            return dict(sorted(self._requests.items()))

    def answer(self, request: Request) -> Response:
        operation = self._service.operation(request)
        with self._lock:
            self._requests[operation] += 1
        fault = self._faults.on_request(self.name, operation, request)
        return self._strike(fault, request) if fault else self._service.answer(request)

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
