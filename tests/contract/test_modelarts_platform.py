"""ModelArts and `local` against local clouds in processes of their own, by the contract of Platform."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import JobLost, Refused, Rejected, Unreachable, UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, StoreUrl
from pytest_aisbench.platforms.local import Local
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret
from pytest_aisbench.testing import PlatformContract

ENGINE = {"framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"}


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    with contextlib.closing(Local(Settings())) as local:
        yield local


@pytest.fixture(scope="module")
def access(local: Local) -> Access:
    """What a user of ModelArts would write down, except that the project is left to be looked up."""
    return replace(local._card, project_id="")


@pytest.fixture(scope="module")
def modelarts(access: Access) -> Iterator[ModelArts]:
    with contextlib.closing(ModelArts(Settings(platform="modelarts", access=access))) as modelarts:
        yield modelarts


class TestLocal(PlatformContract):
    @pytest.fixture
    def platform(self, local: Local) -> Local:
        return local


class TestModelArts(PlatformContract):
    OPTIONS = {**ENGINE, "flavor": "modelarts.kat1"}  # noqa: RUF012
    TWO_NODES = Shape(2, 8)

    @pytest.fixture
    def platform(self, modelarts: ModelArts, access: Access, monkeypatch: pytest.MonkeyPatch) -> ModelArts:
        monkeypatch.setattr(type(self), "SECRETS", (access.access_key.reveal(), access.secret_access_key.reveal()))
        return modelarts


def a_job(place: StoreUrl, flavor: str = "modelarts.kat1.xlarge") -> JobSpec:
    name = f"job-{uuid.uuid4().hex[:8]}"
    options = {**ENGINE, "flavor": flavor}
    code = place / f"{name}/code/"
    return JobSpec(name, Shape(1, 1), code, "train.py", place / f"{name}/out/", place / f"{name}/log/", options=options)


@pytest.fixture
def spec(modelarts: ModelArts) -> JobSpec:
    spec = a_job(modelarts.root)
    modelarts.store.write(spec.code / "train.py", b"pass")
    return spec


@pytest.mark.parametrize("wrong", ["access_key", "secret_access_key"])
def test_keys_that_are_wrong_are_refused_and_not_shown(access: Access, spec: JobSpec, wrong: str) -> None:
    keys: dict[str, Any] = {wrong: Secret("WRONGKEYOFTHETEST")}
    settings = Settings(platform="modelarts", access=replace(access, **keys))
    with contextlib.closing(ModelArts(settings)) as platform:
        with pytest.raises(Refused) as checked:
            platform.check()
        with pytest.raises(Refused, match=r"APIGW\.0301.*check access_key") as submitted:
            platform.submit(platform.render(spec))
    assert "WRONGKEYOFTHETEST" not in f"{checked.value} {submitted.value} {platform.session}"


def test_somebody_elses_project_is_refused(access: Access) -> None:
    settings = Settings(platform="modelarts", access=replace(access, project_id="0" * 32))
    with contextlib.closing(ModelArts(settings)) as platform, pytest.raises(Refused, match="project_id"):
        platform.check()


def test_a_bucket_that_is_not_there_is_the_users_to_mend(access: Access) -> None:
    settings = Settings(platform="modelarts", access=replace(access, bucket="no-such-bucket"))
    with contextlib.closing(ModelArts(settings)) as platform, pytest.raises(UsageFault, match="no-such-bucket"):
        platform.check()


def test_what_the_platform_does_not_have_is_named(modelarts: ModelArts, spec: JobSpec) -> None:
    strange = replace(spec, options={**ENGINE, "flavor": "modelarts.vm.gpu.v100"})
    with pytest.raises(Rejected, match=r"modelarts\.vm\.gpu\.v100.*ModelArts\.2781.*change flavor"):
        modelarts.submit(modelarts.render(strange))


def test_a_name_is_taken_once(modelarts: ModelArts, spec: JobSpec) -> None:
    job_id = modelarts.submit(modelarts.render(spec))
    with pytest.raises(Unreachable, match=r"ModelArts\.2751"):
        modelarts.submit(modelarts.render(spec))
    assert modelarts.find(modelarts.render(spec)) == job_id


def test_an_unknown_job_has_no_logs(modelarts: ModelArts) -> None:
    with pytest.raises(JobLost):
        modelarts.logs("nobody")


def test_a_suite_may_call_what_we_did_not_think_of(modelarts: ModelArts, access: Access, local: Local) -> None:
    engines = modelarts.session.call("GET", "/v2/{project_id}/training-job-engines")
    assert ENGINE["framework_version"] in {engine["engine_version"] for engine in engines["items"]}
    names = modelarts.session.call("GET", "/v2/{project_id}/training-job-names", query={"job_name": "nobody-has-it"})
    assert names == {"is_duplicate": False}
    assert modelarts.session.project_id == local.session.project_id
    assert modelarts.session.region == access.region_name


@pytest.mark.parametrize(
    "golden", sorted((Path(__file__).parents[1] / "unit/golden").glob("*x*.json")), ids=lambda path: path.stem
)
def test_the_vendors_own_models_lose_nothing_of_our_request(golden: Path) -> None:
    """A key that the SDK's model of the request does not have would be dropped on the way through it."""
    from huaweicloudsdkcore.utils.http_utils import sanitize_for_serialization
    from huaweicloudsdkmodelarts.v1 import ModelArtsClient

    body = json.loads(golden.read_text())
    assert sanitize_for_serialization(ModelArtsClient()._deserialize(body, "Job")) == body
