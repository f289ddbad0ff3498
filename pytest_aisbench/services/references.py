"""Claims held against the history of their cases: what it lets one claim, and how they would have judged it."""

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
from pytest_aisbench.judge.references import Evidence, Replay, from_above, propose, replay
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
class Known:
    """A case with its claims of today, and its comparable trials."""

    case: Case
    file: Path  # where its claims stand
    scope: tuple[str, ...]  # the table there that is its own
    key: str
    past: tuple[TrialRecord, ...]


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


def known(history: History, roots: Sequence[Path], platform: str | None, load: Load) -> Iterator[Known]:
    """The cases of these suites that history has, each on this platform, or else where its newest trial ran."""
    suites = {name: folder for root in reversed(roots) for name, folder in folders(root).items()}
    for case_id in history.cases():
        told = ((each, history.traits(each.key)) for each in reversed(history.all(case_id)))
        newest, traits = next(
            ((each, traits) for each, traits in told if traits and platform in {None, traits.get("platform")}),
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
        yield Known(case, folder / THRESHOLDS_FILE, (place, *inner, newest.shape), newest.key, past)


def checks(cases: Sequence[Known], max_trials: int) -> Iterator[Checked]:
    for each in cases:
        shape = each.case.judged_shape
        for claim in each.case.thresholds:
            if claim.base is not None:
                continue  # a share of another case's speed, which its own trials do not tell
            found = replay(claim, shape, each.past, max_trials)
            yield Checked(each.case.id, claim.metric, claim.wanted(shape), found)


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
    return reviews, {file: ended_alike(file, text) for file, text in texts.items()}


def _review(each: Known, claim: Threshold, rows: dict[str, tuple[dict[str, Any], str]]) -> Review:
    shape, metric = each.case.judged_shape, claim.metric
    told = [measure for measure in each.past if measure.counts and measure.value(metric) is not None]
    found = propose(claim, shape, values_of(told, metric))
    old = claim.wanted(shape)
    if each.case.single_server and claim.per != "node" and metric == THROUGHPUT:
        why = 'trained alone: without per = "node" the claim would hold for the cluster too'
        return Review(each.case.id, metric, old, "", found.evidence, why)
    if claim.expected_failure:
        why = f"expected to fail until {claim.expected_failure.until}: what it does meanwhile is no reference"
        return Review(each.case.id, metric, old, "", found.evidence, why)
    if found.claim is None or found.evidence is None:
        return Review(each.case.id, metric, old, "", found.evidence, found.why_not)
    span = told[found.evidence.since :]
    far = f" without {found.evidence.left_out} too far off" if found.evidence.left_out else ""
    evidence = (
        f"{found.evidence.count} trials{far} {day(span[0].at)} to {day(span[-1].at)}, mean {found.evidence.mean:.6g},"
        f" CV {found.evidence.cv:.2%}, fingerprint {each.key}"
    )
    if _stands(claim, found.claim, shape):
        return Review(each.case.id, metric, old, "", found.evidence, f"stands: {evidence}")
    kept = {key: value for key, value in _row(each, metric).items() if key not in NUMBERS}
    numbers = {key: value for key in NUMBERS if (value := getattr(found.claim, key)) is not None}
    rows[metric] = ({**numbers, **kept}, evidence)
    return Review(each.case.id, metric, old, found.claim.wanted(shape), found.evidence, evidence)


def _stands(old: Threshold, new: Threshold, shape: Shape) -> bool:
    """The bound moves by less than a tenth of the room that the claim leaves for noise."""
    side = int(from_above(new, shape))
    was, now = old.band(shape)[side], new.band(shape)[side]
    expected = new.expected(shape)
    room = 0.01 * abs(now) if expected is None else abs(expected - now)
    return (old.reference is None) == (new.reference is None) and abs(was - now) <= _AS_BEFORE * room


def _row(each: Known, metric: str) -> dict[str, Any]:
    """The claim as its file has it, in the most specific scope that does."""
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
