"""`index.html` among the reports: all runs on one page, the newest first, with links to the files of each."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from urllib.parse import quote

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.runs import UNJUDGED, RunSummary, newest_runs
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import Executor
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.report.charts import look
from pytest_aisbench.report.text import as_typed, safe_link, span, utc_time, write_text

_LOG = get_logger("report")
NAME = "index.html"
MOST = 500  # runs on the page
_REPORT = "report.html"
_LINKS = ("allure.html", "results.json", "junit.xml")
_BATCH = 200


def write(database: Database, reports: Path, say: Language = ENGLISH) -> Path:
    """Write the page. Runs that end together write one after the other, so that the last one lists all of them."""
    path = reports / NAME
    with _exclusively(reports):
        runs, more = _present(database, reports)
        write_text(path, page(runs, reports, say, more=more))
    return path


@contextmanager
def _exclusively(reports: Path) -> Iterator[None]:
    with (reports / f".{NAME}.lock").open("w") as lock:
        # On a file system without locks, the last writer wins.
        with ignored(_LOG, OSError, "the lock of %s", lock.name):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _present(database: Database, reports: Path) -> tuple[list[RunSummary], bool]:
    """The newest runs whose folder is here, and whether there are more: several workspaces may share a ledger."""
    here = {entry.name for entry in os.scandir(reports) if entry.is_dir(follow_symlinks=False)}
    runs: list[RunSummary] = []
    skip = 0
    while batch := newest_runs(database, _BATCH, skip=skip):
        skip += len(batch)
        runs += [run for run in batch if run.run in here]
        if len(runs) > MOST:
            return runs[:MOST], True
    return runs, False


def page(runs: Sequence[RunSummary], reports: Path, say: Language, *, more: bool = False) -> str:
    heads = "".join(
        f'<th scope="col" data-kind="{kind}"><button type="button">{escape(say(name))}</button></th>'
        for name, kind in COLUMNS
    )
    rows = "\n".join(_row(run, reports, say) for run in runs)
    note = say("index newest", count=MOST) if more else say("index runs", count=len(runs))
    return PAGE.format(
        lang=say.catalogue.html_lang,
        title=escape(say("index title")),
        note=escape(note),
        heads=heads,
        rows=rows,
        style=look() + STYLE,
        script=SCRIPT,
    )


COLUMNS = (
    ("run", "text"),
    ("started", "number"),
    ("platform", "text"),
    ("index nodes", "text"),
    ("commit", "text"),
    ("build", "text"),
    ("index cases", "number"),
    ("exit code", "number"),
    ("duration", "number"),
    ("files", ""),
)


def _build(executor: Executor) -> str:
    """The CI server and its build, with a link to it."""
    name = escape(plain(f"{executor.name} {executor.build}".strip()))
    url = safe_link(executor.url)
    return f'<a href="{escape(url)}">{name}</a>' if url else name


def _row(run: RunSummary, reports: Path, say: Language) -> str:
    started = datetime.fromtimestamp(run.started, timezone.utc).isoformat()
    seconds = None if run.finished is None else max(run.finished - run.started, 0.0)
    nodes = as_typed(run.settings.get("nodes") or [say("all")])
    code = say("not finished") if run.exit_code is None else str(run.exit_code)
    cells = [
        (run.run, f"<code>{_linked(run.run, _REPORT, escape(plain(run.run)), reports)}</code>"),
        (str(run.started), f'<time datetime="{started}">{utc_time(run.started)}</time>'),
        ("", escape(plain(str(run.settings.get("platform", ""))))),
        ("", escape(plain(nodes))),
        ("", f"<code>{escape(plain(run.executor.commit_text))}</code>"),
        ("", _build(run.executor)),
        (str(_weight(run)), _verdicts(run, say)),
        ("-1" if run.exit_code is None else code, escape(code)),
        (str(-1.0 if seconds is None else seconds), escape(span(seconds, say))),
        ("", _links(run.run, reports)),
    ]
    row = "".join(
        f'<td data-value="{escape(value)}">{text}</td>' if value else f"<td>{text}</td>" for value, text in cells
    )
    return f"<tr>{row}</tr>"


def _weight(run: RunSummary) -> int:
    """How badly a run ended, to sort by: failures weigh more than broken cases."""
    counts = run.verdicts
    return sum(
        factor * counts.get(ruling.value, 0)
        for ruling, factor in ((Ruling.FAILED, 10**8), (Ruling.BROKEN, 10**4), (Ruling.INCONCLUSIVE, 1))
    )


def _verdicts(run: RunSummary, say: Language) -> str:
    order = [*(ruling.value for ruling in Ruling), UNJUDGED]
    counts = [(name, run.verdicts[name]) for name in order if run.verdicts.get(name)]
    words = {name: say(name) if name == UNJUDGED else say.meaning(name) for name in order}
    return " ".join(
        f'<span class="verdict {"" if name == UNJUDGED else name.lower()}">{count} {escape(words[name])}</span>'
        for name, count in counts
    )


def _links(run: str, reports: Path) -> str:
    return " ".join(_linked(run, name, name, reports) for name in _LINKS if (reports / run / name).is_file())


def _linked(run: str, name: str, text: str, reports: Path) -> str:
    return f'<a href="{quote(f"{run}/{name}")}">{text}</a>' if (reports / run / name).is_file() else text


# The look of the page, and the script that sorts it

PAGE = """<!DOCTYPE html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body class="look">
<h1>{title}</h1>
<p>{note}</p>
<div><table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<script>{script}</script>
</body>
</html>
"""
STYLE = """
body.look{max-width:1300px;margin:24px auto;padding:0 16px}
h1{margin:0}
p{color:var(--soft);margin:2px 0 14px}
div{overflow-x:auto}
table{width:100%;font-variant-numeric:tabular-nums}
th,td{white-space:nowrap}
th button{all:unset;cursor:pointer;font-weight:600}
th button:focus-visible{outline:2px solid var(--link)}
th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}
td a,td span{margin-right:6px}
@media print{th button::after{content:""}body.look{max-width:none;margin:0}}
"""
SCRIPT = """
document.querySelectorAll("th button").forEach(function (button) {
  button.addEventListener("click", function () {
    const head = button.parentElement, body = document.querySelector("tbody");
    const down = head.getAttribute("aria-sort") === "ascending";
    const at = head.cellIndex, isNumber = head.dataset.kind === "number";
    const value = function (row) {
      const cell = row.cells[at];
      return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value;
    };
    const rows = Array.from(body.rows).sort(function (a, b) {
      const x = value(a), y = value(b);
      const order = isNumber ? Number(x) - Number(y) : x.localeCompare(y, undefined, {numeric: true});
      return down ? -order : order;
    });
    document.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append.apply(body, rows);
  });
});
"""
