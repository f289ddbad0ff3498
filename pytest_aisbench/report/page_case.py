"""The HTML that we add to `report.html`: the head of the page, and the details below the row of each case."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.comparison import HARDWARE_OPTIONS, SOFTWARE_OPTIONS, RunDifference, compare_runs
from pytest_aisbench.judge.entries import brief
from pytest_aisbench.judge.standards import TIME, Field, standard_fields
from pytest_aisbench.model.clock import seconds_of
from pytest_aisbench.model.messages import plain, translated
from pytest_aisbench.model.results import CaseBrief, CaseEntry, Executor, RunEntry, TrialEntry
from pytest_aisbench.model.verdict import Finding, Outcome, Ruling, number
from pytest_aisbench.report.columns import Column, Output, columns_of, trained_with_sentence
from pytest_aisbench.report.rank_charts import Chart, case_charts
from pytest_aisbench.report.text import (
    as_typed,
    exit_meaning,
    safe_link,
    span,
    utc_time,
    verdict_counts,
    what_to_do,
    worst_first,
)
from pytest_aisbench.traininglog.activity import LOGGED_SOFTWARE

# The head of the page: what was run, where, at what cost, with what result, and what changed

MOST = 10
_CLUSTER = ("place", *HARDWARE_OPTIONS)
_VERSIONS = ("framework", *SOFTWARE_OPTIONS, *LOGGED_SOFTWARE)
_STEADY = 0.01  # changes of speed that are not worth a table


def overview(cases: Iterable[CaseEntry], run: RunEntry | None, say: Language = ENGLISH, versions: str = "") -> str:
    """The head of the page."""
    all_cases = list(cases)
    counts = verdict_counts(all_cases)
    verdicts = ", ".join(f"{counts[verdict]} {ruling(verdict, say)}" for verdict in (*Ruling, None) if counts[verdict])
    hours = number(sum(case.card_hours for case in all_cases))
    lead = f"{escape(say('cases', count=len(all_cases)))}: {verdicts or escape(say('none judged'))}"
    lines = [f"<div class='lead'>{lead}; {escape(say('card-hours', count=hours))}</div>"]
    if run:
        since = f"<h3>{escape(say('since'))}</h3>{''.join(_since(run, all_cases, say))}"
        lines.append(
            f"<div class='sides'><div>{facts(_facts(all_cases, run, say, versions))}</div><div>{since}</div></div>"
        )
        lines += [_roll(all_cases, say), _signatures(say)]
    return f"<div class='aisbench' lang='{say.catalogue.html_lang}'>{''.join(lines)}</div>"


def _facts(cases: Sequence[CaseEntry], run: RunEntry, say: Language, versions: str) -> Iterator[tuple[str, str]]:
    settings = run.settings
    yield say("run"), text(run.run)
    yield say("started"), text(_clock(run.started))
    yield say("run by"), _executor(run.executor)
    yield say("commit"), text(run.executor.commit_text)
    yield say("wall time"), escape(wall_time(run, say))
    yield say("platform"), text(as_typed(settings.get("platform") or ""))
    cluster = [say("region", name=settings["region"])] if settings.get("region") else []
    cluster += [say("nodes", names=as_typed(settings["nodes"]))] if settings.get("nodes") else []
    cards = sorted({case.devices_per_node for case in cases})
    cluster += [say("cards", names=as_typed(cards))] if cards else []
    yield say("cluster"), text(", ".join((*cluster, *_distinct_traits(cases, _CLUSTER))), 400)
    yield say("versions"), text(", ".join(filter(None, (versions, *_distinct_traits(cases, _VERSIONS)))), 600)
    hours = number(sum(case.card_hours for case in cases))
    yield say("cost"), escape(say("card-hours", count=hours))
    yield say("exit code"), "" if run.exit_code is None else text(f"{run.exit_code}: {exit_meaning(run, say)}")


def _executor(executor: Executor) -> str:
    """The CI server, with a link to its build; empty if a person ran it."""
    build = text(executor.build)
    linked = f"<a href='{escape(executor.url)}'>{build or text(executor.url)}</a>" if executor.url else build
    return f"{text(executor.name)} {linked}".strip() if executor.name else ""


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
            (say("turned"), turned + _and_more(difference.turned, say) if turned else escape(say("turned none"))),
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


def _roll(cases: Sequence[CaseEntry], say: Language) -> str:
    """The list of cases that people sign, on paper only: there the table of tests is spread over many sheets."""
    columns = columns_of(Output.PAPER)
    rows = ([column_cell(column, case, say, 60, attempt=0) for column in columns] for case in worst_first(cases))
    numbers = [index for index, column in enumerate(columns) if column.value]
    headings = [column.head(say) for column in columns]
    return f"<div class='roll'>{table(headings, rows, numbers=numbers)}</div>" if cases else ""


def _signatures(say: Language) -> str:
    """Room for signatures, on paper only."""
    cells = "".join(f"<td>{escape(say(key))}</td>" for key in ("tested by", "reviewed by", "date"))
    return f"<table class='sign'><tbody><tr>{cells}</tr></tbody></table>"


# The details of a case

BUDGET = 36_000  # bytes of a case in the page
MOST_ROWS = 10
MOST_LOGS = 32
MOST_TRAITS = 60
_AROUND = 400  # bytes around the parts, with the line that names what is left out
_CHART = 1_300  # bytes that every chart has: where there is less room, none is drawn
_LIMITS = (1000, 200, 40)  # characters of a text; if escaping makes the details too large, the next is tried


@dataclass(frozen=True)
class CaseContext:
    """What the details of a case need: links to the files of the run, and the case in the run before."""

    link: Callable[[str], str]
    say: Language = ENGLISH
    request: str = ""  # the file of the job's request
    before: tuple[str, CaseBrief] | None = None  # the run before, and the case in it


class Part(NamedTuple):
    name: str
    make: Callable[[int], str]  # returns its HTML, with texts of at most so many characters
    rank: int = 0  # where room is short, the highest is left out first; 0 stays
    least: int = 0  # bytes that it certainly has


def case_details(case: CaseEntry, frame: CaseContext, budget: int = BUDGET) -> str:
    """As many parts as the budget holds: charts are left out before texts are."""
    html, parts = "", [*_parts(case, frame)]
    for limit in _LIMITS:
        made, left_out = _fitting(parts, limit, budget)
        note = frame.say("left out", names=", ".join(left_out)) if left_out else ""
        html = _joined(made, note, frame.say)
        if weight(html) < budget:
            break
    return html


def _fitting(parts: Sequence[Part], limit: int, budget: int) -> tuple[list[str], list[str]]:
    """The HTML of the parts that the budget holds, and the names of the others.

    Parts beyond the first that does not fit are not made: in a run of a thousand cases those are nearly all charts.
    """
    size, made, left_out = _AROUND, dict[int, str](), list[int]()
    for at, part in sorted(enumerate(parts), key=lambda each: each[1].rank):
        if part.rank and (left_out or size + part.least >= budget):
            left_out.append(at)
        elif body := part.make(limit):
            if part.rank and size + weight(body) >= budget:
                left_out.append(at)
                continue
            made[at] = body
            size += weight(body)
    names = dict.fromkeys(parts[at].name for at in sorted(left_out))
    return [made[at] for at in sorted(made)], [*names]


def weight(html: str) -> int:
    """Bytes that the HTML takes in the page."""
    return len(html) if html.isascii() else len(html.encode())


def _joined(bodies: Iterable[str], note: str, say: Language) -> str:
    """The parts as one block; charts that follow each other stand side by side on a wide screen."""
    html, row = "", ""
    for body in bodies:
        if body.startswith("<svg"):
            row += body
            continue
        html += (f"<div class='charts'>{row}</div>" if row else "") + body
        row = ""
    html += f"<div class='charts'>{row}</div>" if row else ""
    html += f"<div>{escape(note)}</div>" if note else ""
    return f"<div class='aisbench' lang='{say.catalogue.html_lang}'>{html}</div>"


def _parts(case: CaseEntry, frame: CaseContext) -> Iterator[Part]:
    """The parts in the order of the page. Those with a rank have something to show."""
    say, last, background = frame.say, case.trials[-1] if case.trials else None, case.background
    yield Part("", lambda limit: _lead(case, frame, limit))
    yield Part("", lambda limit: _findings(case.findings, say, limit))
    if last is None:
        return
    warnings = tuple(w for w in background.warnings if w not in last.notes) if background else ()
    pace = (last.pace.text,) if last.pace else ()
    for key, lines in (("warning", warnings), ("note", last.notes), ("pace", pace), ("usage", _usage(last))):
        yield Part("", functools.partial(_lines, say(key), lines, say))
    if last.stragglers:
        yield Part(say("stragglers"), lambda _: _stragglers(last, say), 1)
    for rank, (key, quoted) in enumerate((("last lines", last.last_lines), ("events", last.events)), 2):
        if quoted and case.verdict is not Ruling.PASSED:
            yield Part(say(key), functools.partial(block, say(key), quoted[-MOST_ROWS:]), rank)
    for chart in case_charts(case, say):
        yield Part(say("charts"), _drawn_once(chart), chart.rank, _CHART)
    yield Part(say("trial"), lambda limit: _trials(case.trials, say, limit), 1)
    yield Part(say("fields"), lambda limit: folded(say("fields"), _standard(case, say, limit)), 11)
    if background and background.changed:
        yield Part(say("changed"), lambda limit: _lines(say("changed"), background.changed, say, limit), 4)
    if last.traits:
        yield Part(say("traits"), lambda limit: folded(say("traits"), _traits(last.traits, limit)), 12)
    yield Part("", lambda limit: _files(last, frame, limit))


def _drawn_once(chart: Chart) -> Callable[[int], str]:
    draw = functools.cache(chart.draw)
    return lambda _: draw()


def _lead(case: CaseEntry, frame: CaseContext, limit: int) -> str:
    say = frame.say
    lines = [f"<div class='lead'>{ruling(case.verdict, say)}: {text(translated(case.reason, say), limit)}</div>"]
    if todo := what_to_do(case, say):
        lines.append(f"<div>{escape(say('what to do'))}: {escape(todo)}</div>")
    speed = case.metrics.get("throughput")
    if frame.before and speed and speed.value and frame.before[1].throughput and frame.before[1].unit == speed.unit:
        run, was = frame.before[0], frame.before[1].throughput
        comparison = say(
            "against last run", run=run, was=number(was), now=number(speed.value), share=f"{speed.value / was - 1:+.1%}"
        )
        lines.append(f"<div>{text(comparison, limit)}</div>")
    if sentence := trained_with_sentence(case, say):
        lines.append(f"<div>{escape(say('trained with'))}: {text(sentence, limit)}</div>")
    return "".join(lines)


def _findings(findings: Sequence[Finding], say: Language, limit: int) -> str:
    if not findings:
        return ""
    rows = (
        (
            outcome(each.outcome, say),
            f"<span class='word'>{text(say.metric(each.metric), limit)}</span>",
            "-" if each.measured is None else number(each.measured),
            text(translated(each.wanted, say), limit),
            text(translated(each.text, say), limit),
        )
        for each in findings[:MOST_ROWS]
    )
    headings = [say(key) for key in ("finding", "metric", "measured", "claim", "in words")]
    return table(headings, rows, numbers=(2,)) + _more(findings, say)


def _usage(trial: TrialEntry) -> tuple[str, ...]:
    """How busy the nodes were, as the platform sampled them, in one line."""
    parts = [f"{name} {number(percent, 3)} %" for name, percent in trial.usage.items()]
    return (", ".join(parts),) if parts else ()


def _stragglers(trial: TrialEntry, say: Language) -> str:
    if not trial.stragglers:
        return ""
    rows = (
        (
            escape(each.place),
            escape(say("all cards")) if each.card is None else str(each.card),
            "-" if each.rank is None else str(each.rank),
            f"{each.ratio:.1%}",
            f"{each.cost:.1%}",
        )
        for each in trial.stragglers[:MOST_ROWS]
    )
    headings = [say(key) for key in ("node", "card", "rank", "of the others", "costs")]
    rows_html = table(headings, rows, numbers=range(5)) + _more(trial.stragglers, say)
    return f"<h3>{escape(say('stragglers'))}</h3>{rows_html}"


def _trials(trials: Sequence[TrialEntry], say: Language, limit: int) -> str:
    headings = [say(key) for key in ("trial", "job", "phase", "queued", "ran", "began", "stage")]
    return table(headings, (_trial(trial, say, limit) for trial in trials[-MOST_ROWS:]), numbers=(3, 4))


def _trial(trial: TrialEntry, say: Language, limit: int) -> tuple[str, ...]:
    began = min(trial.times.values(), default=None)
    when = "-" if began is None else utc_time(began)
    phase = " / ".join(word for word in (trial.phase, trial.platform_phase) if word)
    stage = f"<code>{text(trial.stage, limit)}</code>" if trial.stage else "-"
    job = f"<code>{text(trial.job_id, limit)}</code>" if trial.job_id else "-"
    times = (escape(span(seconds, say)) for seconds in (trial.queued_s, trial.ran_s))
    return str(trial.trial), job, text(phase or "-", limit), *times, when, stage


def _standard(case: CaseEntry, say: Language, limit: int) -> str:
    """The figures that standards ask for: measured ones in a table, missing ones by reason."""
    measured: list[tuple[str, ...]] = []
    missing: dict[str, list[str]] = {}
    for name, field in standard_fields(case).items():
        if field.value is None:
            missing.setdefault(field.null_reason or "-", []).append(name)
        else:
            measured.append((text(name), text(_value(field), limit), text(field.source or "", limit)))
    reasons = "".join(
        f"<div>{text(', '.join(names), limit)}: {text(why, limit)}</div>" for why, names in missing.items()
    )
    return table([say(key) for key in ("field", "value", "source")], measured) + reasons


def _value(field: Field) -> str:
    if isinstance(field.value, float) and field.unit == TIME:
        return f"{utc_time(field.value)} UTC"
    value = number(field.value) if isinstance(field.value, float) else str(field.value)
    return f"{value} {field.unit}".rstrip()


def _traits(traits: Mapping[str, str], limit: int) -> str:
    return facts((plain(name, 60), text(value, min(limit, 200))) for name, value in list(traits.items())[:MOST_TRAITS])


def _lines(name: str, lines: Sequence[str], say: Language, limit: int) -> str:
    rows = (f"<div>{escape(name)}: {text(translated(each, say), limit)}</div>" for each in lines[:MOST_ROWS])
    return "".join(rows) + _more(lines, say)


def _files(trial: TrialEntry, frame: CaseContext, limit: int) -> str:
    say = frame.say
    logs = [f"<a href='{escape(frame.link(log))}'>{text(log, limit)}</a>" for log in trial.logs[:MOST_LOGS]]
    html = f"<div>{escape(say('logs'))}: {', '.join(logs)}</div>" if logs else ""
    html += _more(trial.logs, say, MOST_LOGS)
    if frame.request:
        href, name = escape(frame.link(frame.request)), text(frame.request, limit)
        html += f"<div>{escape(say('request file'))}: <a href='{href}'>{name}</a></div>"
    if console := safe_link(trial.console):
        html += f"<div>{escape(say('console page'))}: <a href='{escape(console)}'>{text(console, limit)}</a></div>"
    for name, address in trial.endpoints.items():
        html += f"<div>{escape(say('endpoint'))} {text(name, limit)}: {_endpoint(address, say, limit)}</div>"
    return html


def _endpoint(address: str, say: Language, limit: int) -> str:
    if link := safe_link(address):
        return f"<a href='{escape(link)}'>{text(link, limit)}</a>"
    return f"<code>{text(address, limit)}</code>" if address else escape(say("no address"))


def _more(things: Sequence[object], say: Language, most: int = MOST_ROWS) -> str:
    return f"<div>{escape(say('more in results', count=len(things) - most))}</div>" if len(things) > most else ""


# Pieces of HTML; everything that goes in is escaped or made by us


def text(words: str, limit: int = 200) -> str:
    return escape(plain(words, limit))


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Sequence[int] = ()) -> str:
    """Cells are HTML already; `numbers` are the columns that are aligned to the right."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    kinds = dict.fromkeys(numbers, " class='number'")
    body = "".join(
        f"<tr>{''.join(f'<td{kinds.get(at, str())}>{cell}</td>' for at, cell in enumerate(row))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, one pair a line; the values are HTML already."""
    rows = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{value}</td></tr>" for name, value in pairs if value)
    return f"<table class='facts'><tbody>{rows}</tbody></table>" if rows else ""


def folded(title: str, inside: str) -> str:
    """A part that is closed on a screen and open on paper."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>" if inside else ""


def block(title: str, lines: Iterable[str], limit: int) -> str:
    """Lines of a log, as they were written."""
    body = "\n".join(text(line, limit) for line in lines)
    return f"<h3>{escape(title)}</h3><pre>{body}</pre>" if body else ""


def column_cell(column: Column, case: CaseEntry, say: Language, limit: int, attempt: int | None = None) -> str:
    """The cell of a case in a column; a verdict has its colour."""
    if column.key == "verdict":
        return ruling(case.verdict, say)
    return text(column.cell(case, say, attempt), limit)


def ruling(verdict: Ruling | None, say: Language) -> str:
    return word(verdict.value, say) if verdict else escape(say("not judged"))


def word(name: str, say: Language) -> str:
    """A verdict or an outcome in its colour."""
    return f"<span class='aisbench-{name}'>{escape(say.word(name))}</span>"


def outcome(value: Outcome, say: Language) -> str:
    return word(value.value, say)
