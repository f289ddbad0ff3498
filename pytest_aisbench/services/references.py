"""`aisbench references`: propose thresholds from the history of cases, and check how today's would have judged it."""

from __future__ import annotations

import difflib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_aisbench.domain.case import Case, Mode, Shape
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.domain.trial import TrialRecord, values_of
from pytest_aisbench.judge.references import Basis, Replay, is_upper_limit, propose, replay
from pytest_aisbench.services.claims import ANY, NUMBERS
from pytest_aisbench.services.clock import day
from pytest_aisbench.services.history import History
from pytest_aisbench.services.revision import revised
from pytest_aisbench.services.suite import THRESHOLDS_FILE, Suite, folders
from pytest_aisbench.settings import places
from pytest_aisbench.settings.option_types import FRAMEWORKS

Load = Callable[[Path, str, Sequence[str]], Suite]  # of a folder, on this platform, training with these frameworks
_AS_BEFORE = 0.1  # of the margin: a reference that moves by less stands


@dataclass(frozen=True)
class CaseHistory:
    """A case with its thresholds of today, and its comparable trials."""

    case: Case
    file: Path  # that holds its thresholds
    scope: tuple[str, ...]  # of the case's own table in that file
    key: str
    past: tuple[TrialRecord, ...]


@dataclass(frozen=True)
class Review:
    """One threshold, and what is proposed in its place."""

    case_id: str
    metric: str
    old: str  # what it wants today, in words
    new: str  # empty if nothing else is proposed
    basis: Basis | None
    text: str  # why, or why not


@dataclass(frozen=True)
class Checked:
    case_id: str
    metric: str
    wanted: str
    replay: Replay


def case_histories(history: History, roots: Sequence[Path], platform: str | None, load: Load) -> Iterator[CaseHistory]:
    """The cases of these suites that have a history: on this platform, or else where the newest trial ran."""
    suites = {name: folder for root in reversed(roots) for name, folder in folders(root).items()}
    for case_id in history.cases():
        with_traits = ((each, history.traits(each.key)) for each in reversed(history.all(case_id)))
        newest, traits = next(
            ((each, traits) for each, traits in with_traits if traits and platform in {None, traits.get("platform")}),
            (None, {}),
        )
        if newest is None or newest.workload not in suites:
            continue
        place, framework = traits.get("platform", ""), traits.get("framework", "")
        folder = suites[newest.workload]
        suite = load(folder, place, [framework] if framework in FRAMEWORKS else [])
        case = suite.case(Shape.parse(newest.shape), Mode(newest.mode))
        inner = (framework,) if any(scope[0] == f"{place}.{framework}" for scope in suite.claims) else ()
        past = history.of(case_id, newest.key, counted=False)
        yield CaseHistory(case, folder / THRESHOLDS_FILE, (place, *inner, newest.shape), newest.key, past)


def checks(cases: Sequence[CaseHistory], max_trials: int) -> Iterator[Checked]:
    for each in cases:
        shape = each.case.judged_shape
        for threshold in each.case.thresholds:
            if threshold.base is not None:
                continue  # it needs the speed of another case
            replayed = replay(threshold, shape, each.past, max_trials)
            yield Checked(each.case.id, threshold.metric, threshold.wanted(shape), replayed)


def proposals(cases: Sequence[CaseHistory]) -> tuple[list[Review], dict[Path, str]]:
    """A review of every threshold, and the new text of each file that changes."""
    reviews: list[Review] = []
    texts: dict[Path, str] = {}
    for each in cases:
        rows: dict[str, tuple[dict[str, Any], str]] = {}
        for threshold in each.case.thresholds:
            if threshold.base is None:
                reviews.append(_review(each, threshold, rows))
        if rows:
            before = places.read(each.file)
            text = texts.get(each.file, before.text)
            document = replace(before, text=text, data=places.parse(text))
            texts[each.file] = revised(document, each.scope, rows)
    return reviews, {file: ended_alike(file, text) for file, text in texts.items()}


def _review(each: CaseHistory, threshold: Threshold, rows: dict[str, tuple[dict[str, Any], str]]) -> Review:
    shape, metric = each.case.judged_shape, threshold.metric
    records = [record for record in each.past if record.counts and record.value(metric) is not None]
    proposal = propose(threshold, shape, values_of(records, metric))
    basis = proposal.basis
    review = Review(each.case.id, metric, threshold.wanted(shape), "", basis, proposal.why_not)
    if each.case.single_server and threshold.per != "node" and metric == THROUGHPUT:
        why = 'trained alone: without per = "node" the claim would hold for the cluster too'
        return replace(review, text=why)
    if threshold.expected_failure:
        why = f"expected to fail until {threshold.expected_failure.until}: what it does meanwhile is no reference"
        return replace(review, text=why)
    if proposal.threshold is None or basis is None:
        return review
    span = records[basis.since :]
    outliers = f" without {basis.left_out} too far off" if basis.left_out else ""
    evidence = (
        f"{basis.count} trials{outliers} {day(span[0].at)} to {day(span[-1].at)}, mean {basis.mean:.6g},"
        f" CV {basis.cv:.2%}, fingerprint {each.key}"
    )
    if _stands(threshold, proposal.threshold, shape):
        return replace(review, text=f"stands: {evidence}")
    kept = {key: value for key, value in _row(each, metric).items() if key not in NUMBERS}
    numbers = {key: value for key in NUMBERS if (value := getattr(proposal.threshold, key)) is not None}
    rows[metric] = ({**numbers, **kept}, evidence)
    return replace(review, new=proposal.threshold.wanted(shape), text=evidence)


def _stands(old: Threshold, new: Threshold, shape: Shape) -> bool:
    """Whether the bound moves by less than a tenth of the margin for noise."""
    side = int(is_upper_limit(new, shape))
    was, now = old.band(shape)[side], new.band(shape)[side]
    expected = new.expected(shape)
    room = 0.01 * abs(now) if expected is None else abs(expected - now)
    return (old.reference is None) == (new.reference is None) and abs(was - now) <= _AS_BEFORE * room


def _row(each: CaseHistory, metric: str) -> dict[str, Any]:
    """The threshold as its file has it, from the most specific scope that has one."""
    data = places.read(each.file).data
    found: dict[str, Any] = {}
    for platform in (ANY, each.scope[0]):
        for inner in ((), each.scope[1:-1]):
            for shape in (ANY, each.scope[-1]):
                table: Any = data
                for name in (platform, *inner, shape, metric):
                    table = table.get(name, {}) if isinstance(table, dict) else {}
                found = dict(table) if table else found
    return found


def diff(texts: Mapping[Path, str], folder: Path) -> str:
    """For `git apply` or `patch -p1`, where it is run in this folder."""
    return "".join(_diff(file, text, file.resolve().relative_to(folder).as_posix()) for file, text in texts.items())


def _diff(file: Path, text: str, name: str) -> str:
    name += "\t" if " " in name else ""  # or else `patch` ends the name at the blank
    lines = difflib.unified_diff(_lines(_written(file)), _lines(text), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    return list(io.StringIO(text, newline="\n"))  # as `patch` counts them: other ends of lines are none


def _written(file: Path) -> str:
    return file.read_bytes().decode("utf-8")


def ended_alike(file: Path, text: str) -> str:
    """With ends of lines as the file has them."""
    return text.replace("\n", "\r\n") if "\r\n" in _written(file) else text
