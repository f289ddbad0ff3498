"""`aisbench references`: proposes thresholds from the history of cases, and replays that history against today's."""

from __future__ import annotations

import copy
import difflib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from pytest_aisbench.config import toml_document
from pytest_aisbench.config.options import FRAMEWORKS
from pytest_aisbench.config.toml_document import Document, assigned_key, opened_table
from pytest_aisbench.engine.suites import ANY, THRESHOLDS_FILE, Suite, case_scope, matching_scopes, suite_folders
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.references import (
    Basis,
    Replay,
    is_baseline,
    is_upper_limit,
    looser_by,
    propose,
    replay,
    replay_scaling,
)
from pytest_aisbench.judge.scaling import scaling_base
from pytest_aisbench.judge.stragglers import find_stragglers
from pytest_aisbench.judge.values import SPEEDS, throughput_by_rank
from pytest_aisbench.ledger.history import NEWEST, History
from pytest_aisbench.model.case import Case, Mode, Shape
from pytest_aisbench.model.clock import day
from pytest_aisbench.model.metric import THROUGHPUT
from pytest_aisbench.model.trial import Trial, TrialRecord, values_of
from pytest_aisbench.model.verdict import BOUND_KEYS, Ruling, Threshold

MARK = "# From history: "  # begins the line of evidence above a threshold; the next proposal replaces that line
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_NEGLIGIBLE = 0.1  # of the margin: a reference that moves by less stays
Load = Callable[[Path, str, Sequence[str]], Suite]  # loads a folder for a platform and frameworks to train with


@dataclass(frozen=True)
class CaseHistory:
    """A case with today's thresholds, and its comparable trials."""

    case: Case
    file: Path  # its thresholds.toml
    scope: tuple[str, ...]  # the case's own table in that file
    key: str
    past: tuple[TrialRecord, ...]
    base: tuple[TrialRecord, ...] = ()  # of the shape that its claim on scaling is measured against
    slow: frozenset[str] = frozenset()  # ids of its trials in which a card or node was slow


@dataclass(frozen=True)
class Review:
    """One threshold, and what is proposed in its place."""

    case_id: str
    metric: str
    old: str  # what it wants today, in words
    new: str  # empty if nothing else is proposed
    basis: Basis | None
    text: str  # why, or why not
    looser: bool = False  # it allows more than today's
    withheld: bool = False  # and is in the diff only if the user asks for that


@dataclass(frozen=True)
class ReplayedThreshold:
    case_id: str
    metric: str
    wanted: str
    replay: Replay


def case_histories(history: History, roots: Sequence[Path], platform: str | None, load: Load) -> Iterator[CaseHistory]:
    """The cases of these suites that have a history on this platform, or else where their newest trial ran."""
    suites = {name: folder for root in reversed(roots) for name, folder in suite_folders(root).items()}
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
        case = suite.case(Shape.parse(newest.shape), Mode(newest.mode), _arguments(case_id, traits))
        inner = (framework,) if any(scope[0] == f"{place}.{framework}" for scope in suite.claims) else ()
        past = history.of(case_id, newest.key, counted=False)
        base = scaling_base(case)
        yield CaseHistory(
            case,
            folder / THRESHOLDS_FILE,
            (place, *inner, case_scope(case)),
            newest.key,
            past,
            history.base(case.workload.name, str(base), newest.family, NEWEST) if base else (),
            frozenset(each.trial for each in past if _was_slow(history.whole_trial(each.trial))),
        )


def _was_slow(trial: Trial | None) -> bool:
    return trial is not None and bool(find_stragglers(throughput_by_rank(trial), trial.case.shape))


def _arguments(case_id: str, traits: Mapping[str, str]) -> dict[str, str]:
    """The arguments of a case that has some, as its job got them; the id may have them shortened."""
    names = (pair.partition("=")[0] for pair in case_id.partition("[")[2].removesuffix("]").split(","))
    return {name: traits[key] for name in names if (key := f"parameter {name}") in traits}


def checks(cases: Sequence[CaseHistory], max_trials: int) -> Iterator[ReplayedThreshold]:
    for each in cases:
        shape = each.case.judged_shape
        for threshold in each.case.thresholds:
            if threshold.base is not None:
                replayed = replay_scaling(threshold, each.case, each.past, each.base, max_trials)
            else:
                replayed = replay(threshold, shape, each.past, max_trials)
            yield ReplayedThreshold(each.case.id, threshold.metric, threshold.wanted(shape), replayed)


def proposals(cases: Sequence[CaseHistory], *, allow_looser: bool = False) -> tuple[list[Review], dict[Path, str]]:
    """A review of every threshold, and the new text of each file that changes."""
    reviews: list[Review] = []
    texts: dict[Path, str] = {}
    for each in cases:
        rows: dict[str, tuple[dict[str, Any], str]] = {}
        for threshold in each.case.thresholds:
            if threshold.base is None:
                reviews.append(_review(each, threshold, rows, allow_looser=allow_looser))
        if rows:
            before = toml_document.read(each.file)
            text = texts.get(each.file, before.text)
            document = replace(before, text=text, data=toml_document.parse_or_empty(text))
            texts[each.file] = edited(document, each.scope, rows)
    return reviews, {file: with_its_line_ends(file, text) for file, text in texts.items()}


def _review(
    each: CaseHistory, threshold: Threshold, rows: dict[str, tuple[dict[str, Any], str]], *, allow_looser: bool
) -> Review:
    shape, metric = each.case.judged_shape, threshold.metric
    records = [record for record in each.past if is_baseline(record, metric, each.slow)]
    proposal = propose(threshold, shape, values_of(records, metric))
    basis, no_baseline = proposal.basis, _no_baseline(each, metric)
    review = Review(each.case.id, metric, threshold.wanted(shape), "", basis, f"{proposal.why_not}{no_baseline}")
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
        return replace(review, text=f"stands: {evidence}{no_baseline}")
    review = replace(review, new=proposal.threshold.wanted(shape), text=f"{evidence}{no_baseline}")
    if looser := looser_by(threshold, proposal.threshold, shape):
        why = f"{_why_looser(threshold, shape, basis.mean, looser)}; {review.text}"
        advice = f"; find out why (aisbench history {each.case.id}); --allow-looser puts it into the diff"
        review = replace(review, looser=True, withheld=not allow_looser, text=f"{why}{'' if allow_looser else advice}")
        evidence += f"; looser than {threshold.wanted(shape)}"
    if not review.withheld:
        kept = {key: value for key, value in _row(each, metric).items() if key not in BOUND_KEYS}
        numbers = {key: value for key in BOUND_KEYS if (value := getattr(proposal.threshold, key)) is not None}
        rows[metric] = ({**numbers, **kept}, evidence)
    return review


def _no_baseline(each: CaseHistory, metric: str) -> str:
    """How many trials were left out because they would make a fault the rule."""
    failed = sum(record.ruling is Ruling.FAILED for record in each.past)
    slow = sum(
        record.ruling is not Ruling.FAILED and record.trial in each.slow for record in each.past if metric in SPEEDS
    )
    parts = [f"{failed} that failed"] if failed else []
    parts += [f"{slow} with a slow card or node"] if slow else []
    return f"; not counted: {', '.join(parts)}" if parts else ""


def _why_looser(threshold: Threshold, shape: Shape, mean: float, share: float) -> str:
    expected = threshold.expected(shape)
    off = "its limit is closer to the mean than noise allows"
    if expected:
        off = f"the mean is {mean / expected - 1:+.1%} from its reference {expected:.6g}"
    return f"LOOSER than today's claim by {share:.1%}: {off}"


def _stands(old: Threshold, new: Threshold, shape: Shape) -> bool:
    """True if the bound moves by less than a tenth of the margin for noise."""
    side = int(is_upper_limit(new, shape))
    was, now = old.band(shape)[side], new.band(shape)[side]
    expected = new.expected(shape)
    room = 0.01 * abs(now) if expected is None else abs(expected - now)
    return (old.reference is None) == (new.reference is None) and abs(was - now) <= _NEGLIGIBLE * room


def _row(each: CaseHistory, metric: str) -> dict[str, Any]:
    """The threshold's keys in the file, from the most specific table that has it."""
    data = toml_document.read(each.file).data
    row: dict[str, Any] = {}
    for platform in (ANY, each.scope[0]):
        for inner in ((), each.scope[1:-1]):
            for shape in matching_scopes(_scopes(data, platform, inner), each.case.shape, each.case.arguments):
                table: Any = data
                for name in (platform, *inner, shape, metric):
                    table = table.get(name, {}) if isinstance(table, dict) else {}
                row = dict(table) if table else row
    return row


def _scopes(data: Mapping[str, Any], platform: str, inner: Sequence[str]) -> list[str]:
    table: Any = data
    for name in (platform, *inner):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return [scope for scope in table if scope not in FRAMEWORKS]


# Editing the text of thresholds.toml.


def edited(document: Document, scope: Sequence[str], rows: Mapping[str, tuple[Mapping[str, Any], str]]) -> str:
    """The text with these thresholds in the table `scope`, each below a line of evidence; all other lines stay."""
    lines = document.text.removesuffix("\n").split("\n") if document.text else []
    wanted = copy.deepcopy(document.data)
    for metric, (row, evidence) in rows.items():
        _put(lines, scope, metric, [f"{MARK}{evidence}", f"{_key(metric)} = {_toml(row)}"])
        table = wanted
        for name in scope:
            table = table.setdefault(name, {})
        table[metric] = dict(row)
    text = "\n".join(lines) + "\n"
    # The edit knows lines, not TOML (`docs/decisions/` says why): check that it changed what it should and no more.
    if toml_document.parse_or_empty(text) != wanted:
        advice = f"give [{'.'.join(map(_key, scope))}] lines of its own, one claim on each"
        raise UsageFault(f"{document.path}: the claims of {'.'.join(scope)} cannot be changed safely", advice=advice)
    return text


def _put(lines: list[str], scope: Sequence[str], metric: str, new: list[str]) -> None:
    headers = [(at, opened_table(line)) for at, line in enumerate(lines) if opened_table(line)]
    start = next((at for at, path in headers if path == tuple(scope)), None)
    if start is None:
        lines += [*([""] if lines else []), f"[{'.'.join(map(_key, scope))}]", *new]
        return
    end = next((at for at, _ in headers if at > start), len(lines))
    old = next((at for at in range(start + 1, end) if assigned_key(lines[at]) == (metric,)), None)
    if old is None:
        last = max(at for at in range(start, end) if at == start or assigned_key(lines[at]))
        lines[last + 1 : last + 1] = new
        return
    first = old - 1 if lines[old - 1].startswith(MARK) else old
    lines[first : old + 1] = [*new[:-1], f"{new[-1]}{_comment(lines[old])}"]


def _comment(line: str) -> str:
    """The comment behind a value. A text may contain `#`, so the comment begins where the rest is valid TOML."""
    marks = (at for at, sign in enumerate(line) if sign == "#")
    return next((f"  {line[at:].rstrip()}" for at in marks if toml_document.parse_or_empty(line[:at])), "")


def _key(name: str) -> str:
    # Shapes have quotes, as everywhere; names of platforms have none.
    return name if _BARE.match(name) and not name[0].isdecimal() else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)  # JSON and TOML write text, numbers and booleans alike


def diff(texts: Mapping[Path, str], folder: Path) -> str:
    """A patch for `git apply` or `patch -p1`, run in this folder."""
    return "".join(_diff(file, text, file.resolve().relative_to(folder).as_posix()) for file, text in texts.items())


def _diff(file: Path, text: str, name: str) -> str:
    name += "\t" if " " in name else ""  # without a tab, `patch` ends the name at the blank
    lines = difflib.unified_diff(_lines(_file_text(file)), _lines(text), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    return list(io.StringIO(text, newline="\n"))  # as `patch` counts lines: only `\n` ends one


def _file_text(file: Path) -> str:
    return file.read_bytes().decode("utf-8")


def with_its_line_ends(file: Path, text: str) -> str:
    """The text with the line ends of the file."""
    return text.replace("\n", "\r\n") if "\r\n" in _file_text(file) else text
