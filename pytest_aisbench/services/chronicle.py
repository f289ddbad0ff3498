"""The history of a case as a story: chapters of trials that can be compared, and what changed between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_aisbench.domain import codec
from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.trial import Trial, TrialRecord, values_of
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.comparison import trait_differences
from pytest_aisbench.judge.evaluate import ANCHOR_TRIALS, drift_anchor
from pytest_aisbench.judge.trend import change_points, find_drift
from pytest_aisbench.services.history import History
from pytest_aisbench.services.ledger import Ledger


@dataclass(frozen=True)
class Chapter:
    """Trials of one fingerprint, oldest first."""

    key: str
    traits: Mapping[str, str]
    changed: tuple[str, ...]  # against the chapter before
    measures: tuple[TrialRecord, ...]
    remarks: tuple[str, ...]  # changes of level, and a drift

    @property
    def speeds(self) -> list[float]:
        """Of those that count."""
        return _speeds(self.measures)


@dataclass(frozen=True)
class Chronicle:
    """`case` is as its newest trial had it, with the claims of that day."""

    case: Case
    chapters: tuple[Chapter, ...]  # the newest last
    count: int  # of all its trials, shown or not

    @property
    def unit(self) -> str:
        metric = self.case.workload.metrics.get(THROUGHPUT)
        return metric.unit if metric else ""


def chronicle(ledger: Ledger, case_id: str, limit: int) -> Chronicle:
    """Of the newest trials."""
    history = History(ledger.database)
    found = history.all(case_id, limit)
    if not found:
        known = history.cases()
        advice = f"known: {', '.join(known[:20])}{' …' if len(known) > 20 else ''}" if known else "none was judged yet"
        raise UsageFault(f"{ledger.path} has no judged trial of {case_id!r}", advice=advice)
    case = _case(ledger, case_id)
    groups: dict[str, list[TrialRecord]] = {}
    for measure in found:
        groups.setdefault(measure.key, []).append(measure)
    chapters: list[Chapter] = []
    order = sorted(groups.items(), key=lambda group: group[1][-1].at)
    for key, measures in order:
        traits = history.traits(key)
        before = chapters[-1].traits if chapters else {}
        changed = trait_differences(before, traits) if before and traits else ()
        first = history.first(case_id, key, ANCHOR_TRIALS)
        shown = {each.trial for each in measures}
        left_out = () if all(each.trial in shown for each in first) else first
        # What is claimed now is claimed of the newest only: another platform has another reference.
        claimed = case if key == order[-1][0] else replace(case, thresholds=())
        remarks = tuple(_remarks(measures, claimed, left_out))
        chapters.append(Chapter(key, traits, changed, tuple(measures), remarks))
    return Chronicle(case, tuple(chapters), history.count(case_id))


def _remarks(measures: Sequence[TrialRecord], case: Case, first: Sequence[TrialRecord]) -> Iterator[str]:
    """A value is named by its place among those that count, as the list of them shows it. The anchor of a drift is that
    of verdicts: it does not move with the number of trials that are shown."""
    metric = case.workload.metrics.get(THROUGHPUT)
    unit = metric.unit if metric else ""
    speeds = _speeds(measures)
    for change in change_points(speeds):
        yield change.text(THROUGHPUT, unit)
    if found := find_drift(speeds, drift_anchor(THROUGHPUT, case, first)):
        yield found.text(THROUGHPUT, unit)


def _speeds(measures: Sequence[TrialRecord]) -> list[float]:
    return values_of((each for each in measures if each.counts), THROUGHPUT)


def _case(ledger: Ledger, case_id: str) -> Case:
    statement = "SELECT record FROM trials WHERE case_id = ? ORDER BY updated DESC LIMIT 1"
    rows = ledger.database.read(statement, case_id)
    return codec.load(Trial, json.loads(rows[0][0])).case
