"""Claims held against the history of their cases: what it lets one claim, and how they would have judged it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_aisbench import places
from pytest_aisbench.domain.case import Case, Mode, Shape
from pytest_aisbench.domain.measure import Measure
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.references import Evidence, Replay, propose, replay
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.domain.weighing import is_gated
from pytest_aisbench.option_types import FRAMEWORKS
from pytest_aisbench.services.history import History, values
from pytest_aisbench.services.revision import revised
from pytest_aisbench.services.suite import THRESHOLDS_FILE, WORKLOAD_FILE, Suite

Load = Callable[[Path, Sequence[str]], Suite]  # the suite of a folder, training with these frameworks
_NUMBERS = ("reference", "lower", "upper", "at_least", "at_most")
_AS_BEFORE = 0.1  # of the margin: a reference that moves by less stands


@dataclass(frozen=True)
class Known:
    """A case with its claims of today, and its comparable trials."""

    case: Case
    file: Path  # where its claims stand
    scope: tuple[str, ...]  # the table there that is its own
    key: str
    past: tuple[Measure, ...]


@dataclass(frozen=True)
class Review:
    """One claim, and what became of it."""

    case_id: str
    metric: str
    old: str  # what it wants today, in words
    new: str  # empty where nothing else is proposed
    evidence: Evidence | None
    text: str  # why, or why not


@dataclass(frozen=True)
class Checked:
    case_id: str
    metric: str
    wanted: str
    replay: Replay
    first_missed: Measure | None


def known(history: History, folders: Sequence[Path], platform: str, load: Load) -> Iterator[Known]:
    """The cases of these suites that history has on this platform."""
    files = {str(places.read(file).data.get("name", "")): file for root in folders for file in _workloads(root)}
    for case_id in history.cases():
        newest = next(
            (m for m in reversed(history.all(case_id)) if history.traits(m.key).get("platform") == platform), None
        )
        if newest is None or newest.workload not in files:
            continue
        framework = history.traits(newest.key).get("framework", "")
        folder = files[newest.workload].parent
        suite = load(folder, [framework] if framework in FRAMEWORKS else [])
        case = suite.case(Shape.parse(newest.shape), Mode(newest.mode))
        inner = (framework,) if any(scope[0] == f"{platform}.{framework}" for scope in suite.claims) else ()
        scope = (platform, *inner, newest.shape)
        yield Known(case, folder / THRESHOLDS_FILE, scope, newest.key, history.of(case_id, newest.key))


def _platform(history: History, measure: Measure) -> str:
    return history.traits(measure.key).get("platform", "")


def _workloads(root: Path) -> list[Path]:
    return sorted(root.rglob(WORKLOAD_FILE))


def checks(cases: Sequence[Known], max_trials: int) -> Iterator[Checked]:
    for each in cases:
        shape = each.case.judged_shape
        for claim in each.case.thresholds:
            if claim.base is not None:
                continue  # a share of another case's speed, which its own trials do not tell
            told = [measure for measure in each.past if measure.value(claim.metric) is not None]
            found = replay(claim, shape, values(told, claim.metric), max_trials, gated=is_gated(claim))
            first = None if found.first_missed is None else told[found.first_missed]
            yield Checked(each.case.id, claim.metric, claim.wanted(shape), found, first)


def proposals(cases: Sequence[Known]) -> tuple[list[Review], dict[Path, str]]:
    """What is to be said of every claim, and the new text of each file that changes."""
    reviews: list[Review] = []
    texts: dict[Path, str] = {}
    for each in cases:
        rows: dict[str, tuple[dict[str, Any], str]] = {}
        for claim in each.case.thresholds:
            if claim.base is None:
                reviews.append(_review(each, claim, rows))
        if rows:
            before = places.read(each.file)
            text = texts.get(each.file, before.text)
            document = replace(before, text=text, data=places.parse(text))
            texts[each.file] = revised(document, each.scope, rows)
    return reviews, texts


def _review(each: Known, claim: Threshold, rows: dict[str, tuple[dict[str, Any], str]]) -> Review:
    shape, metric = each.case.judged_shape, claim.metric
    told = [measure for measure in each.past if measure.value(metric) is not None]
    found = propose(claim, shape, values(told, metric))
    old = claim.wanted(shape)
    if each.case.alone and claim.per != "node" and metric == THROUGHPUT:
        why = 'trained alone: without per = "node" the claim would hold for the cluster too'
        return Review(each.case.id, metric, old, "", found.evidence, why)
    if found.claim is None or found.evidence is None:
        return Review(each.case.id, metric, old, "", found.evidence, found.why_not)
    span = told[found.evidence.since :]
    evidence = (
        f"{found.evidence.count} trials {_day(span[0].at)} to {_day(span[-1].at)}, mean {found.evidence.mean:.6g},"
        f" CV {found.evidence.cv:.2%}, fingerprint {each.key}"
    )
    if _stands(claim, found.claim, shape):
        return Review(each.case.id, metric, old, "", found.evidence, f"stands: {evidence}")
    kept = {key: value for key, value in _row(each, metric).items() if key not in _NUMBERS}
    numbers = {key: value for key in _NUMBERS if (value := getattr(found.claim, key)) is not None}
    rows[metric] = ({**numbers, **kept}, evidence)
    return Review(each.case.id, metric, old, found.claim.wanted(shape), found.evidence, evidence)


def _stands(old: Threshold, new: Threshold, shape: Shape) -> bool:
    """The floor moves by less than a tenth of the room that the claim leaves for noise."""
    was, now = old.band(shape)[0], new.band(shape)[0]
    room = abs(new.reference * new.lower) if new.reference and new.lower else 0.01 * abs(now)
    return (old.reference is None) == (new.reference is None) and abs(was - now) <= _AS_BEFORE * room


def _row(each: Known, metric: str) -> dict[str, Any]:
    """The claim as its file has it, in the most specific scope that does."""
    data = places.read(each.file).data
    found: dict[str, Any] = {}
    for platform in ("*", each.scope[0]):
        for inner in ((), each.scope[1:-1]):
            for shape in ("*", each.scope[-1]):
                table: Any = data
                for name in (platform, *inner, shape, metric):
                    table = table.get(name, {}) if isinstance(table, dict) else {}
                found = dict(table) if table else found
    return found


def diff(file: Path, text: str) -> str:
    """For `git apply` or `patch -p1`, where it is run in this folder."""
    name = os.path.relpath(file)
    old = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, text.splitlines(keepends=True), f"a/{name}", f"b/{name}"))


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d")
