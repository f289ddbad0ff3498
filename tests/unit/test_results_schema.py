"""The published schema of `results.json`: what we write is valid, and what would mislead a reader is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import results_schema
import showcase

from pytest_aisbench.report.results import results_document


@pytest.fixture
def results() -> Any:
    """Of a run in which everything that a report can show has happened."""
    return json.loads(json.dumps(results_document(showcase.run())))


def test_every_verdict_is_valid(results: Any) -> None:
    assert {case["verdict"] for case in results["cases"]} >= {"PASSED", "FAILED", "BROKEN", "INCONCLUSIVE"}
    assert any(trial["stragglers"] for case in results["cases"] for trial in case["trials"])
    results_schema.check(results)


def test_a_run_that_is_under_way_is_valid() -> None:
    case = replace(showcase.case(), verdict=None, reason="", findings=(), trials=())
    entry = replace(showcase.run((case,)), finished=None, exit_code=None)
    results_schema.check(json.loads(json.dumps(results_document(entry))))


def _case(act: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda results: act(results["cases"][0])


def _trial(act: Callable[[Any], object]) -> Callable[[Any], object]:
    return _case(lambda case: act(case["trials"][0]))


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda results: results.update(schema="aisbench-results/2"), "$.schema"),
        (lambda results: results.pop("uploads"), "$: 'uploads'"),
        (lambda results: results.update(started="2025-10-09 08:53"), "$.started"),
        (_case(lambda case: case.update(verdict="OK")), "$.cases[0].verdict"),
        (_case(lambda case: case.pop("verdict")), "$.cases[0]: 'verdict'"),
        (_case(lambda case: case.update(alone=True)), "$.cases[0]: Additional properties"),
        (_case(lambda case: case["findings"][0].update(outcome="missed")), "$.cases[0].findings[0].outcome"),
        (_case(lambda case: case.update(verdict=None)), "$.cases[0].findings"),
        (_case(lambda case: case["metrics"]["throughput"].update(value="1.0")), "$.cases[0].metrics.throughput.value"),
        (_trial(lambda trial: trial.update(phase="Completed")), "$.cases[0].trials[0].phase"),
        (_trial(lambda trial: trial.update(ran_s=-1.0)), "$.cases[0].trials[0].ran_s"),
        (_trial(lambda trial: trial["throughput_by_rank"].append("fast")), "$.cases[0].trials[0].throughput_by_rank"),
    ],
)
def test_what_would_mislead_a_reader_is_not_valid(results: Any, spoil: Callable[[Any], object], where: str) -> None:
    spoiled = copy.deepcopy(results)
    spoil(spoiled)
    with pytest.raises(AssertionError) as raised:
        results_schema.check(spoiled)
    assert where in str(raised.value)
