"""A client that is not ours: otcextensions, unmodified, against the local Keystone and ModelArts V1.

Its `get`, `stop` and `create` of versions raise KeyError before they send anything, so those are not asked of it.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cloud_client import CloudClient, send
from waiting import wait_until

from pytest_aisbench.cli import main
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.localcloud.server import LocalCloud

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("otcextensions", reason="the referee is not installed: pip install pytest-aisbench[test]")
# It lives with deprecations of its own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", params=[False, True], ids=["numbers", "texts"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """The referee's connection, and a plain client to look with. States are numbers once and texts once."""
    data = tmp_path_factory.mktemp("cloud")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(data))  # no clouds.yaml of whoever runs this
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("OS_CLOUD", "OS_AUTH_URL", "OS_TOKEN"):
            patch.delenv(name, raising=False)
        with LocalCloud(data, engine="simulated", v1_status_strings=request.param) as local:
            (account,) = json.loads((data / "accounts.json").read_text())
            with CloudClient(local.card()) as client:
                client.put("code/train.py", b"")
                yield _connect(local.card()["iam_endpoint"], account), client


def _connect(iam: str, account: dict[str, str]) -> Any:
    import warnings

    with warnings.catch_warnings():  # a fixture of a module is not covered by the mark
        warnings.simplefilter("ignore")
        import openstack
        from otcextensions import sdk

        connection: Any = openstack.connection.Connection(
            auth={
                "auth_url": f"{iam}/v3",
                "username": account["user"],
                "password": account["password"],
                "user_domain_name": account["domain"],
                "project_name": account["region"],
                "project_domain_name": account["domain"],
            },
            region_name=account["region"],
        )
        sdk.register_otc_extensions(connection)
        return connection.modelartsv1


def _config(client: CloudClient, seconds: float) -> dict[str, Any]:
    return {
        "worker_server_num": 2,
        "app_url": f"/{client.bucket}/code/",
        "boot_file_url": f"/{client.bucket}/code/train.py",
        "parameter": [{"label": "seconds", "value": str(seconds)}],
        "data_url": f"/{client.bucket}/data/",
        "train_url": f"/{client.bucket}/out/{uuid.uuid4().hex}/",
        "log_url": f"/{client.bucket}/log/",
        "spec_id": 4,
        "engine_id": 1,
    }


def test_a_job_from_creation_to_deletion(cloud: tuple[Any, CloudClient]) -> None:
    modelarts, client = cloud
    name = f"refereed-{uuid.uuid4().hex}"
    config = _config(client, 0.1)

    job = modelarts.create_training_job(job_name=name, job_desc="by a referee", config=config)

    assert (job.is_success, job.status, job.version_name) == (True, 1, "V0001")

    def listed() -> list[Any]:
        return [each for each in modelarts.training_jobs(search_content=name) if each.job_name == name]

    wait_until(lambda: [each.status for each in listed()] == [10])
    assert (listed()[0].job_id, listed()[0].job_description) == (job.job_id, "by a referee")
    (version,) = modelarts.training_job_versions(job.job_id)
    assert (version.version_id, version.status) == (job.version_id, 10)
    assert (version.train_url, version.worker_server_num) == (config["train_url"], 2)
    assert version.duration > 0
    modelarts.delete_training_job(job.job_id)
    assert listed() == []


def test_what_the_referee_created_is_stopped_by_its_name(
    cloud: tuple[Any, CloudClient], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest version of exactly this job, as the predecessor's `--action stop` does it."""
    modelarts, client = cloud
    name = f"aisbench-debug-{uuid.uuid4().hex[:8]}"
    job, longer = (
        modelarts.create_training_job(job_name=each, config=_config(client, 600)) for each in (name, f"{name}-2")
    )
    (first,) = modelarts.training_job_versions(job.job_id)
    again = {"job_desc": "", "config": {**_config(client, 600), "pre_version_id": first.version_id}}
    path = f"/v1/{client.project}/training-jobs/{job.job_id}/versions"
    newest = client.call("POST", path, again)["version_id"]
    wait_until(lambda: {each.status for each in modelarts.training_job_versions(job.job_id)} == {8})
    card, ledger = tmp_path / "card.json", tmp_path / "ledger.db"
    card.write_text(json.dumps(client.card))
    Ledger(ledger).close()
    options = ["--force", "--cloud", str(card), "--ledger", str(ledger), "--modelarts-version", "V1"]

    assert main(["stop", name, *options]) == 0

    said = capsys.readouterr().out
    line = rf"{job.job_id}/{newest} \({name}\): stopped \(KILLED\); it was RUNNING, and ran for \d+\.\d s\n"
    assert re.fullmatch(line, said), said
    states = {str(each.version_id): each.status for each in modelarts.training_job_versions(job.job_id)}
    assert states == {str(newest): 12, str(first.version_id): 8}
    assert main(["stop", f"{job.job_id}/{first.version_id}", *options]) == 0
    assert f"{job.job_id}/{first.version_id} ({name}): stopped (KILLED)" in capsys.readouterr().out
    assert main(["stop", str(longer.job_id), *options]) == 0
    assert main(["stop", "aisbench-debug", *options]) == 1
    assert "does not know it" in capsys.readouterr().out


def test_pages(cloud: tuple[Any, CloudClient]) -> None:
    modelarts, client = cloud
    jobs = [modelarts.create_training_job(job_name=f"paged-{n}", config=_config(client, 0)) for n in range(3)]
    found = modelarts.training_jobs(search_content="paged-", sort_by="job_name", order="desc", limit=2, paginated=False)
    assert [job.job_name for job in found] == ["paged-2", "paged-1"]
    for job in jobs:
        modelarts.delete_training_job(job)


def test_what_is_offered(cloud: tuple[Any, CloudClient]) -> None:
    modelarts, _ = cloud
    flavors = {flavor.spec_id: flavor.spec_code for flavor in modelarts.job_flavors(job_type="train")}
    assert flavors[4] == "modelarts.kat1.8xlarge"
    engines = {engine.engine_id: engine.engine_name for engine in modelarts.job_engines(job_type="train")}
    assert engines[1] == "Ascend-Powered-Engine"


def test_configurations(cloud: tuple[Any, CloudClient]) -> None:
    modelarts, _ = cloud
    modelarts.create_training_job_config(config_name="kept", config_desc="for later", worker_server_num=1, spec_id=1)
    assert [config.config_name for config in modelarts.training_job_configs()] == ["kept"]
    assert modelarts.get_training_job_config("kept").config_desc == "for later"
    modelarts.delete_training_job_config("kept")
    assert list(modelarts.training_job_configs()) == []


def test_keystone_says_where_it_is_and_takes_tokens_for_tokens(cloud: tuple[Any, CloudClient]) -> None:
    _, client = cloud
    iam = client.card["iam_endpoint"]
    status, _, content = send(iam, "GET", "/")
    (version,) = json.loads(content)["versions"]["values"]
    assert (status, version["links"][0]["href"]) == (300, f"{iam}/v3/")
    status, _, content = send(iam, "GET", "/v3")
    assert (status, json.loads(content)["version"]["id"][:2]) == (200, "v3")

    keys = {"access": {"key": client.card["access_key"]}, "secret": {"key": client.card["secret_key"]}}
    _, headers, _ = send(iam, "POST", "/v3/auth/tokens", _auth("hw_ak_sk", keys))
    status, headers, content = send(iam, "POST", "/v3/auth/tokens", _auth("token", {"id": headers["X-Subject-Token"]}))
    token = json.loads(content)["token"]
    assert status == 201
    (v1,) = (each["endpoints"][0]["url"] for each in token["catalog"] if each["type"] == "modelartsv1")
    assert v1 == f"{client.card['modelarts_endpoint']}/v1/{client.project}"
    known = {"X-Auth-Token": headers["X-Subject-Token"]}
    assert send(iam, "GET", "/v3/projects", headers=known)[0] == 200
    assert send(iam, "POST", "/v3/auth/tokens", _auth("token", {"id": "made-up"}))[0] == 401


def _auth(method: str, given: dict[str, Any]) -> str:
    return json.dumps({"auth": {"identity": {"methods": [method], method: given}}})


def test_a_refusal_reaches_the_referee(cloud: tuple[Any, CloudClient]) -> None:
    from openstack.exceptions import BadRequestException

    modelarts, client = cloud
    with pytest.raises(BadRequestException) as refused:
        modelarts.create_training_job(job_name="refused", config=_config(client, 0) | {"spec_id": 999})
    assert refused.value.response is not None
    assert refused.value.response.json()["error_code"] == "ModelArts.2781"
