"""A fault on demand: which requests or jobs it strikes, how often, and what becomes of them."""

from __future__ import annotations

import json
import math
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud.http import HungUp, Request, Response, Service
from pytest_aisbench.settings import places

SERVICES = ("modelarts", "obs", "iam", "tester", "apulis")
JOB_FAULTS = ("lost", "pending", "unstartable", "log-frozen")

_OF_REQUESTS = {"service", "operation", "method", "path", "delay", "status", "html", "drop", "truncate"}
_OF_JOBS = {"name", "after", "job", "phase", "phases"}
_OUTCOMES = {"status", "html", "drop", "truncate", "job", "phase", "phases"}


@dataclass(frozen=True)
class Fault:
    """A rule. What is left out does not restrict; numbers of time are seconds."""

    service: str = ""
    operation: str = ""
    method: str = ""
    path: str = ""
    """A regular expression, found anywhere in the path without its query."""
    name: str = ""
    """A regular expression, found anywhere in the name of a job."""

    times: int = 0
    """How often it strikes at most; 0 is always."""
    probability: float = 1.0
    seed: int = 0

    delay: float = 0.0
    status: int = 0
    code: str = ""
    message: str = ""
    retry_after: float = 0.0
    html: bool = False
    """Answered by a page, as gateways and captive portals do; with 200 unless a status is given."""
    drop: str = ""
    """Hang up before the `request` is served, or instead of its `answer`."""
    truncate: int | None = None
    """Hang up after so many bytes of the answer's body, and before its last."""

    job: str = ""
    phase: str = ""
    """Shown instead of the true phase, from the begin of its run until the job is stopped."""
    phases: tuple[str, ...] = ()
    """Shown one by one, each to whoever looks next, from the begin of its run; then the truth."""
    after: float = 0.0
    """So long after the job was created, or after the rule was set if that is later."""

    @classmethod
    def parse(cls, given: object) -> Fault:
        if not isinstance(given, Mapping):
            raise UsageFault("a rule is a table of keys and values")
        known = {field.name: field for field in fields(cls)}
        for key, value in given.items():
            if key not in known:
                raise UsageFault(f"{key!r} is no key of a rule; there are {', '.join(known)}")
            if not _fits(str(known[key].type), value):
                raise UsageFault(f"{key} cannot be {value!r}; it is {_WORDS[str(known[key].type)]}")
        phases = tuple(given.get("phases", ()))
        return cls(**{**given, "phases": phases})

    def __post_init__(self) -> None:
        _expression("path", self.path)
        _expression("name", self.name)
        _one_of("service", self.service, SERVICES)
        _one_of("drop", self.drop, ("request", "answer"))
        _one_of("job", self.job, JOB_FAULTS)
        given = self.as_json().keys()
        outcomes = sorted(given & _OUTCOMES - ({"html"} if self.status else set()))
        if len(outcomes) != 1 and (outcomes or not self.delay):
            found = f"not {' and '.join(outcomes)} together" if outcomes else "there is none"
            raise UsageFault(f"a rule needs one outcome ({', '.join(sorted(_OUTCOMES))}, or delay alone): {found}")
        if self.of_jobs and (strange := given & _OF_REQUESTS):
            raise UsageFault(f"{', '.join(sorted(strange))}: of requests, but the rule is about jobs; use name, after")
        if not self.of_jobs and (strange := given & _OF_JOBS):
            raise UsageFault(f"{', '.join(sorted(strange))}: of jobs, but the rule is about requests")
        if not self.status and (strange := given & {"code", "message", "retry_after"}):
            raise UsageFault(f"{', '.join(sorted(strange))}: needs a status")
        if self.status and not 400 <= self.status <= 599 and not self.html:
            raise UsageFault(f"status {self.status} is no error; those are 400 to 599")
        if not 0 < self.probability <= 1:
            raise UsageFault("probability must be above 0 and at most 1")
        if negative := [
            key for key in ("times", "delay", "retry_after", "after", "truncate") if _below_zero(self, key)
        ]:
            raise UsageFault(f"{negative[0]} cannot be negative")

    @property
    def of_jobs(self) -> bool:
        return bool(self.job or self.phase or self.phases)

    @property
    def of_waiting_jobs(self) -> bool:
        """It has no meaning for a job that has begun."""
        return self.job in {"pending", "unstartable"}

    def as_json(self) -> dict[str, Any]:
        """What differs from the defaults."""
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}


def parse(rules: object) -> list[Fault]:
    """The rules of a file or a request; what is wrong is told with the number of its rule."""
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


def read(file: Path) -> list[Fault]:
    """A .toml file, or JSON."""
    rules: object
    if file.suffix == ".toml":
        rules = places.read(file).data
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


_WORDS = {
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


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value and value not in known:
        raise UsageFault(f"{key} cannot be {value!r}; it is {', '.join(known)}")


def _below_zero(fault: Fault, key: str) -> bool:
    return (getattr(fault, key) or 0) < 0


# -- Faults on demand: the rules that stand, and a wrapper that lets them strike the requests of any service.

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
