"""Jobs without processes: as many as one likes, with the results one asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cloud_client import CloudClient
from waiting import wait_until

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.*invalid escape sequence"),
    pytest.mark.filterwarnings(r"ignore:.*'return' in a 'finally' block:SyntaxWarning"),
]


@pytest.fixture(scope="module")
def cloud() -> Iterator[LocalCloud]:
    with LocalCloud(engine="simulated") as cloud:
        yield cloud


@pytest.fixture(scope="module")
def client(cloud: LocalCloud) -> Iterator[CloudClient]:
    with CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"raise SystemExit('nobody runs this')")
        yield client


def final(client: CloudClient, job: str) -> Any:
    return client.until(job, {"Completed", "Failed", "Terminated", "Abnormal"})["status"]


def test_a_hundred_jobs_run_at_once_and_none_is_run_for_real(client: CloudClient) -> None:
    began = time.time() * 1000
    jobs = [client.create(seconds=0.2, name=f"many-{number}") for number in range(100)]
    found: dict[str, Any] = {}

    def all_completed() -> bool:
        for offset in (0, 50):
            filters = [{"key": "name", "operator": "like", "value": ["many-"]}]
            filters.append({"key": "phase", "operator": "in", "value": ["Completed"]})
            page = client.search(offset=offset, limit=50, filters=filters)
            found.update({item["metadata"]["id"]: item for item in page["items"]})
        return found.keys() == set(jobs)

    wait_until(all_completed)
    for item in found.values():
        assert item["status"]["duration"] >= 150
        assert item["status"]["start_time"] >= began - 1
        assert item["status"]["task_statuses"] == [{"task": "worker-0", "exit_code": 0, "message": ""}]


def test_results_and_log_are_in_the_store_when_the_job_has_ended(client: CloudClient) -> None:
    job = client.create(
        seconds=0.05, epochs=2, throughput=12.5, accuracy=0.75, out="out/a/", nodes=2, flavor="modelarts.kat1.8xlarge"
    )
    assert final(client, job)["phase"] == "Completed"
    results = {key: json.loads(client.get(f"out/a/{key}")) for key in client.keys("out/a/")}
    expected: dict[str, float] = {f"throughput_{rank}.json": 12.5 for rank in range(16)}
    assert results == expected | {"ranksize.json": 16, "accuracy.json": 0.75}
    for task in ("worker-0", "worker-1"):
        stored = client.get(f"log/modelarts-job-{job}-{task}.log").decode()
        assert stored == client.log(job, task)["content"]
        lines = stored.splitlines()
        assert [line for line in lines if line.startswith("epoch:")] == [
            "epoch: 1 step: 100, loss is 1.15",
            "epoch: 2 step: 100, loss is 0.7666667",
        ]
        assert "Train epoch time: 25.000 ms, per step time: 0.250 ms" in lines


def test_the_log_grows_while_the_job_runs(client: CloudClient) -> None:
    job = client.create(seconds=30, epochs=300)
    sizes = set()

    def grown() -> bool:
        sizes.add(len(client.find(f"log/modelarts-job-{job}-worker-0.log") or b""))
        return len(sizes) >= 3

    wait_until(grown)
    client.stop(job)


def test_a_job_that_is_stopped_ends_at_once_without_results(client: CloudClient) -> None:
    job = client.create(seconds=3600, out="out/stopped/")
    client.until(job, {"Running"})
    assert client.stop(job)["status"]["phase"] == "Terminating"
    status = final(client, job)
    assert status["phase"] == "Terminated"
    assert [task["exit_code"] for task in status["task_statuses"]] == [143]
    assert client.keys("out/stopped/") == []


@pytest.mark.slow
def test_a_job_ends_when_its_auto_stop_says_so(client: CloudClient) -> None:
    job = client.create(seconds=3600, auto_stop={"time_unit": "SECONDS", "duration": 1})
    status = final(client, job)
    assert status["phase"] == "Terminated"
    assert "auto_stop" in status["running_records"][0]["end_reason"]


@pytest.mark.parametrize(
    ("parameters", "code"), [({"exit_code": 3}, 3), ({"seconds": "soon"}, 2), ({"epochs": 0}, 2), ({"seconds": -1}, 2)]
)
def test_a_job_fails_as_it_was_told_to(client: CloudClient, parameters: dict[str, Any], code: int) -> None:
    asked: dict[str, Any] = {
        "seconds": 0.05,
        "out": f"out/{code}/",
        "nodes": 2,
        "flavor": "modelarts.kat1.8xlarge",
    } | parameters
    job = client.create(**asked)
    status = final(client, job)
    assert status["phase"] == "Failed"
    assert [task["exit_code"] for task in status["task_statuses"]] == [code, 143]
    assert status["running_records"][0]["end_reason"] == f"worker-0: Training end with return code: {code}"
    assert client.keys(f"out/{code}/") == []


def test_a_store_that_fails_is_the_platforms_fault(client: CloudClient, cloud: LocalCloud) -> None:
    client.create_bucket("short-lived")
    job = client.create(seconds=0.3, epochs=1, out_bucket="short-lived")
    client.delete_bucket("short-lived")
    status = final(client, job)
    assert status["phase"] == "Abnormal"
    assert "bucket" in status["running_records"][0]["end_reason"]


def test_a_deleted_job_is_gone_but_stays_on_the_books(client: CloudClient, cloud: LocalCloud) -> None:
    job = client.create(seconds=3600)
    client.call("DELETE", f"/v2/{client.project}/training-jobs/{job}")
    assert client.refused("GET", f"/v2/{client.project}/training-jobs/{job}") == (400, "ModelArts.2775")

    def entry() -> Any:
        return next(entry for entry in cloud.books()["jobs"] if entry["id"] == job)

    wait_until(lambda: entry()["phase"] == "Terminated")
    assert entry()["gone"] == "deleted"


def test_the_engine_still_has_its_former_name_and_no_other() -> None:
    with LocalCloud(engine="pretend") as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"raise SystemExit(1)")
        client.until(client.create(seconds=0), {"Completed"})
    with pytest.raises(UsageFault, match="there is no engine 'imagined'; there are processes, simulated"):
        LocalCloud(engine="imagined")


def test_closing_the_cloud_ends_what_runs() -> None:
    with LocalCloud(engine="simulated") as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"")
        client.until(client.create(seconds=3600), {"Running"})
    assert [job["phase"] for job in cloud.books()["jobs"]] == ["Terminated"]
