"""The kinds of values that options take: each reads a text, or says in a ValueError what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

MOST_CARDS = 128  # of one node; no machine has more, and a slip of the pen should not ask for a million ranks
FRAMEWORKS = ("mindspore", "paddle", "torch", "horovod", "tensorflow")  # as an import names them
_DECIMAL = r"[0-9]{1,9}(?:\.[0-9]+)?"  # so many digits that no budget is without an end, and no time
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def node_counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def cards(text: str) -> int:
    if positive(text) > MOST_CARDS:
        raise ValueError(f"{text} is more cards than the {MOST_CARDS} that a node may have")
    return positive(text)


def duration(text: str) -> float:
    """Seconds of `90`, `45s`, `30m`, `3h` or `2d`."""
    match = re.fullmatch(rf"({_DECIMAL})([smhd]?)", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not a length of time such as 45s, 30m, 3h or 2d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def card_hours(text: str) -> float:
    if not re.fullmatch(_DECIMAL, text) or float(text) == 0:
        raise ValueError(f"{text!r} is not a number of card-hours above 0")
    return float(text)


def switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is neither {' nor '.join(words)}")
        return text

    return parse


def path(text: str) -> Path:
    if not text:
        raise ValueError("a path is needed")
    return Path(text).expanduser()


def frameworks(text: str) -> tuple[str, ...]:
    """Such as `mindspore=/venv/bin/python,paddle`."""
    told = tuple(part.strip() for part in text.split(","))
    for part in told:
        framework, equals, python = part.partition("=")
        if framework not in FRAMEWORKS or (equals and not Path(python).is_absolute()):
            known = ", ".join(FRAMEWORKS)
            raise ValueError(f"{part!r} is not a framework ({known}) with the absolute path of its Python")
    return told


def pythons(told: Iterable[str]) -> dict[str, str]:
    """The Python of each of these frameworks; empty for the one that runs pytest."""
    return {framework: python for framework, _, python in (part.partition("=") for part in told)}


def name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ValueError(f"{text!r} is not a name")
    return text
