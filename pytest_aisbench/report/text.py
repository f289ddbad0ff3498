"""Text for all reports: durations and times, the order of cases, width in a terminal, links, writing files."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.exit_code import PASSED
from pytest_aisbench.judge.values import SPEEDS
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.messages import begins_with
from pytest_aisbench.model.metric import THROUGHPUT
from pytest_aisbench.model.results import CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Background, Outcome, Ruling

_LOG = get_logger("report")
_COMMAND = "::"  # GitHub reads a line that begins so as a command, even after blanks
_CLAUSE_ENDS = "、。，：；？！）"  # no line begins with one of these
_PIECES = re.compile(rf"\s+|(?:[^\s\u1100-\uffff]+|[\u1100-\uffff])[{_CLAUSE_ENDS}]*")
_LONGEST_ADDRESS = 2000
_ADDRESS = re.compile(r"[!-~]+")
ERROR_OF_TEST = "test error"  # the message of a case whose test ended by an error of its own
_MOST_SLOW = 3  # cards and nodes that a line names
_MARKUP = frozenset("\"'<>\\`")  # characters that mean something in HTML or Markdown


def what_to_do(case: CaseEntry, say: Language = ENGLISH) -> str:
    """What a person should do about the case; empty if it passed or was not judged."""
    if case.verdict is None or case.verdict is Ruling.PASSED:
        return ""
    if begins_with(case.reason, ERROR_OF_TEST):
        return say("do test error")
    if case.verdict is not Ruling.FAILED:
        return say(f"do {case.verdict.value}")
    if not any(trial.job_id for trial in case.trials):
        return say("do nothing ran")
    if any(finding.outcome is Outcome.UNMEASURED for finding in case.findings):
        return say("do unmeasured")
    missed = {finding.metric for finding in case.findings if finding.outcome is Outcome.MISSED}
    if not missed:
        return say("do FAILED")
    todo = _about_slowness(case, say) if missed <= SPEEDS else say("do not learnt")
    changed = case.background.changed if case.background else ()
    return say("do changed", todo=todo, what="; ".join(changed)) if changed else todo


def _about_slowness(case: CaseEntry, say: Language) -> str:
    """Who acts on a speed that is too low: slow cards are the operator's, a job that is slow as a whole is both's."""
    slow, background = case.trials[-1].stragglers, case.background or Background()
    if not slow:
        return say("do slow")
    names = [
        say("node n", node=each.node) if each.card is None else say("node and card", node=each.node, card=each.card)
        for each in slow
    ]
    who = say("and more", names=", ".join(names[:_MOST_SLOW]), count=len(names) - _MOST_SLOW)
    speed = case.metrics[THROUGHPUT].value if THROUGHPUT in case.metrics else None
    kept = 1 - sum(each.cost for each in slow)
    is_cause = speed is not None and background.low is not None and kept > 0 and speed / kept >= background.low
    key = "do slow cards" if is_cause else "do slow cards first"
    return say(key, who=who if len(names) > _MOST_SLOW else ", ".join(names))


def exit_meaning(run: RunEntry, say: Language = ENGLISH) -> str:
    """What the exit code of a run means; empty while it has none."""
    if run.exit_code is None:
        return ""
    unjudged = sum(case.verdict is None for case in run.cases)
    if run.exit_code == PASSED and unjudged:
        return say("exit 0 unjudged", count=unjudged)
    return say.exit_code(run.exit_code)


def worst_first(cases: Iterable[CaseEntry]) -> list[CaseEntry]:
    """The cases that need action first, those that passed last."""
    order = [Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE, None, Ruling.PASSED]
    return sorted(cases, key=lambda case: order.index(case.verdict))


def verdict_counts(cases: Iterable[CaseEntry]) -> Counter[Ruling | None]:
    """How many cases have which verdict, in the order of `worst_first`."""
    return Counter(case.verdict for case in worst_first(cases))


def span(seconds: float | None, say: Language = ENGLISH) -> str:
    """A duration for people: `3.2 s`, `4 min 05 s`, `2 h 10 min`."""
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return say("seconds", value=f"{seconds:.1f}")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return say("minutes", minutes=minutes, seconds=f"{rest:02d}")
    return say("hours", hours=minutes // 60, minutes=f"{minutes % 60:02d}")


def utc_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def as_typed(value: object) -> str:
    """A setting as it is typed: lists with commas."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def display_width(text: str) -> int:
    """How many columns of a terminal the text takes: a Chinese character is as wide as two letters."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def padded(text: str, size: int) -> str:
    return text + " " * (size - display_width(text))


def fit(text: str, size: int) -> str:
    """Cut in the middle: the name of a case begins with its workload and ends with its shape."""
    if display_width(text) <= size:
        return text
    tail = (size - 1) // 2
    return f"{clip(text, size - 1 - tail)}…{clip(text[::-1], tail)[::-1]}"


def cut(text: str, size: int) -> str:
    """Cut at the end: the first digits of a figure matter most."""
    return text if display_width(text) <= size else f"{clip(text, size - 1)}…"


def clip(text: str, size: int) -> str:
    """The longest beginning that is no wider than `size` columns."""
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > size:
            return text[:index]
    return text


def wrap(text: str, indent: str, width: int) -> Iterator[str]:
    """Lines no wider than `width`, indented from the second on; a word is broken only if it is wider than a line."""
    line = ""
    for piece in _PIECES.findall(text):
        if display_width(line + piece.rstrip()) <= width:
            line += piece
            continue
        if line.strip():
            yield line.rstrip()
            line = indent
        rest = f"…{piece.strip()}" if piece.startswith(_COMMAND) else piece.strip()
        while display_width(line + rest) > width:
            part = clip(rest, width - display_width(line))
            yield line + part
            line, rest = indent, rest[len(part) :]
        line += rest
    if line.strip():
        yield line.rstrip()


def safe_link(url: str) -> str:
    """The address if a report may link to it, else an empty string: no script, no markup, no password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_web = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    return url if is_web and len(url) < _LONGEST_ADDRESS and _ADDRESS.fullmatch(url) and not _MARKUP & set(url) else ""


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 with `\\n` on every system; a lone surrogate of a mangled log becomes `?`."""
    write_bytes(path, [text.encode("utf-8", "replace")])


def write_bytes(path: Path, parts: Iterable[bytes]) -> None:
    """Replace the file at once: a reader sees the old file or the new one; after an error the old one."""
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{os.getpid()}.tmp")  # noqa: PTH118 - a run writes ten thousand files
    try:
        with open(draft, "wb") as file:  # noqa: PTH123
            file.writelines(parts)
        os.replace(draft, path)  # noqa: PTH105
    except BaseException:
        with ignored(_LOG, OSError, "the draft of %s", path):
            os.unlink(draft)  # noqa: PTH108
        raise


def json_lines(document: Mapping[str, Any]) -> str:
    """JSON for people too: a line for each key. An indented document is ten times as slow to write."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    return "{\n " + ",\n ".join(lines) + "\n}"
