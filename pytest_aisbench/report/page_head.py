"""The head of `report.html`, which is enough to sign, and the acceptance sheet: the cases in brief with signatures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.comparison import HARDWARE_OPTIONS, SOFTWARE_OPTIONS, RunDifference, compare_runs
from pytest_aisbench.judge.entries import brief
from pytest_aisbench.judge.exit_code import verdict_of_run
from pytest_aisbench.model.clock import seconds_of
from pytest_aisbench.model.messages import plain, translated
from pytest_aisbench.model.metric import SCALING, THROUGHPUT
from pytest_aisbench.model.results import CaseEntry, Executor, PreviousRun, RunEntry
from pytest_aisbench.model.verdict import Outcome, Ruling, ScalePoint, number
from pytest_aisbench.report.charts import run_scaling_chart
from pytest_aisbench.report.columns import NOT_MEASURED, Output, columns_of, share_of_reference, trained_with_sentence
from pytest_aisbench.report.page_case import badge, column_cell, facts, ruling, straggler_cells, table, text
from pytest_aisbench.report.text import as_typed, exit_meaning, safe_link, span, verdict_counts, worst_first
from pytest_aisbench.traininglog.activity import LOGGED_SOFTWARE

MOST = 10  # lines of a list
MOST_WORKLOADS = 40  # rows of the matrix
MOST_SIGNED = 200  # rows of the acceptance sheet
_CLUSTER = ("place", *HARDWARE_OPTIONS)
_VERSIONS = ("framework", *SOFTWARE_OPTIONS, *LOGGED_SOFTWARE)
_STEADY = 0.01  # changes of speed that are not worth a table


def overview(
    cases: Iterable[CaseEntry],
    run: RunEntry | None,
    say: Language = ENGLISH,
    versions: str = "",
    rows: Mapping[str, int] | None = None,
) -> str:
    """The head of the page. `rows` are the cases whose details can be opened: the matrix links to them."""
    judged = list(cases)
    parts = [_banner(judged, run, say, versions)]
    if run:
        matrix, scaling = _matrix(judged, say, rows or {}), _scaling(judged, say)
        parts.append(f"<div class='top'><div>{matrix}</div><div>{scaling}</div></div>")
        below = [*_changes(run, judged, say), _slow_cards(judged, say), _expected_failures(judged, say)]
        parts.append(f"<div class='sides'>{''.join(f'<div>{each}</div>' for each in below if each)}</div>")
    return f"<div class='look aisbench' lang='{say.catalogue.html_lang}'>{''.join(parts)}</div>"


# The banner: the result, and what a person who signs must know about the run


def _banner(cases: Sequence[CaseEntry], run: RunEntry | None, say: Language, versions: str) -> str:
    counts = verdict_counts(cases)
    words = [
        badge(f"{counts[each]} {say.word(each.value)}", each.value)
        if each
        else badge(f"{counts[each]} {say('not judged')}", "")
        for each in (*Ruling, None)
        if counts[each]
    ]
    judged = " ".join(words) or escape(say("none judged"))
    lines = [f"<p>{escape(say('cases', count=len(cases)))}: {judged} · {escape(_cost(cases, say))}</p>"]
    verdict = verdict_of_run(run.exit_code) if run else None
    if run:
        name = say.word(verdict.value) if verdict else say("not accepted")
        meaning = exit_meaning(run, say) or say("not finished")
        code = "" if run.exit_code is None else f"{say('exit code')} {run.exit_code}: "
        lines.insert(
            0, f"<p class='result'>{badge(name, verdict.value if verdict else '')} {text(f'{code}{meaning}')}</p>"
        )
        pairs = (
            f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>"
            for name, value in _facts(cases, run, say, versions)
            if value
        )
        lines.append(f"<dl class='facts'>{''.join(pairs)}</dl>")
    look = verdict.value.lower() if verdict else "unjudged"
    return f"<section class='banner {look}'>{''.join(lines)}</section>"


def _facts(cases: Sequence[CaseEntry], run: RunEntry, say: Language, versions: str) -> Iterator[tuple[str, str]]:
    settings = run.settings
    yield say("run"), text(run.run)
    yield say("started"), text(_clock(run.started))
    yield say("wall time"), escape(wall_time(run, say))
    yield say("run by"), _executor(run.executor)
    yield say("commit"), f"<code>{text(run.executor.commit_text)}</code>" if run.executor.commit else ""
    yield say("platform"), text(as_typed(settings.get("platform") or ""))
    cluster = [say("region", name=settings["region"])] if settings.get("region") else []
    cluster += [say("nodes", names=as_typed(settings["nodes"]))] if settings.get("nodes") else []
    cards = sorted({case.devices_per_node for case in cases})
    cluster += [say("cards", names=as_typed(cards))] if cards else []
    yield say("cluster"), text(", ".join((*cluster, *_distinct_traits(cases, _CLUSTER))), 400)
    software = dict.fromkeys(filter(None, (trained_with_sentence(case, say) for case in cases)))
    yield say("trained with"), "<br>".join(text(each, 300) for each in [*software][:MOST])
    yield say("versions"), text(", ".join(filter(None, (versions, *_distinct_traits(cases, _VERSIONS)))), 600)


def _cost(cases: Sequence[CaseEntry], say: Language) -> str:
    return say("card-hours", count=number(sum(case.card_hours for case in cases)))


def _executor(executor: Executor) -> str:
    """The CI server with a link to its build, and the account."""
    build, url = text(executor.build), safe_link(executor.url)
    linked = f"<a href='{escape(url)}'>{build or text(url)}</a>" if url else build
    server = f"{text(executor.name)} {linked}".strip() if executor.name else ""
    return ", ".join(filter(None, (server, text(executor.user))))


def _distinct_traits(cases: Iterable[CaseEntry], names: Iterable[str]) -> list[str]:
    """The traits of the newest trials, each once."""
    newest = [case.trials[-1].traits for case in cases if case.trials]
    pairs = ((name, traits[name]) for name in names for traits in newest if traits.get(name))
    return list(dict.fromkeys(f"{name} {value}" for name, value in pairs))[:MOST]


def wall_time(run: RunEntry, say: Language) -> str:
    if run.finished is None:
        return say("not finished")
    return span(seconds_of(run.finished) - seconds_of(run.started), say)


def _clock(stamp: str) -> str:
    return stamp.partition(".")[0].removesuffix("Z").replace("T", " ")


# The matrix: a row for each workload, a column for each shape


def _matrix(cases: Sequence[CaseEntry], say: Language, rows: Mapping[str, int]) -> str:
    shapes = sorted({case.shape for case in cases}, key=lambda shape: (shape.world, shape.nodes))
    by_workload: dict[str, list[CaseEntry]] = {}
    for case in worst_first(cases):
        by_workload.setdefault(series_name(case), []).append(case)
    shown = list(by_workload)[:MOST_WORKLOADS]
    if len(shown) == len(by_workload):
        shown.sort()
    head = "".join(f"<th scope='col'>{shape}</th>" for shape in shapes)
    body = "".join(_matrix_row(name, by_workload[name], [*map(str, shapes)], say, rows) for name in shown)
    more = len(by_workload) - len(shown)
    note = f"<p class='hint'>{escape(say('more workloads', count=more))}</p>" if more else ""
    if not cases:
        return ""
    return (
        f"<h2>{escape(say('matrix'))}</h2><div class='scroll'><table class='matrix'>"
        f"<thead><tr><th>{escape(say('workload'))}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def series_name(case: CaseEntry) -> str:
    """The case without its shape: what it has in common with the other shapes of its workload."""
    return case.id.replace(f"-{case.shape}", "", 1)


def _matrix_row(
    name: str, cases: Sequence[CaseEntry], shapes: Sequence[str], say: Language, rows: Mapping[str, int]
) -> str:
    cells = {str(case.shape): _matrix_cell(case, say, rows.get(case.id)) for case in cases}
    units = sorted({metric.unit for case in cases if (metric := case.metrics.get(THROUGHPUT)) and metric.unit})
    unit = f" <span class='hint'>{text(', '.join(units), 40)}</span>" if units else ""
    row = "".join(cells.get(shape, "<td></td>") for shape in shapes)
    return f"<tr><th scope='row'>{text(name, 60)}{unit}</th>{row}</tr>"


def _matrix_cell(case: CaseEntry, say: Language, row: int | None) -> str:
    """What was measured, its share of the reference, and the verdict."""
    speed = case.metrics.get(THROUGHPUT)
    value = NOT_MEASURED if speed is None or speed.value is None else number(speed.value)
    share = share_of_reference(case)
    inside = f"<b>{value}</b>{f' <span>{share}</span>' if share else ''}<br>{ruling(case.verdict, say)}"
    if row is not None:
        inside = f"<a href='#case-{row}'>{inside}</a>"
    look = case.verdict.value.lower() if case.verdict else "unjudged"
    return f"<td class='{look}'>{inside}</td>"


# Below the matrix: scaling, slow cards, expected failures, and what changed


def _scaling(cases: Sequence[CaseEntry], say: Language) -> str:
    points: dict[str, dict[str, ScalePoint]] = {}
    for case in cases:
        for point in case.background.scaling if case.background else ():
            points.setdefault(series_name(case), {}).setdefault(point.shape, point)
    workloads = {
        name: sorted(by_shape.values(), key=lambda point: _cards_of(point.shape)) for name, by_shape in points.items()
    }
    claims = {
        found[1]
        for case in cases
        for each in case.findings
        if each.metric == SCALING and (found := _AT_LEAST.match(each.wanted))
    }
    claim = float(claims.pop()) if len(claims) == 1 else None
    chart = run_scaling_chart(workloads, claim, title=say("run scaling"), say=say)
    return f"<h2>{escape(say('run scaling'))}</h2>{chart or f'''<p class='hint'>{escape(say('no scaling'))}</p>'''}"


_AT_LEAST = re.compile(r">= (\d*\.?\d+)$")


def _cards_of(shape: str) -> int:
    nodes, _, devices = shape.partition("x")
    return int(nodes) * int(devices) if nodes.isdecimal() and devices.isdecimal() else 0


def _slow_cards(cases: Sequence[CaseEntry], say: Language) -> str:
    slow = [(case.id, each) for case in cases if case.trials for each in case.trials[-1].stragglers]
    slow.sort(key=lambda pair: -pair[1].cost)
    title = f"<h2>{escape(say('stragglers'))}</h2>"
    if not slow:
        return f"{title}<p class='hint'>{escape(say('no stragglers'))}</p>"
    rows = ((text(name), *straggler_cells(each, say)) for name, each in slow[:MOST])
    headings = [say(key) for key in ("case", "node", "card", "rank", "of the others", "costs")]
    return title + table(headings, rows, numbers=range(1, 6)) + _and_more(slow, say)


def _expected_failures(cases: Sequence[CaseEntry], say: Language) -> str:
    """Claims that were missed as expected: the case passed all the same, and a person who signs should know."""
    waived = [
        (case.id, finding)
        for case in cases
        for finding in case.findings
        if finding.outcome is Outcome.WAIVED and finding.measured is not None
    ]
    if not waived:
        return ""
    rows = ((text(name), text(translated(finding.text, say), 300)) for name, finding in waived[:MOST])
    title = f"<h2>{escape(say('expected failures'))}</h2>"
    return title + table([say("case"), say("in words")], rows) + _and_more(waived, say)


def _changes(run: RunEntry, cases: Sequence[CaseEntry], say: Language) -> Iterator[str]:
    """Against the last run, and against the last whose exit code is 0."""
    if run.before is None:
        yield f"<h2>{escape(say('since'))}</h2><p class='hint'>{escape(say('no last run'))}</p>"
        return
    title = say("since last and green" if run.green and run.green.run == run.before.run else "since")
    yield f"<h2>{escape(title)}</h2>{''.join(_since(run.before, cases, say))}"
    if run.green is None:
        yield f"<h2>{escape(say('since green'))}</h2><p class='hint'>{escape(say('no green run'))}</p>"
    elif run.green.run != run.before.run:
        yield f"<h2>{escape(say('since green'))}</h2>{''.join(_since(run.green, cases, say))}"


def _since(before: PreviousRun, cases: Sequence[CaseEntry], say: Language) -> Iterator[str]:
    difference = compare_runs(before, map(brief, cases))
    turned = "<br>".join(
        f"{text(turn.id)}: {ruling(turn.was, say)} → {ruling(turn.now, say)}" for turn in difference.turned[:MOST]
    )
    yield facts(
        (
            (say("run"), text(f"{before.run}, {_clock(before.started)}")),
            (say("turned"), turned + _and_more(difference.turned, say) if turned else escape(say("turned none"))),
            (say("new cases"), _names(difference.new, say)),
            (say("back cases"), _names(difference.back, say)),
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
        yield table(headings, rows, numbers=(1, 2, 3)) + _and_more(moved, say)


def _alike(difference: RunDifference, say: Language) -> str:
    steady = [move for move in difference.moved if abs(move.share) <= _STEADY]
    if not difference.moved or len(steady) < len(difference.moved):
        return ""
    return escape(say("speed alike", share=f"{_STEADY:.0%}", count=len(steady)))


def _names(names: Sequence[str], say: Language) -> str:
    return ", ".join(map(text, names[:MOST])) + _and_more(names, say)


def _and_more(things: Sequence[object], say: Language) -> str:
    return f" {escape(say('more', count=len(things) - MOST))}" if len(things) > MOST else ""


# The acceptance sheet


def acceptance_sheet(cases: Sequence[CaseEntry], run: RunEntry, say: Language) -> str:
    """The list of cases that people sign, and room for their signatures: the same on the screen and on paper."""
    if not cases:
        return ""
    columns = columns_of(Output.PAPER)
    rows = (
        [column_cell(column, case, say, 60, attempt=0) for column in columns]
        for case in worst_first(cases)[:MOST_SIGNED]
    )
    numbers = [index for index, column in enumerate(columns) if column.value]
    roll = table([column.head(say) for column in columns], rows, numbers=numbers)
    more = len(cases) - MOST_SIGNED
    note = f"<p class='hint'>{escape(say('more in table', count=more))}</p>" if more > 0 else ""
    statement = say("statement", run=plain(run.run), meaning=exit_meaning(run, say) or say("not finished"))
    lines = "".join(
        f"<tr><th scope='row'>{escape(say(key))}</th><td></td><td></td><td></td></tr>"
        for key in ("tested by", "reviewed by")
    )
    headings = "".join(f"<th>{escape(say(key))}</th>" for key in ("name", "date", "signature"))
    return (
        f"<section class='look aisbench sheet' lang='{say.catalogue.html_lang}'><h2>{escape(say('sheet'))}</h2>"
        f"<p>{escape(statement)}</p><div class='scroll roll'>{roll}</div>{note}"
        f"<table class='sign'><thead><tr><th></th>{headings}</tr></thead><tbody>{lines}</tbody></table></section>"
    )
