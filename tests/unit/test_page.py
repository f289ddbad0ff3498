"""The pieces of the HTML page: numbers sort as numbers, and a case never grows heavy."""

from __future__ import annotations

import json
import re
from html import escape

import pytest

from pytest_aisbench.domain.entry import CaseEntry, TrialEntry, Value
from pytest_aisbench.domain.verdict import Finding, Outcome, Ruling
from pytest_aisbench.reporters.page import HEADERS, cells, details, overview

AMOUNTS = [-1e9, -2.5, -2.0, 0.0, 1e-9, 0.9, 9.5, 10.0, 123.4, 14151.2, 1e12]


def sort_key(cell: str) -> str:
    """What the page's script compares: the inside of the cell, as a string."""
    found = re.search(r"<td.*?>(.*?)</td>", cell)
    assert found
    return found[1]


@pytest.mark.parametrize("column", ["throughput", "accuracy"])
def test_numbers_sort_as_numbers(column: str) -> None:
    place = {"throughput": 1, "accuracy": 2}[column]
    keys = [sort_key(cells({"case": "a-1x1", column: amount})[place]) for amount in AMOUNTS]

    assert sorted(keys) == keys
    assert sort_key(cells({"case": "a-1x1"})[place]) < keys[0]  # not measured


def test_what_was_wanted_sorts_by_its_number() -> None:
    wanted = [">= 9.5 images/s", "<= 10 images/s", "100 .. 200 images/s", ">= 1e+20 images/s"]
    keys = [sort_key(cells({"case": "a-1x1", "throughput.wanted": text})[3]) for text in wanted]

    assert sorted(keys) == keys


def test_other_tests_have_as_many_cells() -> None:
    assert len(cells({})) == len(HEADERS) == len(cells({"case": "a-1x1"}))


def heavy() -> CaseEntry:
    noisy = "<b>&'\"" * 1000
    finding = Finding("throughput", Outcome.UNMEASURED, None, noisy, noisy)
    trial = TrialEntry(
        trial=1,
        job_id=noisy,
        platform_phase=noisy,
        phase="FAILED",
        queued_s=None,
        ran_s=7300.0,
        throughput_by_rank=tuple(None if rank % 2 else 100.0 + rank % 7 for rank in range(2048)),
        throughput_by_server=(),
        accuracy_by_server=(),
        stragglers=(),
        logs=tuple(f"logs/case/1/worker-{node}.log" for node in range(256)),
        stage=noisy,
        times={"stage": 0.0},
        notes=(noisy,) * 256,
    )
    metrics = {"throughput": Value(None, noisy), "accuracy": Value(None, "")}
    return CaseEntry(
        id="heavy-256x8",
        workload="heavy",
        nodes=256,
        devices_per_node=8,
        mode="cluster",
        verdict=Ruling.FAILED,
        reason=noisy,
        card_hours=1.0,
        metrics=metrics,
        findings=(finding,) * 256,
        trials=(trial,) * 256,
    )


def test_the_heaviest_case_stays_within_its_budget() -> None:
    text = details(heavy(), lambda log: log)

    assert len(escape(json.dumps(text))) < 50_000  # as the page carries it
    assert text.count("and 246 more in results.json") == 2  # findings, notes
    assert "and 224 more in results.json" in text  # logs
    assert not re.search("<b[ >]", text)


def test_the_overview_counts_every_verdict() -> None:
    text = re.sub("<[^>]*>", "", overview([heavy(), heavy()], None))

    assert text == "2 cases: 2 FAILED; 2 card-hours"
