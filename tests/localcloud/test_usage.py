"""How busy the nodes of a job are, as the metrics of the local ModelArts tell it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from cloud_client import CloudClient
from waiting import wait_until

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore:.*invalid escape sequence"),
    pytest.mark.filterwarnings(r"ignore:.*'return' in a 'finally' block:SyntaxWarning"),
]
SPINS_IN_A_CHILD = b"""import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "x = bytearray(1 << 24)\\nwhile True: pass"])
time.sleep(600)
"""


def metrics(client: CloudClient, job: str, task: str = "worker-0") -> dict[str, list[float]]:
    answer = client.call("GET", f"/v2/{client.project}/training-jobs/{job}/metrics/{task}")
    return {row["metric"]: row["value"] for row in answer["metrics"]} if answer else {}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_node_is_as_busy_as_its_processes() -> None:
    with LocalCloud() as cloud, CloudClient(cloud.card()) as client:
        client.put("code/busy.py", SPINS_IN_A_CHILD)
        client.put("code/idle.py", b"import time; time.sleep(600)")
        busy, idle = client.create(entry="busy.py"), client.create(entry="idle.py")

        def sampled(job: str, fits: Callable[[float], bool]) -> Callable[[], bool]:
            return lambda: any(map(fits, metrics(client, job).get("cpuUsage", [])[1:]))

        wait_until(sampled(busy, lambda cpu: cpu > 5))
        wait_until(sampled(idle, lambda cpu: cpu < 5))
        told = metrics(client, busy)
        assert all(0 <= value <= 100 for name in ("cpuUsage", "memUsage") for value in told[name])
        assert max(told["memUsage"]) > 0
        assert set(told["npuUtil"]) == {-1}, "a local node has no NPU"
        assert {len(values) for values in told.values()} == {len(told["cpuUsage"])}
        client.stop(busy)
        client.until(busy, {"Terminated"})
        ended = metrics(client, busy)
        assert ended["cpuUsage"][: len(told["cpuUsage"])] == told["cpuUsage"], "what was sampled stays"
        client.stop(idle)


def test_a_job_that_waits_has_no_samples() -> None:
    with LocalCloud(engine="simulated", faults=[Fault(job="pending")]) as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"")
        assert metrics(client, client.create()) == {}


def test_a_simulated_job_is_busy_until_its_log_is_frozen() -> None:
    with LocalCloud(engine="simulated") as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"")
        job = client.create("it-stalls", seconds=60, epochs=600)

        def npu() -> list[Any]:
            return metrics(client, job).get("npuUtil", [])

        wait_until(lambda: len(npu()) > 1)
        assert min(npu()) > 50
        assert len(set(npu())) > 1, "it never stands still"
        cloud.faults.set([Fault(name="it-stalls", job="log-frozen")])
        wait_until(lambda: npu()[-1] == 0)
        assert npu()[0] > 50
        cloud.faults.clear()
        assert npu()[-1] > 50
