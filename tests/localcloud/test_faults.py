"""Faults on demand, seen by a client that hides nothing."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_client import CloudClient, send
from waiting import wait_until

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud import faults
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.faulty import Faults
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.*invalid escape sequence"),
    pytest.mark.filterwarnings(r"ignore:.*'return' in a 'finally' block:SyntaxWarning"),
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning"),
]

TALKER = b"""
import itertools, time
for number in itertools.count():
    print("line", number, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCloud]:
    with LocalCloud(engine="simulated") as cloud:
        yield cloud


@pytest.fixture
def cloud(running: LocalCloud) -> Iterator[LocalCloud]:
    yield running
    running.faults.clear()


@pytest.fixture(scope="module")
def client(running: LocalCloud) -> Iterator[CloudClient]:
    with CloudClient(running.card()) as client:
        client.put("code/train.py", b"")
        yield client


def create(client: CloudClient, name: str = "") -> tuple[int, Any, bytes]:
    return client.raw("POST", f"/v2/{client.project}/training-jobs", client.job(name, seconds=0.05))


def named(cloud: LocalCloud, name: str) -> list[Any]:
    return [job for job in cloud.books()["jobs"] if job["name"] == name]


# What happens to requests


@pytest.mark.parametrize(
    ("rule", "status", "code", "later"),
    [
        (Fault(status=429, retry_after=2.5), 429, "APIGW.0308", "2.5"),
        (Fault(status=429, code="ModelArts.2799", message="Too many requests."), 429, "ModelArts.2799", None),
        (Fault(status=401), 401, "APIGW.0307", None),
        (Fault(status=500), 500, "ModelArts.2950", None),
        (Fault(status=503, retry_after=1), 503, "APIGW.0202", "1"),
    ],
)
def test_a_status_comes_with_the_vendors_words_and_nothing_is_done(
    cloud: LocalCloud, client: CloudClient, rule: Fault, status: int, code: str, later: str | None
) -> None:
    cloud.faults.set([rule])
    answer = create(client, f"refused-{code}")
    content = json.loads(answer[2])
    assert (answer[0], content["error_code"], answer[1]["Retry-After"]) == (status, code, later)
    assert content["error_msg"]
    assert answer[1]["X-Request-Id"]
    assert named(cloud, f"refused-{code}") == []


def test_obs_and_iam_say_it_in_their_own_dialects(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(service="obs", status=503), Fault(service="iam", status=429)])
    status, _, content = send(client.card["obs_endpoint"], "GET", f"/{client.bucket}/k")
    assert (status, b"<Code>ServiceUnavailable</Code>" in content) == (503, True)
    status, _, content = send(client.card["iam_endpoint"], "GET", "/v3/projects")
    assert (status, json.loads(content)["error_code"]) == (429, "APIGW.0308")
    assert create(client)[0] == 201


def test_the_vendors_client_sees_the_status_and_its_code(
    cloud: LocalCloud, client: CloudClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    from huaweicloudsdkcore.auth.credentials import BasicCredentials
    from huaweicloudsdkcore.exceptions.exceptions import ClientRequestException
    from huaweicloudsdkcore.http.http_config import HttpConfig
    from huaweicloudsdkmodelarts.v1 import ListTrainingJobsRequest, ModelArtsClient

    card = client.card
    vendor = (
        ModelArtsClient.new_builder()
        .with_http_config(HttpConfig(user_agent="test", timeout=(5, 30)))
        .with_credentials(BasicCredentials(card["access_key"], card["secret_key"], card["project_id"]))
        .with_endpoint(card["modelarts_endpoint"])
        .build()
    )
    search = ListTrainingJobsRequest(body={"limit": 1})
    cloud.faults.set([Fault(operation="search", times=1, status=429, code="ModelArts.2799")])
    with pytest.raises(ClientRequestException) as refused:
        vendor.list_training_jobs_invoker(search).invoke()
    assert (refused.value.status_code, refused.value.error_code) == (429, "ModelArts.2799")
    assert vendor.list_training_jobs_invoker(search).invoke().limit == 1


def test_a_dropped_request_is_not_served(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(operation="create", times=1, drop="request")])
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        create(client, "never-arrived")
    assert named(cloud, "never-arrived") == []
    assert create(client, "never-arrived")[0] == 201


def test_of_a_lost_answer_the_client_never_hears_but_the_job_exists(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(operation="create", times=1, drop="answer")])
    with pytest.raises(http.client.RemoteDisconnected):
        create(client, "unheard")
    assert len(named(cloud, "unheard")) == 1
    status, _, content = create(client, "unheard")
    assert (status, json.loads(content)["error_code"]) == (400, "ModelArts.2751")
    filters = [{"key": "name", "operator": "in", "value": ["unheard"]}]
    assert client.search(filters=filters)["items"][0]["metadata"]["id"] == named(cloud, "unheard")[0]["id"]


@pytest.mark.parametrize("size", [50, 3_000_000])
def test_a_truncated_answer_promises_more_than_it_sends(cloud: LocalCloud, client: CloudClient, size: int) -> None:
    client.put(f"large/{size}", b"x" * size)
    link = client._obs.createSignedUrl("GET", client.bucket, f"large/{size}").signedUrl
    path = link.removeprefix(client.card["obs_endpoint"])
    cloud.faults.set([Fault(operation="get-object", times=2, truncate=20)])
    for _ in range(2):
        with pytest.raises(http.client.IncompleteRead) as cut:
            send(client.card["obs_endpoint"], "GET", path)
        assert (len(cut.value.partial), cut.value.expected) == (20, size - 20)
    assert send(client.card["obs_endpoint"], "GET", path)[2] == b"x" * size
    cloud.faults.set([Fault(operation="search", truncate=10_000_000)])
    with pytest.raises(http.client.IncompleteRead) as cut:
        client.search(limit=1)
    assert cut.value.expected == 1


@pytest.mark.parametrize("status", [0, 502])
def test_a_page_instead_of_an_answer(cloud: LocalCloud, client: CloudClient, status: int) -> None:
    cloud.faults.set([Fault(operation="create", html=True, status=status)])
    answer = create(client, "page")
    assert (answer[0], answer[1]["Content-Type"]) == (status or 200, "text/html")
    assert answer[2].startswith(b"<!DOCTYPE html>")
    assert named(cloud, "page") == []


def test_a_delayed_request_is_served_later(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(operation="create", delay=0.3)])
    asked = time.monotonic()
    assert create(client)[0] == 201
    assert time.monotonic() - asked >= 0.3


def test_a_delay_holds_up_only_its_own_request() -> None:
    with LocalCloud(engine="simulated", faults=[Fault(service="obs", method="GET", delay=60)]) as cloud:
        host, _, port = cloud.card()["obs_endpoint"].removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as delayed:
            delayed.sendall(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda: cloud.books()["requests"]["obs"])
            other = http.client.HTTPConnection(host, int(port), timeout=10)
            other.request("HEAD", "/?apiversion")
            assert other.getresponse().status == 200
            other.close()


def test_a_long_delay_ends_with_the_cloud() -> None:
    faults = Faults()
    waiting = threading.Thread(target=faults.pause, args=(3600,), daemon=True)
    waiting.start()
    faults.close()
    waiting.join(20)
    assert not waiting.is_alive()


# Which requests, and when


def test_a_rule_strikes_what_it_names_and_nothing_else(cloud: LocalCloud, client: CloudClient) -> None:
    job = client.create(seconds=0)
    cloud.faults.set([Fault(service="modelarts", method="get", path=f"/training-jobs/{job}$", status=503)])
    assert client.refused("GET", f"/v2/{client.project}/training-jobs/{job}") == (503, "APIGW.0202")
    assert client.call("GET", f"/v2/{client.project}/training-jobs/{job}/events")["events"]
    assert client.call("PUT", f"/v2/{client.project}/training-jobs/{job}", {"description": "x"}) is None


def test_a_probability_is_repeatable_by_its_seed(cloud: LocalCloud, client: CloudClient) -> None:
    def statuses(seed: int) -> list[int]:
        cloud.faults.set([Fault(operation="flavors", status=500, probability=0.5, seed=seed)])
        return [client.raw("GET", f"/v2/{client.project}/training-job-flavors")[0] for _ in range(40)]

    first = statuses(1)
    assert set(first) == {200, 500}
    assert first == statuses(1)
    assert first != statuses(2)


def test_the_first_rule_that_strikes_decides(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(operation="flavors", times=1, status=500), Fault(operation="flavors", times=2, status=429)])
    statuses = [client.raw("GET", f"/v2/{client.project}/training-job-flavors")[0] for _ in range(4)]
    assert statuses == [500, 429, 429, 200]
    assert [(rule["matched"], rule["struck"]) for rule in cloud.faults.as_json()] == [(4, 1), (3, 2)]


# What happens to jobs


def test_a_lost_job_is_unknown_from_then_on(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(name="^lost-", job="lost", after=0.3)])
    lost, kept = client.create("lost-1", seconds=3600), client.create("kept-1", seconds=3600)
    client.until(lost, {"Running"})
    path = f"/v2/{client.project}/training-jobs/{lost}"
    wait_until(lambda: client.raw("GET", path)[0] == 400)
    assert client.refused("GET", path) == (400, "ModelArts.2775")
    found = client.search(filters=[{"key": "name", "operator": "like", "value": ["lost-1"]}])
    assert found["total"] == 0
    assert client.phase(kept) == "Running"
    client.stop(kept)
    wait_until(lambda: named(cloud, "lost-1")[0]["phase"] == "Terminated")
    assert named(cloud, "lost-1")[0]["gone"] == "lost"


def test_a_rule_may_strike_a_job_that_runs_already(cloud: LocalCloud, client: CloudClient) -> None:
    job = client.create("struck-later", seconds=3600)
    client.until(job, {"Running"})
    cloud.faults.set([Fault(name="^struck-later$", times=1, job="lost")])
    assert client.refused("GET", f"/v2/{client.project}/training-jobs/{job}") == (400, "ModelArts.2775")


def test_a_job_may_be_lost_before_it_begins(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(name="^lost-at-once$", job="lost")])
    job = client.create("lost-at-once", seconds=0)
    assert client.refused("GET", f"/v2/{client.project}/training-jobs/{job}") == (400, "ModelArts.2775")
    (entry,) = named(cloud, "lost-at-once")
    assert (entry["phase"], entry["gone"], entry["started"]) == ("Terminated", "lost", 0)


def test_a_fault_that_was_cleared_in_time_does_not_strike(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(name="^spared$", job="lost", after=0.2)])
    spared = client.create("spared", seconds=3600)
    cloud.faults.set([Fault(name="^not-spared$", job="lost", after=0.2)])
    client.create("not-spared", seconds=3600)
    wait_until(lambda: named(cloud, "not-spared")[0]["gone"] == "lost")  # so the other's time has passed too
    assert client.phase(spared) == "Running"
    client.stop(spared)


def test_a_phase_that_nobody_knows_is_shown_until_the_job_is_stopped(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(name="asleep", phase="Hibernating")])
    job = client.create("asleep", seconds=0.05)
    assert client.until(job, {"Hibernating"})["status"]["secondary_phase"] == "Hibernating"
    wait_until(lambda: named(cloud, "asleep")[0]["phase"] == "Completed")
    assert client.phase(job) == "Hibernating"
    filters = [{"key": "phase", "operator": "in", "value": ["Hibernating"]}]
    assert [item["metadata"]["id"] for item in client.search(filters=filters)["items"]] == [job]
    cloud.faults.clear()
    assert client.phase(job) == "Completed"

    cloud.faults.set([Fault(name="dreaming", phase="Hibernating")])
    job = client.create("dreaming", seconds=3600)
    client.until(job, {"Hibernating"})
    client.stop(job)
    client.until(job, {"Terminated"})


def test_phases_may_come_out_of_order(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(name="restless", phases=("Running", "Pending", "Running"))])
    job = client.create("restless", seconds=0)
    wait_until(lambda: named(cloud, "restless")[0]["phase"] == "Completed")
    status = [client.show(job)["status"] for _ in range(4)]
    assert [each["phase"] for each in status] == ["Running", "Pending", "Running", "Completed"]
    assert status[1]["secondary_phase"] == "Queuing"


def test_a_job_may_never_leave_the_queue_until_the_fault_is_cleared(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(name="^queue-", times=2, job="pending")])
    stuck, stopped, free = (client.create(f"queue-{number}", seconds=0) for number in range(3))
    client.until(free, {"Completed"})
    assert {client.phase(stuck), client.phase(stopped)} == {"Pending"}
    client.stop(stopped)
    client.until(stopped, {"Terminated"})
    cloud.faults.clear()
    client.until(stuck, {"Completed"})


def test_a_job_that_runs_already_cannot_be_kept_in_the_queue(cloud: LocalCloud, client: CloudClient) -> None:
    running = client.create("early-bird", seconds=3600)
    client.until(running, {"Running"})
    cloud.faults.set([Fault(name="-bird$", times=1, job="pending")])
    late = client.create("late-bird", seconds=0)
    assert (client.phase(running), client.phase(late)) == ("Running", "Pending")
    client.stop(running)


def test_a_job_that_the_platform_cannot_start_is_abnormal(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(name="^stillborn", times=1, job="unstartable")])
    status = client.until(client.create("stillborn", seconds=0), {"Abnormal"})["status"]
    assert (status["secondary_phase"], status["start_time"]) == ("CreateFailed", 0)
    client.until(client.create("stillborn-not", seconds=0), {"Completed"})


def frozen(client: CloudClient, cloud: LocalCloud, job: str) -> None:
    """The log of a running job stands still, in the preview and in the store, and grows again when it may."""
    name = client.show(job)["metadata"]["name"]

    def stored() -> int:
        return len(client.find(f"log/modelarts-job-{job}-worker-0.log") or b"")

    def shown() -> int:
        status, _, content = client.raw("GET", f"/v2/{client.project}/training-jobs/{job}/tasks/worker-0/logs/preview")
        return int(json.loads(content)["full_size"]) if status == 200 else 0

    wait_until(lambda: min(stored(), shown()) > 0)
    cloud.faults.set([Fault(name=name, job="log-frozen")])
    before = shown()
    assert len(client.log(job)["content"].encode()) == before
    cloud.faults.clear()
    wait_until(lambda: min(stored(), shown()) > before)

    cloud.faults.set([Fault(name=name, job="log-frozen")])
    before = shown()
    client.stop(job)
    client.until(job, {"Terminated"})
    assert shown() == before
    kept = stored()
    cloud.faults.clear()
    assert max(kept, before) < shown()


def test_a_frozen_log_grows_no_more(cloud: LocalCloud, client: CloudClient) -> None:
    frozen(client, cloud, client.create(seconds=60, epochs=600))


@pytest.mark.slow
def test_the_log_of_processes_can_be_frozen_too() -> None:
    with LocalCloud() as cloud, CloudClient(cloud.card()) as client:
        client.put("code/talker.py", TALKER)
        frozen(client, cloud, client.create(entry="talker.py"))


def test_a_log_may_be_frozen_before_it_begins(cloud: LocalCloud, client: CloudClient) -> None:
    cloud.faults.set([Fault(job="log-frozen")])
    job = client.create(seconds=0)
    client.until(job, {"Completed"})
    assert client.find(f"log/modelarts-job-{job}-worker-0.log") is None


# The control plane


def test_faults_are_set_shown_and_cleared_over_http(cloud: LocalCloud, client: CloudClient) -> None:
    rules: list[dict[str, Any]] = [
        {"operation": "create", "times": 2, "status": 429, "retry_after": 1},
        {"phases": ["Pending"]},
    ]
    answer = [{**rules[0], "matched": 0, "struck": 0}, {"phases": ["Pending"], "matched": 0, "struck": 0}]
    assert client.control("PUT", "faults", rules) == (200, answer)
    assert create(client)[0] == 429
    status, shown = client.control("GET", "faults")
    assert (status, shown[0]["struck"]) == (200, 1)
    assert client.control("DELETE", "faults") == (204, None)
    assert client.control("GET", "faults") == (200, [])
    assert create(client)[0] == 201


def test_no_fault_strikes_the_control_plane(cloud: LocalCloud, client: CloudClient) -> None:
    assert client.control("PUT", "faults", [{"drop": "request"}])[0] == 200
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        client.search()
    assert client.control("DELETE", "faults")[0] == 204
    assert client.search()


def test_a_rule_that_cannot_be_followed_changes_nothing(cloud: LocalCloud, client: CloudClient) -> None:
    assert client.control("PUT", "faults", [{"operation": "create", "status": 429}])[0] == 200
    status, answer = client.control("PUT", "faults", [{"status": 500}, {"operation": "creat", "status": 429}])
    assert status == 400
    assert answer["error_msg"].startswith("rule 2: 'creat' is no operation")
    assert [rule["status"] for rule in cloud.faults.as_json()] == [429]


def test_only_who_has_the_keys_may_use_the_control_plane(cloud: LocalCloud, client: CloudClient) -> None:
    endpoint = client.card["modelarts_endpoint"]
    for headers in ({}, {"Authorization": "Basic QUs6U0s="}, {"Authorization": "Basic !"}, {"X-Auth-Token": "guess"}):
        for method, path in (("GET", "books"), ("PUT", "faults"), ("DELETE", "faults")):
            assert send(endpoint, method, f"/_local/{path}", "[]", headers)[0] == 401
    assert client.raw("GET", "/_local/faults")[0] == 200  # a token


def test_the_books_know_every_accepted_job_and_every_request() -> None:
    with LocalCloud(engine="simulated") as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"")
        cloud.faults.set([Fault(operation="create", times=1, status=503)])
        began = time.time() * 1000
        assert create(client, "first")[0] == 503
        job = client.create("second", seconds=0)
        client.until(job, {"Completed"})
        status, books = client.control("GET", "books")
        assert (status, books) == (200, cloud.books())
        (entry,) = books["jobs"]
        assert (entry["id"], entry["name"], entry["phase"], entry["gone"]) == (job, "second", "Completed", "")
        assert began - 1 <= entry["created"] <= entry["started"] <= entry["ended"]
        requests = books["requests"]
        assert (requests["modelarts"]["create"], requests["iam"]) == (2, {"tokens": 1})
        assert requests["obs"]["put-object"] == 1


# Files and options


def test_rules_are_read_from_toml_and_json(tmp_path: Path) -> None:
    toml, plain = tmp_path / "faults.toml", tmp_path / "faults.json"
    toml.write_text('[[fault]]\noperation = "create"\ntimes = 1\ndrop = "answer"\n[[fault]]\nphases = ["Pending"]\n')
    plain.write_text('[{"operation": "create", "times": 1, "drop": "answer"}, {"phases": ["Pending"]}]')
    expected = [Fault(operation="create", times=1, drop="answer"), Fault(phases=("Pending",))]
    assert faults.read(toml) == faults.read(plain) == expected


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"stauts": 429}, "'stauts' is no key of a rule"),
        ({"status": "429"}, "status cannot be '429'; it is a whole number"),
        ({"status": True}, "status cannot be True"),
        ({"status": 200}, "status 200 is no error"),
        ({"operation": "create"}, "a rule needs one outcome"),
        ({"status": 500, "drop": "answer"}, "not drop and status together"),
        ({"drop": "both"}, "drop cannot be 'both'; it is request, answer"),
        ({"path": "(", "status": 500}, "path is no regular expression"),
        ({"job": "lost", "delay": 1}, "delay: of requests, but the rule is about jobs"),
        ({"status": 500, "name": "x"}, "name: of jobs, but the rule is about requests"),
        ({"drop": "answer", "retry_after": 1}, "retry_after: needs a status"),
        ({"status": 500, "probability": 0}, "probability must be above 0"),
        ({"truncate": -1}, "truncate cannot be negative"),
        ({"service": "ecs", "status": 500}, "service cannot be 'ecs'"),
        ({"phases": "Pending"}, "phases cannot be 'Pending'; it is a list of texts"),
        ("create", "a rule is a table"),
    ],
)
def test_a_wrong_rule_is_one_clear_line(tmp_path: Path, rule: object, complaint: str) -> None:
    file = tmp_path / "faults.json"
    file.write_text(json.dumps([{"status": 500}, rule]))
    with pytest.raises(UsageFault) as refused:
        faults.read(file)
    assert str(refused.value).startswith(f"{file}: rule 2: ")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("engine", ["simulated", "pretend"])  # the latter is its former name
@pytest.mark.parametrize("module", ["pytest_aisbench", "pytest_aisbench.localcloud"])
def test_the_command_line_takes_faults_and_an_engine(tmp_path: Path, module: str, engine: str) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('[[fault]]\noperation = "create"\ntimes = 1\nstatus = 429\n')
    command = [sys.executable, "-m", module, *(["cloud", "--json"] if module == "pytest_aisbench" else [])]
    with subprocess.Popen(
        [*command, "--engine", engine, "--faults", str(file)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            with CloudClient(json.loads(process.stdout.readline())) as client:
                client.put("code/train.py", b"raise SystemExit(1)")
                assert create(client)[0] == 429
                job = client.until(client.create(seconds=0), {"Completed"})["metadata"]["id"]
                assert "ranks is simulated" in client.log(job, "worker-0")["content"]
        finally:
            process.send_signal(signal.SIGTERM)
    file.write_text("[[fault]]\n")
    done = subprocess.run([*command, "--faults", str(file)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (4, "", 1)
    assert f"{file}: rule 1: a rule needs one outcome" in done.stderr
