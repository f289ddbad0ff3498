"""The files for CI servers, each read by a strict reader of its format, also where strangers chose the words."""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from factories import make_case_entry, make_run_entry, make_trial_entry
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_page import Page
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytest_aisbench.i18n import language
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import Pace
from pytest_aisbench.model.results import CaseEntry, RunEntry, Straggler, Value
from pytest_aisbench.model.verdict import Background, Finding, Outcome, Ruling, ScalePoint
from pytest_aisbench.report import ci
from pytest_aisbench.report.ci import github_annotations

HOSTILE = (
    "<script>alert(1)</script> ]]> | `code` **bold** [x](javascript:1) ![i](http://e) \x1b[31m\x00\n"
    "# h \u202e \\ \" 'é'"
)
TRIAL = make_trial_entry(
    queued_s=1.2345, ran_s=61.4, stragglers=(Straggler(0, 3, 3, 0.8, 0.02),), logs=("logs/a-2x8/1/worker-0.log",),
    traits={"cann": "5.0.2"}, console="https://console.example/jobs/1",
)  # fmt: skip
PASSED = make_case_entry(
    "2x8", "a", reason="fine", card_hours=0.272889,
    metrics={"throughput": Value(14151.2, "images/s"), "accuracy": Value(0.761234, "")},
    findings=(
        Finding("throughput", Outcome.MET, 14151.2, ">= 13443.6 images/s", "fine"),
        Finding("accuracy", Outcome.MET, 0.761234, ">= 0.759", "fine"),
    ),
    trials=(TRIAL,),
    background=Background(
        reference=14200.0, interval=(14000.0, 14300.5), scaling=(ScalePoint("2x8", 1.0, 0.934567, "this run"),)
    ),
)  # fmt: skip
FAILED = replace(PASSED, id="b-2x8", workload="b", verdict=Ruling.FAILED, reason="too slow", background=None)
BROKEN = replace(
    FAILED, id="c-2x8", verdict=Ruling.BROKEN, reason="no answer", findings=(), trials=(),
    metrics={"throughput": Value(None, "images/s")}, card_hours=0.0,
)  # fmt: skip
WILD = replace(
    FAILED,
    id="wild-1x1",
    workload="wild",
    reason=HOSTILE,
    metrics={"throughput": Value(1.0, HOSTILE), "perplexity": Value(7.25, HOSTILE)},
    findings=(Finding("throughput", Outcome.MISSED, 1.0, HOSTILE, HOSTILE),),
    trials=(replace(TRIAL, job_id=HOSTILE, platform_phase=HOSTILE, notes=(HOSTILE,), logs=(f"worker {HOSTILE}",)),),
)
WAITING = replace(BROKEN, id="late-1x1", verdict=None, reason="not judged")


def run(*cases: CaseEntry, code: int | None = 1, **told: Any) -> RunEntry:
    return make_run_entry(*cases, exit_code=code, settings={"platform": "local", **told})


def families(text: str) -> list[Any]:
    """As the strictest reader has them."""
    return [*text_string_to_metric_families(text)]  # type: ignore[no-untyped-call]


def samples(entry: RunEntry) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for family in families(ci.openmetrics_text(entry)):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("case", ""), sample.labels.get("aisbench_verdict", ""))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.mark.parametrize("others", [(), (ScalePoint("4x8", 3.8, 0.95, "this run"),)])
def test_the_base_of_a_scaling_has_no_efficiency(others: tuple[ScalePoint, ...]) -> None:
    points = (ScalePoint("2x8", 2.0, 1.0, "this run"), *others)
    base = replace(FAILED, background=Background(scaling=points))
    assert ("aisbench_efficiency", "a-2x8", "") not in samples(run(base))
    assert "efficiency" not in ci.csv_table(run(base))
    assert ci.case_properties(base).get("efficiency") is None


def test_metrics_are_openmetrics_and_rounded() -> None:
    entry = run(FAILED, PASSED, BROKEN, WAITING, required=["a-2x8", "never-1x1"])
    found = samples(entry)
    assert found["aisbench_throughput", "a-2x8", ""] == 14150
    assert found["aisbench_accuracy", "a-2x8", ""] == 0.7612
    assert found["aisbench_efficiency", "a-2x8", ""] == 0.9346
    assert found["aisbench_card_hours", "a-2x8", ""] == 0.27
    assert found["aisbench_queued_seconds", "a-2x8", ""] == 1.2
    assert found["aisbench_ran_seconds", "a-2x8", ""] == 61
    assert found["aisbench_stragglers", "a-2x8", ""] == 1
    assert found["aisbench_trials", "c-2x8", ""] == 0
    assert found["aisbench_missing_cases", "", ""] == 1
    assert found["aisbench_exit_code", "", ""] == 1
    states = {key[1:]: value for key, value in found.items() if key[0] == "aisbench_verdict" and value}
    assert states == {("a-2x8", "PASSED"): 1, ("b-2x8", "FAILED"): 1, ("c-2x8", "BROKEN"): 1}
    assert ("aisbench_throughput", "c-2x8", "") not in found
    assert ci.openmetrics_text(entry).endswith("\n# EOF\n")
    assert ci.openmetrics_text(entry) == ci.openmetrics_text(replace(entry, cases=entry.cases[::-1], run="run-2"))


def test_warm_up_and_steady_state_stand_beside_the_whole_run() -> None:
    paced = replace(TRIAL, pace=Pace("samples/s", "rank", 800.04, warm_up_points=1, warm_up=400.0, steady=884.48))
    unsure = replace(TRIAL, pace=Pace("steps/s", "rank", 9.0))
    cases = (replace(PASSED, trials=(unsure, paced)), replace(FAILED, trials=(unsure,)), BROKEN)
    (family,) = [each for each in families(ci.openmetrics_text(run(*cases))) if each.name == "aisbench_pace"]
    found = {(each.labels["case"], each.labels["part"], each.labels["unit"]): each.value for each in family.samples}
    assert found == {
        ("a-2x8", "whole", "samples/s"): 800.0,
        ("a-2x8", "warm_up", "samples/s"): 400.0,
        ("a-2x8", "steady", "samples/s"): 884.5,
        ("b-2x8", "whole", "steps/s"): 9.0,
    }
    assert {each.labels["of"] for each in family.samples} == {"rank"}


def test_an_empty_run_is_openmetrics_too() -> None:
    assert ci.openmetrics_text(run(code=None)) == "# EOF\n"


def test_strangers_words_stay_labels() -> None:
    found = {family.name: family for family in families(ci.openmetrics_text(run(WILD)))}
    (sample,) = found["aisbench_measurement"].samples
    assert sample.labels["metric"] == "perplexity"
    assert sample.labels["unit"] == plain(HOSTILE)


@settings(deadline=None)
@given(unit=st.text(max_size=30), value=st.floats() | st.none(), reason=st.text(max_size=60))
@example(unit="", value=-sys.float_info.max, reason="")  # which cannot be rounded up
@pytest.mark.slow
def test_whatever_was_measured_the_files_can_be_read(unit: str, value: float | None, reason: str) -> None:
    case = replace(WILD, metrics={"throughput": Value(value, unit)}, reason=reason)
    families(ci.openmetrics_text(run(case)))
    names, values = csv.reader(io.StringIO(ci.csv_table(run(case))))
    assert len(names) == len(values)
    assert all(math.isfinite(float(each)) for each in values)
    assert columns(ci.markdown_summary(run(case))) == {9}


def test_the_table_for_plots_is_names_and_values() -> None:
    names, values = csv.reader(io.StringIO(ci.csv_table(run(FAILED, BROKEN, PASSED))))
    assert dict(zip(names, values, strict=True)) == {
        "a-2x8 throughput": "14150", "a-2x8 accuracy": "0.7612", "a-2x8 efficiency": "0.9346",
        "a-2x8 ran seconds": "61", "a-2x8 card hours": "0.27",
        "b-2x8 throughput": "14150", "b-2x8 accuracy": "0.7612", "b-2x8 ran seconds": "61", "b-2x8 card hours": "0.27",
        "c-2x8 card hours": "0",
    }  # fmt: skip


def columns(text: str) -> set[int]:
    return set(Page(text).rows)


def test_the_summary_says_what_is_wrong_first() -> None:
    warned = replace(PASSED, id="d-2x8", background=Background(warnings=("slower with every run",)))
    text = ci.markdown_summary(run(PASSED, FAILED, BROKEN, WAITING, warned, required=["never-1x1"], code=11))
    assert text.startswith("## aisbench: exit code 11, required cases are missing\n")
    told = ["never-1x1", "b-2x8", "c-2x8", "late-1x1", "d-2x8", "| case |", "| b-2x8 |", "| a-2x8 |", "report.html"]
    places = [text.index(part) for part in told]
    assert places == sorted(places)
    page = Page(text)
    assert "warning: slower with every run" in page.words
    assert page.links == ["https://console.example/jobs/1", *ci.FILES]
    assert "1 FAILED, 1 BROKEN, 1 not judged, 2 PASSED" in page.words


def test_the_summary_speaks_chinese() -> None:
    text = ci.markdown_summary(run(FAILED), language("zh"))
    assert "## aisbench：退出码 1" in text
    assert "FAILED" in text
    assert "| 用例 |" in text
    assert "what to do" not in text


def test_strangers_words_stay_text_in_the_summary() -> None:
    page = Page(ci.markdown_summary(run(WILD, replace(PASSED, metrics=WILD.metrics))))
    assert set(page.tags) <= {"h2", "p", "code", "ul", "li", "strong", "table", "thead", "tbody", "tr", "th", "td", "a"}
    assert page.tags.count("strong") == 1
    assert page.tags.count("code") == 1  # the run
    assert set(page.rows) == {9}
    assert plain(HOSTILE) in page.words
    assert [link for link in page.links if link not in ci.FILES] == ["https://console.example/jobs/1"]


def test_a_summary_of_thousands_of_cases_is_one_that_is_taken() -> None:
    cases = [replace(WILD, id=f"wild-{number}x1") for number in range(1, 4000)]
    text = ci.markdown_summary(run(*cases))
    assert 500_000 < len(text.encode()) <= ci.MOST
    assert "more in results.json" in text


def test_annotations_name_the_place_and_cannot_be_forged() -> None:
    noisy = replace(FAILED, id="n-1x1", verdict=Ruling.INCONCLUSIVE, reason="100% noise\n::error::forged")
    told = github_annotations(
        run(PASSED, FAILED, noisy, required=["never-1x1"]), {"b-2x8": ("/work/suites/b/test_b, c.py", 6)}, "/work"
    )
    assert told == [
        "::error title=never-1x1 is missing::required, and not judged",
        "::error file=suites/b/test_b%2C c.py,line=6,title=b-2x8 FAILED::too slow",
        "::warning title=n-1x1 INCONCLUSIVE::100%25 noise ::error::forged",
    ]
    many = github_annotations(run(*(replace(FAILED, id=f"b-{number}x1") for number in range(1, 40))), {}, "")
    assert len(many) == 10


def test_the_facts_of_a_case_are_all_that_was_measured_and_wanted() -> None:
    assert ci.case_properties(PASSED, "local") == {
        "case": "a-2x8", "workload": "a", "platform": "local", "nodes": "2", "devices_per_node": "8", "shape": "2x8",
        "mode": "cluster", "verdict": "PASSED", "reason": "fine", "trials": "1", "card_hours": "0.272889",
        "throughput": "14151.2", "throughput.unit": "images/s", "throughput.wanted": ">= 13443.6 images/s",
        "throughput.outcome": "met", "throughput.reference": "14200", "throughput.interval": "14000 .. 14300.5",
        "accuracy": "0.761234", "accuracy.wanted": ">= 0.759", "accuracy.outcome": "met", "efficiency": "0.934567",
        "job_id": "job-1", "phase": "SUCCEEDED", "queued_s": "1.234", "ran_s": "61.4",
        "stragglers": "node 0 card 3 (rank 3) runs at 80.0% of the median; total throughput -2.0%",
        "trait.cann": "5.0.2",
    }  # fmt: skip


@pytest.mark.parametrize("code", [0, 11, None])
def test_the_facts_of_a_run_say_how_it_ended(code: int | None) -> None:
    found = ci.run_properties(run(PASSED, code=code, required=["never-1x1"], nodes=[1, 2]))
    assert found["missing"] == "never-1x1"
    assert found["nodes"] == "1,2"
    assert found.get("exit_code") == (None if code is None else str(code))
    assert {"version", "python", "pytest"} <= set(found)
