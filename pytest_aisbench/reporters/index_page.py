"""The page of the list of runs: its columns, its looks, and the few lines of script that sort it."""

from __future__ import annotations

COLUMNS = (
    ("run", "text"),
    ("started", "number"),
    ("platform", "text"),
    ("index nodes", "text"),
    ("index cases", "number"),
    ("exit code", "number"),
    ("duration", "number"),
    ("files", ""),
)
STYLE = """
:root{color-scheme:light dark;--ink:#1f2933;--faint:#5f6b78;--line:#d5dae0;--head:#f3f5f7;--page:#fff;--link:#1d4f91;
--good:#166534;--bad:#b42318;--doubt:#8a5300}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--faint:#9aa5b1;--line:#3a434d;--head:#232a31;--page:#181d22;
--link:#8ab4f0;--good:#6fcf97;--bad:#ff8a80;--doubt:#f0b95c}}
body{background:var(--page);color:var(--ink);font:14px/1.5 system-ui,"Noto Sans SC","Microsoft YaHei",sans-serif;
max-width:1300px;margin:24px auto;padding:0 16px}
h1{font-size:20px;margin:0}
p{color:var(--faint);margin:2px 0 14px}
div{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:5px 10px;text-align:left;vertical-align:top}
th{background:var(--head);white-space:nowrap}
th button{all:unset;cursor:pointer;font-weight:600}
th button:focus-visible{outline:2px solid var(--link)}
th[aria-sort=ascending] button::after{content:" \\25B2"}
th[aria-sort=descending] button::after{content:" \\25BC"}
td{white-space:nowrap}
td span{white-space:nowrap;margin-right:8px}
a{color:var(--link);margin-right:8px}
.PASSED{color:var(--good)}.FAILED,.BROKEN{color:var(--bad);font-weight:600}.INCONCLUSIVE{color:var(--doubt);font-weight:600}
.not-judged{color:var(--faint)}
@media print{th button::after{content:""}body{max-width:none;margin:0}}
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
PAGE = """<!DOCTYPE html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
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
