"""The few pieces of HTML that our parts of a page are made of; everything that goes in is escaped or made by us."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pytest_aisbench.domain.entry import CaseEntry
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.verdict import Outcome, Ruling
from pytest_aisbench.i18n import Language
from pytest_aisbench.report.columns import Column


def text(words: str, limit: int = 200) -> str:
    return escape(plain(words, limit))


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Sequence[int] = ()) -> str:
    """Cells are HTML already; `numbers` are the columns to be set to the right."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    kinds = dict.fromkeys(numbers, " class='number'")
    body = "".join(
        f"<tr>{''.join(f'<td{kinds.get(at, str())}>{cell}</td>' for at, cell in enumerate(row))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, one pair a line; the values are HTML already."""
    rows = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{value}</td></tr>" for name, value in pairs if value)
    return f"<table class='facts'><tbody>{rows}</tbody></table>" if rows else ""


def folded(title: str, inside: str) -> str:
    """Closed on a screen, open on paper."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>" if inside else ""


def block(title: str, lines: Iterable[str], limit: int) -> str:
    """Lines as a machine wrote them."""
    body = "\n".join(text(line, limit) for line in lines)
    return f"<h3>{escape(title)}</h3><pre>{body}</pre>" if body else ""


def column_cell(column: Column, case: CaseEntry, say: Language, limit: int, attempt: int | None = None) -> str:
    """What the column shows of the case; a verdict in its colour."""
    if column.key == "verdict":
        return ruling(case.verdict, say)
    return text(column.cell(case, say, attempt), limit)


def ruling(verdict: Ruling | None, say: Language) -> str:
    return word(verdict.value, say) if verdict else escape(say("not judged"))


def word(name: str, say: Language) -> str:
    """A verdict or an outcome: the word that programs know, in its colour."""
    return f"<span class='aisbench-{name}'>{escape(say.word(name))}</span>"


def outcome(value: Outcome, say: Language) -> str:
    return word(value.value, say)
