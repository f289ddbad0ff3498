"""Everything about a case below its row of the page; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import NamedTuple

from pytest_aisbench.domain.entry import Brief, CaseEntry, TrialEntry
from pytest_aisbench.domain.messages import plain, translated
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.domain.verdict import Finding, Ruling
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.standards import TIME, Field, standard_fields
from pytest_aisbench.report.text import span, web, what_to_do
from pytest_aisbench.reporters.markup import block, facts, folded, outcome, ruling, table, text
from pytest_aisbench.reporters.page_charts import charts

# A case may weigh this much, as the page carries it, or the page of a large run opens slowly.
BUDGET = 48_000
MOST_ROWS = 10
MOST_LOGS = 32
MOST_TRAITS = 60
_AROUND = 1000  # bytes of the frame, and of the line that says what is left out
_LIMITS = (1000, 200, 40)  # words that need much escaping are cut shorter


@dataclass(frozen=True)
class Frame:
    """What a case is told with: how a file of the run is reached from the page, and what was there before."""

    link: Callable[[str], str]
    say: Language = ENGLISH
    request: str = ""  # its file
    before: tuple[str, Brief] | None = None  # the run, and the case there


class Part(NamedTuple):
    name: str
    body: str
    rank: int  # the highest is left out first where there is no room; 0 stays


def details(case: CaseEntry, frame: Frame, budget: int = BUDGET) -> str:
    """As much as the budget holds: pictures go before words do."""
    said = ""
    for limit in _LIMITS:
        parts = [part for part in _parts(case, frame, limit) if part.body]
        spare = sorted((part for part in parts if part.rank), key=lambda part: part.rank)
        size, left_out = _AROUND + sum(weight(part.body) for part in parts), []
        while spare and size >= budget:
            left_out.append(spare.pop())
            size -= weight(left_out[-1].body)
        names = ", ".join(part.name for part in parts if part in left_out and part.name)
        note = frame.say("left out", names=names) if names else ""
        said = _joined([part for part in parts if part not in left_out], note, frame.say)
        if weight(said) < budget:
            break
    return said


def weight(html: str) -> int:
    """Bytes that the page needs for it: it lies in an attribute, as JSON."""
    return len(escape(json.dumps(html)))


def _joined(parts: Sequence[Part], note: str, say: Language) -> str:
    """Pictures that follow each other stand side by side where the screen is wide."""
    told, row = "", ""
    for part in parts:
        if part.body.startswith("<svg"):
            row += part.body
            continue
        told += (f"<div class='charts'>{row}</div>" if row else "") + part.body
        row = ""
    told += f"<div class='charts'>{row}</div>" if row else ""
    return f"<div class='aisbench' lang='{say.code}'>{told}{f'<div>{escape(note)}</div>' if note else ''}</div>"


def _parts(case: CaseEntry, frame: Frame, limit: int) -> Iterator[Part]:
    say, last = frame.say, case.trials[-1] if case.trials else None
    yield Part("", _lead(case, frame, limit), 0)
    yield Part("", _findings(case.findings, say, limit), 0)
    if last:
        warnings = tuple(w for w in case.background.warnings if w not in last.notes) if case.background else ()
        yield Part("", _lines(say("warning"), warnings, say, limit) + _lines(say("note"), last.notes, say, limit), 0)
        yield Part("", _lines(say("pace"), (last.pace.text,) if last.pace else (), say, limit), 0)
        yield Part(say("stragglers"), _stragglers(last, say), 1)
        if case.verdict is not Ruling.PASSED:
            yield Part(say("last lines"), block(say("last lines"), last.last_lines[-MOST_ROWS:], limit), 2)
            yield Part(say("events"), block(say("events"), last.events[-MOST_ROWS:], limit), 3)
    for chart in charts(case, say):
        yield Part(*chart)
    if last:
        yield Part(say("trial"), _trials(case.trials, say, limit), 1)
        yield Part(say("fields"), folded(say("fields"), _standard(case, say, limit)), 11)
        yield Part(
            say("changed"), _lines(say("changed"), case.background.changed if case.background else (), say, limit), 4
        )
        yield Part(say("traits"), folded(say("traits"), _traits(last.traits, limit)), 12)
        yield Part("", _files(last, frame, limit), 0)


def _lead(case: CaseEntry, frame: Frame, limit: int) -> str:
    say = frame.say
    lines = [f"<div class='lead'>{ruling(case.verdict, say)}: {text(translated(case.reason, say), limit)}</div>"]
    if todo := what_to_do(case, say):
        lines.append(f"<div>{escape(say('what to do'))}: {escape(todo)}</div>")
    speed = case.metrics.get("throughput")
    if frame.before and speed and speed.value and frame.before[1].throughput and frame.before[1].unit == speed.unit:
        run, was = frame.before[0], frame.before[1].throughput
        told = say(
            "against last run", run=run, was=number(was), now=number(speed.value), share=f"{speed.value / was - 1:+.1%}"
        )
        lines.append(f"<div>{text(told, limit)}</div>")
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


def _stragglers(trial: TrialEntry, say: Language) -> str:
    if not trial.stragglers:
        return ""
    rows = (
        (
            str(each.node),
            escape(say("all cards")) if each.card is None else str(each.card),
            "-" if each.rank is None else str(each.rank),
            f"{each.ratio:.1%}",
            f"{each.cost:.1%}",
        )
        for each in trial.stragglers[:MOST_ROWS]
    )
    headings = [say(key) for key in ("node", "card", "rank", "of the others", "costs")]
    told = table(headings, rows, numbers=range(5)) + _more(trial.stragglers, say)
    return f"<h3>{escape(say('stragglers'))}</h3>{told}"


def _trials(trials: Sequence[TrialEntry], say: Language, limit: int) -> str:
    headings = [say(key) for key in ("trial", "job", "phase", "queued", "ran", "began", "stage")]
    return table(headings, (_trial(trial, say, limit) for trial in trials[-MOST_ROWS:]), numbers=(3, 4))


def _trial(trial: TrialEntry, say: Language, limit: int) -> tuple[str, ...]:
    began = min(trial.times.values(), default=None)
    when = "-" if began is None else datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    phase = " / ".join(word for word in (trial.phase, trial.platform_phase) if word)
    stage = f"<code>{text(trial.stage, limit)}</code>" if trial.stage else "-"
    job = f"<code>{text(trial.job_id, limit)}</code>" if trial.job_id else "-"
    times = (escape(span(seconds, say)) for seconds in (trial.queued_s, trial.ran_s))
    return str(trial.trial), job, text(phase or "-", limit), *times, when, stage


def _standard(case: CaseEntry, say: Language, limit: int) -> str:
    """What is known as a table, what is not by its reason."""
    known: list[tuple[str, ...]] = []
    unknown: dict[str, list[str]] = {}
    for name, field in standard_fields(case).items():
        if field.value is None:
            unknown.setdefault(field.null_reason or "-", []).append(name)
        else:
            known.append((text(name), text(_value(field), limit), text(field.source or "", limit)))
    gone = "".join(f"<div>{text(', '.join(names), limit)}: {text(why, limit)}</div>" for why, names in unknown.items())
    return table([say(key) for key in ("field", "value", "source")], known) + gone


def _value(field: Field) -> str:
    if isinstance(field.value, float) and field.unit == TIME:
        return f"{datetime.fromtimestamp(field.value, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    shown = number(field.value) if isinstance(field.value, float) else str(field.value)
    return f"{shown} {field.unit}".rstrip()


def _traits(traits: Mapping[str, str], limit: int) -> str:
    return facts((plain(name, 60), text(value, min(limit, 200))) for name, value in list(traits.items())[:MOST_TRAITS])


def _lines(name: str, lines: Sequence[str], say: Language, limit: int) -> str:
    told = "".join(f"<div>{escape(name)}: {text(translated(each, say), limit)}</div>" for each in lines[:MOST_ROWS])
    return told + _more(lines, say)


def _files(trial: TrialEntry, frame: Frame, limit: int) -> str:
    say = frame.say
    logs = [f"<a href='{escape(frame.link(log))}'>{text(log, limit)}</a>" for log in trial.logs[:MOST_LOGS]]
    told = f"<div>{escape(say('logs'))}: {', '.join(logs)}</div>" if logs else ""
    told += _more(trial.logs, say, MOST_LOGS)
    if frame.request:
        href, name = escape(frame.link(frame.request)), text(frame.request, limit)
        told += f"<div>{escape(say('request file'))}: <a href='{href}'>{name}</a></div>"
    if console := web(trial.console):
        told += f"<div>{escape(say('console page'))}: <a href='{escape(console)}'>{text(console, limit)}</a></div>"
    return told


def _more(things: Sequence[object], say: Language, shown: int = MOST_ROWS) -> str:
    return f"<div>{escape(say('more in results', count=len(things) - shown))}</div>" if len(things) > shown else ""
