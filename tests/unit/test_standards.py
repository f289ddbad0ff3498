"""The fields of the standards: each with unit and source, or null with its reason, never 0."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import METRICS, UNIT, make_case, make_measurements, make_run_entry, make_trial
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.judge.standards import TIME, Field, standard_fields
from pytest_aisbench.judge.values import DERIVED, DerivedMetric
from pytest_aisbench.model.case import Mode
from pytest_aisbench.model.codec import dump, load
from pytest_aisbench.model.job import Power
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Measurement, Metric, MissingResult
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Background, Ruling, ScalePoint, Threshold, Verdict
from pytest_aisbench.report import results
from pytest_aisbench.report.results import Fields, fields_as_json
from pytest_aisbench.stash import SETTINGS
from pytest_aisbench.tester.payload import UNITS
from pytest_aisbench.traininglog.curve import read_curve

CASE = make_case("2x2", Threshold(THROUGHPUT, UNIT, at_least=1.0), Threshold(ACCURACY, at_least=0.9))
LOG = """eval epoch: 1, accuracy: 0.8, elapsed: 20 s
eval epoch: 2, accuracy: 0.93, elapsed: 41.5 s
train done starttime:1010.0 endtime:1060.0 stepsize:1 batchsize:4 epochsize:2 alldatasum:8 single_throughput_rate:9
"""
TRIAL = make_trial(
    CASE,
    job_id="j",
    measurements=make_measurements(CASE, [100.0, 100.0, 90.0, 90.0]),
    curve=read_curve(LOG),
    times={"stage": 990.0, "running": 1001.0, "harvest": 1070.0, "done": 1080.0},
    usage={"npu": 93.0, "npu memory": 50.0},
    power=Power(1900.0, 2500.0, 95_000.0, "bmc, over the training", gaps=("node 0: no sample for 20 s after 3 s",)),
    traits={
        "flavor": "modelarts.kat1.8xlarge",
        "framework": "mindspore",
        "framework_version": "mindspore_1.3",
        "cann": "5.0.2",
        "data": "obs://b/d/",
    },
    background=Background(scaling=(ScalePoint("1x2", 200.0, 1.0, "r"), ScalePoint("2x2", 380.0, 0.95, "this run"))),
)
NEVER = make_trial(CASE)
PASSED = Verdict(Ruling.PASSED, "all is well")


def entry(trial: Trial = TRIAL, verdict: Verdict | None = PASSED) -> CaseEntry:
    return case_entry(trial.case, (trial,), verdict)


def told(entry: CaseEntry) -> dict[str, Any]:
    return {name: field.value for name, field in standard_fields(entry).items()}


def test_everything_that_was_measured() -> None:
    found = told(entry())
    assert {name: found[name] for name in ("total_time", "prepare_time", "proc_time", "dataload_time")} == {
        "total_time": 90.0,
        "prepare_time": 9.0,
        "proc_time": 50.0,
        "dataload_time": None,
    }
    assert (found["proc_start_time"], found["proc_end_time"]) == (1010.0, 1060.0)
    assert (found["throughput_ratio"], found["throughput_per_card"], found["accuracy"]) == (380.0, 95.0, 0.95)
    assert (found["time_to_accuracy"], found["target_accuracy"]) == (41.5, 0.9)
    assert (found["average_power"], found["max_power"], found["energy_consumption"]) == (1900.0, 2500.0, 95_000.0)
    assert (found["efficientcy"], found["scaling_efficiency"]) == (0.2, 0.95)
    assert (found["resource_util_ratio"], found["npu_memory_util"]) == (93.0, 50.0)
    assert found["server_spread"] == pytest.approx(200 / 180)
    assert (found["framework_version"], found["cann"], found["driver"]) == ("mindspore_1.3", "5.0.2", None)
    assert found["hardware"] == "modelarts.kat1.8xlarge"
    assert (found["nodes"], found["cards_per_node"], found["test_object_type"]) == (2, 2, "cluster")
    standard = standard_fields(entry())
    assert standard["efficientcy"].unit == "images/J"
    assert standard["average_power"].source == (
        "bmc, over the training, not net of idle power; node 0: no sample for 20 s after 3 s"
    )


def test_whatever_was_not_measured_is_null_with_a_reason_and_never_zero() -> None:
    for each in (entry(), entry(NEVER, None), case_entry(CASE, (), None)):
        for name, field in standard_fields(each).items():
            assert (field.value is None) == bool(field.null_reason), name
            assert (field.value is None) == (field.source is None), name
            assert field.value != 0, name
    nothing = told(entry(NEVER, None))
    assert {name for name, value in nothing.items() if value is not None} == {
        "target_accuracy",
        "test_object_type",
        "model",
        "nodes",
        "cards_per_node",
    }
    assert set(UNITS) <= set(nothing)  # all fifteen of ais-bench


REASONS = {
    "average_power": "no source of power was named, or the job left no result to ask it about",
    "idle_power": "no source tells what the nodes draw when they are idle",
    "hardware": "it names no machines",
    "resource_util_ratio": "the platform sampled no accelerator of the job",
    "proc_time": "the log does not tell when training began and ended",
    "time_to_accuracy": "the log shows no evaluation",
    "steady_throughput": "the log shows no speed",
    "scaling_efficiency": "it is the base itself, or the throughput of no other shape is known",
    "throughput_cv": "there are fewer than two whole trials",
    "cann": "the log does not tell it",
    "division": "no config.json tells it",
}


@pytest.mark.parametrize(("name", "why"), REASONS.items(), ids=REASONS)
def test_a_reason_says_what_is_missing(name: str, why: str) -> None:
    assert standard_fields(entry(NEVER, None))[name].null_reason == why


def test_a_rank_that_is_missing_leaves_no_throughput_and_no_efficiency() -> None:
    incomplete = replace(
        TRIAL,
        measurements=TRIAL.measurements[1:],
        missing_results=(MissingResult(THROUGHPUT, "throughput_0.json is missing"),),
    )
    standard = standard_fields(entry(incomplete, Verdict(Ruling.FAILED, "throughput_0.json is missing")))
    assert standard["throughput_ratio"] == Field(None, UNIT, None, "throughput_0.json is missing")
    assert standard["throughput_per_card"].null_reason == "throughput_0.json is missing"
    assert standard["efficientcy"].null_reason == "the throughput of some rank is missing"


def test_what_a_workload_measures_itself_is_taken() -> None:
    own = replace(CASE.workload, metrics={**METRICS, "average_power": Metric("average_power", "W")})
    power = Measurement("average_power", 950.0, "W", "average_power.json")
    measured = replace(TRIAL, case=replace(CASE, workload=own), measurements=(*TRIAL.measurements, power))
    found = told(entry(measured))
    assert (found["average_power"], found["efficientcy"], found["max_power"]) == (950.0, 0.4, 2500.0)


def test_nodes_that_train_alone_have_their_mean_and_all_of_their_power() -> None:
    case = replace(CASE, mode=Mode.SINGLE_SERVER)
    trial = replace(TRIAL, case=case, measurements=make_measurements(case, [100.0, 100.0, 90.0, 90.0]))
    found = told(entry(trial))
    assert (found["throughput_ratio"], found["throughput_per_card"], found["efficientcy"]) == (190.0, 95.0, 0.2)


def test_trials_of_a_run_tell_how_much_they_vary() -> None:
    faster = replace(TRIAL, measurements=(replace(TRIAL.measurements[0], value=120.0), *TRIAL.measurements[1:]))
    both = case_entry(CASE, (TRIAL, faster), PASSED)
    assert standard_fields(both)["throughput_cv"].value == pytest.approx(14.1421 / 390, rel=1e-4)


def test_a_shape_does_not_scale_against_itself() -> None:
    alone = replace(TRIAL, background=Background(scaling=(ScalePoint("2x2", 380.0, 1.0, "this run"),)))
    assert standard_fields(entry(alone))["scaling_efficiency"].value is None
    points = (ScalePoint("1x2", 190.0, 1.0, "this run"), ScalePoint("2x2", 380.0, 1.0, "this run"))
    assert (
        standard_fields(entry(replace(TRIAL, background=Background(scaling=points))))["scaling_efficiency"].value == 1.0
    )


def test_what_config_json_says_of_the_test_is_told() -> None:
    found = standard_fields(entry(), {"Divsion": "close", "Scenario": "generic", "Model": "resnet50_v1.5"})
    assert [found[name].value for name in ("division", "scenario", "model")] == ["close", "generic", "resnet50_v1.5"]


def test_the_ledger_keeps_what_the_fields_are_made_of() -> None:
    made = entry()
    assert standard_fields(load(CaseEntry, json.loads(json.dumps(dump(made))))) == standard_fields(made)
    document = results.case_document(made)
    assert not {"standard", "target_accuracy", "background"} & set(document)
    assert "power" not in document["trials"][0]
    assert document["trials"][0]["usage"] == {"npu": 93.0, "npu memory": 50.0}


def test_moments_are_dates_in_json() -> None:
    assert fields_as_json({"a": Field(0.0, TIME, "x"), "b": Field(None, TIME, None, "why")}) == {
        "a": {"value": "1970-01-01T00:00:00Z", "unit": "UTC", "source": "x", "null_reason": None},
        "b": {"value": None, "unit": "UTC", "source": None, "null_reason": "why"},
    }


def test_the_file_has_every_case_and_claims_no_conformity(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(stash={SETTINGS: Settings()})  # as much of pytest's as is asked for
    Fields(config, tmp_path).run(make_run_entry(entry()))
    document = json.loads((tmp_path / "fields.json").read_text(encoding="utf-8"))
    assert document["schema"] == "aisbench-fields/1"
    assert "no conformity" in document["about"]
    assert document["cases"]["toy-2x2"]["proc_start_time"]["value"] == "1970-01-01T00:16:50Z"
    assert document["cases"]["toy-2x2"]["efficientcy"] == {
        "value": 0.2,
        "unit": "images/J",
        "source": "throughput by average power",
        "null_reason": None,
    }


@pytest.mark.parametrize("ends", ["1e30 endtime:2e30", "-5 endtime:4", "nan endtime:inf", "9 endtime:3"])
def test_a_log_with_a_window_out_of_this_world_has_none(ends: str) -> None:
    line = f"train done starttime:{ends} stepsize:1 batchsize:4 epochsize:2 alldatasum:8 single_throughput_rate:9\n"
    odd = fields_as_json(standard_fields(entry(replace(TRIAL, curve=read_curve(line)))))
    assert odd["proc_start_time"]["null_reason"] == "the log does not tell when training began and ended"


@given(st.floats(), st.floats(), st.floats(0.0, 1e300), st.sampled_from([1.0, 1.5e308]))
def test_no_number_of_a_trial_makes_a_field_that_json_has_not(
    start: float, end: float, watts: float, speed: float
) -> None:
    times = {"stage": start, "done": end}
    ranks = tuple(replace(each, value=speed) if each.rank is not None else each for each in TRIAL.measurements)
    odd = replace(TRIAL, times=times, power=Power(watts, watts, watts, "x"), curve=None, measurements=ranks)
    for field in standard_fields(entry(odd)).values():
        json.dumps(field.value, allow_nan=False)


def test_the_options_of_every_platform_name_its_machines_and_software() -> None:
    def context(**traits: str) -> tuple[Any, ...]:
        found = told(entry(replace(TRIAL, traits=traits)))
        return found["hardware"], found["framework_version"]

    assert context(pool_id="pool-1", image="org/img:1", framework_version="mindspore_1.3") == ("pool-1", "org/img:1")
    assert context(device_type="a910", image="org/pod:2") == ("a910", "org/pod:2")
    assert context(framework="python") == (None, None)


def test_a_derived_metric_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = DerivedMetric("evaluations", "times", lambda log: float(len(log.curve.evaluations)) if log.curve else "none")
    monkeypatch.setitem(DERIVED, row.name, row)
    field = standard_fields(entry())["evaluations"]
    assert (field.value, field.unit) == (len(read_curve(LOG).evaluations), "times")
    assert standard_fields(entry(NEVER))["evaluations"].null_reason == "none"
