"""A fault on demand: which requests or jobs it strikes, how often, and what becomes of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import UsageFault
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
