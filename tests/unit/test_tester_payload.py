"""What the Tester is sent, against a body that was written by hand; and the two faces of ais-bench-stubs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_case_entry, make_trial_entry

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.results import Destination, Straggler, Value, canonical
from pytest_aisbench.model.verdict import Background, Finding, Outcome, Ruling, ScalePoint
from pytest_aisbench.tester import payload
from pytest_aisbench.tester.transports import benchmark_exit, read_stub_log, values_to_set

GOLDEN = Path(__file__).parent / "golden" / "tester" / "resnet50-2x1.json"
SEED_LOG = GOLDEN.with_name("stub.log")
BOUND = Destination(
    tester="https://tester.example/",
    platform="modelarts",
    folder="",
    testid="20210126-ljp0IY",
    config={"testid": "20210126-ljp0IY", "Mode": "training", "Model": "resnet50_v1.5", "Divsion": "close"},
    system={"server": "Atlas 800", "cpu": {"model": "Kunpeng 920", "count": 4}},
)
TRIAL = make_trial_entry(
    job_id="e7052953-3107-47d5-a5fa-725f9eced6e3",
    queued_s=3.0,
    ran_s=11000.0,
    throughput_by_rank=(7075.0, 7076.5),
    throughput_by_server=(7075.0, 7076.5),
    accuracy_by_server=(0.77,),
    logs=("logs/resnet50-2x1/1/worker-0.log",),
    stage="obs://bucket/aisbench/",
    times={"stage": 1_657_599_583.0, "submit": 1_657_599_590.0, "done": 1_657_610_953.5},
)
CASE = make_case_entry(
    "2x1",
    "resnet50",
    reason="throughput 14151.5 images/s, wanted >= 14000 images/s",
    card_hours=6.111111,
    metrics={
        "throughput": Value(14151.5, "images/s"),
        "accuracy": Value(0.77, ""),
        "average_power": Value(2150.0, "W"),
        "loss": Value(1.25, ""),
    },
    trials=(TRIAL,),
)


@pytest.fixture
def shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_result_is_what_was_written_by_hand(shanghai: None) -> None:
    artifacts = [{"name": "logs/resnet50-2x1/1/worker-0.log", "sha256": "00ff", "size": 7}]
    assert payload.result_body(BOUND, "run-1", CASE, 1, artifacts) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_a_result_tells_what_its_verdict_rests_on() -> None:
    slow = Straggler(node=1, card=0, rank=1, ratio=0.8, cost=0.1)
    weighed = Background(
        reference=14000.0, low=13300.0, scaling=(ScalePoint("1x1", 7100.0, None, "run-0"),), warnings=("a\ndrift",)
    )
    finding = Finding("throughput", Outcome.MISSED, 12000.0, ">= 13300 images/s", "x\x1b[31m" + "y" * 400)
    trial = replace(TRIAL, stragglers=(slow,), traits={"cann": "5.0.2"})
    case = replace(CASE, trials=(trial,), findings=(finding,), background=weighed)
    told = payload.result_body(BOUND, "run-1", case, 1)["case"]
    assert told["band"] == {"reference": 14000.0, "low": 13300.0, "high": None}
    assert told["stragglers"] == [{"node": 1, "card": 0, "rank": 1, "ratio": 0.8, "cost": 0.1, "host": ""}]
    assert told["scaling"] == [{"shape": "1x1", "value": 7100.0, "efficiency": None, "source": "run-0"}]
    assert (told["warnings"], told["traits"]) == (["a drift"], {"cann": "5.0.2"})
    (found,) = told["findings"]
    assert (found["outcome"], found["measured"], found["wanted"]) == ("missed", 12000.0, ">= 13300 images/s")
    assert "\x1b" not in found["text"]
    assert len(found["text"]) < 310


def test_the_key_is_what_the_contract_says(shanghai: None) -> None:
    parcel = payload.result_upload(BOUND, "run-1", CASE, 1)
    named = f"20210126-ljp0IY|run-1.resnet50-2x1|1|{parcel.body}"
    assert parcel.key == hashlib.sha256(named.encode()).hexdigest()
    assert parcel.body == canonical(json.loads(parcel.body))
    others = {
        payload.result_upload(BOUND, "run-1", CASE, 2).key,
        payload.result_upload(BOUND, "run-2", CASE, 1).key,
        payload.result_upload(BOUND, "run-1", replace(CASE, reason="another"), 1).key,
        payload.result_upload(replace(BOUND, testid="t"), "run-1", CASE, 1).key,
    }
    assert len(others | {parcel.key}) == 5
    assert payload.result_upload(BOUND, "run-1", CASE, 1) == parcel


def test_what_was_not_measured_is_null_with_a_reason_and_zero_only_where_the_legacy_has_it() -> None:
    finding = Finding("throughput", Outcome.UNMEASURED, None, ">= 1", "throughput_3.json is missing")
    metrics = {"throughput": Value(None, "images/s"), "accuracy": Value(None, "")}
    case = replace(CASE, verdict=Ruling.FAILED, reason="not whole", metrics=metrics, findings=(finding,))
    body = payload.result_body(BOUND, "run-1", case, 1)
    assert body["status"] == "FAILED"
    assert body["train_result_info"]["throughput_ratio"] == body["train_result_info"]["accuracy"] == 0
    assert body["measured"]["throughput_ratio"]["null_reason"] == "throughput_3.json is missing"
    assert body["measured"]["accuracy"]["null_reason"] == "not whole"
    for told_ in body["measured"].values():
        assert (told_["value"] is None) == bool(told_["null_reason"])


@pytest.mark.parametrize("ruling", [Ruling.BROKEN, Ruling.INCONCLUSIVE, Ruling.FAILED])
def test_a_case_that_never_had_a_job_is_a_result_too(ruling: Ruling) -> None:
    body = payload.result_body(
        BOUND, "run-1", replace(CASE, verdict=ruling, trials=(), metrics={}, reason="\ud800\x1b[31m"), 1
    )
    assert (body["status"], body["job"]["job_id"], body["case"]["verdict"]) == ("FAILED", None, ruling.value)
    assert body["train_result_info"]["total_start_time"] == payload.SENTINEL
    assert json.loads(canonical(body).encode())["case"]["reason"].isprintable()


def test_without_papers_every_run_is_a_test_of_its_own() -> None:
    body = payload.result_body(Destination("https://t/", "local", ""), "run-1", replace(CASE, nodes=1), 1)
    assert body["testid"] == "run-1"
    assert body["config"] == {
        "Mode": "training",
        "Model": "resnet50",
        "Division": None,
        "Scenario": None,
        "test_object_type": "single",
    }


# ais-bench-stubs


def test_the_last_result_of_a_stub_log_is_read_as_it_stands() -> None:
    log = read_stub_log(SEED_LOG)
    assert log.info["throughput_ratio"] == "14151.181727494011"
    assert len(log.info) == 15
    assert log.config["Divsion"] == "close"
    assert (log.config["tester_server_ip"], log.config["tester_server_port"]) == ("127.0.0.1", "9527")
    body = json.loads(payload.stub_upload(Destination("https://t/", "", ""), log.config, log.info).body)
    assert body["train_result_info"] == log.info
    assert (body["testid"], body["status"]) == ("20210126-ljp0IY", "OK")
    assert body["measured"]["accuracy"]["value"] == 0.7706197102864583
    assert body["measured"]["max_power"] == {
        "value": None,
        "unit": "W",
        "source": None,
        "null_reason": "ais-bench-stubs was not told",
    }
    assert body["measured"]["proc_start_time"]["value"] is None
    assert body["measured"]["total_end_time"]["value"] == "2022-07-12 15:29:13"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("train_result_info", "infer_result_info"), "no train_result_info"),
        (lambda text: text[: text.rindex('"throughput_ratio"')], "cut short or damaged"),
        (lambda text: text.replace('"14151.181727494011"', "[1]"), "neither text nor a number"),
        (lambda text: "", "no train_result_info"),
    ],
    ids=["inference", "cut", "list", "empty"],
)
def test_a_stub_log_that_tells_nothing_is_one_line(tmp_path: Path, change: Any, said: str) -> None:
    file = tmp_path / "stub.log"
    file.write_text(change(SEED_LOG.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(UsageFault, match=said):
        read_stub_log(file)


def test_a_case_that_failed_never_says_ok() -> None:
    assert ("result", "OK") not in values_to_set(
        payload.result_body(BOUND, "r", replace(CASE, verdict=Ruling.FAILED), 1)
    )


def judged(outcome: str, metric: str = "accuracy", **trial: Any) -> dict[str, Any]:
    newest = {"job_id": "1", "phase": "SUCCEEDED", **trial}
    finding = {"metric": metric, "outcome": outcome}
    return {"verdict": "FAILED", "trials": [newest], "findings": [finding], "metrics": {metric: {"value": 1.0}}}


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ({"exit_code": 0, "cases": []}, 0),
        ({"exit_code": 5, "cases": []}, 1),
        ({"exit_code": None, "cases": []}, 1),
        ({"exit_code": 12, "cases": [judged("met", job_id=None)]}, 1),
        ({"exit_code": 1, "cases": [judged("met", phase="FAILED")]}, 2),
        ({"exit_code": 1, "cases": [judged("missed", "throughput")]}, 2),
        ({"exit_code": 1, "cases": [judged("missed")]}, 3),
        ({"exit_code": 1, "cases": [judged("unmeasured")]}, 4),
        ({"exit_code": 1, "cases": [judged("unmeasured"), judged("missed")]}, 3),
    ],
)
def test_the_exit_code_of_a_package_names_the_first_step_that_failed(results: dict[str, Any], code: int) -> None:
    assert benchmark_exit(results) == code
