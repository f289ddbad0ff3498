"""The columns that a case has in `report.html`, and the words of pytest-html in the language of the page; pure."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from html import escape
from typing import Any

from pytest_aisbench.domain.entry import CaseEntry
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.reporters.markup import word

SILENCE = "No log output captured."  # what pytest-html says of a test that said nothing
COLUMNS = ("verdict", THROUGHPUT, ACCURACY, "wanted", "remarks")
# Where pytest-html writes words of its own, and what they are.
_HOST = {
    "#environment-header h2": "environment",
    ".summary__data > h2": "summary",
    "p.filter": "filter",
    "#show_all_details": "show all",
    "#hide_all_details": "hide all",
}


def headers(say: Language = ENGLISH) -> list[str]:
    return [f'<th class="sortable" data-column-type="{name}">{escape(say(name))}</th>' for name in COLUMNS]


def host_header(cell: str, say: Language) -> str:
    """A heading of pytest-html's own, in the language of the page; its duration is that of the jobs."""
    for name, key in (("result", "result"), ("testId", "test"), ("duration", "job time")):
        if f'data-column-type="{name}"' in cell:
            about = f' title="{escape(say("job time means"))}"' if name == "duration" else ""
            return f'<th class="sortable" data-column-type="{name}"{about}>{escape(say(key))}</th>'
    return f"<th>{escape(say('links'))}</th>" if "Links" in cell else cell


def cells(facts: dict[str, Any], case: CaseEntry | None = None, say: Language = ENGLISH) -> list[str]:
    """Our cells of a row, from the properties that its report carries; empty ones for other tests."""
    if not facts.get("case"):
        return [f'<td class="col-{name}"></td>' for name in COLUMNS]
    verdict = plain(str(facts.get("verdict", "")))
    wanted = [str(facts[f"{name}.wanted"]) for name in (THROUGHPUT, ACCURACY) if f"{name}.wanted" in facts]
    shown = word(verdict, say) if verdict.isalpha() else escape(say("not judged"))
    return [
        f'<td class="col-verdict">{shown}</td>',
        f'<td class="col-throughput">{_number(facts, THROUGHPUT)}</td>',
        f'<td class="col-accuracy">{_number(facts, ACCURACY)}</td>',
        f'<td class="col-wanted">{_order(_first_number(wanted))}{escape(plain("; ".join(wanted), 200))}</td>',
        f'<td class="col-remarks">{_remarks(case, say) if case else ""}</td>',
    ]


def duration(case: CaseEntry) -> str:
    """The cell that says how long its jobs ran, as pytest-html writes and sorts it."""
    ran = [trial.ran_s for trial in case.trials if trial.ran_s is not None]
    seconds = sum(ran)
    whole = round(seconds)
    told = (
        f"{round(seconds * 1000)} ms" if seconds < 1 else f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    )
    return _cell("duration", told, told if ran else "-")


def outcome(cell: str, say: Language) -> str:
    """A cell of pytest-html's with the result of a test, in the language of the page."""
    found = re.fullmatch(r'<td class="col-result">(\w+)</td>', cell)
    return _cell("result", found[1], say(f"one {found[1].lower()}")) if found else cell


def _cell(name: str, value: str, shown: str) -> str:
    """pytest-html sorts and filters by the first cell that it finds in the text, be it in a comment."""
    cell = f'<td class="col-{name}">{escape(shown)}</td>'
    return cell if shown == value else f'<!--<td class="col-{name}">{escape(value)}</td>-->{cell}'


def translation(say: Language) -> str:
    """A script that says in which language the page is, and gives pytest-html's own words that language."""
    lines = [f"document.documentElement.lang='{say.code}'"]
    if not say.is_source:
        table = {selector: say(key) for selector, key in _HOST.items()}
        found = "let found=document.querySelector(at)"
        lines += [
            f"const put=(at,change)=>{{{found};found=found?.firstChild;if(found)found.data=change(found.data)}}",
            f"for(const [at,text] of Object.entries({_literal(table)}))put(at,()=>text)",
            "const made=/^Report generated on (\\S+) at (\\S+) by\\s+/",
            f"put('#title+p',text=>text.replace(made,{_literal(say('made'))}))",
        ]
    return f"<script>{';'.join(lines)}</script>"


def _literal(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")


def _remarks(case: CaseEntry, say: Language) -> str:
    """What one should look at although it decided nothing; more of it sorts later."""
    if not case.trials:
        return ""
    last = case.trials[-1]
    counts = [("slow", len(last.stragglers)), ("notes", len(last.notes))]
    counts += [("trials", len(case.trials))] if len(case.trials) > 1 else []
    told = ", ".join(say(key, count=count) for key, count in counts if count)
    return f"{_order(float(sum(count for _, count in counts)))}{escape(told)}" if told else ""


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
