"""`aisbench history` and `aisbench references`: what a case has done so far, and what that lets one claim."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench import registry
from pytest_aisbench.commands import means
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings import LOCAL

if TYPE_CHECKING:
    from pytest_aisbench.services.references import CaseHistory, Checked, Review
    from pytest_aisbench.services.suite import Suite
    from pytest_aisbench.settings import Settings

_SHOWN = 100  # trials; the gate looks at no more either


def register(acts: Any) -> None:
    history = acts.add_parser("history", help="what the trials of a case have measured, by what makes them comparable")
    history.add_argument("case", nargs="?", metavar="CASE", help="such as resnet50-2x8 (default: list the cases)")
    count = means.at_least(1, "a number of trials")
    history.add_argument("--limit", type=count, default=_SHOWN, metavar="N", help=f"the newest (default {_SHOWN})")
    history.add_argument("--svg", type=Path, metavar="FILE", help="also draw it here")
    history.add_argument("--json", action="store_true", help="for programs")
    means.ledger_options(history)
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
        means.ledger_options(parser)
        if kind == "propose":
            parser.add_argument("--apply", action="store_true", help="write the change too")
        act = _propose if kind == "propose" else _check
        parser.set_defaults(act=partial(_reviewed, act))


def _history(options: argparse.Namespace) -> None:
    from pytest_aisbench.reporters import chronicle as told
    from pytest_aisbench.services.chronicle import chronicle
    from pytest_aisbench.services.history import History

    with closing(means.ledger(_settings(options))) as ledger:
        if options.case is None:
            if options.svg:
                raise UsageFault("--svg draws the history of one case", advice="name the CASE")
            cases = History(ledger.database).cases()
            if options.json:
                print(json.dumps({"schema": told.SCHEMA, "cases": cases}))
            else:
                print("".join(f"{case}\n" for case in cases), end="")
                print("" if cases else f"{ledger.path}: no trial was judged yet\n", end="", file=sys.stderr)
            return
        story = chronicle(ledger, options.case, options.limit)
    if options.svg:
        picture = told.picture(story)
        if not picture:
            raise UsageFault(f"fewer than two trials of {options.case} count: there is nothing to draw")
        means.write(options.svg, picture)
    print(
        json.dumps(told.document(story), indent=2, ensure_ascii=False) if options.json else "\n".join(told.lines(story))
    )


def _reviewed(act: Callable[[argparse.Namespace, Sequence[CaseHistory]], None], options: argparse.Namespace) -> None:
    from pytest_aisbench.services import references
    from pytest_aisbench.services.history import History

    folders = options.suites or [Path("suites")]
    for folder in folders:
        if not folder.is_dir():
            raise UsageFault(f"there is no folder {folder}", advice="name the folders of your suites")
    if options.platform:
        registry.of_commands().require_platform(options.platform)  # an unknown name is not an empty history
    with closing(means.ledger(_settings(options))) as opened:
        found = list(references.case_histories(History(opened.database), folders, options.platform, _suite))
    known = {each.case.id for each in found}
    wanted = [case for case in options.case or () if case not in known]
    if wanted or not found:
        what = wanted[0] if wanted else "a case"
        where = f"{', '.join(map(str, folders))}{f' on platform {options.platform}' if options.platform else ''}"
        raise UsageFault(f"the ledger has no judged trial of {what} in {where}", advice="see aisbench history")
    act(options, [each for each in found if not options.case or each.case.id in options.case])


def _settings(options: argparse.Namespace) -> Settings:
    """No platform is reached, so nobody needs its keys."""
    return means.settings(options, platform=LOCAL)


def _suite(folder: Path, platform: str, frameworks: Sequence[str]) -> Suite:
    from pytest_aisbench.services import suite

    offered = registry.of_commands()
    own_keys = offered.kind(platform).options
    return suite.load(folder, platform, own_keys, offered.platforms, trains=False, frameworks=frameworks)


def _propose(options: argparse.Namespace, cases: Sequence[CaseHistory]) -> None:
    from pytest_aisbench.services import references

    reviews, texts = references.proposals(cases)
    folder = Path(os.path.commonpath([Path.cwd(), *(file.resolve().parent for file in texts)]))
    change = references.diff(texts, folder)
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
            means.write(file, text)


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
    from pytest_aisbench.services import references

    found = list(references.checks(cases, _settings(options).max_trials))
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


def _checked(each: Checked) -> dict[str, Any]:
    from pytest_aisbench.domain.codec import dump

    return {"case": each.case_id, "metric": each.metric, "wanted": each.wanted, **dump(each.replay)}
