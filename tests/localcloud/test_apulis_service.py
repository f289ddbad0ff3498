"""Apulis as the local cloud serves it, by plain HTTP: every answer as it comes, the odd ones above all."""

from __future__ import annotations

import base64
import json
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from apulis_client import CURRENT_USER, ENDED, GPU, LOGIN, NPU, Apulis
from cloud_client import CloudClient
from waiting import wait_until

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW = "train --seconds=600"


@pytest.fixture(scope="module")
def apulis() -> Iterator[Apulis]:
    with LocalCloud(engine="simulated") as cloud:
        yield Apulis(cloud, Path(cloud.card()["apulis_storage"]))


@pytest.fixture(autouse=True)
def no_faults(apulis: Apulis) -> Iterator[None]:
    yield
    apulis.cloud.faults.clear()


def test_a_job_ends_and_its_results_are_in_the_shared_folder(apulis: Apulis) -> None:
    job = apulis.distribute("train --seconds=0.1 --accuracy=0.95 --train_url=/job/results", numpsworker=2)
    assert uuid.UUID(job).version == 4
    assert apulis.until(job, ENDED)["errorMsg"] is None
    detail = apulis.of("GetJobDetailV2", job)
    assert (detail["jobStatus"], detail["jobName"], detail["vcName"]) == ("finished", "resnet50", "platform")
    assert detail["jobStatusDetail"][0].keys() == {"startedAt", "finishedAt", "message"}
    folder = apulis.storage / "work" / detail["jobParams"]["jobPath"]
    assert folder.parts[-4:-2] == (apulis.user, "jobs")
    assert json.loads((folder / "results/accuracy.json").read_text()) == 0.95
    assert json.loads((folder / "results/ranksize.json").read_text()) == 16  # the ps has no card
    assert (folder / f"logs/log-container-{job}.txt.1").read_text() == apulis.log(job)
    assert not (folder / "logs/max_page").exists()
    shutil.rmtree(folder)
    assert apulis.status(job) == "finished"
    assert "epoch: 3" in apulis.log(job)
    assert not folder.exists()  # who has removed it does not get it back


def test_results_may_go_to_the_object_store(apulis: Apulis) -> None:
    with CloudClient(apulis.card) as client:
        job = apulis.submit(f"sudo -E bash -c 'train --seconds=0 --train_url=s3://{client.bucket}/out/a'")
        assert apulis.until(job, ENDED)["jobStatus"] == "finished"
        assert client.get("out/a/ranksize.json") == b"1"


@pytest.mark.parametrize(
    "change",
    [
        {"jobName": " "},
        {"vcName": ""},
        {"vcName": "another"},
        {"userName": "stranger"},
        {"jobType": None},
        {"gpuType": "nvidia"},
        {"workPath": "../other"},
        {"jobPath": "/etc"},
        {"dataPath": "a\\.b"},
    ],
    ids=str,
)
def test_a_refused_job_is_an_answer_without_its_id(apulis: Apulis, change: dict[str, Any]) -> None:
    """The platform says code 0 and no error."""
    assert apulis.post("PostJob", apulis.body(**change)) == {"code": 0, "error": ""}


def test_a_word_for_preemption_that_it_does_not_know_breaks_the_platform(apulis: Apulis) -> None:
    status, page = apulis.raw("POST", "/apis/PostJob", apulis.body(preemptionAllowed="NO"), apulis.bearer)
    assert (status, page[:9]) == (500, b"<!DOCTYPE")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobtrainingtype": "Sweep"}, "ERROR: invalid jobtrainingtype: Sweep"),
        ({"jobtrainingtype": "PSDistJob"}, "Cannot submit job! 'numps'"),
        ({"image": None}, "Cannot submit job!"),
        ({"env": [{"name": "only"}]}, "Cannot submit job!"),
        ({"resourcegpu": 3}, "can't allocate resources"),
        ({"resourcegpu": "16"}, "can't allocate resources"),
        ({"jobId": "../../Escape"}, "Cannot submit job!"),
    ],
    ids=str,
)
def test_other_mistakes_are_found_when_the_job_is_launched(
    apulis: Apulis, change: dict[str, Any], message: str
) -> None:
    job = apulis.submit(**change)
    answer = apulis.get("GetJobStatus", jobId=job)
    assert (answer["jobStatus"], answer["errorMsg"][: len(message)]) == ("error", message)
    assert apulis.of("GetJobLog", job) == {"log": "", "cursor": None, "max_page": 0}
    assert apulis.of("KillJob", job)["result"].startswith("Cannot Kill")
    assert apulis.raw("DELETE", "/apis/DeleteJob", headers=apulis.bearer, jobId=job) == (
        200,
        b'{"code": 0, "result": "Success, the job is deleted."}',
    )


def test_a_client_may_choose_the_id_and_nobody_gets_it_twice(apulis: Apulis) -> None:
    wanted = str(uuid.uuid4())
    assert apulis.submit(SLOW, jobId=wanted) == wanted
    assert apulis.post("PostJob", apulis.body(SLOW, jobId=wanted)) == {"code": 0, "error": ""}
    assert [book["id"] for book in apulis.cloud.books()["jobs"]].count(wanted) == 1
    assert apulis.submit(jobId="") != apulis.submit(jobId="")
    apulis.of("KillJob", wanted)


def test_an_unknown_job_is_null_nothing_or_a_crash(apulis: Apulis) -> None:
    nobody = str(uuid.uuid4())
    assert apulis.get("GetJobStatus", jobId=nobody) is None
    assert apulis.of("GetJobDetailV2", nobody) == {}
    status, page = apulis.raw("GET", "/apis/GetJobDetail", jobId=nobody, userName=apulis.user)
    assert (status, page[:9]) == (500, b"<!DOCTYPE")
    assert apulis.of("GetJobLog", nobody) == {"log": "", "cursor": None, "max_page": 0}
    assert apulis.of("GetJobRawLog", nobody) == {"log": ""}
    assert apulis.of("KillJob", nobody)["result"] == f"Cannot Kill the job. Job ID:{nobody}"
    assert json.loads(apulis.raw("DELETE", "/apis/DeleteJob", headers=apulis.bearer, jobId=nobody)[1])["code"] == -1
    assert apulis.raw("GET", "/apis/GetJobLog", jobId=nobody)[0] == 400


def test_a_stranger_sees_the_status_alone(apulis: Apulis) -> None:
    job = apulis.submit(SLOW)
    assert apulis.get("GetJobDetailV2", jobId=job, userName="stranger") == {}
    assert apulis.get("GetJobLog", jobId=job, userName="stranger")["max_page"] == 0
    assert apulis.get("KillJob", jobId=job, userName="stranger")["result"].startswith("Cannot")
    assert apulis.get("ListJobsV2", userName="stranger", vcName="platform", jobOwner="all")["runningJobs"] == []
    assert apulis.status(job) in {"scheduling", "running"}
    assert apulis.get("GetJobDetail", jobId=job, userName="admin")["jobId"] == job
    assert apulis.get("KillJob", jobId=job, userName="admin")["result"].startswith("Success")


def test_killing_takes_its_time_and_happens_once(apulis: Apulis) -> None:
    job = apulis.submit(SLOW)
    apulis.until(job, {"running"})
    assert json.loads(apulis.raw("DELETE", "/apis/DeleteJob", headers=apulis.bearer, jobId=job)[1])["code"] == -1
    assert apulis.of("KillJob", job) == {"result": "Success, the job is scheduled to be terminated."}
    assert apulis.until(job, {"killed"})["errorMsg"] is None
    assert apulis.of("KillJob", job) == {"result": f"Cannot Kill the job. Job ID:{job}"}
    assert json.loads(apulis.raw("DELETE", "/apis/DeleteJob", headers=apulis.bearer, jobId=job)[1])["code"] == 0
    assert apulis.get("GetJobStatus", jobId=job) is None


def test_a_paused_job_begins_anew(apulis: Apulis) -> None:
    job = apulis.submit(SLOW)
    assert apulis.of("ResumeJob", job)["result"].startswith("Cannot")
    apulis.until(job, {"running"})
    assert apulis.of("PauseJob", job)["result"].startswith("Success")
    apulis.until(job, {"paused"})
    assert apulis.of("ResumeJob", job)["result"].startswith("Success")
    apulis.until(job, {"running"})
    apulis.of("PauseJob", job)
    apulis.until(job, {"paused"})
    assert apulis.of("KillJob", job)["result"].startswith("Success")
    assert apulis.status(job) == "killed"


def test_the_three_lists(apulis: Apulis) -> None:
    done, slow = apulis.submit(jobName="listed-done"), apulis.submit(SLOW, jobName="listed-slow")
    apulis.until(done, ENDED)
    apulis.until(slow, {"running"})
    mine = {"userName": apulis.user, "vcName": "platform", "jobOwner": apulis.user}

    def ids(rows: list[dict[str, Any]]) -> set[str]:
        return {row["jobId"] for row in rows} & {done, slow}

    first, second = apulis.get("ListJobs", **mine), apulis.get("ListJobsV2", **mine)
    for lists in (first, second):
        assert (ids(lists["runningJobs"]), ids(lists["finishedJobs"])) == ({slow}, {done})
        assert lists["meta"]["runningJobs"] == len(lists["runningJobs"])
    params = next(row["jobParams"] for row in first["runningJobs"] if row["jobId"] == slow)
    assert json.loads(base64.b64decode(params))["jobName"] == "listed-slow"
    row = next(row for row in second["runningJobs"] if row["jobId"] == slow)
    assert (row["jobParams"]["jobName"], row["priority"], row["duration"] >= 0) == ("listed-slow", 100, True)

    third = apulis.get("ListJobsV3", **mine, searchWord="listed-", jobStatus="all", pageNum=1, pageSize=1)
    assert ([row["jobId"] for row in third["allJobs"]], third["meta"]["totalJobs"]) == ([slow], 2)
    assert (third["runningJobs"], third["queuedJobs"], third["finishedJobs"]) == ([], [], [])
    third = apulis.get("ListJobsV3", **mine, searchWord="listed-", pageNum=2, pageSize=1, jobStatus="all")
    assert ids(third["allJobs"]) == ids(third["finishedJobs"]) == {done}
    third = apulis.get("ListJobsV3", **mine, searchWord="listed-", jobStatus="running", pageNum=1, pageSize=9)
    assert ids(third["allJobs"]) == {slow}
    apulis.of("KillJob", slow)


def test_endpoints_are_taken_down_and_priorities_kept_in_their_range(apulis: Apulis) -> None:
    job = apulis.submit(SLOW)
    own = {"userName": apulis.user}
    wanted = ["ssh", "ipython", "tensorboard", {"name": "mine", "podPort": 40001}]
    apulis.post("endpoints", {"jobId": job, "endpoints": wanted}, **own)
    shown = apulis.of("endpoints", job)
    assert [endpoint["name"] for endpoint in shown] == ["ssh", "ipython", "tensorboard", "mine"]
    for wrong in ({"name": "mine", "podPort": 80}, {"name": "a" * 17, "podPort": 40000}, "telnet"):
        assert "error" in apulis.post("endpoints", {"jobId": job, "endpoints": [wrong]}, **own)
    assert apulis.get("jobs/priorities")[job] == 100
    assert apulis.post("jobs/priorities", {job: 900}, **own) == {job: 200}
    assert apulis.post("jobs/priorities", {job: 900}, userName="admin") == {job: 900}
    assert apulis.post("jobs/priorities", {job: 150}, userName="stranger") == {}
    assert apulis.get("jobs/priorities")[job] == 900
    apulis.of("KillJob", job)


def test_devices_are_taken_while_a_job_runs(apulis: Apulis) -> None:
    def free(kind: str) -> int:
        devices = apulis.get("GetAllDevice", userName=apulis.user)
        assert devices[kind].keys() == {"capacity", "detail", "deviceStr"}
        return sum(node["allocatable"] for node in devices[kind]["detail"])

    wait_until(lambda: free(NPU) == free(GPU) == 64)  # the last test's job is on its way out
    job = apulis.distribute(SLOW)
    apulis.until(job, {"running"})
    assert (free(NPU), free(GPU)) == (48, 64)
    apulis.of("KillJob", job)
    apulis.until(job, ENDED)
    gpu = apulis.submit(SLOW, gpuType=GPU, resourcegpu="3")
    apulis.until(gpu, {"running"})
    assert (free(NPU), free(GPU)) == (64, 61)
    apulis.of("KillJob", gpu)
    assert apulis.get("GetAllDevice", userName="stranger") == {}
    assert [vc["vcName"] for vc in apulis.get("ListVCs", userName=apulis.user)["result"]] == ["platform"]
    assert apulis.get("GetVC", userName=apulis.user, vcName="platform")["quota"] == {NPU: 64, GPU: 64}
    assert apulis.get("GetVC", userName=apulis.user, vcName="another") is None


def test_a_job_by_query(apulis: Apulis) -> None:
    body = {name: value for name, value in apulis.body().items() if name != "env"}
    job = apulis.get("SubmitJob", **(body | {"jobtrainingtype": "PSDistJob", "numpsworker": 1}))["jobId"]
    assert apulis.until(job, ENDED)["jobStatus"] == "finished"  # numps is 1 unless it is given
    del body["image"]
    assert apulis.get("SubmitJob", **body)["error"].startswith("Cannot create job!")


def test_faults_and_books_know_the_service(apulis: Apulis) -> None:
    apulis.cloud.faults.set([Fault(service="apulis", operation="GetJobStatus", times=1, status=503)])
    job = apulis.submit(SLOW)
    assert apulis.raw("GET", "/apis/GetJobStatus", jobId=job)[0] == 503
    apulis.until(job, {"running"})
    apulis.cloud.faults.set([Fault(phase="Killed")])
    assert apulis.status(job) == "Killed"  # the platform's other spelling
    apulis.cloud.faults.set([Fault(job="lost")])
    assert apulis.get("GetJobStatus", jobId=job) is None
    books = apulis.cloud.books()
    assert next(book["gone"] for book in books["jobs"] if book["id"] == job) == "lost"
    assert books["requests"]["apulis"]["PostJob"] > 0
    with CloudClient(apulis.card) as client:
        assert job not in [item["metadata"]["id"] for item in client.search()["items"]]


@pytest.mark.slow
def test_a_frozen_log_grows_no_more(apulis: Apulis) -> None:
    job = apulis.submit("train --seconds=1 --epochs=20")
    wait_until(lambda: "epoch: 1 " in apulis.log(job))
    apulis.cloud.faults.set([Fault(job="log-frozen")])
    before = apulis.log(job)
    apulis.until(job, ENDED)
    assert apulis.log(job) == before


def test_login_wants_the_digest_of_the_password_and_not_too_often() -> None:
    with LocalCloud(engine="simulated") as cloud:
        apulis = Apulis(cloud, Path(cloud.card()["apulis_storage"]))
        password = cloud.card()["apulis_password"]
        refused = (401, {"success": False, "message": "UNAUTHORIZED"})
        assert apulis.login("wrong") == apulis.login(password, "somebody") == refused
        plain = apulis.raw("POST", LOGIN, {"userName": apulis.user, "password": password})
        assert plain[0] == 401
        status, session = apulis.login(password)
        assert (status, session["success"]) == (200, True)

        bearer = {"Authorization": f"Bearer {session['token']}"}
        forged = {"Authorization": f"Bearer {session['token'][:-4]}AAAA"}
        status, told = apulis.raw("GET", CURRENT_USER, headers=bearer)
        assert (status, json.loads(told)["userName"], json.loads(told)["currentVC"]) == (200, apulis.user, ["platform"])
        assert apulis.raw("GET", CURRENT_USER, headers=forged)[0] == apulis.raw("GET", CURRENT_USER)[0] == 401
        assert b"jobId" in apulis.raw("POST", "/apis/PostJob", apulis.body(), bearer)[1]
        assert b"jobId" not in apulis.raw("POST", "/apis/PostJob", apulis.body(), forged)[1]

        assert [apulis.login(password)[0] for _ in range(12)] == [200] * 12
        assert [apulis.login("wrong")[0] for _ in range(8)] == [401] * 7 + [429]
        assert apulis.login(password)[0] == 429  # a password cannot be guessed meanwhile


def test_no_job_runs_longer_than_the_cluster_allows() -> None:
    with LocalCloud(engine="simulated", apulis_time_limit=0.2) as cloud:
        apulis = Apulis(cloud, Path(cloud.card()["apulis_storage"]))
        ended = apulis.until(apulis.submit(SLOW), ENDED)
        assert (ended["jobStatus"], ended["errorMsg"]) == ("killed", "running exceed pre-defined 0.2s")
