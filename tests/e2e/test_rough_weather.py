"""A run through everything that a platform and the way to it may do in a bad hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from yard import Yard

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

WEATHER = [
    # More than one look sits out: for the watch it is an outage, and no reason to stop the job.
    Fault(service="modelarts", operation="show", times=6, status=401, code="APIGW.0301", message="expired"),
    Fault(service="modelarts", operation="create", times=1, drop="answer"),
    Fault(service="modelarts", operation="search", times=1, html=True),
    Fault(service="obs", operation="put-object", times=2, status=503, code="SlowDown", retry_after=1),
    Fault(service="obs", operation="head-object", times=1, drop="request"),
    Fault(service="obs", operation="get-bucket", times=1, truncate=20),
    Fault(service="obs", operation="get-object", times=1, html=True),
    Fault(service="obs", operation="get-object", times=1, truncate=1),
]


@pytest.mark.slow(seconds=21)
def test_a_job_outlives_refused_keys_a_wrong_clock_and_a_broken_network(tmp_path: Path) -> None:
    with LocalCloud(engine="simulated", faults=WEATHER, clock_skew=2400) as cloud:
        (tmp_path / "card.json").write_text(json.dumps(cloud.card()))
        yard = Yard(tmp_path, tmp_path / "card.json")
        yard.suite()
        ended = yard.pytest("suites", "--nodes", "1")
        books = cloud.books()
        spent = [rule["struck"] == rule["times"] for rule in cloud.faults.as_json()]
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"toy-1x2": "PASSED"}
    assert spent == [True] * len(WEATHER), cloud.faults.as_json()
    assert [job["phase"] for job in books["jobs"]] == ["Completed"]
    assert "stop" not in books["requests"]["modelarts"]
    (case,) = ended.results["cases"]
    assert len(case["trials"]) == 1
