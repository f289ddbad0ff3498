"""Faults on demand: a `Fault` is a rule that says which requests or jobs fail, how often and how. See `faulty`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import UsageFault

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
        from pytest_aisbench.config import toml_document

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
