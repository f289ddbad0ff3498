"""The pieces of HTML that a case and a run have in `report.html`; pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from pytest_aisbench.domain.entry import CaseEntry, RunEntry, TrialEntry
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.domain.verdict import Finding, Ruling
from pytest_aisbench.reporters.svg import rank_chart
from pytest_aisbench.reporters.text import plain, span, what_to_do, words

# A case may weigh this much, as the page carries it, or the page of a large run opens slowly.
BUDGET = 48_000
MOST_ROWS = 10
MOST_LOGS = 32

STYLE = """<style>
.aisbench{color:#1f2933;font-size:13px;line-height:1.5;margin:6px 4px 10px}
.aisbench table{border-collapse:collapse;margin:6px 0}
#results-table .aisbench th,#results-table .aisbench td{border:1px solid #d5dae0;padding:3px 9px;vertical-align:top}
.aisbench th{background:#f3f5f7;font-weight:600}
.aisbench a{color:#1d4f91}
.aisbench svg{display:block;margin:8px 0}
.aisbench code{font-size:12px;overflow-wrap:anywhere}
.aisbench .lead{font-size:14px}
td.col-throughput,td.col-accuracy{white-space:nowrap;font-variant-numeric:tabular-nums}
.aisbench-PASSED,.aisbench-met{color:#166534;font-weight:600}
.aisbench-FAILED,.aisbench-BROKEN,.aisbench-missed,.aisbench-unmeasured{color:#b42318;font-weight:600}
.aisbench-INCONCLUSIVE,.aisbench-undecided,.aisbench-waived{color:#8a5300;font-weight:600}
</style>"""

# Where the page is ours: the verdicts before the versions of packages, and darker ink than pytest-html's grey.
PAGE_STYLE = """<style>
body{color:#3e4a56;max-width:1500px;margin:16px auto;padding:0 16px;font-size:13px;display:flex;flex-direction:column}
#environment-header,#environment{order:1}
#environment{align-self:flex-start}
#results-table{color:#1f2933;font-size:13px}
a{color:#1d4f91}
</style>"""

HEADERS = (
    '<th class="sortable" data-column-type="verdict">Verdict</th>',
    '<th class="sortable" data-column-type="throughput">Throughput</th>',
    '<th class="sortable" data-column-type="accuracy">Accuracy</th>',
    '<th class="sortable" data-column-type="wanted">Wanted</th>',
)


def cells(facts: dict[str, Any]) -> list[str]:
    """The four cells of a row, from the properties that its report carries; empty ones for other tests."""
    if not facts.get("case"):
        return [f'<td class="col-{name}"></td>' for name in ("verdict", THROUGHPUT, ACCURACY, "wanted")]
    verdict = escape(plain(str(facts.get("verdict", ""))))
    wanted = [str(facts[f"{name}.wanted"]) for name in (THROUGHPUT, ACCURACY) if f"{name}.wanted" in facts]
    return [
        f'<td class="col-verdict"><span class="aisbench-{verdict}">{verdict}</span></td>',
        f'<td class="col-throughput">{_number(facts, THROUGHPUT)}</td>',
        f'<td class="col-accuracy">{_number(facts, ACCURACY)}</td>',
        f'<td class="col-wanted">{_order(_first_number(wanted))}{escape(plain("; ".join(wanted), 200))}</td>',
    ]


def _number(facts: dict[str, Any], metric: str) -> str:
    value = facts.get(metric)
    if not isinstance(value, (int, float)):
        return "-"
    unit = str(facts.get(f"{metric}.unit", ""))
    return f"{_order(float(value))}{escape(plain(f'{number(value)} {unit}'.rstrip(), 60))}"


def _order(value: float | None) -> str:
    """The page sorts cells as strings, so each number begins with a hidden one that sorts alike: the bits of a float
    are in numeric order once the sign is flipped (and all of them, below zero)."""
    if value is None:
        return ""
    bits = int.from_bytes(struct.pack(">d", value), "big")
    bits ^= 0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63
    return f"<!--{bits:016x}-->"


def _first_number(texts: Sequence[str]) -> float | None:
    found = re.search(r"-?\d+(\.\d+)?(e[+-]?\d+)?", texts[0] if texts else "")
    return float(found[0]) if found else None


def details(case: CaseEntry, link: Callable[[str], str]) -> str:
    """Everything about a case below its row; `link` turns a file of the run into a reference from the page."""
    text = ""
    for limit in (1000, 200, 40):  # words that need much escaping are cut shorter
        text = _details(case, link, limit)
        if len(escape(text)) < BUDGET:
            break
    return text


def _details(case: CaseEntry, link: Callable[[str], str], limit: int) -> str:
    parts = [f"<div class='lead'>{_ruling(case.verdict)}: {_text(case.reason, limit)}</div>"]
    if todo := what_to_do(case):
        parts.append(f"<div>What to do: {escape(todo)}</div>")
    if case.findings:
        rows = (_finding(finding, limit) for finding in case.findings[:MOST_ROWS])
        parts += [_table(("finding", "metric", "measured", "wanted", "in words"), rows), _more(case.findings)]
    if case.trials:
        last = case.trials[-1]
        headings = ("trial", "job", "phase", "queued", "ran", "began (UTC)", "stage")
        parts.append(_table(headings, (_trial(trial, limit) for trial in case.trials[-MOST_ROWS:])))
        parts += [f"<div>Pace: {_text(str(last.pace), limit)}</div>"] if last.pace else []
        parts += [f"<div>Note: {_text(note, limit)}</div>" for note in last.notes[:MOST_ROWS]]
        parts.append(_more(last.notes))
        unit = case.metrics[THROUGHPUT].unit if THROUGHPUT in case.metrics else ""
        title = f"{case.id}: throughput by rank"
        parts.append(rank_chart(last.throughput_by_rank, case.devices_per_node, title=title, unit=unit))
        logs = [f"<a href='{escape(link(log))}'>{_text(log, limit)}</a>" for log in last.logs[:MOST_LOGS]]
        parts += [f"<div>Logs: {', '.join(logs)}</div>" if logs else "", _more(last.logs, MOST_LOGS)]
    return f"<div class='aisbench'>{''.join(parts)}</div>"


def _more(things: Sequence[object], shown: int = MOST_ROWS) -> str:
    return f"<div>and {len(things) - shown} more in results.json</div>" if len(things) > shown else ""


def _finding(finding: Finding, limit: int) -> tuple[str, ...]:
    word = finding.outcome.value
    measured = "-" if finding.measured is None else number(finding.measured)
    told = (_text(text, limit) for text in (finding.wanted, finding.text))
    return f"<span class='aisbench-{word}'>{word}</span>", _text(finding.metric, limit), measured, *told


def _trial(trial: TrialEntry, limit: int) -> tuple[str, ...]:
    began = min(trial.times.values(), default=None)
    when = "-" if began is None else datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    phase = " / ".join(word for word in (trial.phase, trial.platform_phase) if word)
    stage = f"<code>{_text(trial.stage, limit)}</code>" if trial.stage else "-"
    job = f"<code>{_text(trial.job_id, limit)}</code>" if trial.job_id else "-"
    return str(trial.trial), job, _text(phase or "-", limit), span(trial.queued_s), span(trial.ran_s), when, stage


def overview(cases: Iterable[CaseEntry], run: RunEntry | None) -> str:
    """The prefix of the page: how many of each verdict, of which run, at what cost."""
    told = list(cases)
    counts = {ruling: sum(case.verdict is ruling for case in told) for ruling in (*Ruling, None)}
    verdicts = ", ".join(f"{many} {_ruling(ruling)}" for ruling, many in counts.items() if many)
    hours = sum(case.card_hours for case in told)
    count = f"{len(told)} case{'s' if len(told) != 1 else ''}"
    lines = [f"<div class='lead'>{count}: {verdicts or 'none judged'}; {number(hours)} card-hours</div>"]
    if run:
        shown = {"run": run.run, "platform": run.settings.get("platform"), "nodes": run.settings.get("nodes")}
        shown["started"] = run.started
        facts = (f"{name} {_text(words(value), 200)}" for name, value in shown.items() if value)
        lines.append(f"<div>{' · '.join(facts)}</div>")
    return f"<div class='aisbench'>{''.join(lines)}</div>"


def _ruling(ruling: Ruling | None) -> str:
    return f"<span class='aisbench-{ruling.value}'>{ruling.value}</span>" if ruling else "not judged"


def _text(text: str, limit: int) -> str:
    return escape(plain(text, limit))


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
