"""The head of the page: what was run, where, at what cost, with what result, and what changed; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.domain.executor import Executor
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.comparison import RunDifference, compare_runs
from pytest_aisbench.judge.entries import brief
from pytest_aisbench.report.columns import Output, shown_in
from pytest_aisbench.report.text import as_typed, span, worst_first
from pytest_aisbench.reporters.markup import column_cell, facts, ruling, table, text
from pytest_aisbench.services.clock import moment

MOST = 10
_CLUSTER = ("place", "flavor", "pool_id", "worker_server_num", "vc", "gpuType")
_VERSIONS = ("framework", "framework_type", "framework_version", "engine", "image", "CANN", "driver", "firmware")
_STEADY = 0.01  # changes of speed that are not worth a table


def overview(cases: Iterable[CaseEntry], run: RunEntry | None, say: Language = ENGLISH, versions: str = "") -> str:
    """The prefix of the page."""
    all_cases = list(cases)
    counts = {verdict: sum(case.verdict is verdict for case in all_cases) for verdict in (*Ruling, None)}
    verdicts = ", ".join(f"{many} {ruling(verdict, say)}" for verdict, many in counts.items() if many)
    hours = number(sum(case.card_hours for case in all_cases))
    lead = f"{escape(say('cases', count=len(all_cases)))}: {verdicts or escape(say('none judged'))}"
    lines = [f"<div class='lead'>{lead}; {escape(say('card-hours', count=hours))}</div>"]
    if run:
        since = f"<h3>{escape(say('since'))}</h3>{''.join(_since(run, all_cases, say))}"
        lines.append(
            f"<div class='sides'><div>{facts(_facts(all_cases, run, say, versions))}</div><div>{since}</div></div>"
        )
        lines += [_roll(all_cases, say), _signatures(say)]
    return f"<div class='aisbench' lang='{say.code}'>{''.join(lines)}</div>"


def _facts(cases: Sequence[CaseEntry], run: RunEntry, say: Language, versions: str) -> Iterator[tuple[str, str]]:
    settings = run.settings
    yield say("run"), text(run.run)
    yield say("started"), text(_clock(run.started))
    yield say("run by"), _executor(run.executor)
    yield say("wall time"), escape(wall_time(run, say))
    yield say("platform"), text(as_typed(settings.get("platform") or ""))
    cluster = [say("region", name=settings["region"])] if settings.get("region") else []
    cluster += [say("nodes", names=as_typed(settings["nodes"]))] if settings.get("nodes") else []
    cards = sorted({case.devices_per_node for case in cases})
    cluster += [say("cards", names=as_typed(cards))] if cards else []
    yield say("cluster"), text(", ".join((*cluster, *_traits(cases, _CLUSTER))), 400)
    yield say("versions"), text(", ".join(filter(None, (versions, *_traits(cases, _VERSIONS)))), 600)
    hours = number(sum(case.card_hours for case in cases))
    yield say("cost"), escape(say("card-hours", count=hours))
    yield say("exit code"), "" if run.exit_code is None else str(run.exit_code)


def _executor(executor: Executor) -> str:
    """A CI server, with a link to its build; nothing where a person ran it."""
    build = text(executor.build)
    linked = f"<a href='{escape(executor.url)}'>{build or text(executor.url)}</a>" if executor.url else build
    return f"{text(executor.name)} {linked}".strip() if executor.name else ""


def _traits(cases: Iterable[CaseEntry], names: Iterable[str]) -> list[str]:
    """What the trials say of themselves, each once."""
    newest = [case.trials[-1].traits for case in cases if case.trials]
    pairs = ((name, traits[name]) for name in names for traits in newest if traits.get(name))
    return list(dict.fromkeys(f"{name} {value}" for name, value in pairs))[:MOST]


def wall_time(run: RunEntry, say: Language) -> str:
    if run.finished is None:
        return say("not finished")
    return span(moment(run.finished) - moment(run.started), say)


def _clock(stamp: str) -> str:
    return stamp.partition(".")[0].removesuffix("Z").replace("T", " ")


def _since(run: RunEntry, cases: Sequence[CaseEntry], say: Language) -> Iterator[str]:
    if run.before is None:
        yield f"<div>{escape(say('no last run'))}</div>"
        return
    difference = compare_runs(run.before, map(brief, cases))
    turned = "; ".join(
        f"{text(turn.id)}: {ruling(turn.was, say)} → {ruling(turn.now, say)}" for turn in difference.turned[:MOST]
    )
    yield facts(
        (
            (say("run"), text(f"{run.before.run}, {_clock(run.before.started)}")),
            (say("turned"), turned + _more(difference.turned, say) if turned else escape(say("turned none"))),
            (say("new cases"), _names(difference.new, say)),
            (say("gone cases"), _names(difference.gone, say)),
            (say("speed"), _alike(difference, say)),
        )
    )
    moved = [move for move in difference.moved if abs(move.share) > _STEADY]
    if moved:
        rows = (
            (text(move.id), number(move.was), text(f"{number(move.now)} {move.unit}", 60), f"{move.share:+.1%}")
            for move in moved[:MOST]
        )
        headings = [say(key) for key in ("case", "before", "now", "change")]
        yield table(headings, rows, numbers=(1, 2, 3)) + _more(moved, say)


def _alike(difference: RunDifference, say: Language) -> str:
    steady = [move for move in difference.moved if abs(move.share) <= _STEADY]
    if not difference.moved or len(steady) < len(difference.moved):
        return ""
    return escape(say("speed alike", share=f"{_STEADY:.0%}", count=len(steady)))


def _names(names: Sequence[str], say: Language) -> str:
    return ", ".join(map(text, names[:MOST])) + _more(names, say)


def _more(things: Sequence[object], say: Language) -> str:
    return f" {escape(say('more', count=len(things) - MOST))}" if len(things) > MOST else ""


def _roll(cases: Sequence[CaseEntry], say: Language) -> str:
    """On paper only, where the table of tests is spread over as many sheets as there are details: what is signed."""
    columns = shown_in(Output.PAPER)
    rows = ([column_cell(column, case, say, 60, attempt=0) for column in columns] for case in worst_first(cases))
    numbers = [index for index, column in enumerate(columns) if column.value]
    headings = [column.head(say) for column in columns]
    return f"<div class='roll'>{table(headings, rows, numbers=numbers)}</div>" if cases else ""


def _signatures(say: Language) -> str:
    """On paper only."""
    cells = "".join(f"<td>{escape(say(key))}</td>" for key in ("tested by", "reviewed by", "date"))
    return f"<table class='sign'><tbody><tr>{cells}</tr></tbody></table>"
