"""The columns that reports show of a case: one table, from which every report takes those that it shows.

To add a column, add a row to `COLUMNS` and its heading to the section `report` of each file of `i18n/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Flag, auto

from pytest_aisbench.i18n import Language
from pytest_aisbench.model.job import TrainedWith
from pytest_aisbench.model.messages import begins_with, fact_of, plain, translated
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.model.verdict import Finding, Outcome, Ruling, number

Text = Callable[[CaseEntry, Language], str]
NOT_MEASURED = "-"
ALWAYS = 99  # attempts of the terminal to fit all columns in
_FIRST_CLAUSE = re.compile(r"[:;] | \(|[：；（]")


class Output(Flag):
    """Where a column is shown."""

    PAGE = auto()  # the rows of report.html
    PAPER = auto()  # the list of cases in a printed report.html
    TERMINAL = auto()  # the summary at the end of a run
    MARKDOWN = auto()  # summary.md
    CSV = auto()  # metrics.csv, which has every metric of the workload besides


_PEOPLE = Output.PAPER | Output.TERMINAL | Output.MARKDOWN


@dataclass(frozen=True)
class Column:
    key: str  # the name in metrics.csv, and of the column in report.html
    outputs: Output
    text: Text | None = None  # for people; None if only CSV shows it
    value: Callable[[CaseEntry], float | None] | None = None  # what CSV has, and what report.html sorts by
    heading: str = ""  # the key of its heading in `i18n`; the key of the column if empty
    digits: int = 4  # significant ones, in CSV
    # On paper, and on the terminal where the table is too wide for `text`:
    brief: Text | None = None
    brief_from: int = 0  # the attempt at which the terminal takes it; paper is as attempt 0
    attempts: int = ALWAYS  # how many of the terminal's attempts to fit all columns in have this one
    wraps: bool = False  # on the terminal, cells may have several lines

    def head(self, say: Language) -> str:
        return say(self.heading or self.key)

    def inline_head(self, say: Language) -> str:
        return say.inline(self.heading or self.key)

    def cell(self, case: CaseEntry, say: Language, attempt: int | None = None) -> str:
        """The text for people; a shorter one if the attempt to fit it in is that far."""
        if self.brief and attempt is not None and attempt >= self.brief_from:
            return self.brief(case, say)
        return self.text(case, say) if self.text else ""


def columns_of(output: Output) -> list[Column]:
    return [column for column in COLUMNS if output in column.outputs]


def total(case: CaseEntry, name: str) -> float | None:
    """The sum over all trials, in seconds; None if no trial has a value."""
    values = [value for trial in case.trials if (value := getattr(trial, name)) is not None]
    return round(sum(values), 3) if values else None


def wanted(case: CaseEntry, metric: str) -> str:
    """What the threshold on this metric wants; of several findings on it, the first is that on its threshold."""
    return next((finding.wanted for finding in case.findings if finding.metric == metric), "")


def verdict_text(case: CaseEntry, say: Language) -> str:
    """The verdict with its meaning in the language of the report."""
    return say.word(case.verdict.value) if case.verdict else say("not judged")


def share_of_reference(case: CaseEntry) -> str:
    """The throughput in percent of its reference; empty without either."""
    return "" if case.of_reference is None else f"{case.of_reference:.1%}"


def trained_with_text(software: TrainedWith | None, say: Language) -> str:
    """What really trained, in few words: `torch 2.13.0`, `numpy miniature` or `unknown`."""
    if software is None:
        return NOT_MEASURED
    if software.miniature:
        return say("miniature", name=software.name)
    return f"{software.name} {software.version}".rstrip() or say("unknown software")


def trained_with_sentence(case: CaseEntry, say: Language) -> str:
    """The same, with what a miniature stands in for and how to train with that; empty if no log was read."""
    software = case.trained_with
    if software is None:
        return ""
    text = trained_with_text(software, say)
    if software.instead_of:
        text = say("miniature instead", miniature=text, framework=software.instead_of)
    if software.real:
        text = say("real framework", text=text, framework=software.instead_of, option=software.real)
    return text


def _bare_verdict(case: CaseEntry, say: Language) -> str:
    return case.verdict.value if case.verdict else say("not judged")


def _value(case: CaseEntry, metric: str) -> float | None:
    return case.metrics[metric].value if metric in case.metrics else None


def _unit(case: CaseEntry, metric: str) -> str:
    return case.metrics[metric].unit if metric in case.metrics else ""


def _measured(case: CaseEntry, metric: str, unit: str) -> str:
    value = _value(case, metric)
    return NOT_MEASURED if value is None else f"{number(value)} {unit}".rstrip()


def _first_number(text: str) -> float | None:
    match = re.search(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text)
    return float(match[0]) if match else None


def reason_in_brief(case: CaseEntry, say: Language) -> str:
    """Why the case did not pass, in a few words; empty if it passed, or was not judged."""
    if case.verdict is None or case.verdict is Ruling.PASSED:
        return ""
    decisive = [each for each in case.findings if each.outcome in {Outcome.MISSED, Outcome.UNMEASURED}]
    decisive = decisive or [each for each in case.findings if each.outcome is Outcome.UNDECIDED]
    # A job or a test that failed leaves no findings that decide.
    if not decisive or begins_with(case.reason, "test failed") or begins_with(case.reason, "test error"):
        return _FIRST_CLAUSE.split(plain(translated(case.reason, say)), maxsplit=1)[0].strip()
    clauses = dict.fromkeys(_finding_in_brief(each, say) for each in decisive)
    ranks = case.trials[-1].throughput_by_rank if case.trials else ()
    if None in ranks and any(each.outcome is Outcome.UNMEASURED for each in decisive):
        clauses[say("rank n", first=ranks.index(None))] = None
    return say("comma").join(clauses)


def _finding_in_brief(finding: Finding, say: Language) -> str:
    """`throughput 5.2% below`, or `scaling undecided`."""
    metric = say.metric_meaning(finding.metric)
    for key in ("below", "above"):
        if finding.outcome is Outcome.MISSED and (share := fact_of(finding.text, key, "share")):
            return say(f"brief {key}", metric=metric, share=share)
    return say("brief", metric=metric, outcome=say.meaning(finding.outcome.value))


def _of_metric(metric: str, brief_from: int, attempts: int) -> tuple[Column, ...]:
    """What was measured, and what was wanted of it: in the same unit, so it is not repeated where room is short."""

    def wanted_without_unit(case: CaseEntry, _say: Language) -> str:
        return wanted(case, metric).removesuffix(f" {_unit(case, metric)}") or NOT_MEASURED

    return (
        Column(
            metric,
            Output.PAGE | _PEOPLE,
            text=lambda case, _say: _measured(case, metric, _unit(case, metric)),
            value=lambda case: _value(case, metric),
            brief=(lambda case, _say: _measured(case, metric, "")) if brief_from else None,
            brief_from=brief_from,
            attempts=attempts,
        ),
        Column(
            f"{metric} wanted",
            _PEOPLE,
            text=lambda case, _say: wanted(case, metric) or NOT_MEASURED,
            value=lambda case: _first_number(wanted(case, metric)),
            heading="wanted",
            brief=wanted_without_unit,
            attempts=3,
        ),
    )


def _both_wanted(case: CaseEntry, _say: Language) -> str:
    return "; ".join(filter(None, (wanted(case, metric) for metric in (THROUGHPUT, ACCURACY))))


def _remark_counts(case: CaseEntry) -> dict[str, int]:
    """Counts of what deserves a look although it did not decide the verdict."""
    if not case.trials:
        return {}
    last, trials = case.trials[-1], len(case.trials)
    return {"slow": len(last.stragglers), "notes": len(last.notes), "trials": trials if trials > 1 else 0}


def _remarks(case: CaseEntry, say: Language) -> str:
    return ", ".join(say(key, count=count) for key, count in _remark_counts(case).items() if count)


COLUMNS = (
    Column("case", _PEOPLE, text=lambda case, _say: case.id),
    Column("verdict", Output.PAGE | _PEOPLE, text=verdict_text, brief=_bare_verdict, brief_from=1),
    *_of_metric(THROUGHPUT, brief_from=2, attempts=ALWAYS),
    Column(
        "reference share",
        Output.PAGE | Output.PAPER | Output.TERMINAL,
        text=lambda case, _say: share_of_reference(case) or NOT_MEASURED,
        value=lambda case: case.of_reference,
        attempts=6,
    ),
    Column(
        "scaling",
        Output.TERMINAL,
        text=lambda case, _say: NOT_MEASURED if case.efficiency is None else number(case.efficiency, 3),
        heading="scaling column",
        attempts=4,
    ),
    *_of_metric(ACCURACY, brief_from=0, attempts=5),
    # A row of the page has the two in one cell.
    Column(
        "wanted",
        Output.PAGE,
        text=_both_wanted,
        value=lambda case: _first_number(wanted(case, THROUGHPUT) or wanted(case, ACCURACY)),
    ),
    Column(
        "trained with",
        Output.PAGE | Output.PAPER | Output.MARKDOWN,
        text=lambda case, say: trained_with_text(case.trained_with, say),
    ),
    Column("remarks", Output.PAGE, text=_remarks, value=lambda case: float(sum(_remark_counts(case).values())) or None),
    Column("why", Output.TERMINAL, text=reason_in_brief, attempts=6, wraps=True),
    Column("trials", Output.MARKDOWN, text=lambda case, _say: str(len(case.trials)), heading="trials column"),
    Column("efficiency", Output.CSV, value=lambda case: case.efficiency),
    Column("ran seconds", Output.CSV, value=lambda case: total(case, "ran_s"), digits=2),
    Column(
        "card hours",
        Output.MARKDOWN | Output.CSV,
        text=lambda case, _say: number(case.card_hours),
        value=lambda case: case.card_hours,
        heading="card-hours column",
        digits=2,
    ),
)


def common_unit(cases: Sequence[CaseEntry]) -> str:
    """The unit of every throughput that was measured; empty if they differ."""
    units = {_unit(case, THROUGHPUT) for case in cases if _value(case, THROUGHPUT) is not None}
    return units.pop() if len(units) == 1 else ""
