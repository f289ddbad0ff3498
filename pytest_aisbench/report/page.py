"""`report.html`, the page that people review and sign; pytest-html writes it, we add the cases."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import struct
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.ledger.runs import request_name
from pytest_aisbench.model.case import Mode
from pytest_aisbench.model.results import CaseBrief, CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.report.charts import NIGHT
from pytest_aisbench.report.columns import Column, Output, columns_of, total
from pytest_aisbench.report.host_plugins import case_id_of_report, collection_problems, guarded, session_of, switch_on
from pytest_aisbench.report.page_case import BUDGET, CaseContext, case_details, column_cell, overview
from pytest_aisbench.report.text import safe_link
from pytest_aisbench.stash import language

COLUMN = 2  # after the result and the name of the test
WHOLE = 3_000_000  # bytes of the details of all passed cases; as many as the rows of a thousand have
LEAST = 2_000  # bytes of a case, in a run of thousands


class Html:
    """Reporter: adds our columns, details and summary to the page of pytest-html."""

    order = 10

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._say = language(config)
        self._cases: dict[str, CaseEntry] = {}
        self._run: RunEntry | None = None
        self._past: dict[str, CaseBrief] = {}  # the cases of the run before
        self._numbers: dict[str, int] = {}  # of the cases that have a row: their details have it too
        self._made: dict[str, tuple[CaseEntry, str]] = {}  # details, where the page is written after each test
        self._ours = False
        self._styled = False  # our style is in the head of the page
        self._columns = False  # the header has our columns: pytest-html fails on a row with more cells than that
        self._page = folder  # the folder that the page is in: links start there
        with guarded(config, "no report.html"):
            if not getattr(config.option, "htmlpath", None):
                config.option.self_contained_html = True
            self._ours = switch_on(config, "html", "htmlpath", folder / "report.html")
            if getattr(config.option, "htmlpath", None):
                self._enter()

    def _enter(self) -> None:
        host = self._host()
        report = host._report  # noqa: SLF001 - no hook comes this late
        if self._ours:
            report.title = f"aisbench {self._folder.name}"
            host.pytest_sessionstart(session_of(self._config))
            for missed in collection_problems(self._config):
                host.pytest_collectreport(missed)
            for name, counted in report.outcomes.items():
                counted["label"] = self._say(f"outcome {name}")
            host._css += STYLE + page_style(self._say)  # noqa: SLF001
            self._styled = True
        report.table_header[:] = [translated_header(cell, self._say) for cell in report.table_header]
        report.table_header[COLUMN:COLUMN] = header_cells(self._say)
        self._columns = True
        self._page = host._report_path.parent  # noqa: SLF001
        host._write_report = functools.partial(self._write, host._report_path)  # noqa: SLF001

    def _host(self) -> Any:
        from pytest_html.basereport import BaseReport

        return next(plugin for plugin in self._config.pluginmanager.get_plugins() if isinstance(plugin, BaseReport))

    def case(self, entry: CaseEntry) -> None:
        self._cases[entry.id] = entry

    def run(self, entry: RunEntry) -> None:
        self._run = entry
        self._cases |= {case.id: case for case in entry.cases}
        self._past = {case.id: case for case in entry.before.cases} if entry.before else {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Give the report that decided the case room for its details, and links."""
        entry = self._cases.get(case_id_of_report(report) or "")
        if entry is None or not self._columns or report.when == "teardown":
            return
        if report.when == "call" or report.failed:
            with guarded(self._config, f"no details of {entry.id} in report.html"):
                self._attach(report, entry)

    def _attach(self, report: Any, entry: CaseEntry) -> None:
        from pytest_html import extras

        number = self._numbers.setdefault(entry.id, len(self._numbers))
        room = extras.html(f"<div class='{ROOM}' data-case='{number}'></div>")
        last = entry.trials[-1] if entry.trials else None
        request = self._request(entry)
        files = {"log": last.logs[0] if last and last.logs else "", "request": request}
        links = [extras.url(self._link(file), name=self._say(key)) for key, file in files.items() if file]
        if last and (console := safe_link(last.console)):
            links.append(extras.url(console, name=self._say("console")))
        report.extras = [*getattr(report, "extras", ()), room, *links]

    def _write(self, path: Path, page: str) -> None:
        """Write pytest-html's page with the details of all cases at its end, each as a script that is none: a browser
        reads one when its row is opened. In pytest-html's own data it would be a part of every row, and several
        copies of all of them would be in memory at once."""
        before, end, after = page.rpartition("</body>")
        with path.open("w", encoding="utf-8") as file:
            file.write(before)
            for name, number in self._numbers.items():
                with guarded(self._config, f"no details of {name} in report.html"):
                    details = self._details(name)
                    file.write(f"<script type='text/html' class='{ROOM}' data-case='{number}'>{details}</script>\n")
            file.write(f"<script>{FILL}</script>\n{end}{after}")

    def _details(self, name: str) -> str:
        """Cases that did not pass get the full budget, the others share what the page may weigh."""
        case = self._cases[name]
        made_of, details = self._made.get(name, (None, ""))
        if made_of is not case:
            share = min(max(WHOLE // max(len(self._numbers), 1), LEAST), BUDGET)
            details = case_details(case, self._context(name), share if case.verdict is Ruling.PASSED else BUDGET)
            if self._config.getini("generate_report_on_test"):
                self._made[name] = (case, details)
        return details

    def _context(self, name: str) -> CaseContext:
        before = self._run.before if self._run else None
        past = (before.run, self._past[name]) if before and name in self._past else None
        return CaseContext(self._link, self._say, self._request(self._cases[name]), past)

    def _request(self, entry: CaseEntry) -> str:
        """The file of its newest request; empty if there is none."""
        number = entry.trials[-1].trial if entry.trials else 1
        names = (f"requests/{request_name(entry.id, each)}.json" for each in (number, 1))
        return next((name for name in names if (self._folder / name).is_file()), "")

    def _link(self, file: str) -> str:
        return quote(os.path.relpath(self._folder / file, self._page))

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[Any]) -> None:
        if not self._columns or not cells:  # another plugin removed the row
            return
        # pytest-html writes ids as they are, and the browser would run what a test's author put into one.
        cells[:] = [str(cell).replace(report.nodeid, escape(report.nodeid, quote=False)) for cell in cells]
        case = case_id_of_report(report)
        entry = self._cases.get(case, UNJUDGED) if case else None
        if entry and entry.trials:
            lasted = duration_cell(entry)
            cells[:] = [lasted if 'class="col-duration"' in str(cell) else cell for cell in cells]
        if self._ours:
            cells[:] = [outcome_cell(str(cell), self._say) for cell in cells]
        cells[COLUMN:COLUMN] = case_cells(entry, self._say)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, data: list[str]) -> None:
        """Remove the empty box of a test without output."""
        if self._ours and data == [NO_OUTPUT]:
            data.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[Any], postfix: list[Any]) -> None:
        """pytest-html calls this last before it writes the page."""
        if not self._columns:
            return
        cases = self._run.cases if self._run else self._cases.values()
        style = "" if self._styled else f"<style>{STYLE}</style>"
        prefix += [style, overview(cases, self._run, self._say, _versions())]
        postfix += [translation_script(self._say)] if self._ours else []


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("pytest-aisbench")
    except PackageNotFoundError:
        own = "?"
    return f"pytest-aisbench {own}, pytest {pytest.__version__}, Python {platform.python_version()}"


# Cells of the table of tests, and pytest-html's own texts in the language of the page

NO_OUTPUT = "No log output captured."  # pytest-html writes it for a test without output
_LONGEST = 200  # characters of a cell
# For the row of a test whose case is not judged yet.
UNJUDGED = CaseEntry("", "", 1, 1, Mode.CLUSTER.value, None, "", 0.0, metrics={}, findings=(), trials=())
# Texts of pytest-html itself: where they are, and their keys in i18n.
_HOST = {
    "#environment-header h2": "environment",
    ".summary__data > h2": "summary",
    "p.filter": "filter",
    "#show_all_details": "show all",
    "#hide_all_details": "hide all",
}


def header_cells(say: Language = ENGLISH) -> list[str]:
    return [
        f'<th class="sortable" data-column-type="{column.key}">{escape(column.head(say))}</th>'
        for column in columns_of(Output.PAGE)
    ]


def translated_header(cell: str, say: Language) -> str:
    """A heading of pytest-html in the language of the page; the duration becomes that of the jobs."""
    for name, key in (("result", "result"), ("testId", "test"), ("duration", "job time")):
        if f'data-column-type="{name}"' in cell:
            title = f' title="{escape(say("job time means"))}"' if name == "duration" else ""
            return f'<th class="sortable" data-column-type="{name}"{title}>{escape(say(key))}</th>'
    return f"<th>{escape(say('links'))}</th>" if "Links" in cell else cell


def case_cells(case: CaseEntry | None, say: Language = ENGLISH) -> list[str]:
    """Our cells of a row; empty ones for a test without a case."""
    return [
        f'<td class="col-{column.key}">{_cell_of(column, case, say) if case else ""}</td>'
        for column in columns_of(Output.PAGE)
    ]


def _cell_of(column: Column, case: CaseEntry, say: Language) -> str:
    return _order(column.value(case) if column.value else None) + column_cell(column, case, say, _LONGEST)


def _order(value: float | None) -> str:
    """A hidden text that sorts like the number, because the page sorts cells as strings: the bits of a float are in
    numeric order once the sign is flipped (and all bits, below zero)."""
    if value is None:
        return ""
    bits = int.from_bytes(struct.pack(">d", value), "big")
    bits ^= 0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63
    return f"<!--{bits:016x}-->"


def duration_cell(case: CaseEntry) -> str:
    """How long the jobs of the case ran, as pytest-html writes and sorts durations."""
    seconds = total(case, "ran_s") or 0.0
    whole = round(seconds)
    clock = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    text = f"{round(seconds * 1000)} ms" if seconds < 1 else clock
    return _cell("duration", text, "-" if total(case, "ran_s") is None else text)


def outcome_cell(cell: str, say: Language) -> str:
    """pytest-html's cell with the result of a test, in the language of the page."""
    match = re.fullmatch(r'<td class="col-result">(\w+)</td>', cell)
    return _cell("result", match[1], say(f"one {match[1].lower()}")) if match else cell


def _cell(name: str, value: str, text: str) -> str:
    """A cell that shows `text` and sorts by `value`: pytest-html sorts by the first cell, even in a comment."""
    cell = f'<td class="col-{name}">{escape(text)}</td>'
    return cell if text == value else f'<!--<td class="col-{name}">{escape(value)}</td>-->{cell}'


def translation_script(say: Language) -> str:
    """A script that sets the language of the page and translates the texts of pytest-html."""
    lines = [f"document.documentElement.lang='{say.catalogue.html_lang}'"]
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


ROOM = "aisbench-details"  # the class of the room for details below a row, and of the details themselves
# pytest-html draws its table anew after every click. Paper shows every row open.
FILL = """(()=>{const details={}
for(const each of document.querySelectorAll('script.aisbench-details'))details[each.dataset.case]=each.text
const fill=all=>{for(const room of document.querySelectorAll('div.aisbench-details:empty'))
if(all||!room.closest('.hidden'))room.innerHTML=details[room.dataset.case]??''}
const paper=matchMedia('print'),draw=()=>fill(paper.matches)
draw()
new MutationObserver(draw).observe(document.body,{childList:true})
paper.addEventListener('change',draw)
addEventListener('beforeprint',()=>fill(true))})()"""


def _literal(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")


# The look of the page: by day, by night and on paper


def page_style(say: Language) -> str:
    """The style of a page that is ours alone: dark if the reader's screen is, never on paper."""
    pictures = "".join(
        f".aisbench svg[{name}='{day}'],.aisbench svg [{name}='{day}']{{{name}:{night}}}"
        for day, night in NIGHT.items()
        for name in ("fill", "stroke")
    )
    return f"{_PAGE}@media screen and (prefers-color-scheme:dark){{{_NIGHT}{pictures}}}{_hints(say)}"


def _hints(say: Language) -> str:
    """The texts that pytest-html keeps in its style."""
    keys = ("hide details", "show details", "expand", "collapse")
    hide, show, more, less = (say(key).replace("\\", r"\\").replace("'", r"\'") for key in keys)
    return (
        f".col-result:hover::after{{content:' ({hide})'}}.col-result.collapsed:hover::after{{content:' ({show})'}}"
        f"#environment-header h2:hover::after{{content:' ({hide})'}}"
        f"#environment-header.collapsed h2:hover::after{{content:' ({show})'}}"
        f".logwrapper .logexpander:after{{content:'{more} [+]'}}"
        f".logwrapper.expanded .logexpander:after{{content:'{less} [-]'}}"
    )


# Of our own parts, also in a page that the user asked pytest-html for.
STYLE = """
.aisbench{color:#1f2933;font-size:13px;line-height:1.5;margin:6px 4px 10px}
.aisbench table{border-collapse:collapse;margin:4px 0 8px}
.aisbench th,.aisbench td,#results-table .aisbench th,#results-table .aisbench td{border:1px solid #d5dae0;
 padding:3px 9px;vertical-align:top;text-align:left}
.aisbench th{background:#f3f5f7;font-weight:600;white-space:nowrap}
.aisbench td>span[class^=aisbench],.aisbench .word{white-space:nowrap}
.aisbench td.number,#results-table .aisbench td.number{text-align:right;white-space:nowrap;
 font-variant-numeric:tabular-nums}
.aisbench a{color:#1d4f91}
.aisbench svg{display:block;width:100%;max-width:760px;height:auto}
.aisbench code,.aisbench pre{font-family:ui-monospace,Consolas,Menlo,monospace;font-size:12px;overflow-wrap:anywhere}
.aisbench pre{margin:4px 0 8px;padding:6px 9px;background:#f3f5f7;border:1px solid #d5dae0;white-space:pre-wrap}
.aisbench .lead{font-size:14px;overflow-wrap:anywhere}
.aisbench .charts{columns:600px;column-gap:10px;margin:8px 0 0}
.aisbench .charts svg{break-inside:avoid;margin:0 0 10px}
.aisbench details{margin:4px 0}
.aisbench summary{cursor:pointer;font-weight:600}
.aisbench h3{font-size:14px;margin:12px 0 2px}
.aisbench .facts th{text-align:right;background:none;border-width:0 1px 0 0}
.aisbench .facts td{border:0}
.aisbench .sides{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:4px 24px}
.aisbench .sides h3{margin-top:4px}
.aisbench .sign,.aisbench .roll{display:none}
td.col-throughput,td.col-accuracy,td.col-duration{white-space:nowrap;font-variant-numeric:tabular-nums}
td.col-remarks,td.col-verdict{white-space:nowrap}
.aisbench-PASSED,.aisbench-met{color:#166534;font-weight:600}
.aisbench-FAILED,.aisbench-BROKEN,.aisbench-missed,.aisbench-unmeasured{color:#b42318;font-weight:600}
.aisbench-INCONCLUSIVE,.aisbench-undecided,.aisbench-waived{color:#8a5300;font-weight:600}
@media print{
.aisbench svg,.aisbench tr,.aisbench pre{break-inside:avoid}
.aisbench .charts{columns:1}
.aisbench .roll{display:block;font-size:11px;line-height:1.3}
.aisbench .roll td{overflow-wrap:normal}
.aisbench svg{margin:8px 0}
.aisbench details::details-content{content-visibility:visible;display:block}
.aisbench table{max-width:100%}
.aisbench .sign{display:table;width:100%;margin-top:16px}
.aisbench .sign td{height:44px;width:33%;vertical-align:top;color:#5f6b78}
}
"""
# Where the page is ours: the verdicts before the versions of packages, and darker ink than pytest-html's grey. It hides
# pytest-html's count of tests and time, which leaves some tests out, and of an old run shows the time of the replay.
_PAGE = """
body{color:#3e4a56;max-width:1560px;margin:16px auto;padding:0 16px;font-size:13px;display:flex;flex-direction:column;
 min-width:0;font-family:Helvetica,Arial,"PingFang SC","Microsoft YaHei","Noto Sans CJK SC",sans-serif}
#environment-header,#environment{order:1}
#environment{align-self:flex-start}
#results-table{color:#1f2933;font-size:13px}
#results-table td.extra{overflow-wrap:anywhere}
#results-table td.col-testId{overflow-wrap:anywhere;min-width:130px}
.logwrapper:not(:has(.log)),p.run-count{display:none}
span.passed,.passed .col-result{color:#166534}
span.skipped,span.xfailed,span.rerun,.skipped .col-result,.xfailed .col-result,.rerun .col-result{color:#8a5300}
span.error,span.failed,span.xpassed,.error .col-result,.failed .col-result,.xpassed .col-result{color:#b42318}
.summary__data{flex:1 1 auto}
.collapse button,.collapse button:hover{color:#1d4f91}
a{color:#1d4f91}
@media print{
@page{margin:12mm}
body{max-width:none;margin:0;padding:0}
h1{font-size:18px;margin:0}
.summary h2,#title+p{margin:4px 0}
.summary .aisbench{font-size:12px;line-height:1.35}
.summary .aisbench th,.summary .aisbench td{padding:1px 7px}
.col-result{width:auto}
td.col-remarks,td.col-throughput{white-space:normal}
#results-table td.col-testId{min-width:90px}
#results-table>thead th:last-child,.col-links{display:none}
.aisbench td{overflow-wrap:break-word}
.extras-row.hidden{display:table-row}
.logwrapper{max-height:none;overflow:visible}
.logexpander,.controls,p.filter,.summary__reload{display:none!important}
.logwrapper .log{top:0;height:auto;padding-right:5px;overflow-wrap:anywhere}
#results-table{table-layout:auto;font-size:11px;break-before:page}
#results-table>tbody>tr.collapsible{break-after:avoid}
#results-table>thead{display:table-header-group}
}
"""
_NIGHT = """
:root{color-scheme:dark}
body{background:#12161b;color:#b6c0ca}
h1,h2,h3,p,.logwrapper .log{color:#e4e8ec}
#results-table,.aisbench{color:#e4e8ec}
#results-table,#results-table th,#results-table td,#environment td,.aisbench th,.aisbench td,
#results-table .aisbench th,#results-table .aisbench td,.aisbench pre{border-color:#3a444f}
#environment tr:nth-child(odd),.aisbench th,.aisbench pre{background:#1b2128}
.aisbench .facts th{background:none}
.logwrapper,.logwrapper .logexpander{background:#1b2128;border-color:#3a444f}
.logwrapper .logexpander:hover{color:#fff;border-color:#fff}
.logwrapper .log{border-color:#3a444f}
a,.aisbench a,.collapse button,.collapse button:hover{color:#8ab8f0}
.aisbench-PASSED,.aisbench-met,span.passed,.passed .col-result{color:#6fc48f}
.aisbench-FAILED,.aisbench-BROKEN,.aisbench-missed,.aisbench-unmeasured,span.error,span.failed,span.xpassed,
.error .col-result,.failed .col-result,.xpassed .col-result{color:#ff8a7a}
.aisbench-INCONCLUSIVE,.aisbench-undecided,.aisbench-waived,span.skipped,span.xfailed,span.rerun,
.skipped .col-result,.xfailed .col-result,.rerun .col-result{color:#e0b25a}
"""
