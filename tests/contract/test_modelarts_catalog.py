"""ModelArts' own lists decide, before a request is sent, whether it can be carried out; by V2 and by V1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import Access, JobSpec, Settings, Shape, StoreUrl
from pytest_aisbench.errors import Refused, Unreachable
from pytest_aisbench.model.ports import Check, Health
from pytest_aisbench.platforms.local import Local
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret

ENGINE = "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"
PLACE = StoreUrl.parse("obs://bucket/aisbench/")


def spec(shape: str = "1x8", **options: str) -> JobSpec:
    asked = {"framework_version": ENGINE, **({} if "pool_id" in options else {"flavor": "modelarts.kat1"}), **options}
    return JobSpec("job", Shape.parse(shape), PLACE, "train.py", PLACE, PLACE, options=asked)


@pytest.fixture(scope="module")
def access(card: Path) -> Access:
    with contextlib.closing(Local(Settings(cloud=card))) as local:
        return local.access


@pytest.fixture(scope="module", params=["V1", "V2"])
def modelarts(request: pytest.FixtureRequest, access: Access) -> Iterator[ModelArts]:
    settings = Settings(platform="modelarts", access=access, modelarts_version=request.param)
    with contextlib.closing(ModelArts(settings)) as modelarts:
        yield modelarts


def vetted(platform: ModelArts, asked: JobSpec) -> dict[str, Check]:
    return {check.name: check for check in platform.vet(asked)}


@pytest.mark.parametrize("cards", [1, 2, 4, 8])
def test_flavors_of_the_public_pool(modelarts: ModelArts, cards: int) -> None:
    checks = vetted(modelarts, spec(f"1x{cards}"))
    assert {name: check.health for name, check in checks.items()} == dict.fromkeys(
        ("flavor", "engine", "quota"), Health.OK
    )


@pytest.mark.parametrize(
    ("asked", "name", "says", "fix"),
    [
        (
            spec(flavor="modelarts.kat2.8xlarge"),
            "flavor",
            "no flavor 'modelarts.kat2.8xlarge'",
            "modelarts.kat1.8xlarge",
        ),
        (spec(framework_version="mindspore_9"), "engine", "no engine 'Ascend-Powered-Engine mindspore_9'", ENGINE),
        (spec("65x8"), "flavor", "a job may have 64 of flavor modelarts.kat1.8xlarge", "--nodes 64 or fewer"),
    ],
)
def test_what_is_not_offered(modelarts: ModelArts, asked: JobSpec, name: str, says: str, fix: str) -> None:
    checks = vetted(modelarts, asked)
    assert [each for each, check in checks.items() if check.failed] == [name]
    assert says in checks[name].text
    assert fix in checks[name].fix


def test_pools(access: Access) -> None:
    with contextlib.closing(ModelArts(Settings(platform="modelarts", access=access))) as modelarts:
        assert vetted(modelarts, spec(pool_id="pool-local"))["pool"].health is Health.OK
        assert vetted(modelarts, spec("1x2", pool_id="pool-local"))["pool"].health is Health.OK
        unknown = vetted(modelarts, spec(pool_id="pool-of-nobody"))["pool"]
    assert (unknown.failed, unknown.text) == (True, "there is no pool 'pool-of-nobody'")


def test_an_image_of_ones_own_needs_no_engine(modelarts: ModelArts) -> None:
    checks = vetted(modelarts, spec(image="swr/org/image:1", command="python train.py"))
    assert "engine" not in checks
    assert not any(check.failed for check in checks.values())


class TestLists:
    @pytest.fixture
    def platform(self, server: Any) -> Iterator[ModelArts]:
        access = Access(
            Secret("key"), Secret("secret"), project_id="p", bucket="b", region_name="r", iam_endpoint=server.url,
            obs_endpoint=server.url, modelarts_endpoint=server.url,
        )  # fmt: skip
        with contextlib.closing(ModelArts(Settings(platform="modelarts", access=access))) as platform:
            platform.session.patience_s = 0.2
            yield platform

    def test_they_are_asked_for_once(self, server: Any, platform: ModelArts) -> None:
        server.answer((200, {"flavors": [{"flavor_id": "modelarts.kat1.8xlarge"}]}))
        platform.jobs.check(5.0)
        for nodes in (1, 2, 3):
            assert vetted(platform, spec(f"{nodes}x8"))["flavor"].health is Health.OK
        asked = [path.partition("?")[0].rpartition("/")[2] for _, path, _, _ in server.seen]
        assert asked == ["training-job-flavors", "training-job-engines", "training-quotas"]

    def test_one_that_may_not_be_seen_condemns_nobody_and_is_not_asked_for_again(
        self, server: Any, platform: ModelArts
    ) -> None:
        server.answer((403, {"error_code": "ModelArts.0108", "error_msg": "no right"}))
        for _ in range(2):
            checks = vetted(platform, spec())
            assert {check.health for check in checks.values()} == {Health.WARNING}
            assert "no right" in checks["quota"].text
        assert len(server.seen) == 3
        with pytest.raises(Refused):
            platform.jobs.check(5.0)

    def test_one_in_a_form_that_nobody_knows_is_a_warning(self, server: Any, platform: ModelArts) -> None:
        server.answer((200, {"flavors": ["surprise"], "items": [7], "quotas": "many"}))
        assert {check.health for check in vetted(platform, spec()).values()} == {Health.WARNING}

    def test_silence_is_no_answer(self, server: Any, platform: ModelArts) -> None:
        server.answer((0,))
        with pytest.raises(Unreachable):
            vetted(platform, replace(spec(), name="other"))
