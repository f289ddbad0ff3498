"""Merge the runs of CI shards into one: its cases, its exit code, and what the shards disagree about.

One run has each case once, so a case that several shards have is named, and one of its results counts. The worst
verdict on the cluster does, because trying again until it passes must not make a case good. BROKEN, which is about the
platform, and no verdict at all give way to any other: a shard that is repeated for them repairs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_aisbench.judge.exit_code import (
    BROKEN,
    FAILED,
    INCONCLUSIVE,
    INTERNAL,
    INTERRUPTED,
    MISSING,
    NOTHING_JUDGED,
    PASSED,
    TERMINATED,
    USAGE,
)
from pytest_aisbench.model.results import CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Ruling

_COUNTS_BEFORE = (Ruling.FAILED, Ruling.INCONCLUSIVE, Ruling.PASSED, Ruling.BROKEN, None)
_WHOLE_RUN = (TERMINATED, INTERRUPTED, INTERNAL, USAGE)  # what ended a shard says nothing of the cases that it lacks
_PER_SHARD = frozenset({"nodes", "reports", "ledger"})  # settings by which shards divide the work


@dataclass(frozen=True)
class MergedRun:
    entry: RunEntry
    taken_from: Mapping[str, int]  # by case, the index of the run whose result counts
    notes: tuple[str, ...]  # duplicates, settings that differ, cases that are missing


def merge_runs(runs: Sequence[RunEntry], name: str, required: Sequence[str] = ()) -> MergedRun:
    """`required` are the cases that must have a verdict, as `--aisbench-require` names them."""
    taken: dict[str, tuple[int, CaseEntry]] = {}
    seen: dict[str, list[str]] = {}
    for index, run in enumerate(runs):
        for case in run.cases:
            seen.setdefault(case.id, []).append(f"{_word(case)} in {run.run}")
            if case.id not in taken or _order(case) < _order(taken[case.id][1]):
                taken[case.id] = (index, case)
    cases = tuple(case for _, case in taken.values())
    missing = sorted(set(required) - {case.id for case in cases if case.verdict})
    first = min(runs, key=lambda run: run.started)
    finished = [run.finished for run in runs]
    entry = replace(
        first,
        run=name,
        cases=cases,
        finished=None if None in finished else max(filter(None, finished)),
        exit_code=_exit_code(runs, cases, missing if required else None),
        settings=_common_settings(runs),
        uploads=tuple(upload for run in runs for upload in run.uploads),
    )
    notes = [
        f"{case} is in several runs: {', '.join(results)}; {_word(taken[case][1])} counts"
        for case, results in seen.items()
        if len(results) > 1
    ]
    notes += _differences(runs)
    notes += [f"{case} is required, and no run judged it" for case in missing]
    return MergedRun(entry, {case: index for case, (index, _) in taken.items()}, tuple(notes))


def _exit_code(runs: Sequence[RunEntry], cases: Iterable[CaseEntry], missing: Sequence[str] | None) -> int:
    """The code that one run of all these cases would have; a shard without one was killed.

    `missing` is None without a manifest: what a shard missed then stays missed."""
    codes = {TERMINATED if run.exit_code is None else run.exit_code for run in runs}
    for code in _WHOLE_RUN:
        if code in codes:
            return code
    verdicts = {case.verdict for case in cases}
    if FAILED in codes or Ruling.FAILED in verdicts:
        return FAILED
    if missing or (missing is None and MISSING in codes):
        return MISSING
    for ruling, code in ((Ruling.BROKEN, BROKEN), (Ruling.INCONCLUSIVE, INCONCLUSIVE)):
        if ruling in verdicts:
            return code
    return PASSED if verdicts - {None} else NOTHING_JUDGED


def _order(case: CaseEntry) -> int:
    return _COUNTS_BEFORE.index(case.verdict)


def _word(case: CaseEntry) -> str:
    return case.verdict.value if case.verdict else "not judged"


def _common_settings(runs: Sequence[RunEntry]) -> dict[str, Any]:
    """The settings of the first run, with the node counts of all."""
    settings = dict(runs[0].settings)
    counts = [run.settings.get("nodes") for run in runs]
    if all(isinstance(count, (list, tuple)) for count in counts):
        settings["nodes"] = sorted({each for count in counts for each in count or ()})
    return settings


def _differences(runs: Sequence[RunEntry]) -> list[str]:
    facts = [{**run.settings, "commit": run.executor.commit} for run in runs]
    names = dict.fromkeys(name for each in facts for name in each if name not in _PER_SHARD)
    lines: list[str] = []
    for name in names:
        values = [str(each.get(name)) for each in facts]
        if len(set(values)) > 1:
            pairs = ", ".join(f"{value} in {run.run}" for value, run in zip(values, runs, strict=True))
            lines.append(f"the runs differ by {name}: {pairs}")
    return lines
