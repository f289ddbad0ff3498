"""Reads the number of a metric from the lines that a training script prints anyway, by a pattern of workload.toml.

A pattern is a regular expression with one group, the number: `throughput: (\\S+) images/s`. With two groups named
`value` and `of` the number is their ratio: `Accuracy: (?P<value>\\d+)/(?P<of>\\d+)`. `read_pattern` refuses what could
read a wrong number, or take for ever on an unlucky line; `LinePattern.read` takes one line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from pytest_aisbench.traininglog.readers import MOST_CHARACTERS, plain_line, rank_and_rest, unfinished

_VALUE, _OF = "value", "of"
_FEWEST_FIXED = 2  # characters, blanks not counted, by which a line is recognised
_LONGEST_PATTERN = 500
_LONGEST_MARK = 80  # characters at the beginning of a line that say that it is the platform's
_IGNORE_CASE = "(?i)"
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)
_NOT_FINITE = r"(?i:[-+]?(?:nan|inf(?:inity)?))"
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(?!\})(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\})[?+]?")
# What would belong to the number if the pattern did not leave it out: `1.2` of `1.2e-3`, `734` of `21,734`.
_NUMBER_GOES_ON = re.compile(r"\d|[.]\d|,\d{3}(?!\d)|[eE][-+]?\d")
_NUMBER_BEGAN = re.compile(r"(?:\d|[.]|(?:^|[^\w)\]}.])-)\Z")
_THOUSANDS_BEGAN = re.compile(r"\d,\Z")

TAKES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda numbers: numbers[-1],
    "mean": fmean,
    "median": median,
    "max": max,
}
"""How one number is made of those of several lines, by its name in workload.toml."""


class PatternError(ValueError):
    """Why a pattern is refused, in a few words."""


class NoNumber(ValueError):
    """A line that the pattern recognises, and whose number cannot be used."""


@dataclass(frozen=True)
class LinePattern:
    source: str
    fixed: str  # a text that every line of it has: other lines are skipped at once, a log may have millions
    ignores_case: bool
    expression: re.Pattern[str]
    not_finite: re.Pattern[str]  # the same with `nan` or `inf` in place of the number

    def may_match(self, line: str) -> bool:
        """False for nearly every line that is another."""
        return self.fixed in (line.lower() if self.ignores_case else line)

    def read(self, line: str) -> float | None:
        """The number of a line, None if the line is another; raises `NoNumber`."""
        cut = line[:MOST_CHARACTERS]
        match = self.expression.search(cut)
        if match is None:
            # A pattern that expects digits does not see a `nan`. Without that line the one before it would count.
            if self.not_finite.search(cut):
                raise NoNumber(cut.strip())
            return None
        value = _number(match, _VALUE if self.expression.groupindex else 1, line)
        if _OF not in self.expression.groupindex:
            return value
        of = _number(match, _OF, line)
        if of <= 0 or not math.isfinite(value / of):
            raise NoNumber(match[0])
        return value / of


def _number(match: re.Match[str], group: str | int, line: str) -> float:
    """The finite number that a group matched, all of it."""
    text = (match[group] or "").strip().rstrip(",;")
    start = match.start(group) + len(match[group] or "") - len((match[group] or "").lstrip())
    end = start + len(text)
    before = line[max(0, start - 3) : start]
    parts = _NUMBER_GOES_ON.match(line, end) or (text[:1] not in "+-" and _NUMBER_BEGAN.search(before))
    thousands = re.match(r"\d{3}(?!\d)", text) and _THOUSANDS_BEGAN.search(before)
    if not _NUMBER.fullmatch(text) or parts or thousands:
        raise NoNumber(match[0])
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        raise NoNumber(match[0])
    return value


# What a pattern may be


def read_pattern(source: str) -> LinePattern:
    """The pattern, ready to read lines; raises `PatternError`."""
    if len(source) > _LONGEST_PATTERN or not source.isprintable():
        raise PatternError(f"it is not a line of at most {_LONGEST_PATTERN} printable characters")
    ignores_case = source.startswith(_IGNORE_CASE)
    body = source.removeprefix(_IGNORE_CASE)
    flags = re.IGNORECASE if ignores_case else re.RegexFlag(0)
    try:
        expression = re.compile(body, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"it is not a regular expression: {error}") from None
    outline = _outline(body)
    names = set(expression.groupindex)
    if expression.groups != 1 + (_OF in names) or (names and _VALUE not in names):
        raise PatternError(
            "it does not have exactly one group: write the number as (…), or a ratio as (?P<value>…)/(?P<of>…), and"
            " other groups as (?:…)"
        )
    fixed = outline.fixed.lower() if ignores_case else outline.fixed
    if len("".join(fixed.split())) < _FEWEST_FIXED:
        raise PatternError("it has no fixed text by which a line is recognised")
    start, end = outline.groups[_VALUE if names else ""]
    return LinePattern(
        source, fixed, ignores_case, expression, re.compile(f"{body[:start]}{_NOT_FINITE}{body[end:]}", flags)
    )


@dataclass
class _Group:
    name: str | None  # "" for a group without a name, None if the group captures nothing
    start: int
    varies: bool = False  # it has a repetition or a choice inside


@dataclass
class _Outline:
    """What a pass over a valid regular expression finds."""

    groups: dict[str, tuple[int, int]] = field(default_factory=dict)  # that capture, and where each stands
    fixed: str = ""  # the longest text that every match has


def _outline(source: str) -> _Outline:
    """Raises for a pattern whose time may grow with a power of the line's length: repetitions of repetitions, choices
    that are repeated; and for what only a backtracking search can do."""
    outline, open_groups = _Outline(), [_Group(None, 0)]
    run = ""  # the fixed text that ends here
    closed: _Group | None = None  # the group that ended just before
    at = 0
    while at < len(source):
        kind, length = _token(source, at)
        text = source[at : at + length]
        at += length
        if kind == "repeat":
            _check_repetition(text, closed)
            if text[0] in "*?" or text.startswith(("{0", "{,")):
                run = run[:-1]  # the character before may be absent
            open_groups[-1].varies = True
        if kind == "fixed" and len(open_groups) == 1:
            run += text[-1]
        else:
            outline.fixed, run = max(outline.fixed, run, key=len), ""
        closed = None
        if kind == "open":
            open_groups.append(_Group(_group_name(text), at - length))
        elif kind == "close":
            closed = open_groups.pop()
            open_groups[-1].varies |= closed.varies
            if closed.name is not None:
                outline.groups[closed.name] = (closed.start, at)
        elif kind == "choice":
            if len(open_groups) == 1:
                raise PatternError("it is a choice of whole patterns: put a choice into (?:...|...)")
            open_groups[-1].varies = True
    outline.fixed = max(outline.fixed, run, key=len)
    return outline


def _token(source: str, at: int) -> tuple[str, int]:
    """The kind of what begins here, and its length."""
    char = source[at]
    if char == "\\":
        if source[at + 1].isdigit():
            raise PatternError(f"it refers back to a group: {source[at : at + 2]}")
        return "other" if source[at + 1].isalnum() else "fixed", 2
    if char == "[":
        first = at + 1 + source.startswith("^", at + 1)
        end = first + source.startswith("]", first)
        while source[end] != "]":
            end += 2 if source[end] == "\\" else 1
        return "other", end + 1 - at
    if char == "(":
        return "open", len(_opening(source, at))
    if quantifier := _QUANTIFIER.match(source, at):
        return "repeat", len(quantifier[0])
    return {")": "close", "|": "choice", ".": "other", "^": "other", "$": "other"}.get(char, "fixed"), 1


def _opening(source: str, at: int) -> str:
    openings = ("(?:", f"(?P<{_VALUE}>", f"(?P<{_OF}>")
    if not source.startswith("(?", at):
        return "("
    for opening in openings:
        if source.startswith(opening, at):
            return opening
    raise PatternError(f"it has {source[at : at + 4]!r}; a group begins with ( or {', '.join(openings)}")


def _group_name(opening: str) -> str | None:
    return None if opening == "(?:" else opening.removeprefix("(").removeprefix("?P<").removesuffix(">")


def _check_repetition(quantifier: str, group: _Group | None) -> None:
    """Raise if the group before the quantifier must not be repeated."""
    if group and group.name is not None:
        raise PatternError("its group is repeated, or may be absent")
    if group and group.varies and _most(quantifier) > 1:
        raise PatternError(f"it repeats a repetition or a choice ({quantifier}): an unlucky line would take for ever")


def _most(quantifier: str) -> float:
    """How often it repeats at most."""
    match = _QUANTIFIER.fullmatch(quantifier)
    if not match or quantifier[0] != "{":
        return 1 if quantifier[0] == "?" else math.inf
    return float((match["most"] if match["comma"] else match["least"]) or math.inf)


# A whole log


@dataclass
class PrintedNumbers:
    """What one pattern found in one log, by the rank that printed it; None where neither the log nor the line tells."""

    by_rank: dict[int | None, list[float]] = field(default_factory=dict)
    unusable: str = ""  # the first line whose number cannot be used

    @property
    def count(self) -> int:
        return sum(map(len, self.by_rank.values()))


@dataclass
class PrintedLog:
    """What all patterns found in one log, and whether the log seems whole."""

    numbers: dict[str, PrintedNumbers]  # by pattern
    is_overflown: bool = False  # the platform wrote that it stopped writing
    has_platform_lines: bool = False
    is_closed: bool = False  # by a line of the platform
    ends_in_line: bool = False  # its last line has no end
    is_empty: bool = True

    @property
    def is_cut(self) -> bool:
        """True if the log itself shows that its end is missing."""
        open_end = not self.is_closed if self.has_platform_lines else self.ends_in_line
        return self.is_empty or self.is_overflown or open_end


def read_printed(
    pieces: Iterable[str], patterns: Sequence[LinePattern], rank_of: Callable[[str], int | None]
) -> PrintedLog:
    """Read a log once, by all patterns. `rank_of` tells which rank printed a line. A last line without an end is not
    read: its number may be cut."""
    log = PrintedLog({pattern.source: PrintedNumbers() for pattern in patterns})
    for line in _whole_lines(pieces, log):
        log.is_empty = False
        if _is_platforms(line):
            log.has_platform_lines = log.is_closed = True
            log.is_overflown |= "log length overflow" in line
            continue
        log.is_closed &= not line.strip()
        text = plain_line(line)
        for pattern in patterns:
            if pattern.may_match(text):
                _read_line(log.numbers[pattern.source], pattern, text, rank_of)
    return log


def _read_line(numbers: PrintedNumbers, pattern: LinePattern, line: str, rank_of: Callable[[str], int | None]) -> None:
    try:
        value = pattern.read(line)
        if value is None:  # the pattern may begin with ^, and the line with its rank
            value = pattern.read(rank_and_rest(line)[1])
    except NoNumber as error:
        numbers.unusable = numbers.unusable or str(error)
    else:
        if value is not None:
            numbers.by_rank.setdefault(rank_of(line), []).append(value)


def _whole_lines(pieces: Iterable[str], log: PrintedLog) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        rest = unfinished(rest)
        yield from whole
    log.ends_in_line = bool(rest)


def _is_platforms(line: str) -> bool:
    if "ervice" not in line:
        return False
    return "service log]" in line[:_LONGEST_MARK].lower() or "Platform=ModelArts-Service" in line
