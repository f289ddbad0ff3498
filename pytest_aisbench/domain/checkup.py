"""What was looked at before anything is paid for, and how it is."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from pytest_aisbench.errors import AisbenchError, UsageFault


class Health(enum.Enum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Check:
    """One line of a checkup. A failure that is not `lasting` may be over in a minute: nobody has to change anything."""

    name: str
    health: Health
    text: str
    fix: str = ""
    lasting: bool = True

    @property
    def failed(self) -> bool:
        return self.health is Health.FAILURE


def fine(name: str, text: str) -> Check:
    return Check(name, Health.OK, text)


def warning(name: str, text: str, fix: str = "") -> Check:
    return Check(name, Health.WARNING, text, fix)


def failure(name: str, text: str, fix: str = "") -> Check:
    return Check(name, Health.FAILURE, text, fix)


def fallen(name: str, error: AisbenchError) -> Check:
    """The failure that an error is."""
    text = f"{error.message} ({error.trail})" if error.trail else error.message
    return Check(name, Health.FAILURE, text, error.advice, lasting=isinstance(error, UsageFault))


def looked(name: str, look: Callable[[], str]) -> Check:
    """What `look` says, if it raises nothing."""
    try:
        return fine(name, look())
    except AisbenchError as error:
        return fallen(name, error)
