"""Text in the columns of a terminal, where a Chinese character is as wide as two letters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_COMMAND = "::"  # a line that begins so, GitHub takes for a command, whatever is before it in blanks
_ENDS = "、。，：；？！）"  # what ends a clause begins no line
_PIECES = re.compile(rf"\s+|(?:[^\s\u1100-\uffff]+|[\u1100-\uffff])[{_ENDS}]*")


def wide(text: str) -> int:
    """How many columns it takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def padded(text: str, size: int) -> str:
    return text + " " * (size - wide(text))


def fit(text: str, size: int) -> str:
    """Cut in the middle: a case is known by its name and its shape."""
    if wide(text) <= size:
        return text
    tail = (size - 1) // 2
    return f"{clip(text, size - 1 - tail)}…{clip(text[::-1], tail)[::-1]}"


def cut(text: str, size: int) -> str:
    """Cut at the end: of a figure its first digits count."""
    return text if wide(text) <= size else f"{clip(text, size - 1)}…"


def clip(text: str, size: int) -> str:
    """As much of it as takes no more than so many columns."""
    used = 0
    for index, char in enumerate(text):
        used += _columns(char)
        if used > size:
            return text[:index]
    return text


def wrap(text: str, indent: str, width: int) -> Iterator[str]:
    """Lines no wider than that, the second and later ones indented; broken between words, a word only if it must be."""
    line = ""
    for piece in _PIECES.findall(text):
        if wide(line + piece.rstrip()) <= width:
            line += piece
            continue
        if line.strip():
            yield line.rstrip()
            line = indent
        rest = f"…{piece.strip()}" if piece.startswith(_COMMAND) else piece.strip()
        while wide(line + rest) > width:
            part = clip(rest, width - wide(line))
            yield line + part
            line, rest = indent, rest[len(part) :]
        line += rest
    if line.strip():
        yield line.rstrip()
