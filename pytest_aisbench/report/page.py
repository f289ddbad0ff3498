"""`report.html`, the page that people review and sign; pytest-html writes it, we add the cases."""

from __future__ import annotations

import base64
import functools
import json
import os
import platform
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.ledger.runs import request_name
from pytest_aisbench.model.case import Mode
from pytest_aisbench.model.messages import translated
from pytest_aisbench.model.results import CaseBrief, CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.report.charts import VARIABLES, look, without_x
from pytest_aisbench.report.columns import Column, Output, columns_of, total
from pytest_aisbench.report.host_plugins import case_id_of_report, collection_problems, guarded, session_of, switch_on
from pytest_aisbench.report.page_case import BUDGET, CaseContext, badge, case_details, column_cell, ruling, text
from pytest_aisbench.report.page_head import acceptance_sheet, overview
from pytest_aisbench.report.text import safe_link, verdict_counts
from pytest_aisbench.stash import language

COLUMN = 2  # after the result and the name of the test
PLAIN_DETAILS = 2_000_000  # bytes of details that a page holds as they are; more of them are packed
_SAMPLE = 32_768  # bytes that deflate looks back


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
        self._shown: dict[str, CaseEntry] = {}  # what the rows were made of
        self._others = 0  # rows of tests without a case
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
            host._css += page_style(self._say)  # noqa: SLF001
            self._styled = True
            if self._config.getini("render_collapsed") == "passed":  # its default
                report.data["renderCollapsed"] = ["all"]
            if report.data["initialSort"] == "result":
                report.data["initialSort"] = "verdict"  # the worst first
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

    def _write(self, path: Path, page: str) -> None:
        """Write pytest-html's page with the details of all cases at its end, each as a script that is none: the browser
        reads one when its row is opened. In pytest-html's own data it would be a part of every row, and several
        copies of all of them would be in memory at once."""
        head, data, foot = split_page(page)
        if not _HAS_MEDIA.search(data):  # a browser takes half a second to make a thousand players that nobody needs
            head = _PLAYER.sub('<div class="media"></div>', head)
        with path.open("w", encoding="utf-8") as file:
            file.write(self._as_ours(head) if self._ours else head)
            file.write(data)
            before, end, after = foot.rpartition("</body>")
            file.write(before)
            if self._ours and self._run:
                with guarded(self._config, "no acceptance sheet in report.html"):
                    file.write(acceptance_sheet(self._run.cases, self._run, self._say))
            file.writelines(self._scripts())
            file.write(f"<script>{_read('page.js')}</script>\n{end}{after}")

    def _as_ours(self, head: str) -> str:
        head = head.replace("<html>", f'<html lang="{self._say.catalogue.html_lang}">', 1)
        head = head.replace("<head>", '<head>\n<meta name="viewport" content="width=device-width, initial-scale=1">', 1)
        return head.replace("<body>", '<body class="look page">', 1)

    def _scripts(self) -> Iterator[str]:
        is_packed = len(self._numbers) * BUDGET > PLAIN_DETAILS
        sample = b""
        for name, number in self._numbers.items():
            with guarded(self._config, f"no details of {name} in report.html"):
                details = without_x(self._details(name)) if is_packed else self._details(name)
                if is_packed and not sample:
                    sample = details.encode()[-_SAMPLE:]
                    yield f"<script type='text/html' class='aisbench-sample'>{details}</script>\n"
                kind, inside = ("application/deflate", packed(details, sample)) if is_packed else ("text/html", details)
                yield f"<script type='{kind}' class='aisbench-details' data-case='{number}'>{inside}</script>\n"

    def _details(self, name: str) -> str:
        case = self._cases[name]
        made_of, details = self._made.get(name, (None, ""))
        if made_of is not case:
            details = case_details(case, self._context(name))
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
        name = case_id_of_report(report)
        entry = self._cases.get(name, UNJUDGED) if name else None
        number = self._numbers.setdefault(entry.id, len(self._numbers)) if entry and entry.id else None
        if entry:
            self._shown[entry.id] = entry
            cells[:] = [self._cell(str(cell), entry) for cell in cells]
        elif self._ours:
            self._others += report.when == "call" or report.failed
        outcome = re.search('col-result">(\\w+)<', cells[0]) if self._ours and not entry else None
        cells[COLUMN:COLUMN] = case_cells(entry, self._say, number, outcome[1] if outcome else "")

    def _renew_rows(self, data: Any) -> None:
        """Make the cells of cases anew that changed after their row was made, as by a trial that other tests share."""
        stale = {
            self._numbers[name]: name for name, shown in self._shown.items() if name and self._is_stale(name, shown)
        }
        for rows in data["tests"].values() if stale else ():
            for row in rows:
                cells = row["resultsTableRow"]
                found = _CASE_NUMBER.search(cells[COLUMN]) if len(cells) > COLUMN else None
                if found and (name := stale.get(int(found[1]))):
                    ours = case_cells(self._cases[name], self._say, int(found[1]))
                    cells[COLUMN : COLUMN + len(ours)] = ours

    def _is_stale(self, name: str, shown: CaseEntry) -> bool:
        return self._cases[name] is not shown and self._cases[name] != shown

    def _cell(self, cell: str, entry: CaseEntry) -> str:
        """pytest-html's cell of a test that has a case: the time of its jobs, links to its files, its name."""
        if 'class="col-duration"' in cell and entry.trials:
            return duration_cell(entry)
        if 'class="col-links"' in cell:
            return cell.replace("</td>", f"{self._links(entry)}</td>")
        if 'class="col-testId"' in cell and self._ours and entry.id:
            return name_cell(entry, cell, self._say)
        return cell

    def _links(self, entry: CaseEntry) -> str:
        last = entry.trials[-1] if entry.trials else None
        files = {"log": last.logs[0] if last and last.logs else "", "request": self._request(entry)}
        links = {key: self._link(file) for key, file in files.items() if file}
        if last and (console := safe_link(last.console)):
            links["console"] = console
        return " ".join(f"<a href='{escape(address)}'>{escape(self._say(key))}</a>" for key, address in links.items())

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
        cases = [*(self._run.cases if self._run else self._cases.values())]
        style = "" if self._styled else f"<style>{page_style(self._say)}</style>{_ALWAYS_LIGHT}"
        prefix += [style, overview(cases, self._run, self._say, _versions(), self._numbers)]
        data = self._host()._report.data  # noqa: SLF001
        self._renew_rows(data)
        sort_by_short_keys(data)
        if self._ours:
            postfix += [tools(cases, self._others, self._say), translation_script(self._say)]


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("pytest-aisbench")
    except PackageNotFoundError:
        own = "?"
    return f"pytest-aisbench {own}, pytest {pytest.__version__}, Python {platform.python_version()}"


def split_page(page: str) -> tuple[str, str, str]:
    """pytest-html's page before its data, the data, and the page behind them.

    The data is JSON in an attribute between double quotes, so that every quote of it takes five characters. Between
    single quotes it takes one, and the page of a thousand cases is a third smaller.
    """
    head, start, rest = page.partition('data-jsonblob="')
    blob, end, foot = rest.partition('"')
    if not end:
        return page, "", ""
    for name, char in (("&#34;", '"'), ("&lt;", "<"), ("&gt;", ">")):
        blob = blob.replace(name, char)
    return head, f"{start[:-1]}'{blob}'", foot


def sort_by_short_keys(data: Any) -> None:
    """Keep the hidden text that a cell sorts by in pytest-html's data alone, and nothing else of the cell there."""
    for rows in data["tests"].values():
        for row in rows:
            for at, cell in enumerate(row["resultsTableRow"]):
                if found := _SORT_KEY.match(cell):
                    row[found[2]] = found[3]
                    row["resultsTableRow"][at] = found[1] + cell[found.end() :]


def packed(details: str, sample: bytes) -> str:
    """The details by deflate, which may refer to the sample, in base64."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, sample)
    return base64.b64encode(packer.compress(details.encode()) + packer.flush()).decode()


# Cells of the table of tests, and pytest-html's own texts in the language of the page

_PLAYER = re.compile(r'<div class="media">.*?(?=<div class="logwrapper">)', re.DOTALL)
_HAS_MEDIA = re.compile('"format_type": "(?:image|video)"')
_CASE_NUMBER = re.compile(r" data-case=(\d+) ")
_SORT_KEY = re.compile(r"(<td class=col-(\w+)[^>]*>)<!--(\w+)-->")
NO_OUTPUT = "No log output captured."  # pytest-html writes it for a test without output
_LONGEST = 200  # characters of a cell
# For the row of a test whose case is not judged yet.
UNJUDGED = CaseEntry("", "", 1, 1, Mode.CLUSTER.value, None, "", 0.0, metrics={}, findings=(), trials=())
_RANKS = (Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE, None, Ruling.PASSED)  # of rows, the worst first
UNJUDGED_ROW, OTHER_ROW = "none", "other"  # what rows without a verdict are found by
_HOST = {"#environment-header h2": "environment"}  # texts of pytest-html itself, and their keys in i18n


def header_cells(say: Language = ENGLISH) -> list[str]:
    return [
        f'<th class="sortable" data-column-type="{_slug(column)}">{escape(column.head(say))}</th>'
        for column in columns_of(Output.PAGE)
    ]


def _slug(column: Column) -> str:
    """pytest-html finds the values that it sorts by with `\\w+`."""
    return column.key.replace(" ", "_")


def translated_header(cell: str, say: Language) -> str:
    """A heading of pytest-html in the language of the page; the duration becomes that of the jobs."""
    for name, key in (("result", "result"), ("testId", "case or test"), ("duration", "job time")):
        if f'data-column-type="{name}"' in cell:
            title = f' title="{escape(say("job time means"))}"' if name == "duration" else ""
            return f'<th class="sortable" data-column-type="{name}"{title}>{escape(say(key))}</th>'
    return f"<th>{escape(say('links'))}</th>" if "Links" in cell else cell


def case_cells(
    case: CaseEntry | None, say: Language = ENGLISH, number: int | None = None, outcome: str = ""
) -> list[str]:
    """Our cells of a row. A test without a case has empty ones, but for pytest's outcome in place of a verdict."""
    return [_column_cell(column, case, say, number, outcome) for column in columns_of(Output.PAGE)]


def _column_cell(column: Column, case: CaseEntry | None, say: Language, number: int | None, outcome: str) -> str:
    # Without quotes where HTML needs none: pytest-html has every cell in its data twice.
    start = f"<td class=col-{_slug(column)}"
    if column.key != "verdict":
        inside = (
            _order(column.value(case) if column.value else None) + column_cell(column, case, say, _LONGEST)
            if case
            else ""
        )
        return f"{start}>{inside}</td>"
    at = "" if number is None else f" data-case={number}"
    if case:
        verdict = case.verdict.value if case.verdict else UNJUDGED_ROW
        return f"{start}{at} data-verdict={verdict}><!--{_RANKS.index(case.verdict)}-->{ruling(case.verdict, say)}</td>"
    word = badge(say(f"one {outcome.lower()}"), outcome) if outcome else ""
    return f"{start} data-verdict={OTHER_ROW}><!--{5 + (outcome == 'Passed')}-->{word}</td>"


def _order(value: float | None) -> str:
    """A hidden text that sorts like the number, because the page sorts cells as strings: the bits of a float are in
    numeric order once the sign is flipped (and all bits, below zero)."""
    if value is None:
        return ""
    bits = int.from_bytes(struct.pack(">d", value), "big")
    bits ^= 0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63
    return f"<!--{bits:016x}-->"


def name_cell(case: CaseEntry, cell: str, say: Language) -> str:
    """The case, which opens its details; the test below it, and why it did not pass."""
    test = re.sub("<[^>]*>", "", cell)
    why = (
        ""
        if case.verdict is Ruling.PASSED
        else f"<span class=hint>{text(translated(case.reason, say), _LONGEST)}</span>"
    )
    name = text(case.id)
    inside = f"<button type=button aria-expanded=false>{name}</button>{why}<span class=hint>{test}</span>"
    return f"<!--<td class=col-testId>{name}</td>--><td class=col-testId>{inside}</td>"


def duration_cell(case: CaseEntry) -> str:
    """How long the jobs of the case ran, as pytest-html writes and sorts durations."""
    seconds = total(case, "ran_s") or 0.0
    whole = round(seconds)
    clock = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    value = f"{round(seconds * 1000)} ms" if seconds < 1 else clock
    if total(case, "ran_s") is not None:
        return f"<td class=col-duration>{value}</td>"
    return f"<!--<td class=col-duration>{value}</td>--><td class=col-duration>-</td>"  # it sorts by the first


def tools(cases: Sequence[CaseEntry], others: int, say: Language) -> str:
    """The heading of the table, and what finds, opens and prints its rows."""
    counts = verdict_counts(cases)
    chips = [("", say("all rows", count=len(cases) + others))]
    chips += [
        (each.value if each else UNJUDGED_ROW, f"{counts[each]} {say.word(each.value) if each else say('not judged')}")
        for each in _RANKS
        if counts[each]
    ]
    chips += [(OTHER_ROW, say("other tests", count=others))] if others else []
    buttons = "".join(
        f"<button type='button' data-of='{of}' aria-pressed='{'false' if of else 'true'}'>{escape(words)}</button>"
        for of, words in chips
    )
    last = "".join(
        f"<button type='button' id='aisbench-{name}'>{escape(say(key))}</button>"
        for name, key in (
            ("open", "show all"), ("close", "hide all"), ("print", "print sheet"), ("print-all", "print all"),
        )
    )  # fmt: skip
    search = escape(say("search"))
    return (
        f"<div class='look aisbench'><h2>{escape(say('cases heading'))}</h2><div class='tools'>"
        f"<input type='search' id='aisbench-search' placeholder='{search}' aria-label='{search}'>"
        f"<div class='chips' id='aisbench-verdicts'>{buttons}</div><div class='last'>{last}</div></div>"
        f"<p id='aisbench-none' class='hint' hidden>{escape(say('no row'))}</p></div>"
    )


def translation_script(say: Language) -> str:
    """A script that translates the texts of pytest-html."""
    if say.is_source:
        return ""
    table = {selector: say(key) for selector, key in _HOST.items()}
    lines = [
        "const put=(at,change)=>{const node=document.querySelector(at)?.firstChild",
        "if(node)node.data=change(node.data)}",
        f"for(const [at,text] of Object.entries({_literal(table)}))put(at,()=>text)",
        "const made=/^Report generated on (\\S+) at (\\S+) by\\s+/",
        f"put('#title+p',text=>text.replace(made,{_literal(say('made'))}))",
    ]
    return f"<script>{{{';'.join(lines)}}}</script>"


def _literal(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")


# The look of the page

_ALWAYS_LIGHT = "<script>document.documentElement.dataset.theme='light'</script>"  # as the rest of a user's own page


def page_style(say: Language) -> str:
    """The style of our parts, and of a page that is ours alone."""
    pictures = "".join(
        f".aisbench svg[{name}='{colour}'],.aisbench svg [{name}='{colour}']{{{name}:var(--{variable})}}"
        for colour, variable in VARIABLES.items()
        for name in ("fill", "stroke")
    )
    return f"{look()}{_read('page.css')}{pictures}{_hints(say)}"


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hints(say: Language) -> str:
    """The texts that pytest-html keeps in its style."""
    keys = ("hide details", "show details", "expand", "collapse")
    hide, show, more, less = (say(key).replace("\\", r"\\").replace("'", r"\'") for key in keys)
    return (
        f".page #environment-header h2:hover::after{{content:' ({hide})'}}"
        f".page #environment-header.collapsed h2:hover::after{{content:' ({show})'}}"
        f".page .logwrapper .logexpander:after{{content:'{more} [+]'}}"
        f".page .logwrapper.expanded .logexpander:after{{content:'{less} [-]'}}"
    )
