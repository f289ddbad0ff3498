"""`python -m tests.sim --seeds N [--from S]`: play N simulations, and print a line for each that fails.

`--seed S` replays one of them and tells its story; `--only` leaves out every fault but those named, `--shrink` finds
the fewest that still make it fail. `--table` prints which faults were met at which step. See CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

STEPS = ("OPEN", "TAKEOVER", "STAGE", "SUBMIT", "WATCH", "HARVEST", "JUDGE", "CANCEL", "UPLOAD", "END")
_CHUNK = 20  # seeds that a process plays before it reports


class Failure(NamedTuple):
    seed: int
    rule: str
    text: str


class Played(NamedTuple):
    """What a few seeds gave."""

    seeds: int
    failures: list[Failure]
    met: Counter[tuple[str, str]]  # by kind and step
    platforms: Counter[str]
    virtual_s: float


def play_some(seeds: Iterable[int], bug: str = "") -> Played:
    from tests.sim import planted, world

    failures: list[Failure] = []
    met: Counter[tuple[str, str]] = Counter()
    platforms: Counter[str] = Counter()
    count, virtual_s = 0, 0.0
    with ExitStack() as stack:
        stack.enter_context(world.simulated_modules())
        stack.enter_context(planted.planted(bug))
        for seed in seeds:
            result = world.play(seed)
            count += 1
            virtual_s += result.virtual_s
            platforms[result.platform] += 1
            met.update((each.kind, each.step) for each in result.met)
            failures += [Failure(seed, *violation) for violation in result.violations[:1]]
    gc.collect()
    return Played(count, failures, met, platforms, virtual_s)


def play_all(first: int, count: int, jobs: int, bug: str = "", *, until_failure: bool = False) -> Iterator[Played]:
    """Play seeds in several processes; the order of the answers is that of the seeds."""
    chunks = [range(at, min(at + _CHUNK, first + count)) for at in range(first, first + count, _CHUNK)]
    work = partial(play_some, bug=bug)
    if jobs == 1:
        answers: Iterable[Played] = map(work, chunks)
        yield from _until(answers, until_failure=until_failure)
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=_prepare) as pool:
        yield from _until(pool.imap(work, chunks), until_failure=until_failure)


def _until(answers: Iterable[Played], *, until_failure: bool) -> Iterator[Played]:
    for answer in answers:
        yield answer
        if until_failure and answer.failures:
            return


def _prepare() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def shrink(seed: int, rule: str, bug: str = "") -> frozenset[str]:
    """The fewest faults, as far as leaving them out in halves, quarters, … finds them, that still break the rule."""
    from tests.sim import planted, world

    def fails(only: frozenset[str]) -> bool:
        return any(violation.rule == rule for violation in world.play(seed, only).violations)

    with world.simulated_modules(), planted.planted(bug):
        needed = frozenset(each.id for each in world.play(seed).met)
        parts = 2
        while len(needed) > 1:
            ordered = sorted(needed)
            size = max(1, len(ordered) // parts)
            smaller = next(
                (
                    rest
                    for at in range(0, len(ordered), size)
                    if fails(rest := needed - frozenset(ordered[at : at + size]))
                ),
                None,
            )
            if smaller is not None:
                needed = smaller
            elif size == 1:
                break
            else:
                parts *= 2
    return needed


def table(met: Counter[tuple[str, str]]) -> str:
    """How often each kind of fault met each step, as Markdown."""
    steps = [step for step in STEPS if any(key[1] == step for key in met)]
    others = {kind: sum(met[kind, step] for k, step in met if k == kind and step not in STEPS) for kind, _ in met}
    lines = [f"| fault | {' | '.join(steps)} | beside | all |", "|---|" + "---:|" * (len(steps) + 2)]
    for kind in sorted({kind for kind, _ in met}):
        counts = [met[kind, step] for step in steps]
        beside = others[kind]
        row = " | ".join(f"{count:,}" for count in (*counts, beside, sum(counts) + beside))
        lines.append(f"| {kind} | {row} |")
    return "\n".join(lines)


def replay(seed: int, only: str, bug: str) -> int:
    from tests.sim import planted, world

    chosen = frozenset(filter(None, only.split(","))) if only != "all" else None
    with world.simulated_modules(), planted.planted(bug):
        result = world.play(seed, chosen)
    print("\n".join(result.story))
    for each in result.met:
        print(f"    met {each.kind} at {each.step}: {each.id}")
    return int(bool(result.violations))


def find_planted(first: int, count: int, jobs: int) -> int:
    """Look for each planted bug in turn, until a seed shows it; 1 if one is not found."""
    from tests.sim.planted import BUGS

    missed = 0
    for bug in BUGS:
        began, failures = time.monotonic(), list[Failure]()
        for played in play_all(first, count, jobs, bug, until_failure=True):
            failures += played.failures
        if failures:
            seed, rule, text = failures[0]
            print(f"{bug}: found by seed {seed} after {time.monotonic() - began:.0f} s ({rule}: {text})", flush=True)
        else:
            missed += 1
            print(f"{bug}: not found in {count} seeds", flush=True)
    return int(missed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many simulations")
    parser.add_argument("--from", type=int, default=0, metavar="S", dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--seed", type=int, metavar="S", help="replay this one, and tell its story")
    parser.add_argument("--only", default="all", metavar="FAULTS", help="with --seed: strike with these alone")
    parser.add_argument("--shrink", action="store_true", help="make the schedule of each failing seed short")
    parser.add_argument("--bug", default="", metavar="NAME", help="plant a bug of tests/sim/planted.py")
    parser.add_argument("--until-failure", action="store_true", help="end with the first that fails")
    parser.add_argument("--planted", action="store_true", help="see that each planted bug is found within N seeds")
    parser.add_argument("--table", action="store_true", help="print the faults by kind and step")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed, options.only, options.bug)
    if options.planted:
        return find_planted(options.first, options.seeds, options.jobs)
    began, failures, met, seeds, virtual_s = time.monotonic(), 0, Counter[tuple[str, str]](), 0, 0.0
    platforms: Counter[str] = Counter()
    some = play_all(options.first, options.seeds, options.jobs, options.bug, until_failure=options.until_failure)
    for played in some:
        seeds, virtual_s = seeds + played.seeds, virtual_s + played.virtual_s
        met.update(played.met)
        platforms.update(played.platforms)
        for failure in played.failures:
            failures += 1
            only = "all"
            if options.shrink:
                only = ",".join(sorted(shrink(failure.seed, failure.rule, options.bug)))
            bug = f" --bug '{options.bug}'" if options.bug else ""
            print(f"{failure.rule}: {failure.text}")
            print(f"    python -m tests.sim --seed {failure.seed} --only '{only}'{bug}", flush=True)
    lasted = time.monotonic() - began
    shares = ", ".join(f"{name} {count:,}" for name, count in sorted(platforms.items()))
    print(
        f"{seeds:,} seeds ({shares}), {met.total():,} faults met, {virtual_s / 3600:,.0f} hours of virtual time in"
        f" {lasted:.0f} s ({seeds / lasted:.1f} seeds a second): {failures} failed"
    )
    if options.table:
        print(table(met))
    return int(failures > 0)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have an order: the same one in every replay
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
