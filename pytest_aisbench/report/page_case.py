"""The details of a case in `report.html`, which a browser draws when the row of the case is opened."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.standards import TIME, Field, standard_fields
from pytest_aisbench.model.messages import plain, translated
from pytest_aisbench.model.results import CaseBrief, CaseEntry, Straggler, TrialEntry
from pytest_aisbench.model.verdict import Finding, Outcome, Ruling, number
from pytest_aisbench.report.columns import Column, trained_with_sentence
from pytest_aisbench.report.rank_charts import Chart, case_charts
from pytest_aisbench.report.text import safe_link, span, utc_time, what_to_do

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
    return f"<div class='look aisbench' lang='{say.catalogue.html_lang}'>{html}</div>"


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
            text(say.metric(each.metric), limit),
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
    rows = (straggler_cells(each, say) for each in trial.stragglers[:MOST_ROWS])
    headings = [say(key) for key in ("node", "card", "rank", "of the others", "costs")]
    rows_html = table(headings, rows, numbers=range(5)) + _more(trial.stragglers, say)
    return f"<h3>{escape(say('stragglers'))}</h3>{rows_html}"


def straggler_cells(each: Straggler, say: Language) -> tuple[str, ...]:
    card = escape(say("all cards")) if each.card is None else str(each.card)
    rank = "-" if each.rank is None else str(each.rank)
    return escape(each.place), card, rank, f"{each.ratio:.1%}", f"{each.cost:.1%}"


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
    kinds = dict.fromkeys(numbers, " class='n'")
    head = "".join(f"<th{kinds.get(at, '')}>{escape(heading)}</th>" for at, heading in enumerate(headings))
    body = "".join(
        f"<tr>{''.join(f'<td{kinds.get(at, str())}>{cell}</td>' for at, cell in enumerate(row))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, one pair a line; the values are HTML already."""
    rows = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{value}</td></tr>" for name, value in pairs if value)
    return f"<table class='pairs'><tbody>{rows}</tbody></table>" if rows else ""


def folded(title: str, inside: str) -> str:
    """A part that is closed until it is asked for."""
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
    return badge(say.word(verdict.value), verdict.value) if verdict else badge(say("not judged"), "")


def outcome(value: Outcome, say: Language) -> str:
    return badge(say.word(value.value), value.value)


def badge(words: str, name: str) -> str:
    """A verdict or an outcome in a frame, in the colour that `look.css` has for its name."""
    return (
        f"<span class='verdict {name.lower()}'>{escape(words)}</span>"
        if name
        else f"<span class='verdict'>{escape(words)}</span>"
    )
