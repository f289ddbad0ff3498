"""What the Tester is sent of a case: the predecessor's `train_result_info` key by key, and what was truly measured."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_aisbench.judge.standards import TIME, Field, standard_fields
from pytest_aisbench.model.clock import stamp
from pytest_aisbench.model.codec import dump
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import (
    ATTACHMENTS,
    RESULTS,
    RUN_END,
    RUNS,
    UPLOAD_SCHEMA,
    CaseEntry,
    Destination,
    RunEnd,
    TrialEntry,
    UploadItem,
    canonical,
    make_upload,
)
from pytest_aisbench.model.verdict import Background, Finding, Ruling
from pytest_aisbench.report.results import shown

SENTINEL = "2020-01-30 14:16:00"  # how ais-bench-stubs writes a time that nobody set; a number nobody set is 0
# Keys of train_result_info, in the predecessor's spelling and order, and the unit of each.
UNITS: Mapping[str, str] = {
    "accuracy": "",
    "average_power": "W",
    "dataload_end_time": "time",
    "dataload_start_time": "time",
    "efficientcy": "",
    "energy_consumption": "J",
    "max_power": "W",
    "prepare_end_time": "time",
    "prepare_start_time": "time",
    "proc_end_time": "time",
    "proc_start_time": "time",
    "resource_util_ratio": "",
    "throughput_ratio": "",
    "total_end_time": "time",
    "total_start_time": "time",
}
_NEEDED = ("throughput_ratio", "accuracy")  # a test of the stub's without both has not ended well
_MANY = 256  # of findings, slow cards and other shapes: a result stays far below what a Tester takes


def result(
    bound: Destination, run: str, case: CaseEntry, attempt: int, artifacts: Sequence[Mapping[str, Any]] = ()
) -> UploadItem:
    """The result of a case, ready to be sent."""
    return make_upload(bound, run, case.id, RESULTS, body(bound, run, case, attempt, artifacts))


def attachment(bound: Destination, run: str, name: str, attempt: int, data: Any) -> UploadItem:
    """Anything that a suite wants to be kept beside the results."""
    head = _head(bound, run, name, attempt)
    return make_upload(bound, run, name, ATTACHMENTS, {**head, "name": name, "data": data})


def end(bound: Destination, told: RunEnd, attempt: int) -> UploadItem:
    """How a run ended: what was to be judged and was not has no result that could tell of it."""
    head = {"schema": UPLOAD_SCHEMA, "testid": bound.testid or told.run, "run_id": told.run, "attempt": attempt}
    return make_upload(
        bound,
        told.run,
        RUN_END,
        RUNS,
        {
            **head,
            "platform": bound.platform,
            "started": stamp(told.started, "milliseconds"),
            "finished": None if told.finished is None else stamp(told.finished, "milliseconds"),
            "exit_code": told.exit_code,
            "unjudged": {case: plain(reason, 200) for case, reason in told.unjudged.items()},
            "card_hours": told.unjudged_hours,
            "missing": list(told.missing),
        },
    )


def body(
    bound: Destination, run: str, case: CaseEntry, attempt: int, artifacts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The same entry makes the same body, to the last byte."""
    trial = case.trials[-1] if case.trials else None
    measured = standard_fields(case, bound.config)
    return {
        **_head(bound, run, case.id, attempt),
        "config": _config(bound.config, case),
        "status": "OK" if case.verdict is Ruling.PASSED else "FAILED",
        "train_result_info": {key: _legacy(measured[key]) for key in UNITS},
        "measured": shown(measured),
        "system": dict(bound.system),
        "artifacts": [dict(artifact) for artifact in artifacts],
        "job": {
            "platform": bound.platform,
            "job_id": trial.job_id if trial else None,
            "phase": trial.phase if trial else None,
        },
        "case": {
            "id": case.id,
            "workload": case.workload,
            "nodes": case.nodes,
            "devices_per_node": case.devices_per_node,
            "mode": case.mode,
            "verdict": case.verdict.value if case.verdict else None,
            "reason": plain(case.reason),
            "card_hours": case.card_hours,
            **_weighed(case, trial),
        },
    }


def _weighed(case: CaseEntry, trial: TrialEntry | None) -> dict[str, Any]:
    """What the verdict rests on, for whoever looks at it later beside others."""
    background = case.background or Background()
    return {
        "findings": [_finding(finding) for finding in case.findings[:_MANY]],
        "band": {"reference": background.reference, "low": background.low, "high": background.high},
        "stragglers": [dump(straggler) for straggler in (trial.stragglers if trial else ())[:_MANY]],
        "scaling": [dump(point) for point in background.scaling[:_MANY]],
        "warnings": [plain(warning, 300) for warning in background.warnings[:_MANY]],
        "traits": {plain(key, 80): plain(value, 300) for key, value in (trial.traits if trial else {}).items()},
        "trials": len(case.trials),
        "ran_s": trial.ran_s if trial else None,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {**dump(finding), "wanted": plain(finding.wanted, 200), "text": plain(finding.text, 300)}


def _head(bound: Destination, run: str, name: str, attempt: int) -> dict[str, Any]:
    return {"schema": UPLOAD_SCHEMA, "testid": bound.testid or run, "run_id": f"{run}.{name}", "attempt": attempt}


def _config(told: Mapping[str, Any], case: CaseEntry) -> dict[str, Any]:
    """What config.json says, with what must be there and the case knows better."""
    rest = {key: value for key, value in told.items() if key not in {"testid", "Divsion", "Division"}}
    return {
        "Mode": "training",
        "Model": case.workload,
        "Division": told.get("Division", told.get("Divsion")),  # the stub's own log has it misspelt
        "Scenario": None,
        "test_object_type": "single" if case.nodes == 1 else "cluster",
        **rest,
    }


def _legacy(field: Field) -> str | int:
    """As a package prints it: what was set is text, times are of the machine's own zone."""
    if field.unit == TIME:
        known = field.value is not None
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(field.value)) if known else SENTINEL
    return 0 if field.value is None else str(field.value)


def _value(value: Any, unit: str, source: str | None, null_reason: str | None) -> dict[str, Any]:
    return {"value": value, "unit": unit, "source": source, "null_reason": null_reason}


def of_stub(bound: Destination, config: Mapping[str, str], info: Mapping[str, str | int | float]) -> UploadItem:
    """The result of a test that ais-bench-stubs ran by itself, as its log has it."""
    run = f"stub-{hashlib.sha256(canonical([config, info]).encode()).hexdigest()[:16]}"
    name = plain(config.get("Model") or "stub", 80)
    measured = {key: _told(key, info.get(key)) for key in UNITS}
    complete = all(measured[key]["value"] is not None for key in _NEEDED)
    told = {
        **_head(replace(bound, testid=bound.testid or config.get("testid", "")), run, name, 1),
        "config": {key: value for key, value in config.items() if key != "testid"},
        "status": "OK" if complete else "FAILED",
        "train_result_info": dict(info),
        "measured": measured,
        "system": dict(bound.system),
        "artifacts": [],
        "job": {"platform": "ais-bench-stubs", "job_id": None, "phase": None},
    }
    return make_upload(bound, run, name, RESULTS, told)


def _told(key: str, value: str | float | None) -> dict[str, Any]:
    """What a package set is text; a bare 0, and the day that ais-bench-stubs begins with, were never measured."""
    unit, source = "local time" if UNITS[key] == "time" else UNITS[key], "train_result_info of stub.log"
    if not isinstance(value, str) or value == SENTINEL:
        return _value(None, unit, None, "ais-bench-stubs was not told")
    if UNITS[key] == "time":
        return _value(value, unit, source, None)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return _value(None, unit, None, f"{plain(value, 40)!r} is not a number")
    return _value(number, unit, source, None)
