"""`python -m tests.sim --seeds N [--from S]`: play N simulations, and print a line for each that fails.

`--seed S` replays one of them and tells its story; `--only` leaves out every fault but those named, `--shrink` finds
the fewest that still make it fail. `--table` prints which faults were met at which step, `--tally` adds them up in a
file. See CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.sim.tally import BESIDE, STEPS, Failure, Tally

_CHUNK = 20  # seeds that a process plays before it reports


def play_some(seeds: Sequence[int], bug: str = "") -> Tally:
    from tests.sim import planted, world

    tally, began = Tally(next_seed=seeds[-1] + 1), time.process_time()
    gc.disable()  # what a simulation leaves is collected after the last
    with ExitStack() as stack:
        stack.enter_context(world.simulated_modules())
        stack.enter_context(planted.planted(bug))
        for seed in seeds:
            result = world.play(seed)
            tally.seeds += 1
            tally.virtual_s += result.virtual_s
            tally.platforms[result.platform] += 1
            tally.met.update(
                (result.platform, each.kind, each.step if each.step in STEPS else BESIDE) for each in result.met
            )
            tally.failures += [Failure(seed, *violation) for violation in result.violations[:1]]
    gc.collect()
    tally.cpu_s = time.process_time() - began
    return tally


def play_all(first: int, count: int, jobs: int, bug: str = "", *, until_failure: bool = False) -> Iterator[Tally]:
    """Play seeds in several processes; the order of the answers is that of the seeds."""
    chunks = [range(at, min(at + _CHUNK, first + count)) for at in range(first, first + count, _CHUNK)]
    work = partial(play_some, bug=bug)
    if jobs == 1:
        gc.freeze()
        answers: Iterable[Tally] = map(work, chunks)
        yield from _until(answers, until_failure=until_failure)
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=gc.freeze) as pool:
        yield from _until(pool.imap(work, chunks), until_failure=until_failure)


def _until(answers: Iterable[Tally], *, until_failure: bool) -> Iterator[Tally]:
    for answer in answers:
        yield answer
        if until_failure and answer.failures:
            return


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
    parser.add_argument("--from", type=int, metavar="S", dest="first", help="the first seed")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="add what is met to this file, and go on after it")
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
        return find_planted(options.first or 0, options.seeds, options.jobs)
    total = Tally.load(options.tally) if options.tally else Tally()
    first = total.next_seed if options.first is None else options.first
    began, now = time.monotonic(), Tally()
    for played in play_all(first, options.seeds, options.jobs, options.bug, until_failure=options.until_failure):
        now.add(played)
        total.add(played)
        if options.tally:
            total.save(options.tally)
        for failure in played.failures:
            only = "all"
            if options.shrink:
                only = ",".join(sorted(shrink(failure.seed, failure.rule, options.bug)))
            bug = f" --bug '{options.bug}'" if options.bug else ""
            print(f"{failure.rule}: {failure.text}")
            print(f"    python -m tests.sim --seed {failure.seed} --only '{only}'{bug}", flush=True)
    if now.seeds:
        lasted = time.monotonic() - began
        print(f"{now.line()}; {lasted:.0f} s, {now.seeds / lasted:.1f} seeds a second")
    if options.tally:
        print(f"in all: {total.line()}")
    if options.table:
        print(total.table())
        for platform, kind, step in total.unmet():
            print(f"not met yet: {kind} at {step} on {platform}")
    return int(bool(now.failures))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have an order: the same one in every replay
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
