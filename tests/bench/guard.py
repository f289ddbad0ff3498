"""Measure what this project costs, write it down, and say what got worse than the committed figures.

Writes docs/benchmarks.json and the tables of docs/benchmarks.md. Ends with 1 if a guarded figure is more than a quarter
worse than the committed one: CPU per job as a multiple of a calibration loop, requests per job, the cost of imports, or
how CPU and bytes written per job grow with the number of jobs. --check writes nothing and measures only the parts with
guarded figures. A part that seems worse is measured again, twice at most, and the best run of each figure counts: other
programs make a run dearer, never cheaper.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import figures
import track
from figures import Figure, Parts
from parts import PARTS

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "benchmarks.json"
PAGE = ROOT / "docs" / "benchmarks.md"
AGAIN = 2  # times that a part is measured again before it is red
Measure = Callable[[str], list[Figure]]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    began, load = time.perf_counter(), os.getloadavg()[0]
    date = time.strftime("%Y-%m-%d", time.gmtime())

    def measure(part: str) -> list[Figure]:
        print(f"\n{part}", flush=True)
        runs = [PARTS[part].measure(options.full) for _ in range(options.repeat)]
        taken = [replace(figure, date=date) for figure in figures.merged(runs)]
        print(figures.table(taken), flush=True)
        return taken

    if options.tables:
        write({}, figures.date_of(_read(FILE)), figures.from_json(_read(FILE))[0]["load"])
        return 0
    names = options.only or _default(full=options.full, check=options.check)
    now: Parts = {part: measure(part) for part in names}
    before = committed()
    now, red = recheck(before, now, measure)
    if options.check:
        red += figures.uncommitted(before, now)
    else:
        write(now, date, sorted((load, os.getloadavg()[0])))
    print(f"{time.perf_counter() - began:.0f} s, {track.machine()}")
    for line in red:
        print(f"WORSE: {line}", file=sys.stderr)
    return 1 if red else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="also 10,000 jobs, 1,000 that are asked about as ModelArts is, and the slow parts",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--check", action="store_true", help="compare what is guarded, and write nothing")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="measure N times, and say how much it varies"
    )
    parser.add_argument("--tables", action="store_true", help="measure nothing: make the tables anew from the file")
    return parser.parse_args(arguments)


def _default(*, full: bool, check: bool) -> list[str]:
    if check:
        return [name for name, part in PARTS.items() if part.guarded]
    return [name for name, part in PARTS.items() if full or not part.slow]


def recheck(before: Parts, now: Parts, measure: Measure) -> tuple[Parts, list[str]]:
    """The best of all runs of the parts that seem worse, and what still is after that."""
    for _ in range(AGAIN):
        worse = dict.fromkeys(part for part, _ in figures.offenders(before, now))
        if not worse:
            break
        print(f"\nseems worse, and is measured again: {', '.join(worse)}", flush=True)
        now = {**now, **{part: figures.best(now[part], measure(part)) for part in worse}}
    return now, [line for _, line in figures.offenders(before, now)]


def committed() -> Parts:
    """The figures of the last commit: those in the folder may be from a run that nobody has accepted."""
    command = ["git", "show", f"HEAD:{FILE.relative_to(ROOT)}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    text = shown.stdout if shown.returncode == 0 else _read(FILE)
    return figures.from_json(text)[1] if text else {}


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def write(now: Parts, date: str, load: Iterable[float]) -> None:
    """Figures of another machine are dropped; those of this one that were not measured now stay."""
    machine, old = figures.from_json(_read(FILE) or '{"machine": {}, "parts": {}}')
    facts = track.machine_facts()
    same = all(machine.get(key) == value for key, value in facts.items())
    parts = figures.updated(old if same else {}, now)
    document = {**facts, "load": [round(each, 1) for each in load]}
    text = figures.to_json(document, date, parts)
    FILE.write_text(text, encoding="utf-8")
    # As the file has them: rounded, so that whoever makes the tables from it later makes the same.
    PAGE.write_text(figures.page(_read(PAGE), document, date, figures.from_json(text)[1]), encoding="utf-8")
