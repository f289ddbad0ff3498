"""A case of `results.json` as MLPerf's log, for tools that read that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_aisbench.domain.mlperf import benchmark
from pytest_aisbench.services.clock import moment
from pytest_aisbench.settings import LOCAL

_START, _END, _POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"
_FILE = {"file": "results.json", "lineno": 0}


def text(
    results: Mapping[str, Any], case: Mapping[str, Any], org: str, epochs: int, is_emulation: Callable[[str], bool]
) -> str:
    """One line per event. What is not known, such as the number of samples or whether caches were cleared, is null.

    `is_emulation` says of a platform's name whether its jobs run on the client's machine. The clock is that of the
    run's start: only differences of these times mean anything.
    """
    lines = (
        ":::MLLOG "
        + json.dumps(
            {
                "namespace": "",
                "time_ms": time,
                "event_type": kind,
                "key": key,
                "value": value,
                "metadata": {**_FILE, **metadata},
            },
            allow_nan=False,
        )
        for time, kind, key, value, metadata in _events(results, case, org, epochs, is_emulation)
    )
    return "\n".join(lines) + "\n"


def _events(
    results: Mapping[str, Any], case: Mapping[str, Any], org: str, epochs: int, is_emulation: Callable[[str], bool]
) -> Iterator[tuple[int, str, str, Any, dict[str, Any]]]:
    trial = case["trials"][-1]
    platform = str(results["settings"].get("platform", LOCAL))
    begun = int(moment(results["started"]) * 1000)
    start = begun + int((trial["queued_s"] or 0.0) * 1000)
    stop = start + max(1, int((trial["ran_s"] or 0.0) * 1000))
    throughput, accuracy = (case["metrics"].get(name, {}).get("value") for name in ("throughput", "accuracy"))
    learnt = [finding["outcome"] == "met" for finding in case["findings"] if finding["metric"] == "accuracy"]
    converged = trial["phase"] == "SUCCEEDED" and accuracy is not None and bool(learnt) and all(learnt)

    yield begun, _POINT, "submission_org", org, {}
    yield begun, _POINT, "submission_platform", f"{platform} {case['nodes']}x{case['devices_per_node']}", {}
    yield begun, _POINT, "submission_division", "open", {}
    yield begun, _POINT, "submission_status", "research" if is_emulation(platform) else "cloud", {}
    yield begun, _POINT, "submission_benchmark", benchmark(case["workload"]), {}
    yield begun, _POINT, "cache_clear", None, {}
    yield begun, _START, "init_start", None, {}
    yield start, _END, "init_stop", None, {}
    yield start, _START, "run_start", None, {}
    yield start, _POINT, "train_samples", None, {}
    yield start, _POINT, "eval_samples", None, {}
    block = {"first_epoch_num": 1, "epoch_count": epochs}
    yield start, _START, "block_start", None, block
    yield stop, _END, "block_stop", None, block
    if throughput is not None:
        yield stop, _POINT, "tracked_stats", {"throughput": throughput}, {"epoch_num": epochs}
    yield stop, _START, "eval_start", None, {"epoch_num": epochs}
    if accuracy is not None:
        yield stop, _POINT, "eval_accuracy", accuracy, {"epoch_num": epochs}
    yield stop, _END, "eval_stop", None, {"epoch_num": epochs}
    yield stop, _END, "run_stop", None, {"status": "success" if converged else "aborted"}
