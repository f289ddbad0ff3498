"""One table of columns: a row that is added there is shown by every report that it names, and by no other."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
import showcase

from pytest_aisbench.i18n import ENGLISH, language, languages
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.model.verdict import Finding, Outcome
from pytest_aisbench.report import ci, columns, page
from pytest_aisbench.report.columns import COLUMNS, Column, Output
from pytest_aisbench.report.page_head import acceptance_sheet
from pytest_aisbench.report.terminal import summary_lines


def reports() -> dict[Output, str]:
    run = showcase.run()
    case = run.cases[0]
    return {
        Output.PAGE: "".join([*page.header_cells(), *page.case_cells(case)]),
        Output.PAPER: acceptance_sheet(run.cases, run, ENGLISH),
        Output.TERMINAL: "\n".join(line for line, _ in summary_lines(run, "report.html", 200)),
        Output.MARKDOWN: ci.markdown_summary(run),
        Output.CSV: ci.csv_table(run),
    }


@pytest.mark.parametrize("output", Output)
def test_a_new_row_of_the_table_is_a_new_column_of_the_reports_that_it_names(
    monkeypatch: pytest.MonkeyPatch, output: Output
) -> None:
    assert [where for where, text in reports().items() if "4711" in text] == []

    new = Column("ran", output, text=lambda _case, _say: "4711 made", value=lambda _case: 4711.0)
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, new))

    told = reports()
    assert [where for where, text in told.items() if "4711" in text] == [output]
    assert "ran" in told[output]


@pytest.mark.parametrize("code", languages())
def test_every_column_for_people_has_a_heading_in_every_language(code: str) -> None:
    people = [column for column in COLUMNS if column.outputs != Output.CSV]
    assert all(column.text for column in people)
    assert all(column.head(language(code)) for column in people)


def test_the_columns_are_those_that_readers_know() -> None:
    def headings(output: Output) -> list[str]:
        return [column.inline_head(ENGLISH) for column in columns.columns_of(output)]

    table = ["case", "verdict", "throughput", "wanted", "accuracy", "wanted"]
    shares = ["% of ref.", "scaling"]
    assert headings(Output.TERMINAL) == [*table[:4], *shares, *table[4:], "why"]
    assert headings(Output.PAPER) == [*table[:4], "% of ref.", *table[4:], "trained with"]
    assert headings(Output.MARKDOWN) == [*table, "trained with", "trials", "card-hours"]
    assert headings(Output.PAGE) == [
        *("verdict", "throughput", "% of ref.", "accuracy", "wanted", "trained with", "remarks")
    ]


def test_all_reports_show_what_the_threshold_wants_and_not_a_later_finding_on_its_metric() -> None:
    case = with_drift(showcase.run().cases[0])
    run = replace(showcase.run(), cases=(case,))
    wanted = columns.wanted(case, "throughput")

    lines = [line for line, _ in summary_lines(run, "report.html", 200)]
    row = next(line for line in lines if line.startswith(case.id) and "  " in line)
    assert "no drift" not in row + "".join(page.case_cells(case)) + ci.markdown_summary(run).split("| case |")[1]
    assert wanted.partition(" ")[0] in row


def with_drift(case: CaseEntry) -> CaseEntry:
    return replace(case, findings=(*case.findings, Finding("throughput", Outcome.MET, None, "no drift", "no drift")))


def test_the_file_for_plots_has_numbers_only() -> None:
    names, values = csv.reader(io.StringIO(ci.csv_table(showcase.run())))
    assert {name.partition(" ")[2] for name in names} >= {"throughput", "efficiency", "ran seconds", "card hours"}
    assert all(float(value) >= 0 for value in values)
