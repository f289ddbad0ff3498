"""`aisbench history` and `aisbench references`: what a case has done so far, and what that lets one claim."""

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
from typing import TYPE_CHECKING, Any

from pytest_aisbench import registry
from pytest_aisbench.cli import options as options_module
from pytest_aisbench.cli.options import at_least, ledger, ledger_options, settings
from pytest_aisbench.config.settings import LOCAL
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.comparison import trait_differences
from pytest_aisbench.judge.evaluate import ANCHOR_TRIALS, drift_anchor
from pytest_aisbench.judge.trend import change_points, find_drift
from pytest_aisbench.ledger.history import History
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import day, stamp
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.trial import Trial, TrialRecord, values_of
from pytest_aisbench.model.verdict import Background, Threshold, number
from pytest_aisbench.report.terminal import sparkline
from pytest_aisbench.report.text import wrap

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.engine.references import CaseHistory, ReplayedThreshold, Review
    from pytest_aisbench.engine.suites import Suite

_SHOWN = 100  # trials; the gate looks at no more either


def register(acts: Any) -> None:
    history = acts.add_parser("history", help="what the trials of a case have measured, by what makes them comparable")
    history.add_argument("case", nargs="?", metavar="CASE", help="such as resnet50-2x8 (default: list the cases)")
    count = at_least(1, "a number of trials")
    history.add_argument("--limit", type=count, default=_SHOWN, metavar="N", help=f"the newest (default {_SHOWN})")
    history.add_argument("--svg", type=Path, metavar="FILE", help="also draw it here")
    history.add_argument("--json", action="store_true", help="for programs")
    ledger_options(history)
    history.set_defaults(act=_history)
    references = acts.add_parser("references", help="claims from history: propose them, or see how they would judge it")
    kinds = references.add_subparsers(required=True, metavar="propose|check", dest="kind")
    for kind, text in (
        ("propose", "print the change of thresholds.toml that history suggests, as a diff to review"),
        ("check", "how every claim would have judged the trials so far"),
    ):
        parser = kinds.add_parser(kind, help=text, description=text)
        parser.add_argument("suites", nargs="*", type=Path, metavar="DIR", help="folders of suites (default: suites/)")
        parser.add_argument("--platform", metavar="NAME", help="whose claims and trials (default: the newest)")
        parser.add_argument("--case", action="append", metavar="CASE", help="only this one; may be given again")
        parser.add_argument("--json", action="store_true", help="for programs")
        ledger_options(parser)
        if kind == "propose":
            parser.add_argument("--apply", action="store_true", help="write the change too")
        act = _propose if kind == "propose" else _check
        parser.set_defaults(act=partial(_reviewed, act))


def _history(options: argparse.Namespace) -> None:
    from pytest_aisbench.ledger.history import History

    with closing(options_module.ledger(_settings(options))) as ledger:
        if options.case is None:
            if options.svg:
                raise UsageFault("--svg draws the history of one case", advice="name the CASE")
            cases = History(ledger.database).cases()
            if options.json:
                print(json.dumps({"schema": SCHEMA, "cases": cases}))
            else:
                print("".join(f"{case}\n" for case in cases), end="")
                print("" if cases else f"{ledger.path}: no trial was judged yet\n", end="", file=sys.stderr)
            return
        story = chronicle(ledger, options.case, options.limit)
    if options.svg:
        picture = history_picture(story)
        if not picture:
            raise UsageFault(f"fewer than two trials of {options.case} count: there is nothing to draw")
        options_module.write(options.svg, picture)
    print(
        json.dumps(history_document(story), indent=2, ensure_ascii=False)
        if options.json
        else "\n".join(history_lines(story))
    )


def _reviewed(act: Callable[[argparse.Namespace, Sequence[CaseHistory]], None], options: argparse.Namespace) -> None:
    from pytest_aisbench.engine import references as references_module
    from pytest_aisbench.ledger.history import History

    folders = options.suites or [Path("suites")]
    for folder in folders:
        if not folder.is_dir():
            raise UsageFault(f"there is no folder {folder}", advice="name the folders of your suites")
    if options.platform:
        registry.of_commands().require_platform(options.platform)  # an unknown name is not an empty history
    with closing(ledger(_settings(options))) as opened:
        found = list(references_module.case_histories(History(opened.database), folders, options.platform, _suite))
    known = {each.case.id for each in found}
    wanted = [case for case in options.case or () if case not in known]
    if wanted or not found:
        what = wanted[0] if wanted else "a case"
        where = f"{', '.join(map(str, folders))}{f' on platform {options.platform}' if options.platform else ''}"
        raise UsageFault(f"the ledger has no judged trial of {what} in {where}", advice="see aisbench history")
    act(options, [each for each in found if not options.case or each.case.id in options.case])


def _settings(options: argparse.Namespace) -> Settings:
    """No platform is reached, so nobody needs its keys."""
    return settings(options, platform=LOCAL)


def _suite(folder: Path, platform: str, frameworks: Sequence[str]) -> Suite:
    from pytest_aisbench.engine import suites as suites_module

    offered = registry.of_commands()
    own_keys = offered.kind(platform).options
    return suites_module.load_suite(folder, platform, own_keys, offered.platforms, trains=False, frameworks=frameworks)


def _propose(options: argparse.Namespace, cases: Sequence[CaseHistory]) -> None:
    from pytest_aisbench.engine import references as references_module

    reviews, texts = references_module.proposals(cases)
    folder = Path(os.path.commonpath([Path.cwd(), *(file.resolve().parent for file in texts)]))
    change = references_module.diff(texts, folder)
    if options.json:
        print(json.dumps({"schema": "aisbench-references/1", "claims": list(map(_review, reviews)), "diff": change}))
    else:
        # The diff alone goes to stdout, so that it can be piped to `git apply`.
        print(change, end="")
        told = [line for review in reviews for line in _lines(review)]
        told += [f"the diff applies in {folder}"] if folder != Path.cwd() else []
        print("\n".join(told), file=sys.stderr)
    if options.apply:
        for file, text in texts.items():
            options_module.write(file, text)


def _lines(review: Review) -> Iterator[str]:
    words = f"{review.old} -> {review.new}" if review.new else review.old
    yield f"{review.case_id} {review.metric}: {words}"
    yield from _wrapped(review.text)


def _wrapped(text: str) -> Iterator[str]:
    from pytest_aisbench.report.text import wrap

    return wrap(f"  {text}", "  ", 80)


def _review(review: Review) -> dict[str, Any]:
    basis = review.basis
    return {
        "case": review.case_id,
        "metric": review.metric,
        "wanted": review.old,
        "proposed": review.new or None,
        "trials": basis.count if basis else None,
        "mean": basis.mean if basis else None,
        "cv": basis.cv if basis else None,
        "text": review.text,
    }


def _check(options: argparse.Namespace, cases: Sequence[CaseHistory]) -> None:
    from pytest_aisbench.engine import references as references_module

    found = list(references_module.checks(cases, _settings(options).max_trials))
    if options.json:
        print(json.dumps({"schema": "aisbench-references/1", "claims": list(map(_checked, found))}))
        return
    for each in found:
        past = each.replay
        counts = f"{past.count} run{'' if past.count == 1 else 's'}: {past.met} met, {past.missed} missed"
        first = f", first in {past.first_missed}" if past.first_missed else ""
        worst = "" if past.worst is None else f"; at worst {past.worst:.6g}"
        print(f"{each.case_id} {each.metric} {each.wanted}")
        print("\n".join(_wrapped(f"{counts}{first}, {past.undecided} undecided{worst}")))


def _checked(each: ReplayedThreshold) -> dict[str, Any]:
    from pytest_aisbench.model.codec import dump

    return {"case": each.case_id, "metric": each.metric, "wanted": each.wanted, **dump(each.replay)}


# -- The history of a case as a story: chapters of trials that can be compared, and what changed between them.


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


# -- The history of a case for a person's 80 columns, for a program, and as a picture.

SCHEMA = "aisbench-history/1"
_WIDTH = 80
_ROW = " {:>4} {:<16} {:<22} {:>11} {:>8} {:<12}"


def history_lines(story: Chronicle) -> Iterator[str]:
    case = story.case
    whole = [measure for chapter in story.chapters for measure in chapter.measures]
    newest = "" if len(whole) == story.count else f"the newest {len(whole)} of "
    yield f"{case.id}: {newest}{_many(story.count, 'trial')}, {day(whole[0].at)} to {day(whole[-1].at)}"
    for claim in case.thresholds:
        yield f"  claimed at last: {plain(claim.metric)} {claim.wanted(case.judged_shape)}"
    for chapter in story.chapters:
        yield ""
        yield from _chapter(chapter, story.unit)


def _chapter(chapter: Chapter, unit: str) -> Iterator[str]:
    named = chapter.key or "not known, so comparable to nothing"
    yield f"fingerprint {named}: {_many(len(chapter.measures), 'trial')}"
    for line in chapter.changed:
        yield from wrap(f"  changed  {plain(line)}", " " * 11, _WIDTH)
    if speeds := chapter.speeds:
        yield f"  {sparkline(speeds)}"
        yield f"  {_spread(speeds, unit)}"
    for remark in chapter.remarks:
        yield from wrap(f"  remark   {plain(remark)}", " " * 11, _WIDTH)
    yield _ROW.format("", "when (UTC)", "run", "throughput", "accuracy", "verdict").rstrip()
    place = 0
    for measure in chapter.measures:
        place += measure.counts
        yield _ROW.format(
            place if measure.counts else "-",
            _minute(measure.at),
            plain(measure.run, 22),
            number(measure.throughput),
            "-" if measure.accuracy is None else number(measure.accuracy),
            measure.ruling.value,
        ).rstrip()


def _spread(speeds: list[float], unit: str) -> str:
    unit = f" {unit}" if unit else ""
    mean = fmean(speeds)
    told = f"{len(speeds)} that count: mean {number(mean)}{unit}"
    if len(speeds) > 1:
        told += f", CV {stdev(speeds) / mean:.2%}, {number(min(speeds))} .. {number(max(speeds))}"
    return told


def history_document(story: Chronicle) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "case": story.case.id,
        "unit": story.unit,
        "trials": story.count,
        "fingerprints": [
            {
                "fingerprint": chapter.key or None,
                "traits": dict(chapter.traits),
                "changed": list(chapter.changed),
                "remarks": list(chapter.remarks),
                "trials": [_trial(measure) for measure in chapter.measures],
            }
            for chapter in story.chapters
        ],
    }


def _trial(measure: TrialRecord) -> dict[str, Any]:
    return {
        "run": measure.run,
        "trial": measure.trial,
        "at": stamp(measure.at),
        "metrics": {THROUGHPUT: measure.throughput, ACCURACY: measure.accuracy, **measure.metrics},
        "steady": measure.steady,
        "ran_s": measure.ran_s,
        "verdict": measure.ruling.value,
        "counts": measure.counts,
    }


def history_picture(story: Chronicle) -> str:
    """Of the newest chapter, with the band and the reference of its claim; empty for fewer than two that count."""
    from pytest_aisbench.report.charts import MOST_PAST, history_chart

    newest = [measure.past for measure in story.chapters[-1].measures if measure.counts][-MOST_PAST:]
    if len(newest) < 2:
        return ""
    shape = story.case.judged_shape
    claim = next((claim for claim in story.case.thresholds if claim.metric == THROUGHPUT), Threshold(THROUGHPUT))
    low, high = (None if math.isinf(bound) else bound for bound in claim.band(shape))
    background = Background(claim.expected(shape), low, high, history=tuple(newest[:-1]))
    title, last = f"{story.case.id}: {THROUGHPUT}", newest[-1]
    return history_chart(background, last.value, title=title, unit=story.unit, day=day(last.at))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M")
