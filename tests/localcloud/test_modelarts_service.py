"""The vendor's own SDK, unmodified, against the local ModelArts."""

from __future__ import annotations

import copy
import functools
import time
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from waiting import PATIENCE, wait_until

from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.localcloud.iam import Accounts
from pytest_aisbench.localcloud.modelarts.v2 import ModelArts
from pytest_aisbench.localcloud.obs.service import Obs
from pytest_aisbench.localcloud.obs.storage import Objects

if TYPE_CHECKING:
    from collections.abc import Iterator

FINAL = {"Completed", "Failed", "Terminated", "Abnormal"}
VERSION = "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"

SCRIPTS = {
    "quick": "print('hello from', __import__('os').environ['RANK_ID'])",
    "slow": "print('here I am', flush=True); __import__('time').sleep(600)",
    "broken": "print('oh no'); raise SystemExit(3)",
    "writer": "import sys; open(sys.argv[1].split('=')[1] + '/result.json', 'w').write('1.5')",
}


class World(NamedTuple):
    endpoint: str
    accounts: Accounts
    objects: Objects
    service: ModelArts


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The vendor's module. Its import writes into HOME, and its requests would honour proxies and ~/.netrc."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        patch.setenv("no_proxy", "127.0.0.1,localhost")
        from huaweicloudsdkmodelarts import v1

        yield v1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cloud")
    accounts = Accounts.generate()
    objects = Objects(folder / "objects")
    objects.create_bucket("bucket")
    for name, script in SCRIPTS.items():
        objects.put("bucket", f"code/{name}.py", script.encode())
    with Listener(Obs(accounts, objects)) as obs:
        service = ModelArts(accounts, objects, folder / "work", obs.url, capacity=2)
        with Listener(service) as listener:
            yield World(listener.url, accounts, objects, service)
        service.close()
    objects.close()


class Client:
    """Calls the vendor's client, by the names of its methods, with plain dicts as bodies."""

    def __init__(self, sdk: Any, endpoint: str, access_key: str, secret_key: str, project_id: str) -> None:
        from huaweicloudsdkcore.auth.credentials import BasicCredentials
        from huaweicloudsdkcore.http.http_config import HttpConfig

        self._sdk = sdk
        self._client = (
            sdk.ModelArtsClient.new_builder()
            .with_http_config(HttpConfig(user_agent="test", timeout=(5, 30)))
            .with_credentials(BasicCredentials(access_key, secret_key, project_id))
            .with_endpoint(endpoint)
            .build()
        )

    def call(self, operation: str, **fields: Any) -> Any:
        words = "".join(word.capitalize() for word in operation.split("_"))
        request = getattr(self._sdk, f"{words}Request")(**fields)
        return getattr(self._client, f"{operation}_invoker")(request).invoke()

    def json(self, operation: str, **fields: Any) -> Any:
        return self.call(operation, **fields).to_json_object()

    def get(self, path: str) -> Any:
        """What the SDK has no method for, signed by it nevertheless."""
        answer = self._client.call_api(
            resource_path=path,
            method="GET",
            header_params={"Content-Type": "application/json"},
            response_type="DeleteTrainingJobResponse",
        )
        return answer.to_json_object()

    def create(self, script: str = "quick", **changes: Any) -> str:
        return str(self.json("create_training_job", body=request(script, **changes))["metadata"]["id"])

    def show(self, job: str) -> Any:
        return self.json("show_training_job_details", training_job_id=job)

    def await_phase(self, job: str, phases: set[str]) -> Any:
        return wait_until(lambda: self.show(job), lambda answer: answer["status"]["phase"] in phases)

    def stop(self, job: str) -> Any:
        return self.json("stop_training_job", training_job_id=job, body={"action_type": "terminate"})

    def search(self, **body: Any) -> Any:
        return self.json("list_training_jobs", body=body)


@pytest.fixture(scope="module")
def client(sdk: Any, world: World) -> Client:
    account = world.accounts.first()
    return Client(sdk, world.endpoint, account.access_key, account.secret_key, account.project_id)


def request(script: str = "quick", **changes: Any) -> dict[str, Any]:
    """A request to create a job; `metadata__name="x"` changes what is at metadata.name, None removes it."""
    body: dict[str, Any] = {
        "kind": "job",
        "metadata": {"name": f"job-{uuid.uuid4().hex}", "description": "a test"},
        "algorithm": {
            "code_dir": "/bucket/code/",
            "boot_file": f"/bucket/code/{script}.py",
            "engine": {"engine_name": "Ascend-Powered-Engine", "engine_version": VERSION},
            "outputs": [{"name": "train_url", "remote": {"obs": {"obs_url": "/bucket/out/"}}}],
            "environments": {"GLOG_v": "3"},
        },
        "spec": {
            "resource": {"flavor_id": "modelarts.kat1.xlarge", "node_count": 1},
            "log_export_path": {"obs_url": "/bucket/log/"},
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = functools.reduce(lambda node, key: node.setdefault(key, {}), parents, body)
        if value is None:
            del target[last]
        else:
            target[last] = copy.deepcopy(value)
    return body


def refusal(client: Client, operation: str, **fields: Any) -> tuple[int, str, str]:
    from huaweicloudsdkcore.exceptions.exceptions import ServiceResponseException

    with pytest.raises(ServiceResponseException) as caught:
        client.call(operation, **fields)
    assert caught.value.request_id, "X-Request-Id is on every answer"
    return caught.value.status_code, caught.value.error_code, caught.value.error_msg


def test_a_job_from_its_creation_to_its_end(client: Client, world: World) -> None:
    before = int(time.time() * 1000)
    body = request("writer", spec__resource={"flavor_id": "modelarts.kat1.2xlarge", "node_count": 2})
    response = client.call("create_training_job", body=body)
    created = response.to_json_object()
    assert response.status_code == 201
    assert created["kind"] == "job"
    assert created["metadata"]["name"] == body["metadata"]["name"]
    assert before <= created["metadata"]["create_time"] <= int(time.time() * 1000)
    assert created["status"]["phase"] == "Creating"

    job = created["metadata"]["id"]
    ended = client.await_phase(job, FINAL)
    status = ended["status"]
    assert (status["phase"], status["secondary_phase"]) == ("Completed", "Completed")
    assert status["tasks"] == ["worker-0", "worker-1"]
    assert [(one["task"], one["exit_code"]) for one in status["task_statuses"]] == [("worker-0", 0), ("worker-1", 0)]
    assert before <= status["start_time"] <= before + PATIENCE * 1000
    assert 0 < status["duration"] < PATIENCE * 1000
    assert status["running_records"][0]["start_at"] == status["start_time"] // 1000
    assert ended["spec"]["resource"]["node_count"] == 2
    assert ended["algorithm"]["engine"]["engine_version"] == VERSION
    assert ended["algorithm"]["outputs"][0]["local_dir"] == "/home/ma-user/modelarts/outputs/train_url_0"
    assert world.objects.head("bucket", "out/result.json"), "outputs are there before the phase is final"
    assert world.objects.head("bucket", f"log/modelarts-job-{job}-worker-1.log")
    assert world.objects.head("bucket", f"log/modelarts-job-{job}-proc-rank-3-device-1.txt")


def test_a_job_that_fails_says_with_what(client: Client) -> None:
    job = client.create("broken")
    status = client.await_phase(job, FINAL)["status"]
    assert status["phase"] == "Failed"
    assert [one["exit_code"] for one in status["task_statuses"]] == [3]
    assert status["running_records"][0]["end_related_task"] == "worker-0"
    events = client.json("list_training_job_events", training_job_id=job)["events"]
    assert "[worker-0] Training finished. Exit code 3." in [event["message"] for event in events]


def test_stopping_a_job(client: Client) -> None:
    job = client.create("slow")
    client.await_phase(job, {"Running"})
    answer = client.stop(job)
    assert answer["status"]["phase"] == "Terminating"
    assert client.await_phase(job, FINAL)["status"]["phase"] == "Terminated"
    status, code, _ = refusal(client, "stop_training_job", training_job_id=job, body={"action_type": "terminate"})
    assert (status, code) == (409, "ModelArts.2796")


def test_an_action_nobody_knows(client: Client) -> None:
    job = client.create()
    assert refusal(client, "stop_training_job", training_job_id=job, body={"action_type": "pause"})[:2] == (
        400,
        "ModelArts.2812",
    )


def test_more_jobs_than_there_is_room_for_wait(client: Client) -> None:
    running = [client.create("slow") for _ in range(2)]
    for job in running:
        client.await_phase(job, {"Running"})
    waiting, next_one = client.create("slow"), client.create("quick")
    assert client.show(waiting)["status"]["phase"] == "Pending"
    assert client.show(waiting)["status"]["secondary_phase"] == "Queuing"
    client.stop(waiting)
    stopped = client.await_phase(waiting, FINAL)["status"]
    assert (stopped["phase"], stopped["start_time"], stopped["duration"]) == ("Terminated", 0, 0)
    assert client.show(next_one)["status"]["phase"] == "Pending"
    client.stop(running[0])
    assert client.await_phase(next_one, FINAL)["status"]["phase"] == "Completed"
    client.stop(running[1])
    client.await_phase(running[1], FINAL)


def test_deleting_a_job_stops_it_and_frees_its_name(client: Client) -> None:
    job = client.create("slow")
    name = client.await_phase(job, {"Running"})["metadata"]["name"]
    assert client.call("delete_training_job", training_job_id=job).status_code == 202
    assert refusal(client, "show_training_job_details", training_job_id=job)[:2] == (400, "ModelArts.2775")
    assert client.search(filters=[{"key": "name", "operator": "like", "value": [name]}])["total"] == 0
    assert client.json("validate_training_job_name", job_name=name) == {"is_duplicate": False}
    again = client.create("quick", metadata__name=name)
    assert client.await_phase(again, FINAL)["status"]["phase"] == "Completed"


def test_searching(client: Client) -> None:
    tag = f"search-{uuid.uuid4().hex[:8]}"
    jobs = [client.create("quick", metadata__name=f"{tag}-{number}") for number in range(3)]
    for job in jobs:
        client.await_phase(job, FINAL)
    mine = {"key": "name", "operator": "like", "value": [tag]}

    def found(**body: Any) -> list[str]:
        return [item["metadata"]["id"] for item in client.search(**body)["items"]]

    assert found(filters=[mine]) == jobs[::-1], "newest first"
    assert found(filters=[mine], sort_by="create_time", order="asc") == jobs
    assert found(filters=[mine], order="asc", offset=1, limit=1) == jobs[1:2], "the offset counts jobs"
    page = client.search(filters=[mine], offset=2, limit=2)
    assert (page["total"], page["count"], page["offset"], page["limit"]) == (3, 1, 2, 2)
    assert found(filters=[mine, {"key": "phase", "operator": "in", "value": ["Failed", "Running"]}]) == []
    assert len(found(filters=[mine, {"key": "phase", "operator": "in", "value": ["Completed"]}])) == 3
    created = client.show(jobs[0])["metadata"]["create_time"]
    between = {"key": "create_time", "operator": "between", "value": [str(created - 1), str(created)]}
    assert jobs[0] in found(filters=[mine, between])
    assert jobs[2] not in found(filters=[mine, between | {"value": ["0", str(created - 1)]}])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"limit": 51}, "2788"),
        ({"limit": 0}, "2788"),
        ({"offset": -1}, "2788"),
        ({"sort_by": "colour"}, "2790"),
        ({"filters": [{"key": "colour", "operator": "in", "value": ["red"]}]}, "2807"),
        ({"filters": [{"key": "name", "operator": "near", "value": ["x"]}]}, "2808"),
        ({"filters": [{"key": "create_time", "operator": "between", "value": ["x"]}]}, "2809"),
    ],
)
def test_searches_that_are_refused(client: Client, body: dict[str, Any], code: str) -> None:
    assert refusal(client, "list_training_jobs", body=body)[:2] == (400, f"ModelArts.{code}")


def test_the_log_grows_while_the_job_runs(client: Client) -> None:
    job = client.create("slow")

    def is_filled(preview: Any) -> bool:
        assert preview.status_code in {200, 204}
        return preview.status_code == 200 and "here I am" in preview.content

    def show_log() -> Any:
        return client.call("show_training_job_logs_preview", training_job_id=job, task_id="worker-0")

    preview = wait_until(show_log, is_filled)
    assert preview.current_size == preview.full_size == len(preview.content.encode())
    client.stop(job)
    client.await_phase(job, FINAL)
    text = client.json("show_training_job_logs_preview", training_job_id=job, task_id="worker-0")["content"]
    assert text.startswith("[ModelArts Service Log]")


def test_a_log_that_is_not_there_yet_is_204(client: Client) -> None:
    blockers = [client.create("slow") for _ in range(2)]
    job = client.create()
    preview = client.call("show_training_job_logs_preview", training_job_id=job, task_id="worker-0")
    assert (preview.status_code, preview.content) == (204, None)
    for each in (job, *blockers):
        client.call("delete_training_job", training_job_id=each)


def test_the_link_to_a_log_needs_no_keys(client: Client, world: World) -> None:
    job = client.create("quick")
    client.await_phase(job, FINAL)
    project = world.accounts.first().project_id
    link = client.get(f"/v2/{project}/training-jobs/{job}/tasks/worker-0/logs/url")["obs_url"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(link, timeout=10) as answer:
        assert b"hello from 0" in answer.read()


def test_a_description_can_be_changed(client: Client) -> None:
    job = client.create()
    client.call("change_training_job_description", training_job_id=job, body={"description": "另一个"})
    assert client.show(job)["metadata"]["description"] == "另一个"


def test_what_is_offered(client: Client) -> None:
    engines = client.json("show_training_job_engines")
    assert VERSION in [item["engine_version"] for item in engines["items"]]
    assert engines["total"] == len(engines["items"])
    flavors = client.json("show_training_job_flavors", flavor_type="Ascend")["flavors"]
    cards = {flavor["flavor_id"]: flavor["flavor_info"]["npu"]["unit_num"] for flavor in flavors}
    assert {int(cards[f"modelarts.kat1.{size}"]) for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge")} == {
        1,
        2,
        4,
        8,
    }
    assert int(cards["modelarts.local.3"]) == 3
    assert not client.json("show_training_job_flavors", flavor_type="GPU").get("flavors")


def test_names(client: Client) -> None:
    job = client.create()
    name = client.show(job)["metadata"]["name"]
    assert client.json("validate_training_job_name", job_name=name) == {"is_duplicate": True}
    assert client.json("validate_training_job_name", job_name=name[:-1]) == {"is_duplicate": False}
    answer = refusal(client, "create_training_job", body=request(metadata__name=name))
    assert answer[:2] == (400, "ModelArts.2751")


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"metadata__name": "no spaces"}, 400, "2788"),
        ({"metadata__name": "x" * 65}, 400, "2788"),
        ({"metadata__description": "x" * 257}, 400, "2788"),
        ({"algorithm__code_dir": "/bucket/code"}, 400, "2791"),
        ({"algorithm__code_dir": "/nowhere/code/"}, 400, "2791"),
        ({"algorithm__code_dir": "/bucket/empty/"}, 400, "2757"),
        ({"algorithm__boot_file": "/bucket/code/missing.py"}, 400, "2758"),
        ({"algorithm__boot_file": "/bucket/other/quick.py"}, 400, "2758"),
        ({"algorithm__engine__engine_version": "mindspore_9"}, 400, "2780"),
        ({"algorithm__engine": {"image_url": "org/image:1"}, "algorithm__boot_file": ""}, 400, "2806"),
        ({"algorithm__parameters": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]}, 400, "2767"),
        ({"algorithm__environments": {"MA_HOME": "/"}}, 400, "2788"),
        ({"algorithm__outputs": [{"name": "o", "remote": {"obs": {"obs_url": "/bucket/out"}}}]}, 400, "2791"),
        (
            {
                "algorithm__inputs": [
                    {"name": "i", "local_dir": "/../etc", "remote": {"obs": {"obs_url": "/bucket/i/"}}}
                ]
            },
            400,
            "2753",
        ),
        ({"spec__log_export_path__obs_url": "/bucket/log"}, 400, "2791"),
        ({"spec__resource__flavor_id": "modelarts.kat1.16xlarge"}, 400, "2781"),
        ({"spec__resource__flavor_id": "modelarts.local.65"}, 400, "2781"),
        ({"spec__resource__flavor_id": None}, 400, "2788"),
        ({"spec__resource__node_count": 65}, 400, "2793"),
        ({"spec__resource__node_count": 0}, 400, "2788"),
        ({"spec__resource__pool_id": "pool-of-others"}, 404, "2890"),
        ({"spec__resource__pool_id": "pool-local"}, 400, "2788"),
        ({"spec__auto_stop": {"time_unit": "HOURS", "duration": 73}}, 400, "2788"),
        ({"spec__resource__flavor_id": ["a list"]}, 400, "2788"),
        ({"algorithm__engine__engine_version": {"an": "object"}}, 400, "2788"),
        ({"algorithm__parameters": "a text"}, 400, "2788"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_creations_that_are_refused(client: Client, changes: dict[str, Any], status: int, code: str) -> None:
    answer = refusal(client, "create_training_job", body=request(**changes))
    assert answer[:2] == (status, f"ModelArts.{code}"), answer


def test_cards_follow_the_flavor(client: Client) -> None:
    for resource, ranks in (
        ({"flavor_id": "modelarts.local.3", "node_count": 2}, 6),
        ({"pool_id": "pool-local", "flavor_id": "modelarts.pool.visual.2xlarge", "node_count": 1}, 2),
    ):
        job = client.create("quick", spec__resource=resource)
        client.await_phase(job, {"Completed"})
        last = f"worker-{resource['node_count'] - 1}"  # type: ignore[operator]
        log = client.json("show_training_job_logs_preview", training_job_id=job, task_id=last)["content"]
        assert f"hello from {ranks - 1}" in log


@pytest.mark.slow
def test_auto_stop_ends_a_job(client: Client) -> None:
    job = client.create("slow", spec__auto_stop={"time_unit": "SECONDS", "duration": 1})
    status = client.await_phase(job, FINAL)["status"]
    assert status["phase"] == "Terminated"
    assert "auto_stop" in status["running_records"][0]["end_reason"]


def test_a_job_of_nobody(client: Client) -> None:
    unknown = str(uuid.uuid4())
    for operation, fields in (
        ("show_training_job_details", {}),
        ("delete_training_job", {}),
        ("stop_training_job", {"body": {"action_type": "terminate"}}),
        ("show_training_job_logs_preview", {"task_id": "worker-0"}),
    ):
        assert refusal(client, operation, training_job_id=unknown, **fields)[:2] == (400, "ModelArts.2775")


def test_only_the_owner_of_the_keys_is_served(sdk: Any, world: World) -> None:
    account = world.accounts.first()
    wrong_secret = Client(sdk, world.endpoint, account.access_key, "x" * 40, account.project_id)
    assert refusal(wrong_secret, "create_training_job", body=request())[:2] == (401, "APIGW.0301")
    stranger = Client(sdk, world.endpoint, "A" * 20, account.secret_key, account.project_id)
    assert refusal(stranger, "list_training_jobs", body={})[:2] == (401, "APIGW.0301")
    elsewhere = Client(sdk, world.endpoint, account.access_key, account.secret_key, "0" * 32)
    assert refusal(elsewhere, "list_training_jobs", body={})[:2] == (404, "ModelArts.2786")


def test_what_is_not_served_says_so_and_names_it(client: Client) -> None:
    from huaweicloudsdkcore.exceptions.exceptions import ServiceResponseException

    with pytest.raises(ServiceResponseException) as caught:
        client.call("list_notebooks")
    assert (caught.value.status_code, caught.value.error_code) == (501, "Local.0501")
    assert "list_notebooks" in caught.value.error_msg


def test_what_the_vendor_does_not_have_is_not_found(client: Client, world: World) -> None:
    from huaweicloudsdkcore.exceptions.exceptions import ServiceResponseException

    with pytest.raises(ServiceResponseException) as caught:
        client.get(f"/v2/{world.accounts.first().project_id}/notebooks")
    assert (caught.value.status_code, caught.value.error_code) == (404, "ModelArts.2836")
