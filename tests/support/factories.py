"""Makes the records that tests need: each argument that a test does not name has a plain value."""

from __future__ import annotations

from typing import Any


def results_json(accuracy: float | None = 0.998, outcome: str = "met", workload: str = "resnet50") -> dict[str, Any]:
    """The part of a results.json that `aisbench mllog` reads."""
    trial = {"trial": 1, "phase": "SUCCEEDED", "queued_s": 0.2, "ran_s": 6.04, "logs": ["logs/worker-0.log"]}
    return {
        "started": "2024-01-01T00:00:00Z",
        "settings": {"platform": "local"},
        "cases": [
            {
                "id": f"{workload}-1x8",
                "workload": workload,
                "nodes": 1,
                "devices_per_node": 8,
                "metrics": {"throughput": {"value": 3772.4, "unit": "images/s"}, "accuracy": {"value": accuracy}},
                "findings": [{"metric": "accuracy", "outcome": outcome}],
                "trials": [trial],
            }
        ],
    }
