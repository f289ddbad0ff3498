"""ModelArts V1 as the local cloud serves it, by plain HTTP: every answer as it comes over the wire."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from cloud_client import CloudClient, send
from v1_client import (
    CANCELED,
    COMPLETED,
    EIGHT_CARDS,
    FAILED,
    FINAL,
    KILLED,
    RUNNING,
    SUBMIT_FAILED,
    V1,
    WAITING,
    job_of,
)
from waiting import wait_until

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.modelarts.rules import Catalog
from pytest_aisbench.localcloud.server import LocalCloud

if TYPE_CHECKING:
    from collections.abc import Iterator

TELLER = """
import os, sys
names = [name for name in os.environ if name.startswith(("DLS_", "BATCH_"))]
print("told", sys.argv[1:], os.path.abspath(__file__))
for name in sorted(names):
    print(f"{name}={os.environ[name]}")
"""


@pytest.fixture(scope="module")
def v1() -> Iterator[V1]:
    with LocalCloud(engine="simulated") as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"print('hello')")
        client.put("code/readme.md", b"# code")
        yield V1(cloud, client)


@pytest.fixture(autouse=True)
def no_faults(v1: V1) -> Iterator[None]:
    yield
    v1.cloud.faults.clear()


def test_a_job_runs_and_its_results_and_logs_are_in_the_store(v1: V1) -> None:
    body = v1.body(worker_server_num=2, spec_id=EIGHT_CARDS)
    created = v1.call("POST", "training-jobs", body)
    assert created["job_name"] == body["job_name"]
    assert (created["status"], created["version_name"]) == ("1", "V0001")  # texts, as in the vendor's example
    version = f"training-jobs/{created['job_id']}/versions/{created['version_id']}"

    done = v1.until(version, FINAL)

    assert done["status"] == COMPLETED
    assert (str(done["job_id"]), str(done["version_id"])) == (created["job_id"], created["version_id"])
    assert done["job_desc"] == body["job_desc"]
    assert done["resource_id"] == created["resource_id"]
    assert done["duration"] > 0
    asked = ("worker_server_num", "app_url", "boot_file_url", "data_url", "train_url", "log_url", "spec_id")
    assert {key: done[key] for key in asked} == {key: body["config"][key] for key in asked}
    assert done["parameter"] == body["config"]["parameter"]
    assert done["spec_code"] == "modelarts.kat1.8xlarge"
    assert done["engine_name"] == "Ascend-Powered-Engine"
    assert float(done["system_metric_list"]["npuUtil"][0]) > 0
    results = v1.client.keys(body["config"]["train_url"].removeprefix(f"/{v1.bucket}/"))
    assert {"accuracy.json", "ranksize.json", "throughput_15.json"} <= set(results)
    log = f"log/{created['resource_id']}-job-{body['job_name']}-1.log"
    assert b"16 ranks" in v1.client.get(log)


def test_versions_share_the_name_and_follow_one_another(v1: V1) -> None:
    first = v1.create(v1.body())
    shown = v1.until(first, FINAL)
    again = v1.body() | {"job_desc": "the second"}
    again["config"]["pre_version_id"] = shown["version_id"]
    del again["job_name"]

    created = v1.call("POST", f"{job_of(first)}/versions", again)

    assert created["job_id"] == str(shown["job_id"])
    assert (created["job_name"], created["version_name"]) == (shown["job_name"], "V0002")
    second = f"{job_of(first)}/versions/{created['version_id']}"
    assert v1.until(second, FINAL)["pre_version_id"] == shown["version_id"]
    assert v1.call("GET", first)["job_desc"] == shown["job_desc"]
    versions = v1.call("GET", f"{job_of(first)}/versions")
    assert (versions["version_count"], versions["job_desc"]) == (2, "the second")
    assert [version["version_name"] for version in versions["versions"]] == ["V0002", "V0001"]
    paged = v1.call("GET", f"{job_of(first)}/versions?per_page=1&page=2")
    assert [version["version_name"] for version in paged["versions"]] == ["V0001"]
    (row,) = v1.list(search_content=shown["job_name"])["jobs"]
    assert (str(row["version_id"]), row["version_count"]) == (created["version_id"], 2)

    v1.call("DELETE", second)
    assert v1.call("GET", f"{job_of(first)}/versions")["version_count"] == 1
    assert v1.refused("GET", second)[:2] == (400, "ModelArts.2775")
    v1.call("DELETE", first)
    assert v1.refused("GET", f"{job_of(first)}/versions")[:2] == (400, "ModelArts.2775")
    v1.create(v1.body(shown["job_name"]))  # the name is free again


def test_a_new_version_needs_its_predecessor(v1: V1) -> None:
    first = v1.create(v1.body())
    body = v1.body()
    assert v1.refused("POST", f"{job_of(first)}/versions", body)[:2] == (400, "ModelArts.0104")
    body["config"]["pre_version_id"] = 1
    assert v1.refused("POST", f"{job_of(first)}/versions", body)[:2] == (400, "ModelArts.2775")


def test_a_running_version_is_stopped_and_a_waiting_one_is_cancelled(v1: V1) -> None:
    running = v1.create(v1.slow())
    v1.until(running, {RUNNING})
    v1.call("POST", f"{running}/stop")
    assert v1.until(running, FINAL)["status"] == KILLED
    status, code, _ = v1.refused("POST", f"{running}/stop")
    assert (status, code) == (409, "ModelArts.2796")

    v1.cloud.faults.set([Fault(name="^waits-", job="pending")])
    waiting = v1.create(v1.slow("waits-for-ever"))
    v1.until(waiting, {WAITING})
    v1.call("POST", f"{waiting}/stop")
    assert v1.until(waiting, FINAL)["status"] == CANCELED


def test_the_list_finds_substrings_and_pages(v1: V1) -> None:
    names = [f"listed-{letter}-{uuid.uuid4().hex[:8]}" for letter in "abc"]
    versions = [v1.create(v1.body(name)) for name in names]
    for version in versions:
        v1.until(version, FINAL)

    found = v1.list(search_content="listed-")
    assert [job["job_name"] for job in found["jobs"]] == names
    assert found["job_total_count"] == 3
    assert [job["job_name"] for job in v1.list(search_content=names[1])["jobs"]] == [names[1]]
    newest = v1.list(search_content="listed-", sortBy="create_time", order="desc", per_page=2, page=1)
    assert [job["job_name"] for job in newest["jobs"]] == [names[2], names[1]]
    rest = v1.list(search_content="listed-", sortBy="create_time", order="desc", per_page=2, page=2)
    assert [job["job_name"] for job in rest["jobs"]] == [names[0]]
    assert v1.list(search_content="listed-", status=RUNNING)["jobs"] == []
    assert len(v1.list(search_content="listed-", status=COMPLETED)["jobs"]) == 3
    for query in ("sortBy=colour", "order=up", "per_page=0", "per_page=1001", "page=0", "page=first"):
        assert v1.refused("GET", f"training-jobs?{query}")[:2] == (400, "ModelArts.0104"), query


def test_jobs_of_the_two_apis_do_not_know_each_other(v1: V1) -> None:
    name = f"both-{uuid.uuid4().hex}"
    v1.client.create(name, seconds=0.1)
    version = v1.create(v1.body(name))
    assert [job["metadata"]["name"] for job in v1.client.search(limit=50)["items"]].count(name) == 1
    assert len(v1.list(search_content=name)["jobs"]) == 1
    v1.call("DELETE", job_of(version))
    query = f"/v2/{v1.client.project}/training-job-names?job_name={name}"
    assert v1.client.call("GET", query) == {"is_duplicate": True}


def test_the_log_is_read_page_by_page(v1: V1) -> None:
    body = v1.body(worker_server_num=2, parameter=[{"label": "seconds", "value": 0}, {"label": "epochs", "value": 9}])
    version = v1.create(body)
    v1.until(version, FINAL)
    names = v1.call("GET", f"{version}/log/file-names")["log_file_list"]
    assert names == [f"job-{body['job_name']}.0", f"job-{body['job_name']}.1"]

    def page(base: str, lines: int, order: str = "desc") -> Any:
        return v1.call("GET", f"{version}/aom-log?log_file={names[1]}&base_line={base}&lines={lines}&order={order}")

    whole = page("", 500)["content"]
    assert whole.count("\n") == page("", 500)["lines"] == 20
    first = page("", 500)["start_line"]
    read, base = whole.splitlines()[0], first
    for expected in (7, 7, 5, 0):
        part = page(base, 7)
        assert part["lines"] == expected
        read += "\n" + part["content"].rstrip("\n") if expected else ""
        base = part["end_line"]
    assert read + "\n" == whole
    assert page("", 3)["content"] == "".join(whole.splitlines(keepends=True)[-3:])
    before = page(page("", 3)["start_line"], 2, "asc")
    assert before["content"] == "".join(whole.splitlines(keepends=True)[-5:-3])
    assert page("", 0)["content"] == ""
    for query in ("log_file=other", f"log_file={names[0]}&lines=501", f"log_file={names[0]}&order=up"):
        assert v1.refused("GET", f"{version}/aom-log?{query}")[:2] == (400, "ModelArts.0104")


def test_a_log_that_does_not_exist_yet(v1: V1) -> None:
    v1.cloud.faults.set([Fault(name="^silent-", job="pending")])
    version = v1.create(v1.body("silent-job"))
    assert v1.call("GET", f"{version}/log/file-names")["log_file_list"] == []
    assert v1.refused("GET", f"{version}/aom-log?log_file=job-silent-job.0")[:2] == (400, "ModelArts.2818")


def test_specs_and_engines(v1: V1) -> None:
    specs = v1.call("GET", "job/resource-specs?job_type=train")
    assert specs["spec_total_count"] == len(specs["specs"])
    assert specs["specs"][EIGHT_CARDS - 1]["spec_id"] == EIGHT_CARDS
    assert specs["specs"][EIGHT_CARDS - 1]["spec_code"] == "modelarts.kat1.8xlarge"
    assert specs["specs"][EIGHT_CARDS - 1]["npu_info"]["npu"] == "8"
    engines = v1.call("GET", "job/ai-engines?job_type=train")["engines"]
    assert engines[0]["engine_id"] == 1
    assert {engine["engine_name"] for engine in engines} == {"Ascend-Powered-Engine"}


def test_a_dedicated_pool_gives_whole_nodes(v1: V1) -> None:
    version = v1.create(v1.body(spec_id=None, pool_id="pool-local"))
    shown = v1.call("GET", version)
    assert (shown["pool_id"], shown["npu_info"]["npu"]) == ("pool-local", "8")
    assert "spec_id" not in shown


def test_descriptions_change(v1: V1) -> None:
    version = v1.create(v1.body())
    v1.call("PUT", job_of(version), {"job_desc": "another"})
    assert v1.call("GET", version)["job_desc"] == "another"
    assert v1.refused("PUT", job_of(version), {"job_desc": "x" * 257})[1] == "ModelArts.0104"


def test_configurations_are_kept(v1: V1) -> None:
    config = {"config_name": "kept", "config_desc": "once", "worker_server_num": 1, "spec_id": 1}
    v1.call("POST", "training-job-configs", config)
    assert v1.refused("POST", "training-job-configs", config)[1] == "ModelArts.0103"
    v1.call("PUT", "training-job-configs/kept", {"config_desc": "twice"})
    assert v1.call("GET", "training-job-configs/kept")["config_desc"] == "twice"
    listed = v1.call("GET", "training-job-configs?per_page=10&page=1&sortBy=create_time&order=asc&search_content=ep")
    assert (listed["config_total_count"], listed["configs"][0]["spec_id"]) == (1, 1)
    v1.call("DELETE", "training-job-configs/kept")
    assert v1.call("GET", "training-job-configs")["configs"] == []
    assert v1.refused("GET", "training-job-configs/kept")[1] == "ModelArts.0104"


def test_a_name_can_be_used_once(v1: V1) -> None:
    body = v1.body()
    v1.create(body)
    body["config"]["train_url"] = f"/{v1.bucket}/out/elsewhere/"
    status, code, message = v1.refused("POST", "training-jobs", body)
    assert (status, code, message) == (400, "ModelArts.0103", f"Job name:{body['job_name']} is existed.")


def test_one_place_has_one_running_job(v1: V1) -> None:
    url = f"/{v1.bucket}/out/shared/"
    version = v1.create(v1.slow(train_url=url))
    status, code, message = v1.refused("POST", "training-jobs", v1.body(train_url=url))
    assert (status, code) == (400, "ModelArts.0105")
    assert message == f"Operation failed. Other running job contain train_url: {url}"
    v1.call("POST", f"{version}/stop")
    v1.until(version, FINAL)
    v1.create(v1.body(train_url=url))


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"spec_id": 1, "pool_id": "pool-local"}, 400, "0104"),
        ({"spec_id": None}, 400, "0104"),
        ({"data_url": None}, 400, "0104"),
        ({"dataset_id": "d", "dataset_version_id": "v"}, 400, "0104"),
        ({"worker_server_num": 0}, 400, "0104"),
        ({"train_url": None}, 400, "0104"),
        ({"create_version": False}, 400, "0104"),
        ({"nas_type": "cifs", "nas_share_addr": "h:/", "nas_mount_path": "/nas"}, 400, "0104"),
        ({"volumes": [{"nfs": {"src_path": "h:/", "dest_path": "/cache"}}]}, 400, "0104"),
        ({"model_id": 7}, 400, "2755"),
        ({"app_url": "/{bucket}/nothing/"}, 400, "2757"),
        ({"boot_file_url": "/{bucket}/code/missing.py"}, 400, "2758"),
        ({"boot_file_url": "/{bucket}/code/readme.md"}, 400, "2758"),
        ({"app_url": "/{bucket}/deep/", "boot_file_url": "/{bucket}/deep/train.py"}, 400, "2760"),
        ({"parameter": [{"label": "a", "value": 1}, {"label": "a", "value": 2}]}, 400, "2767"),
        ({"engine_id": 999}, 400, "2780"),
        ({"spec_id": 999}, 400, "2781"),
        ({"data_url": None, "dataset_id": "d", "dataset_version_id": "v"}, 400, "2782"),
        ({"data_url": None, "data_source": [{"type": "dataset", "dataset_id": "d"}]}, 400, "2782"),
        ({"train_url": "/{bucket}/out"}, 400, "2791"),
        ({"log_url": "/no-such-bucket/log/"}, 400, "2791"),
        ({"worker_server_num": 65}, 400, "2793"),
        ({"user_image_url": "host/org/image:1"}, 400, "2806"),
        ({"spec_id": None, "pool_id": "pool-of-another"}, 404, "2890"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(v1: V1, changes: dict[str, Any], status: int, code: str) -> None:
    v1.client.put("deep/train.py", b"")
    v1.client.put(f"deep/{'d/' * 33}file", b"")
    filled = json.loads(json.dumps(changes).replace("{bucket}", v1.bucket))
    assert v1.refused("POST", "training-jobs", v1.body(**filled))[:2] == (status, f"ModelArts.{code}")


def test_other_refusals(v1: V1) -> None:
    assert v1.refused("POST", "training-jobs", v1.body("no spaces"))[:2] == (400, "ModelArts.0104")
    assert v1.refused("POST", "training-jobs", [])[:2] == (400, "ModelArts.2787")
    assert v1.refused("GET", "training-jobs/1/versions/1")[:2] == (400, "ModelArts.2775")
    assert v1.refused("GET", "training-jobs/x/versions")[:2] == (400, "ModelArts.2775")
    assert v1.refused("PATCH", "training-jobs")[:2] == (404, "ModelArts.2836")
    status, _, content = v1.client.raw("GET", f"/v1/{v1.client.project}/visualization-jobs")
    assert (status, "visualization_jobs" in content.decode()) == (501, True)
    status, _, content = v1.client.raw("GET", "/v1/another-project/training-jobs")
    assert (status, json.loads(content)["error_code"]) == (404, "ModelArts.2786")


def test_data_sources_are_data_urls(v1: V1) -> None:
    source = [{"type": "obs", "data_url": f"/{v1.bucket}/data/"}]
    shown = v1.call("GET", v1.create(v1.body(data_url=None, data_source=source)))
    assert shown["data_source"] == source


def test_shares_are_told_back(v1: V1) -> None:
    share = {"nas_type": "nfs", "nas_share_addr": "192.168.8.150:/", "nas_mount_path": "/home/work/nas"}
    shown = v1.call("GET", v1.create(v1.body(**share)))
    assert {key: shown[key] for key in share} == share


@pytest.mark.slow
def test_the_first_job_of_a_custom_image_is_reviewed(v1: V1) -> None:
    image = {"user_image_url": "host/org/image:1", "user_command": "bash /home/work/run_train.sh python train.py"}
    version = v1.create(v1.body(**image, parameter=None))
    v1.until(version, {18})
    assert [v1.status(version), v1.status(version)] == [19, 20]
    assert v1.until(version, FINAL)["user_command"] == image["user_command"]
    second = v1.create(v1.body(**image, parameter=None))
    assert v1.until(second, {RUNNING, COMPLETED})


def test_faults_strike_v1(v1: V1) -> None:
    v1.cloud.faults.set(
        [
            Fault(operation="create", times=1, status=429, retry_after=3),
            Fault(operation="versions", status=503),
            Fault(operation="show", times=1, status=500),
            Fault(operation="stop", status=403, code="ModelArts.2785", message="No agency."),
            Fault(name="^lost-", job="lost"),
            Fault(name="^dead-", job="unstartable"),
            Fault(name="^strange-", phase="23"),
            Fault(name="^scaling-", phase="SCALING"),
        ]
    )
    # What the gateway says has the gateway's shape, also in front of V1.
    status, headers, content = v1.client.raw("POST", f"/v1/{v1.client.project}/training-jobs", v1.body())
    assert (status, headers["Retry-After"]) == (429, "3")
    assert json.loads(content)["error_msg"].startswith("The throttling threshold")
    version = v1.create(v1.body())
    assert v1.refused("GET", version)[:2] == (500, "ModelArts.2950")
    assert v1.client.refused("GET", f"/v1/{v1.client.project}/{job_of(version)}/versions") == (503, "APIGW.0202")
    assert v1.refused("POST", f"{version}/stop") == (403, "ModelArts.2785", "No agency.")
    assert v1.refused("GET", v1.create(v1.body("lost-job")))[1] == "ModelArts.2775"
    assert v1.until(v1.create(v1.body("dead-job")), FINAL)["status"] == SUBMIT_FAILED
    assert v1.until(v1.create(v1.slow("strange-job")), {23})
    assert v1.until(v1.create(v1.slow("scaling-job")), {15})


@pytest.mark.slow
def test_a_failed_job(v1: V1) -> None:
    assert v1.until(v1.create(v1.body(parameter=[{"label": "exit_code", "value": 3}])), FINAL)["status"] == FAILED


def test_who_asks_is_checked(v1: V1) -> None:
    endpoint, path = v1.client.card["modelarts_endpoint"], f"/v1/{v1.client.project}/training-jobs"
    status, _, content = send(endpoint, "GET", path)
    assert (status, json.loads(content)["error_code"]) == (401, "APIGW.0301")


# The vendor's signer asks datetime.utcnow() for the time, which Python 3.12 deprecates.
@pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning")
def test_signatures_do_as_well_as_tokens(v1: V1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # importing the vendor's SDK writes there
    from huaweicloudsdkcore.auth.credentials import BasicCredentials
    from huaweicloudsdkcore.sdk_request import SdkRequest
    from huaweicloudsdkcore.signer.signer import Signer

    card = v1.client.card
    name = f"signed-{uuid.uuid4().hex}"
    request = SdkRequest(
        method="POST",
        schema="http",
        host=urlsplit(card["modelarts_endpoint"]).netloc,
        resource_path=f"/v1/{v1.client.project}/training-jobs",
        query_params=[],
        header_params={"Content-Type": "application/json"},
        body=json.dumps(v1.body(name)),
    )
    Signer(BasicCredentials(card["access_key"], card["secret_key"], v1.client.project)).sign(request)
    body = request.body.decode() if isinstance(request.body, bytes) else request.body
    status, _, content = send(card["modelarts_endpoint"], "POST", request.uri, body, request.header_params)
    assert (status, json.loads(content)["job_name"]) == (200, name)


def test_the_books_know_versions(v1: V1) -> None:
    version = v1.create(v1.body())
    job, _, number = version.removeprefix("training-jobs/").partition("/versions/")
    assert v1.cloud.books()["jobs"][-1]["id"] == f"{job}/{number}"


def test_states_can_be_texts() -> None:
    with LocalCloud(engine="simulated", v1_status_strings=True) as cloud, CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"")
        v1 = V1(cloud, client)
        version = v1.create(v1.body())
        wait_until(lambda: v1.status(version) == "10")
        assert [job["status"] for job in v1.list()["jobs"]] == ["10"]
        assert [each["status"] for each in v1.call("GET", f"{job_of(version)}/versions")["versions"]] == ["10"]


def test_a_container_of_v1_gets_urls_and_its_variables() -> None:
    with LocalCloud() as cloud, CloudClient(cloud.card()) as client:
        client.put("work/code/train.py", TELLER.encode())
        v1 = V1(cloud, client)
        urls = {"app_url": f"/{v1.bucket}/work/code/", "boot_file_url": f"/{v1.bucket}/work/code/train.py"}
        parameters = [{"label": "lr", "value": "0.1"}]
        body = v1.body("telling", **urls, parameter=parameters, train_url=f"/{v1.bucket}/out/", worker_server_num=2)
        created = v1.call("POST", "training-jobs", body)
        version = f"training-jobs/{created['job_id']}/versions/{created['version_id']}"
        assert v1.until(version, FINAL)["status"] == COMPLETED
        logs = [client.get(f"log/{created['resource_id']}-job-telling-{node}.log").decode() for node in range(2)]

    bucket = v1.bucket
    arguments = [f"--data_url=s3://{bucket}/data/", f"--train_url=s3://{bucket}/out/", "--lr=0.1"]
    told = logs[1].splitlines()
    (line,) = (each for each in told if each.startswith("told"))
    assert line.startswith(f"told {arguments}")
    assert line.endswith("/home/work/user-job-dir/code/train.py")
    assert {"DLS_TASK_INDEX=1", "DLS_TASK_NUMBER=2", f"DLS_APP_URL=s3://{bucket}/work/code/"} <= set(told)
    assert {f"DLS_DATA_URL=s3://{bucket}/data/", f"DLS_TRAIN_URL=s3://{bucket}/out/"} <= set(told)
    hosts = dict(each.split("=", 1) for each in told if each.startswith("BATCH_CUSTOM"))
    assert sorted(hosts) == ["BATCH_CUSTOM0_HOSTS", "BATCH_CUSTOM1_HOSTS"]
    own = dict(each.split("=", 1) for each in told if each.startswith("BATCH_CURRENT"))
    assert hosts["BATCH_CUSTOM1_HOSTS"] == f"{own['BATCH_CURRENT_HOST']}:{own['BATCH_CURRENT_PORT']}"
    assert {"DLS_TASK_INDEX=0", "BATCH_TASK_INDEX=0"} <= set(logs[0].splitlines())
    assert {"BATCH_TASK_INDEX=1", f"BATCH_TASK_CURRENT_HOST_IP={own['BATCH_CURRENT_HOST']}"} <= set(told)
    (folder,) = (each.partition("=")[2] for each in told if each.startswith("BATCH_TASK_LOG_PATH="))
    assert folder.endswith("/modelarts/log")


SEEDS_ENGINE = "MindSpore-1.3-cann_5.0.2-python3.7-euleros2.8-aarch64"


def test_engines_have_v1s_own_names_too_and_v2_does_not_know_them(v1: V1) -> None:
    numbers = {each["engine_version"]: each["engine_id"] for each in v1.call("GET", "job/ai-engines")["engines"]}
    assert {SEEDS_ENGINE, "TF-1.15-python3.7-aarch64"} <= numbers.keys()
    version = v1.create(v1.body(engine_id=numbers[SEEDS_ENGINE]))
    assert v1.until(version, FINAL)["engine_version"] == SEEDS_ENGINE
    job = v1.client.job()
    job["algorithm"]["engine"]["engine_version"] = SEEDS_ENGINE
    assert v1.client.refused("POST", f"/v2/{v1.client.project}/training-jobs", job) == (400, "ModelArts.2780")


@pytest.mark.parametrize(
    ("engine", "framework"), [(SEEDS_ENGINE, "mindspore"), ("TF-1.15-python3.7-aarch64", "tensorflow")]
)
def test_an_engine_of_v1_trains_in_the_python_of_its_framework(engine: str, framework: str) -> None:
    catalog = Catalog({framework: "/its/python"})
    (found,) = (each for each in catalog.engines_v1() if each.version == engine)
    assert catalog.interpreter(found) == "/its/python"


def test_a_cloud_started_again_on_its_data_gives_no_id_of_a_former_job_to_another(tmp_path: Path) -> None:
    versions = []
    for _ in range(2):
        with LocalCloud(tmp_path / "data", engine="simulated") as cloud, CloudClient(cloud.card()) as client:
            client.put("code/train.py", b"print('hello')")
            v1 = V1(cloud, client)
            versions.append(v1.create(v1.body()))
    first, second = versions
    assert job_of(first) != job_of(second)
    assert first.rpartition("/")[2] != second.rpartition("/")[2]
