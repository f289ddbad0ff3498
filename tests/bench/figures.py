"""A figure of the guard: what was measured, what it is held against, and whether it got worse.

`docs/benchmarks.json` keeps all figures. The tables of `docs/benchmarks.md` are made from it, between markers.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

WORSE = 1.25  # so many times as much as before is red
_BLOCK = re.compile(r"(?<=<!-- figures: )(?P<part>\w+)(?P<head> -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
_HEAD = ("", "measured", "held against", "ratio", "target", "met", "guarded")


@dataclass(frozen=True)
class Figure:
    """Less is better. The target and the guard look at the ratio if there is a peer, else at the value."""

    name: str
    what: str
    value: float
    unit: str = ""
    peer: str = ""  # what was measured beside it, in the same run
    peer_value: float | None = None
    target: float | None = None
    target_of_value: bool = False  # the target is one of the value though there is a peer
    guarded: bool = False
    slack: float = 0.0  # the guard allows this much more in any case: for what is nearly nothing
    date: str = ""
    spread: float | None = None  # (largest - smallest) / median of several runs

    @property
    def ratio(self) -> float | None:
        return self.value / self.peer_value if self.peer_value else None

    @property
    def compared(self) -> float:
        return self.value if self.ratio is None else self.ratio

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return (self.value if self.target_of_value else self.compared) <= self.target

    def limit(self) -> float:
        """The most that a later run may measure."""
        return max(self.compared * WORSE, self.compared + self.slack)

    def cells(self) -> list[str]:
        peer = f"{number(self.peer_value)} {self.unit}".strip() if self.peer_value is not None else ""
        target = "" if self.target is None else f"≤ {number(self.target)}"
        if target and (self.target_of_value or self.ratio is None):
            target = f"{target} {self.unit}".strip()
        guarded = "" if not self.guarded else "yes" if self.spread is None else f"yes, ± {50 * self.spread:.0f} %"
        return [
            self.what,
            f"{number(self.value)} {self.unit}".strip(),
            f"{self.peer}: {peer}" if self.peer else "",
            "" if self.ratio is None else number(self.ratio),
            target,
            {None: "", True: "yes", False: "**no**"}[self.met],
            guarded,
        ]


Parts = Mapping[str, Sequence[Figure]]


def number(value: float) -> str:
    """Three significant digits, and no exponent."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def best(one: Iterable[Figure], other: Iterable[Figure]) -> list[Figure]:
    """Of each figure the least of two runs, and of its peer too: other programs make both dearer, never cheaper."""
    others = {figure.name: figure for figure in other}
    return [_least(figure, others.get(figure.name, figure)) for figure in one]


def _least(one: Figure, other: Figure) -> Figure:
    peers = [each.peer_value for each in (one, other) if each.peer_value is not None]
    return replace(one, value=min(one.value, other.value), peer_value=min(peers, default=None))


def merged(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Of each figure the run in the middle, and how far the runs lie apart."""
    together = []
    for figure in runs[0]:
        same = [each for run in runs for each in run if each.name == figure.name]
        same.sort(key=lambda each: each.compared)
        middle = statistics.median_low(each.compared for each in same)
        chosen = next(each for each in same if each.compared == middle)
        wide = (same[-1].compared - same[0].compared) / middle if len(same) > 1 and middle else None
        together.append(replace(chosen, spread=wide))
    return together


def offenders(before: Parts, now: Parts) -> Iterator[tuple[str, str]]:
    """The part, and a line, for each guarded figure that got worse by more than a quarter."""
    for part, figures in now.items():
        committed = {figure.name: figure for figure in before.get(part, ())}
        for figure in figures:
            old = committed.get(figure.name)
            if figure.guarded and old and figure.compared > old.limit():
                values = f"before {number(old.compared)}, now {number(figure.compared)}, limit {number(old.limit())}"
                unit = f" × {figure.peer}" if figure.peer else f" {figure.unit}".rstrip()
                yield part, f"{part}: {figure.what}: {values}{unit}"


def uncommitted(before: Parts, now: Parts) -> Iterator[str]:
    """A line for each guarded figure that nothing is known to compare with."""
    for part, figures in now.items():
        names = {figure.name for figure in before.get(part, ())}
        for figure in figures:
            if figure.guarded and figure.name not in names:
                yield f"{part}: {figure.what}: no figure is committed: run `python -m tests.bench --only {part}`"


def updated(old: Parts, new: Parts) -> dict[str, list[Figure]]:
    """What was not measured now stays as it was; a spread stays until it is measured again."""
    parts = {part: list(figures) for part, figures in old.items()}
    for part, figures in new.items():
        before = {figure.name: figure for figure in parts.get(part, [])}
        after = {figure.name: figure for figure in figures}
        for name, figure in after.items():
            if figure.spread is None and name in before:
                after[name] = replace(figure, spread=before[name].spread)
        parts[part] = list((before | after).values())
    return parts


# The file


def to_json(machine: Mapping[str, Any], date: str, parts: Parts) -> str:
    documents = {part: {figure.name: _document(figure) for figure in figures} for part, figures in parts.items()}
    return json.dumps({"machine": machine, "date": date, "parts": documents}, indent=1, ensure_ascii=False) + "\n"


def _document(figure: Figure) -> dict[str, Any]:
    document = {key: _rounded(value) for key, value in asdict(figure).items() if key != "name"}
    return document | {"ratio": _rounded(figure.ratio), "met": figure.met}


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def date_of(text: str) -> str:
    return str(json.loads(text)["date"])


def from_json(text: str) -> tuple[Mapping[str, Any], Parts]:
    """The machine, and the figures."""
    document = json.loads(text)
    names = {field.name for field in fields(Figure)}
    return document["machine"], {
        part: [Figure(name=name, **{key: row[key] for key in row if key in names}) for name, row in figures.items()]
        for part, figures in document["parts"].items()
    }


# The page


def table(figures: Iterable[Figure]) -> str:
    figures = list(figures)
    if not figures:
        return "Not measured yet.\n"
    rows = (_HEAD, ["---"] * len(_HEAD), *(figure.cells() for figure in figures))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(text: str, machine: Mapping[str, Any], date: str, parts: Parts) -> str:
    """The page with its tables made anew; the part `machine` is a line of prose."""

    def block(match: re.Match[str]) -> str:
        part = match["part"]
        made = machine_line(machine, date) if part == "machine" else table(parts.get(part, ()))
        return f"{part}{match['head']}{made}"

    return _BLOCK.sub(block, text)


def machine_line(machine: Mapping[str, Any], date: str) -> str:
    load = " to ".join(number(each) for each in machine.get("load", []))
    facts = [f"{machine[key]}" for key in ("cores", "processor", "system", "python", "pytest") if key in machine]
    return f"{date}: {', '.join(facts)}; load average {load}.\n"
