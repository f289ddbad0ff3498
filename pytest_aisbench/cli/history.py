"""`aisbench history` shows what a case measured so far; `aisbench references` derives thresholds from that."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pytest_aisbench import registry
from pytest_aisbench.cli import add_command, add_ledger_options, at_least, open_ledger, read_settings, write_text
from pytest_aisbench.config.options import LOCAL
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.engine import references as references_module
from pytest_aisbench.engine import suites as suites_module
from pytest_aisbench.engine.references import CaseHistory, ReplayedThreshold, Review
from pytest_aisbench.engine.suites import Suite
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.comparison import trait_differences
from pytest_aisbench.judge.evaluate import ANCHOR_TRIALS, drift_anchor
from pytest_aisbench.judge.trend import change_points, find_drift
from pytest_aisbench.ledger.history import History
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import day, stamp
from pytest_aisbench.model.codec import dump, load
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.trial import Trial, TrialRecord, values_of
from pytest_aisbench.model.verdict import Background, Ruling, Threshold, number
from pytest_aisbench.report.charts import MOST_PAST, history_chart
from pytest_aisbench.report.terminal import sparkline
from pytest_aisbench.report.text import wrap

SCHEMA = "aisbench-history/1"
_REFERENCES_SCHEMA = "aisbench-references/1"
_MOST_TRIALS = 100  # the noise test uses no more either
_WIDTH = 80
_LIST_SPARKS = 20  # characters of a spark line in the list of cases
_ROW = " {:>4} {:<16} {:<22} {:>11} {:>8} {:<12}"


def register(commands: Any) -> None:
    history = add_command(
        commands,
        "history",
        "list the cases of the ledger, or show what the trials of one measured, by what makes them comparable",
        "aisbench history resnet50-2x8 --limit 20",
    )
    history.add_argument("case", nargs="?", metavar="CASE", help="such as resnet50-2x8 (default: list the cases)")
    count = at_least(1, "a number of trials")
    history.add_argument(
        "--limit", type=count, default=_MOST_TRIALS, metavar="N", help=f"the newest (default {_MOST_TRIALS})"
    )
    history.add_argument("--svg", type=Path, metavar="FILE", help="also draw it here")
    history.add_argument("--json", action="store_true", help="for programs")
    add_ledger_options(history)
    history.set_defaults(act=_history)
    references = add_command(
        commands,
        "references",
        "propose claims from history, or see how those of today would judge it",
        "aisbench references propose suites/ > change.diff",
    )
    kinds = references.add_subparsers(required=True, metavar="propose|check", dest="kind")
    for kind, text in (
        ("propose", "print the change of thresholds.toml that history suggests, as a diff to review"),
        ("check", "show how every claim would have judged the trials so far"),
    ):
        parser = add_command(kinds, kind, text, f"aisbench references {kind} suites/ --case resnet50-2x8")
        parser.add_argument("suites", nargs="*", type=Path, metavar="DIR", help="folders of suites (default: suites/)")
        parser.add_argument("--platform", metavar="NAME", help="whose claims and trials (default: the newest)")
        parser.add_argument("--case", action="append", metavar="CASE", help="only this one; may be given again")
        parser.add_argument("--json", action="store_true", help="for programs")
        add_ledger_options(parser)
        if kind == "propose":
            parser.add_argument("--apply", action="store_true", help="write the change too")
            parser.add_argument(
                "--allow-looser", action="store_true", help="also claims that allow more than today's, with the reason"
            )
        act = _propose if kind == "propose" else _check
        parser.set_defaults(act=partial(_with_histories, act))


def _settings(options: argparse.Namespace) -> Settings:
    """The settings. These commands ask no platform, so the user needs no keys for one."""
    return read_settings(options, platform=LOCAL)


# aisbench history


@dataclass(frozen=True)
class Segment:
    """Trials that can be compared with each other, since they share a fingerprint; the oldest first."""

    key: str
    traits: Mapping[str, str]
    changed: tuple[str, ...]  # since the segment before
    records: tuple[TrialRecord, ...]
    remarks: tuple[str, ...]  # changes of level, and a drift

    @property
    def speeds(self) -> list[float]:
        """The throughput of the trials that count."""
        return _speeds(self.records)


@dataclass(frozen=True)
class SegmentedHistory:
    """The trials of a case in segments. `case` is as its newest trial had it, with the thresholds of that day."""

    case: Case
    segments: tuple[Segment, ...]  # the newest last
    count: int  # of all trials of the case, shown or not

    @property
    def unit(self) -> str:
        return _unit(self.case)


def _unit(case: Case) -> str:
    """The unit of the case's throughput."""
    metric = case.workload.metrics.get(THROUGHPUT)
    return metric.unit if metric else ""


@dataclass(frozen=True)
class CaseSummary:
    """One case in the list of all: how many trials ended how, and the newest of them that can be compared."""

    case_id: str
    rulings: Mapping[Ruling, int]
    newest: TrialRecord
    unit: str  # of the throughput
    speeds: tuple[float, ...]  # throughput of the trials that count and have the newest one's fingerprint

    @property
    def verdicts(self) -> str:
        return ", ".join(f"{self.rulings[each]} {each.value}" for each in Ruling if each in self.rulings)


def case_summaries(history: History, limit: int) -> list[CaseSummary]:
    summaries = []
    for case_id, rulings in history.rulings().items():
        *_, newest = history.all(case_id, 1)
        trial = history.whole_trial(newest.trial)
        unit = _unit(trial.case) if trial else ""
        speeds = _speeds(history.of(case_id, newest.key, limit))
        summaries.append(CaseSummary(case_id, rulings, newest, unit, tuple(speeds)))
    return summaries


def summary_lines(summaries: Sequence[CaseSummary]) -> Iterator[str]:
    """A table: the case, how many trials, their verdicts, day and throughput of the newest, and a spark line."""
    rows = [
        (
            plain(each.case_id),
            str(sum(each.rulings.values())),
            each.verdicts,
            day(each.newest.at),
            f"{number(each.newest.throughput)} {plain(each.unit)}".rstrip(),
            sparkline(each.speeds, _LIST_SPARKS) if len(each.speeds) > 1 else "",
        )
        for each in summaries
    ]
    rows = [("case", "trials", "verdicts", "newest", "throughput", ""), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, "<><<><", widths, strict=True)
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()


def _summary(each: CaseSummary) -> dict[str, Any]:
    return {
        "case": each.case_id,
        "trials": sum(each.rulings.values()),
        "verdicts": {ruling.value: count for ruling, count in each.rulings.items()},
        "newest": _trial(each.newest),
        "unit": each.unit,
        "throughput": list(each.speeds),
    }


def _history(options: argparse.Namespace) -> None:
    with closing(open_ledger(_settings(options))) as ledger:
        if options.case is None:
            if options.svg:
                raise UsageFault("--svg draws the history of one case", advice="name the CASE")
            summaries = case_summaries(History(ledger.database), options.limit)
            if options.json:
                cases = [summary.case_id for summary in summaries]
                print(json.dumps({"schema": SCHEMA, "cases": cases, "summaries": list(map(_summary, summaries))}))
            elif summaries:
                print("\n".join(summary_lines(summaries)))
            else:
                print(f"{ledger.path}: no trial was judged yet", file=sys.stderr)
            return
        history = read_history(ledger, options.case, options.limit)
    if options.svg:
        picture = history_picture(history)
        if not picture:
            raise UsageFault(f"fewer than two trials of {options.case} count: there is nothing to draw")
        write_text(options.svg, picture)
    print(
        json.dumps(history_document(history), indent=2, ensure_ascii=False)
        if options.json
        else "\n".join(history_lines(history))
    )


def read_history(ledger: Ledger, case_id: str, limit: int) -> SegmentedHistory:
    """The newest `limit` trials of a case, in segments."""
    history = History(ledger.database)
    newest = history.all(case_id, limit)
    if not newest:
        cases = history.cases()
        advice = f"known: {', '.join(cases[:20])}{' …' if len(cases) > 20 else ''}" if cases else "none was judged yet"
        raise UsageFault(f"{ledger.path} has no judged trial of {case_id!r}", advice=advice)
    case = _case(ledger, case_id)
    groups: dict[str, list[TrialRecord]] = {}
    for record in newest:
        groups.setdefault(record.key, []).append(record)
    segments: list[Segment] = []
    order = sorted(groups.items(), key=lambda group: group[1][-1].at)
    for key, records in order:
        traits = history.traits(key)
        before = segments[-1].traits if segments else {}
        changed = trait_differences(before, traits) if before and traits else ()
        first = history.first(case_id, key, ANCHOR_TRIALS)
        numbers = {each.trial for each in records}
        left_out = () if all(each.trial in numbers for each in first) else first
        # Today's thresholds hold for the newest segment only: another platform has another reference.
        claimed = case if key == order[-1][0] else replace(case, thresholds=())
        remarks = tuple(_remarks(records, claimed, left_out))
        segments.append(Segment(key, traits, changed, tuple(records), remarks))
    return SegmentedHistory(case, tuple(segments), history.count(case_id))


def _remarks(records: Sequence[TrialRecord], case: Case, first: Sequence[TrialRecord]) -> Iterator[str]:
    """Changes of level, and a drift. A remark names a value by its place among the trials that count, as the list does.
    The anchor of a drift is that of verdicts: it does not depend on how many trials we show."""
    unit = _unit(case)
    speeds = _speeds(records)
    for change in change_points(speeds):
        yield change.text(THROUGHPUT, unit)
    if drift := find_drift(speeds, drift_anchor(THROUGHPUT, case, first)):
        yield drift.text(THROUGHPUT, unit)


def _speeds(records: Sequence[TrialRecord]) -> list[float]:
    return values_of((each for each in records if each.counts), THROUGHPUT)


def _case(ledger: Ledger, case_id: str) -> Case:
    statement = "SELECT record FROM trials WHERE case_id = ? ORDER BY updated DESC LIMIT 1"
    rows = ledger.database.read(statement, case_id)
    return load(Trial, json.loads(rows[0][0])).case


def history_lines(history: SegmentedHistory) -> Iterator[str]:
    case = history.case
    whole = [record for segment in history.segments for record in segment.records]
    newest = "" if len(whole) == history.count else f"the newest {len(whole)} of "
    yield f"{case.id}: {newest}{_many(history.count, 'trial')}, {day(whole[0].at)} to {day(whole[-1].at)}"
    for claim in case.thresholds:
        yield f"  claimed at last: {plain(claim.metric)} {claim.wanted(case.judged_shape)}"
    for segment in history.segments:
        yield ""
        yield from _segment_lines(segment, history.unit)


def _segment_lines(segment: Segment, unit: str) -> Iterator[str]:
    named = segment.key or "not known, so comparable to nothing"
    yield f"fingerprint {named}: {_many(len(segment.records), 'trial')}"
    for line in segment.changed:
        yield from wrap(f"  changed  {plain(line)}", " " * 11, _WIDTH)
    if speeds := segment.speeds:
        yield f"  {sparkline(speeds)}"
        yield f"  {_spread(speeds, unit)}"
    for remark in segment.remarks:
        yield from wrap(f"  remark   {plain(remark)}", " " * 11, _WIDTH)
    yield _ROW.format("", "when (UTC)", "run", "throughput", "accuracy", "verdict").rstrip()
    place = 0
    for record in segment.records:
        place += record.counts
        yield _ROW.format(
            place if record.counts else "-",
            _minute(record.at),
            plain(record.run, 22),
            number(record.throughput),
            "-" if record.accuracy is None else number(record.accuracy),
            record.ruling.value,
        ).rstrip()


def _spread(speeds: list[float], unit: str) -> str:
    unit = f" {unit}" if unit else ""
    mean = fmean(speeds)
    text = f"{len(speeds)} that count: mean {number(mean)}{unit}"
    if len(speeds) > 1:
        text += f", CV {stdev(speeds) / mean:.2%}, {number(min(speeds))} .. {number(max(speeds))}"
    return text


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M")


def history_document(history: SegmentedHistory) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "case": history.case.id,
        "unit": history.unit,
        "trials": history.count,
        "fingerprints": [
            {
                "fingerprint": segment.key or None,
                "traits": dict(segment.traits),
                "changed": list(segment.changed),
                "remarks": list(segment.remarks),
                "trials": [_trial(record) for record in segment.records],
            }
            for segment in history.segments
        ],
    }


def _trial(record: TrialRecord) -> dict[str, Any]:
    return {
        "run": record.run,
        "trial": record.trial,
        "at": stamp(record.at),
        "metrics": {THROUGHPUT: record.throughput, ACCURACY: record.accuracy, **record.metrics},
        "steady": record.steady,
        "ran_s": record.ran_s,
        "verdict": record.ruling.value,
        "counts": record.counts,
    }


def history_picture(history: SegmentedHistory) -> str:
    """A chart of the newest segment with band and reference of its threshold; empty if fewer than two trials count."""
    newest = [record.past for record in history.segments[-1].records if record.counts][-MOST_PAST:]
    if len(newest) < 2:
        return ""
    shape = history.case.judged_shape
    claim = next((claim for claim in history.case.thresholds if claim.metric == THROUGHPUT), Threshold(THROUGHPUT))
    low, high = (None if math.isinf(bound) else bound for bound in claim.band(shape))
    background = Background(claim.expected(shape), low, high, history=tuple(newest[:-1]))
    title, last = f"{history.case.id}: {THROUGHPUT}", newest[-1]
    return history_chart(background, last.value, title=title, unit=history.unit, day=day(last.at))


# aisbench references


def _with_histories(
    act: Callable[[argparse.Namespace, Sequence[CaseHistory]], None], options: argparse.Namespace
) -> None:
    folders = options.suites or [Path("suites")]
    for folder in folders:
        if not folder.is_dir():
            raise UsageFault(f"there is no folder {folder}", advice="name the folders of your suites")
    if options.platform:
        registry.of_commands().require_platform(options.platform)  # an unknown name is not an empty history
    with closing(open_ledger(_settings(options))) as opened:
        histories = list(references_module.case_histories(History(opened.database), folders, options.platform, _suite))
    judged = {each.case.id for each in histories}
    missing = [case for case in options.case or () if case not in judged]
    if missing or not histories:
        what = missing[0] if missing else "a case"
        where = f"{', '.join(map(str, folders))}{f' on platform {options.platform}' if options.platform else ''}"
        raise UsageFault(f"the ledger has no judged trial of {what} in {where}", advice="see aisbench history")
    act(options, [each for each in histories if not options.case or each.case.id in options.case])


def _suite(folder: Path, platform: str, frameworks: Sequence[str]) -> Suite:
    names = registry.of_commands()
    own_keys = names.kind(platform).options
    return suites_module.load_suite(folder, platform, own_keys, names.platforms, trains=False, frameworks=frameworks)


def _propose(options: argparse.Namespace, cases: Sequence[CaseHistory]) -> None:
    reviews, texts = references_module.proposals(cases, allow_looser=options.allow_looser)
    folder = Path(os.path.commonpath([Path.cwd(), *(file.resolve().parent for file in texts)]))
    change = references_module.diff(texts, folder)
    if options.json:
        print(json.dumps({"schema": _REFERENCES_SCHEMA, "claims": list(map(_review, reviews)), "diff": change}))
    else:
        # The diff alone goes to stdout, so that it can be piped to `git apply`.
        print(change, end="")
        lines = [line for review in reviews for line in _lines(review)]
        lines += [f"the diff applies in {folder}"] if folder != Path.cwd() else []
        print("\n".join(lines), file=sys.stderr)
    if options.apply:
        for file, text in texts.items():
            write_text(file, text)


def _lines(review: Review) -> Iterator[str]:
    words = f"{review.old} -> {review.new}" if review.new else review.old
    yield f"{review.case_id} {review.metric}: {words}"
    yield from _wrapped(review.text)


def _wrapped(text: str) -> Iterator[str]:
    return wrap(f"  {text}", "  ", _WIDTH)


def _review(review: Review) -> dict[str, Any]:
    basis = review.basis
    return {
        "case": review.case_id,
        "metric": review.metric,
        "wanted": review.old,
        "proposed": review.new or None,
        "looser": review.looser,
        "withheld": review.withheld,
        "trials": basis.count if basis else None,
        "mean": basis.mean if basis else None,
        "cv": basis.cv if basis else None,
        "text": review.text,
    }


def _check(options: argparse.Namespace, cases: Sequence[CaseHistory]) -> None:
    replays = list(references_module.checks(cases, _settings(options).max_trials))
    if options.json:
        print(json.dumps({"schema": _REFERENCES_SCHEMA, "claims": list(map(_checked, replays))}))
        return
    for each in replays:
        past = each.replay
        counts = f"{past.count} run{'' if past.count == 1 else 's'}: {past.met} met, {past.missed} missed"
        first = f", first in {past.first_missed}" if past.first_missed else ""
        worst = "" if past.worst is None else f"; at worst {past.worst:.6g}"
        waived = f", {past.waived} waived" if past.waived else ""
        print(f"{each.case_id} {each.metric} {each.wanted}")
        print("\n".join(_wrapped(f"{counts}{first}, {past.undecided} undecided{waived}{worst}")))


def _checked(each: ReplayedThreshold) -> dict[str, Any]:
    return {"case": each.case_id, "metric": each.metric, "wanted": each.wanted, **dump(each.replay)}
