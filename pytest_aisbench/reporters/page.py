"""Our cells in the rows of `report.html`, and pytest-html's own texts in the language of the page; pure."""

from __future__ import annotations

import json
import re
import struct
from html import escape

from pytest_aisbench.domain.case import Mode
from pytest_aisbench.domain.entry import CaseEntry
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.report.columns import Column, Output, shown_in, total
from pytest_aisbench.reporters.markup import column_cell

SILENCE = "No log output captured."  # pytest-html writes it for a test without output
_LONGEST = 200  # characters of a cell
# What a row shows of a case that its test has not begun to judge.
UNJUDGED = CaseEntry("", "", 1, 1, Mode.CLUSTER.value, None, "", 0.0, metrics={}, findings=(), trials=())
# Where pytest-html writes words of its own, and what they are.
_HOST = {
    "#environment-header h2": "environment",
    ".summary__data > h2": "summary",
    "p.filter": "filter",
    "#show_all_details": "show all",
    "#hide_all_details": "hide all",
}


def headers(say: Language = ENGLISH) -> list[str]:
    return [
        f'<th class="sortable" data-column-type="{column.key}">{escape(column.head(say))}</th>'
        for column in shown_in(Output.PAGE)
    ]


def host_header(cell: str, say: Language) -> str:
    """A heading of pytest-html's own, in the language of the page; its duration is that of the jobs."""
    for name, key in (("result", "result"), ("testId", "test"), ("duration", "job time")):
        if f'data-column-type="{name}"' in cell:
            about = f' title="{escape(say("job time means"))}"' if name == "duration" else ""
            return f'<th class="sortable" data-column-type="{name}"{about}>{escape(say(key))}</th>'
    return f"<th>{escape(say('links'))}</th>" if "Links" in cell else cell


def cells(case: CaseEntry | None, say: Language = ENGLISH) -> list[str]:
    """Our cells of a row; empty ones for a test that has no case."""
    return [
        f'<td class="col-{column.key}">{_cell_of(column, case, say) if case else ""}</td>'
        for column in shown_in(Output.PAGE)
    ]


def _cell_of(column: Column, case: CaseEntry, say: Language) -> str:
    return _order(column.value(case) if column.value else None) + column_cell(column, case, say, _LONGEST)


def duration(case: CaseEntry) -> str:
    """The cell that says how long its jobs ran, as pytest-html writes and sorts it."""
    seconds = total(case, "ran_s") or 0.0
    whole = round(seconds)
    clock = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    text = f"{round(seconds * 1000)} ms" if seconds < 1 else clock
    return _cell("duration", text, "-" if total(case, "ran_s") is None else text)


def outcome(cell: str, say: Language) -> str:
    """A cell of pytest-html's with the result of a test, in the language of the page."""
    match = re.fullmatch(r'<td class="col-result">(\w+)</td>', cell)
    return _cell("result", match[1], say(f"one {match[1].lower()}")) if match else cell


def _cell(name: str, value: str, text: str) -> str:
    """pytest-html sorts and filters by the first cell that it finds in the text, be it in a comment."""
    cell = f'<td class="col-{name}">{escape(text)}</td>'
    return cell if text == value else f'<!--<td class="col-{name}">{escape(value)}</td>-->{cell}'


def translation(say: Language) -> str:
    """A script that says in which language the page is, and gives pytest-html's own words that language."""
    lines = [f"document.documentElement.lang='{say.code}'"]
    if not say.is_source:
        table = {selector: say(key) for selector, key in _HOST.items()}
        lines += [
            "const put=(at,change)=>{const node=document.querySelector(at)?.firstChild",
            "if(node)node.data=change(node.data)}",
            f"for(const [at,text] of Object.entries({_literal(table)}))put(at,()=>text)",
            "const made=/^Report generated on (\\S+) at (\\S+) by\\s+/",
            f"put('#title+p',text=>text.replace(made,{_literal(say('made'))}))",
        ]
    return f"<script>{';'.join(lines)}</script>"


def _literal(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")


def _order(value: float | None) -> str:
    """The page sorts cells as strings, so each number begins with a hidden one that sorts alike: the bits of a float
    are in numeric order once the sign is flipped (and all of them, below zero)."""
    if value is None:
        return ""
    bits = int.from_bytes(struct.pack(">d", value), "big")
    bits ^= 0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63
    return f"<!--{bits:016x}-->"
