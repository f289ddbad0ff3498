"""How the page looks: by day, by night and on paper."""

from __future__ import annotations

from pytest_aisbench.i18n import Language
from pytest_aisbench.reporters.svg_frame import NIGHT

# Of our own parts, on any page that they are in.
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

# Where the page is ours: the verdicts before the versions of packages, and darker ink than pytest-html's grey. How many
# tests took how long is not shown: it leaves some tests out, and of a run told again it is the retelling's time.
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


def page_style(say: Language) -> str:
    """For a page that is ours alone: also dark where the reader's screen is, never on paper."""
    pictures = "".join(
        f".aisbench svg[{name}='{day}'],.aisbench svg [{name}='{day}']{{{name}:{night}}}"
        for day, night in NIGHT.items()
        for name in ("fill", "stroke")
    )
    return f"{_PAGE}@media screen and (prefers-color-scheme:dark){{{_NIGHT}{pictures}}}{_hints(say)}"


def _hints(say: Language) -> str:
    """The words that pytest-html keeps in its style."""
    hide, show, more, less = (say(key) for key in ("hide details", "show details", "expand", "collapse"))
    return (
        f".col-result:hover::after{{content:' ({hide})'}}.col-result.collapsed:hover::after{{content:' ({show})'}}"
        f"#environment-header h2:hover::after{{content:' ({hide})'}}"
        f"#environment-header.collapsed h2:hover::after{{content:' ({show})'}}"
        f".logwrapper .logexpander:after{{content:'{more} [+]'}}"
        f".logwrapper.expanded .logexpander:after{{content:'{less} [-]'}}"
    )
