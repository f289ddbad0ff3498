"""Writes the body of each upload: the result of a case, a test's own data, or how a run ended.

A result has two views of the same values: `train_result_info`, with the predecessor's keys and its 0 for what was not
measured, and `measured`, with units, sources and the reason for each missing value.
"""

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
    Executor,
    RunEnd,
    TrialEntry,
    UploadItem,
    canonical,
    make_upload,
)
from pytest_aisbench.model.verdict import Background, Finding, Ruling
from pytest_aisbench.report.results import fields_as_json, origin_document, trained_with_document

SENTINEL = "2020-01-30 14:16:00"  # how ais-bench-stubs writes a time that was not set; a number that was not set is 0
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
_NEEDED = ("throughput_ratio", "accuracy")  # a test of ais-bench-stubs without both has failed
_MOST = 256  # findings, slow cards and other shapes of one result: it stays far below the size that a Tester takes


def result_upload(
    destination: Destination, run: str, case: CaseEntry, attempt: int, artifacts: Sequence[Mapping[str, Any]] = ()
) -> UploadItem:
    """The upload of a case's result."""
    return make_upload(destination, run, case.id, RESULTS, result_body(destination, run, case, attempt, artifacts))


def attachment_upload(destination: Destination, run: str, name: str, attempt: int, data: Any) -> UploadItem:
    """The upload of data that a test hands in itself."""
    head = _head(destination, run, name, attempt)
    return make_upload(destination, run, name, ATTACHMENTS, {**head, "name": name, "data": data})


def end_upload(destination: Destination, end: RunEnd, attempt: int) -> UploadItem:
    """The upload of how a run ended: it names the cases that have no verdict, and so no result."""
    head = {"schema": UPLOAD_SCHEMA, "testid": destination.testid or end.run, "run_id": end.run, "attempt": attempt}
    return make_upload(
        destination,
        end.run,
        RUN_END,
        RUNS,
        {
            **head,
            "platform": destination.platform,
            "started": stamp(end.started, "milliseconds"),
            "finished": None if end.finished is None else stamp(end.finished, "milliseconds"),
            "exit_code": end.exit_code,
            "unjudged": {case: plain(reason, 200) for case, reason in end.unjudged.items()},
            "card_hours": end.unjudged_hours,
            "missing": list(end.missing),
            **_origin(destination),
        },
    )


def result_body(
    destination: Destination, run: str, case: CaseEntry, attempt: int, artifacts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The body of a result: the same entry makes the same body, to the last byte."""
    trial = case.trials[-1] if case.trials else None
    measured = standard_fields(case, destination.config)
    return {
        **_head(destination, run, case.id, attempt),
        "config": _config(destination.config, case),
        "status": "OK" if case.verdict is Ruling.PASSED else "FAILED",
        "train_result_info": {key: _legacy(measured[key]) for key in UNITS},
        "measured": fields_as_json(measured),
        "system": dict(destination.system),
        "artifacts": [dict(artifact) for artifact in artifacts],
        "job": {
            "platform": destination.platform,
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
            **_evidence(case, trial),
        },
        **_origin(destination),
    }


def _origin(destination: Destination) -> dict[str, Any]:
    """Who started the run, and from which commit; nothing where neither is known."""
    origin = replace(destination.origin, user="")
    return {"origin": origin_document(origin)} if origin != Executor() else {}


def _evidence(case: CaseEntry, trial: TrialEntry | None) -> dict[str, Any]:
    """What the verdict rests on."""
    background = case.background or Background()
    return {
        "findings": [_finding(finding) for finding in case.findings[:_MOST]],
        "band": {"reference": background.reference, "low": background.low, "high": background.high},
        "stragglers": [dump(straggler) for straggler in (trial.stragglers if trial else ())[:_MOST]],
        "scaling": [dump(point) for point in background.scaling[:_MOST]],
        "warnings": [plain(warning, 300) for warning in background.warnings[:_MOST]],
        "traits": {plain(key, 80): plain(value, 300) for key, value in (trial.traits if trial else {}).items()},
        "trials": len(case.trials),
        "ran_s": trial.ran_s if trial else None,
        **({"hosts": [plain(host, 200) for host in trial.hosts[:_MOST]]} if trial and trial.hosts else {}),
        **({"trained_with": trained_with_document(case.trained_with)} if case.trained_with else {}),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {**dump(finding), "wanted": plain(finding.wanted, 200), "text": plain(finding.text, 300)}


def _head(destination: Destination, run: str, name: str, attempt: int) -> dict[str, Any]:
    return {"schema": UPLOAD_SCHEMA, "testid": destination.testid or run, "run_id": f"{run}.{name}", "attempt": attempt}


def _config(config: Mapping[str, Any], case: CaseEntry) -> dict[str, Any]:
    """The content of config.json, with the required keys that it lacks taken from the case."""
    rest = {key: value for key, value in config.items() if key not in {"testid", "Divsion", "Division"}}
    return {
        "Mode": "training",
        "Model": case.workload,
        "Division": config.get("Division", config.get("Divsion")),  # ais-bench-stubs misspells it
        "Scenario": None,
        "test_object_type": "single" if case.nodes == 1 else "cluster",
        **rest,
    }


def _legacy(field: Field) -> str | int:
    """The value as an ais-bench package prints it: as text, times in the machine's own zone."""
    if field.value is None:
        return SENTINEL if field.unit == TIME else 0
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(field.value)) if field.unit == TIME else str(field.value)


def _value(value: Any, unit: str, source: str | None, null_reason: str | None) -> dict[str, Any]:
    return {"value": value, "unit": unit, "source": source, "null_reason": null_reason}


def stub_upload(
    destination: Destination, config: Mapping[str, str], info: Mapping[str, str | int | float]
) -> UploadItem:
    """The upload of a test that ais-bench-stubs ran without us, made from its log."""
    run = f"stub-{hashlib.sha256(canonical([config, info]).encode()).hexdigest()[:16]}"
    name = plain(config.get("Model") or "stub", 80)
    measured = {key: _stub_value(key, info.get(key)) for key in UNITS}
    complete = all(measured[key]["value"] is not None for key in _NEEDED)
    body = {
        **_head(replace(destination, testid=destination.testid or config.get("testid", "")), run, name, 1),
        "config": {key: value for key, value in config.items() if key != "testid"},
        "status": "OK" if complete else "FAILED",
        "train_result_info": dict(info),
        "measured": measured,
        "system": dict(destination.system),
        "artifacts": [],
        "job": {"platform": "ais-bench-stubs", "job_id": None, "phase": None},
    }
    return make_upload(destination, run, name, RESULTS, body)


def _stub_value(key: str, value: str | float | None) -> dict[str, Any]:
    """A value of the log. What the package set is text; a bare 0 and SENTINEL were never measured."""
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
