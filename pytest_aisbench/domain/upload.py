"""A result on its way to the Tester: a parcel, where it is bound, and what became of it."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

SCHEMA = "ais-tester/1"
RESULTS, ATTACHMENTS, RUNS = "results", "attachments", "runs"  # the kinds of parcels, as the Tester's paths name them
END = "end"  # what stands in the place of a case where a parcel is about a whole run
PRIVATE = "private local cloud"  # label of a Tester that ends with its run


class State(enum.Enum):
    """What became of a parcel; SPOOLED is kept until it is one of the others."""

    SPOOLED = "spooled"
    DELIVERED = "delivered"
    DEAD = "dead"  # the Tester will never take it as it is


@dataclass(frozen=True)
class Bound:
    """Where the results of a run go, and the papers that travel with each of them. It holds no secret."""

    tester: str  # the address
    platform: str
    folder: str  # of the run: the files that a result names are below
    label: str = ""  # whose Tester it is, where that is not plain from the address
    testid: str = ""  # the Tester's name of the test; empty: every run is a test of its own
    config: Mapping[str, Any] = field(default_factory=dict)  # what config.json says
    system: Mapping[str, Any] = field(default_factory=dict)  # what system.json says


@dataclass(frozen=True)
class End:
    """How a run ended, which no result of a case can tell: a case without a verdict has none."""

    run: str
    started: float
    finished: float | None  # None: it was killed
    exit_code: int | None
    unjudged: Mapping[str, str]  # cases that were to be judged, and why they were not
    unjudged_hours: float  # card-hours that they cost all the same
    missing: tuple[str, ...] = ()  # required cases without a verdict


@dataclass(frozen=True)
class Parcel:
    """One thing to be stored by the Tester exactly once, however often it is sent."""

    key: str  # tells it from every other: the Tester stores one parcel per key
    run: str
    case: str  # or the name of an attachment, or END
    attempt: int  # counts what was said of the same case, from 1
    kind: str
    testid: str
    tester: str
    label: str
    body: str
    state: State = State.SPOOLED
    why: str = ""

    @property
    def destination(self) -> str:
        return f"{self.tester} ({self.label})" if self.label else self.tester


class Transport(Protocol):
    """A way to a Tester."""

    def send(self, parcel: Parcel) -> None:
        """Return once the Tester has it. A retryable error or `Refused`: send it again, now or another day; any other
        AisbenchError: it will never be taken."""

    def close(self) -> None:
        """May be called twice."""


def canonical(value: Any) -> str:
    """The one spelling of a JSON value, in ASCII: half a character of a mangled log survives every encoding."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parcel(bound: Bound, run: str, name: str, kind: str, body: Mapping[str, Any]) -> Parcel:
    """`body` has testid, run_id and attempt: with all else that it says, they make the key."""
    attempt, testid = int(body["attempt"]), str(body["testid"])
    text = canonical(body)
    named = f"{testid}|{body['run_id']}|{attempt}|{text}"
    key = hashlib.sha256(named.encode()).hexdigest()
    return Parcel(key, run, name, attempt, kind, testid, bound.tester, bound.label, text)
