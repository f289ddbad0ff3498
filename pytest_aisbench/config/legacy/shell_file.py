"""Reads variables from a shell file, without running any command in it.

Understands `NAME=value` and `export NAME=value`, quotes, comments, several on a line, and `$NAME` of earlier lines. A
value that depends on a command, an unknown variable or a condition becomes an `Unreadable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aisbench.config.legacy.python_file import LONGEST, Unreadable
from pytest_aisbench.errors import UsageFault

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_DECLARES = {"export", "declare", "local", "readonly"}
_OPENS = {"if", "for", "while", "until", "case", "select", "{", "function"}
_CLOSES = {"fi", "done", "esac", "}"}
_COMMAND = "\x00"  # stands for what only a shell could tell


@dataclass(frozen=True)
class ShellVariables:
    """The variables that a shell would set when it sources the file, as far as this module can tell."""

    path: Path
    values: Mapping[str, str | Unreadable] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name, default)
        if isinstance(value, Unreadable):
            message = f"{self.path}:{value.line}: {name} cannot be told without running the file: it is {value.what}"
            raise UsageFault(message, advice="write the value itself")
        return value

    def choice(self, name: str, *words: str, default: str) -> str:
        value = self.text(name) or default
        if value not in words:
            raise UsageFault(f"{self.location(name)}: {name} is neither {' nor '.join(words)}")
        return value

    def location(self, name: str) -> str:
        return f"{self.path}:{self.lines[name]}" if name in self.lines else str(self.path)


def read(path: Path) -> ShellVariables:
    """The variables of a file; none if there is no such file."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ShellVariables(path)
    except OSError as error:
        raise UsageFault(f"{path}: cannot be read ({error.strerror})") from None
    values: dict[str, str | Unreadable] = {}
    lines: dict[str, int] = {}
    depth = 0
    for line, conditional, words in _commands(path, text.replace("\r\n", "\n").replace("\0", "\ufffd")):
        depth += (words[0] in _OPENS or words[0].endswith("()")) - (words[0] in _CLOSES)
        if words[0] == "unset":
            for name in words[1:]:
                values.pop(name, None)
            continue
        if words[0] in _DECLARES:
            assigned = words[1:]
        elif all(_ASSIGNMENT.fullmatch(word) for word in words):
            assigned = words
        else:
            continue  # a command, perhaps after variables of its own
        for word in assigned:
            if match := _ASSIGNMENT.fullmatch(word):
                lines[match[1]] = line
                values[match[1]] = _value(match[2], values, line, certain=not conditional and depth <= 0)
    return ShellVariables(path, values, lines)


def _value(text: str, earlier: Mapping[str, str | Unreadable], line: int, *, certain: bool) -> str | Unreadable:
    if not certain:
        return Unreadable(line, "set under a condition")
    pieces: list[str] = []
    for piece in re.split(r"(\x01.*?\x02)", text, flags=re.DOTALL):
        if not piece.startswith("\x01"):
            pieces.append(piece)
            continue
        value = earlier.get(piece[1:-1], Unreadable(line, f"taken from ${piece[1:-1]}, which no line above sets"))
        if isinstance(value, Unreadable):
            return value
        pieces.append(value)
    text = "".join(pieces)
    if _COMMAND in text:
        return Unreadable(line, "what a command answers")
    return text if len(text) <= LONGEST else Unreadable(line, "too long for a setting")


def _commands(path: Path, text: str) -> Iterator[tuple[int, bool, list[str]]]:
    """Of each simple command: its line, whether it depends on another command's success, and its words.

    \\x01NAME\\x02 stands for a variable that the shell would fill in.
    """
    text = text.replace("\x01", "\ufffd").replace("\x02", "\ufffd")
    words: list[str] = []
    word: str | None = None
    line = start = 1
    index, conditional = 0, False
    while index <= len(text):
        char = text[index] if index < len(text) else "\n"
        if char == "\\" and index + 1 < len(text):
            if text[index + 1] != "\n":
                word = (word or "") + text[index + 1]
            line += text[index + 1] == "\n"
            index += 2
        elif char in "'\"":
            piece, length = _quoted(path, text, index, line)
            word, line, index = (word or "") + piece, line + text.count("\n", index, index + length), index + length
        elif char in "$`":
            piece, length = _substitution(text, index)
            word, line, index = (word or "") + piece, line + text.count("\n", index, index + length), index + length
        elif char == "#" and word is None:
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
        elif char in " \t\n;&|<>(":
            if char == "(" and word is not None:  # the head of a function, or an array
                word, index = word + (_COMMAND if "=" in word else "()"), index + 1
                continue
            if word is not None:
                if not words:
                    start = line
                words.append(word)
                word = None
            if char in "\n;&|":
                if words:
                    yield start, conditional, words
                    words = []
                double = text[index : index + 2] in {"&&", "||"}
                conditional, index = double or (conditional and char not in {"\n", ";"}), index + double
                line += char == "\n"
            index += 1
        else:
            word, index = (word or "") + char, index + 1


def _quoted(path: Path, text: str, start: int, line: int) -> tuple[str, int]:
    quote, index = text[start], start + 1
    pieces: list[str] = []
    while index < len(text):
        char = text[index]
        if char == quote:
            return "".join(pieces), index + 1 - start
        if quote == '"' and char == "\\" and text[index + 1 : index + 2] in {'"', "\\", "$", "`", "\n"}:
            pieces.append(text[index + 1].replace("\n", ""))
            index += 2
        elif quote == '"' and char in "$`":
            piece, length = _substitution(text, index)
            pieces.append(piece)
            index += length
        else:
            pieces.append(char)
            index += 1
    raise UsageFault(f"{path}:{line}: the quote {quote} is never closed")


def _substitution(text: str, start: int) -> tuple[str, int]:
    if match := _VARIABLE.match(text, start):
        return f"\x01{match[1] or match[2]}\x02", len(match[0])
    for opening, closing in (("$(", ")"), ("${", "}"), ("`", "`")):
        if text.startswith(opening, start):
            depth, index = 1, start + len(opening)
            while index < len(text) and depth:
                if text[index] == closing:
                    depth -= 1
                elif text[index] == opening[-1]:
                    depth += 1
                index += 1
            return _COMMAND, index - start
    following = text[start + 1 : start + 2]
    if following and following in "?!#@*-0123456789$":
        return _COMMAND, 2
    return text[start], 1
