"""`aisbench references`: proposes thresholds from the history of cases, and replays that history against today's."""

from __future__ import annotations

import copy
import difflib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_aisbench.config import toml_document
from pytest_aisbench.config.options import FRAMEWORKS
from pytest_aisbench.config.toml_document import Document
from pytest_aisbench.engine.suites import ANY, THRESHOLDS_FILE, Suite, case_scope, matching_scopes, suite_folders
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.evaluate import assumed_noise
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
_DATE_AND_BLANK = re.compile(r"(\d{4}-\d\d-\d\d) +(?=\})")
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
                replayed = replay(
                    threshold, shape, each.past, max_trials, assumed=assumed_noise(threshold.metric, each.case)
                )
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


# Editing the text of thresholds.toml, by tomlkit: it keeps every line that it is not asked to change.


def edited(document: Document, scope: Sequence[str], rows: Mapping[str, tuple[Mapping[str, Any], str]]) -> str:
    """The text with these thresholds in the table `scope`, each below a line of evidence; all other lines stay."""
    import tomlkit  # late: no other command needs it

    text = f"{document.text}\n" if document.text and not document.text.endswith("\n") else document.text
    parsed = tomlkit.parse(text)
    table = _table(parsed, scope)
    if table is None:
        header = f"[{'.'.join(map(_key, scope))}]\n"
        lines = (f"{MARK}{evidence}\n{_key(metric)} = {_inline(row)}\n" for metric, (row, evidence) in rows.items())
        text = "".join((text, "\n" if text else "", header, *lines))
    else:
        as_written = text.split("\n")
        for metric, (row, evidence) in rows.items():
            _put(table, metric, row, evidence)
            as_written.append(_inline(row))
        text = _with_blanks(tomlkit.dumps(parsed), as_written)
    wanted = copy.deepcopy(document.data)
    _table(wanted, scope, create=True).update({metric: dict(row) for metric, (row, _) in rows.items()})
    if toml_document.parse_or_empty(text) != wanted:
        advice = f"give [{'.'.join(map(_key, scope))}] lines of its own, one claim on each"
        raise UsageFault(f"{document.path}: the claims of {'.'.join(scope)} cannot be changed safely", advice=advice)
    return text


def _with_blanks(text: str, as_written: Iterable[str]) -> str:
    """The text with the blank between a date and `}`, which tomlkit up to 0.15 loses wherever it reads one."""
    for line in as_written:
        if "}" in line and (shorter := _DATE_AND_BLANK.sub(r"\1", line)) != line:
            text = text.replace(shorter, line)
    return text


def _table(tables: Any, scope: Sequence[str], *, create: bool = False) -> Any:
    """The table at this path; None if there is none, unless it is to be made."""
    for name in scope:
        if name not in tables and not create:
            return None
        tables = tables.setdefault(name, {}) if create else tables[name]
    return tables


def _put(table: Any, metric: str, row: Mapping[str, Any], evidence: str) -> None:
    """Set one threshold of a table of tomlkit; a comment behind it stays."""
    import tomlkit
    from tomlkit.items import InlineTable, Table

    old = table.get(metric)
    if isinstance(old, Table):  # it has a header and lines of its own
        for key in old.keys() - row.keys():
            old.remove(key)
        for key, value in row.items():
            old[key] = tomlkit.value(_inline(value))
        table, metric = old, next(iter(row))
    elif old is not None:
        table[metric] = tomlkit.value(_inline(row))
    else:
        body = table.value.body
        behind = []  # blank lines and comments, which belong to the next table
        while body and body[-1][0] is None:
            behind.append(body.pop()[1])
        table.append(metric, tomlkit.value(_inline(row)))
        for item in reversed(behind):
            table.add(item)
    if isinstance(table, InlineTable):  # has no line for a comment
        return
    body = table.value.body
    at = next(at for at, (key, _) in enumerate(body) if key is not None and key.key == metric)
    above = body[at - 1][1].trivia if at else None
    if above and above.comment.startswith(MARK):
        above.comment = f"{MARK}{evidence}"
    else:
        trivia = body[at][1].trivia
        trivia.indent = f"{trivia.indent}{MARK}{evidence}\n{trivia.indent}"


def _key(name: str) -> str:
    # Shapes have quotes, as everywhere; names of platforms have none.
    return name if _BARE.match(name) and not name[0].isdecimal() else json.dumps(name)


def _inline(value: Any) -> str:
    """A value as all our files write it: `{ reference = 1.5 }`, where tomlkit would write `{reference = 1.5}`."""
    import tomlkit

    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items()) + " }"
    return str(tomlkit.item(value).as_string())


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
