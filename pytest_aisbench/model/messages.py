"""Messages about a case: strings that can also be shown in another language; and `plain`, for strings of strangers.

A message is an English string, so that any code can read it, print it and compare it. It also keeps the clauses that
it was made of: keys of a language's catalogue (`i18n`), each with its facts. Facts are figures and names as text, or
messages themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aisbench.i18n import SOURCE, Language, language

if TYPE_CHECKING:
    from typing_extensions import Self

_PLAIN = "plain"  # the key of a text that is no message, in whatever language it is
_ENGLISH = language(SOURCE).catalogue.messages


class Clause(NamedTuple):
    key: str
    facts: Mapping[str, str]


class Message(str):
    """A text made by `message`. `+` joins it with another message or any text."""

    __slots__ = ("clauses",)
    clauses: tuple[Clause, ...]

    def __new__(cls, *clauses: Clause) -> Self:
        made = super().__new__(cls, "".join(_ENGLISH[key].format(**facts) for key, facts in clauses))
        made.clauses = clauses
        return made

    def __add__(self, more: str) -> Message:
        return Message(*self.clauses, *_clauses(more))

    def __getnewargs__(self) -> tuple[Clause, ...]:  # type: ignore[override]
        return self.clauses


def message(key: str, /, **facts: str) -> Message:
    return Message(Clause(key, facts)) if facts else _constant(key)


@functools.cache
def _constant(key: str) -> Message:
    return Message(Clause(key, {}))


def _clauses(text: str) -> tuple[Clause, ...]:
    if isinstance(text, Message):
        return text.clauses
    return (Clause(_PLAIN, {"text": text}),) if text else ()


def begins_with(text: str, key: str) -> bool:
    """True if the text is a message whose first clause has this key."""
    return isinstance(text, Message) and bool(text.clauses) and text.clauses[0].key == key


def fact_of(text: str, key: str, name: str) -> str:
    """The fact of this name in the message's first clause of this key; empty if it has none."""
    clauses = text.clauses if isinstance(text, Message) else ()
    return next((each.facts[name] for each in clauses if each.key == key and name in each.facts), "")


def without(text: str, key: str) -> str:
    """The message without its clauses of this key, also within facts; a text that is no message stays as it is."""
    if not isinstance(text, Message):
        return text
    return Message(
        *(
            Clause(each.key, {name: without(fact, key) for name, fact in each.facts.items()})
            for each in text.clauses
            if each.key != key
        )
    )


def joined(texts: Iterable[str]) -> Message:
    """The texts that are not empty, with a semicolon between them."""
    made = Message()
    for text in filter(None, texts):
        made += message("and", what=text) if made else text
    return made


def translated(text: str, into: Language) -> str:
    """A message in that language; a text that is no message stays as it is."""
    if not isinstance(text, Message):
        return text
    return "".join(
        into.catalogue.messages[key].format(
            **{
                name: into.metric_meaning(fact) if name == "metric" else translated(fact, into)
                for name, fact in facts.items()
            }
        )
        for key, facts in text.clauses
    )


def to_json(value: Message) -> dict[str, Any]:
    """The text and the clauses, as the ledger stores them."""
    clauses = [
        [key, {name: to_json(fact) if isinstance(fact, Message) else fact for name, fact in facts.items()}]
        for key, facts in value.clauses
    ]
    return {"text": str(value), "said": clauses}


def from_json(data: Mapping[str, Any]) -> str:
    """The stored message; its bare text if a newer version wrote it with keys or texts that this one lacks."""
    try:
        made = Message(
            *(
                Clause(
                    key, {name: from_json(fact) if isinstance(fact, Mapping) else fact for name, fact in facts.items()}
                )
                for key, facts in data["said"]
            )
        )
    except (KeyError, IndexError):
        return str(data["text"])
    return made if made == data["text"] else str(data["text"])


def plain(text: str, limit: int = 1000) -> str:
    """A string of a job, a platform or a user as one printable line: no terminal sequence, no reversed writing,
    nothing that XML forbids."""
    if text.isprintable() and len(text) <= limit:  # so are nearly all, and a page has a hundred thousand
        return str(text)
    line = "".join(
        char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text[:limit]
    )
    return f"{line}…" if len(text) > limit else line
