"""The requests that create a job on ModelArts, against requests written by hand from the vendor's documents."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, StoreUrl
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret

GOLDEN = Path(__file__).parent / "golden"
ACCESS = Access(Secret("ACCESSKEYID"), Secret("secret-key"), region_name="cn-central-221", bucket="acceptance")
ENGINE = {"framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"}

RESNET50 = JobSpec(
    name="resnet50-2x8-t1",
    shape=Shape(2, 8),
    code=StoreUrl.parse("obs://acceptance/aisbench/code/0a1b/resnet50/"),
    entry="train.py",
    outputs=StoreUrl.parse("obs://acceptance/aisbench/t1/outputs/"),
    logs=StoreUrl.parse("obs://acceptance/aisbench/t1/logs/"),
    inputs=StoreUrl.parse("obs://datasets/imagenet/"),
    framework="mindspore",
    parameters={"epoch_size": "90", "config_path": "resnet50_imagenet2012_Boost_config.yaml"},
    environment={"GLOG_v": "3"},
    options={**ENGINE, "framework_type": "Ascend-Powered-Engine", "flavor": "modelarts.kat1.8xlarge"},
    description="aisbench trial 1 of resnet50-2x8",
)
BERT_IN_A_POOL = JobSpec(
    name="bert-1x8-t1",
    shape=Shape(1, 8),
    code=StoreUrl.parse("obs://acceptance/aisbench/code/2c3d/bert/"),
    entry="run_pretrain.py",
    outputs=StoreUrl.parse("obs://acceptance/aisbench/t1/outputs/"),
    logs=StoreUrl.parse("obs://acceptance/aisbench/t1/logs/"),
    options={**ENGINE, "pool_id": "poolc90f063b"},
)
LENET_ON_ONE_CARD = JobSpec(
    name="lenet_1x1-t7",
    shape=Shape(1, 1),
    code=StoreUrl.parse("obs://acceptance/lenet"),
    entry="train.py",
    outputs=StoreUrl.parse("obs://acceptance/out/"),
    logs=StoreUrl.parse("obs://acceptance/log/"),
    parameters={"lr": "0.1"},
    options={
        "framework_version": "mindspore_1.7.0-cann_5.1.0-py_3.7-euler_2.8.3-aarch64",
        "flavor": "modelarts.kat1.xlarge",
    },
    description="one card",
    max_run_s=3601.0,
)


@pytest.fixture(scope="module")
def platform() -> Iterator[ModelArts]:
    platform = ModelArts(Settings(platform="modelarts", access=ACCESS))
    yield platform
    platform.close()


def with_devices(devices: int) -> ModelArts:
    sources = {"devices": "AISBENCH_DEVICES"}
    return ModelArts(Settings(platform="modelarts", devices=devices, access=ACCESS, sources=sources))


@pytest.mark.parametrize(
    ("golden", "spec"), [("resnet50-2x8", RESNET50), ("pool-1x8", BERT_IN_A_POOL), ("single-1x1", LENET_ON_ONE_CARD)]
)
def test_the_request_is_the_documented_one(platform: ModelArts, golden: str, spec: JobSpec) -> None:
    request = platform.render(spec)
    assert (request.method, request.path) == ("POST", "/v2/{project_id}/training-jobs")
    assert request.body == json.loads((GOLDEN / f"{golden}.json").read_text())


def test_a_script_may_be_given_its_urls_as_variables(platform: ModelArts) -> None:
    """The vendor's access method `env`: no argument that a script may not know."""
    spec = replace(BERT_IN_A_POOL, inputs=StoreUrl.parse("obs://acceptance/in/"), urls_by="environment")
    algorithm = platform.render(spec).body["algorithm"]
    assert [each["access_method"] for each in (*algorithm["inputs"], *algorithm["outputs"])] == ["env", "env"]


def test_v1_has_no_variables_for_its_urls() -> None:
    spec = replace(RESNET50, urls_by="environment")
    old = ModelArts(Settings(platform="modelarts", modelarts_version="V1", access=ACCESS))
    with pytest.raises(UsageFault, match="V1 passes them as parameters"):
        old.render(spec)
    old.close()


@pytest.mark.parametrize(
    ("max_run_s", "hours"),
    [
        (None, None),
        (1.0, 1),
        (3600.0, 1),
        (3601.0, 2),
        (72 * 3600.0, 72),
        (72 * 3600.0 + 1, None),
        (float("inf"), None),
    ],
)
def test_the_platform_ends_the_job_in_whole_hours(
    platform: ModelArts, max_run_s: float | None, hours: int | None
) -> None:
    spec = platform.render(replace(RESNET50, max_run_s=max_run_s)).body["spec"]
    assert spec.get("auto_stop") == (hours and {"time_unit": "HOURS", "duration": hours})


def test_part_of_a_pools_node_is_asked_for_by_its_flavor(platform: ModelArts) -> None:
    resource = platform.render(replace(BERT_IN_A_POOL, shape=Shape(1, 2))).body["spec"]["resource"]
    assert resource == {"pool_id": "poolc90f063b", "flavor_id": "modelarts.pool.visual.2xlarge", "node_count": 1}


def test_given_devices_choose_the_flavor_of_the_same_family() -> None:
    platform = with_devices(4)
    resource = platform.render(replace(RESNET50, shape=Shape(1, 4))).body["spec"]["resource"]
    platform.close()
    assert resource == {"flavor_id": "modelarts.kat1.4xlarge", "node_count": 1}


def test_a_family_without_size_fits_each_shape(platform: ModelArts) -> None:
    spec = replace(RESNET50, options={**ENGINE, "flavor": "modelarts.kat1"})
    for devices, size in ((1, "xlarge"), (2, "2xlarge"), (4, "4xlarge"), (8, "8xlarge")):
        resource = platform.render(replace(spec, shape=Shape(1, devices))).body["spec"]["resource"]
        assert resource["flavor_id"] == f"modelarts.kat1.{size}"


def test_a_flavor_we_do_not_know_is_the_users_word(platform: ModelArts) -> None:
    spec = replace(RESNET50, options={**ENGINE, "flavor": "modelarts.bm.910.arm.public.8"})
    assert platform.render(spec).body["spec"]["resource"]["flavor_id"] == "modelarts.bm.910.arm.public.8"


def test_given_devices_cannot_change_a_flavor_we_do_not_know() -> None:
    platform = with_devices(4)
    spec = replace(RESNET50, shape=Shape(1, 4), options={**ENGINE, "flavor": "modelarts.bm.910.arm.public.8"})
    with pytest.raises(
        UsageFault, match=r"^AISBENCH_DEVICES: .*modelarts.bm.910.arm.public.8 .* leave AISBENCH_DEVICES"
    ):
        platform.render(spec)
    platform.close()


def test_a_long_description_is_cut(platform: ModelArts) -> None:
    assert platform.render(replace(RESNET50, description="x" * 300)).body["metadata"]["description"] == "x" * 256


def options(**changed: Any) -> dict[str, Any]:
    return {key: value for key, value in {**RESNET50.options, **changed}.items() if value is not None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": Shape(2, 4)}, ["2x4", "8 cards", "--aisbench-devices 8"]),
        ({"shape": Shape(1, 4)}, ["1x4", "modelarts.kat1.8xlarge", "flavor = 'modelarts.kat1.4xlarge'"]),
        ({"shape": Shape(1, 3)}, ["1x3", "choose 1, 2, 4 or 8"]),
        ({"shape": Shape(1, 16)}, ["1x16", "choose 1, 2, 4 or 8"]),
        ({"options": options(pool_id="poolc90f063b")}, ["flavor", "pool_id", "remove one"]),
        ({"options": options(flavor=None)}, ["flavor", "pool_id", "add"]),
        ({"options": options(framework_version=None)}, ["framework_version", "add"]),
        ({"options": options(flavor=8)}, ["flavor", "quotes"]),
        ({"shape": Shape(1, 3), "options": {**ENGINE, "pool_id": "p"}}, ["1x3", "pools", "choose"]),
        ({"name": "a.b"}, ["'a.b'", "letters, digits"]),
        ({"name": "x" * 65}, ["x" * 65, "64"]),
        ({"name": "x\n"}, [r"'x\n'"]),
        ({"entry": "train.sh"}, ["train.sh", ".py"]),
        ({"parameters": {"a b": "1"}}, ["'a b'", "blanks"]),
        ({"parameters": {"train_url": "x"}}, ["train_url", "remove"]),
        ({"parameters": {"data_url": "x"}}, ["data_url", "remove"]),
        ({"environment": {"MA_HOME": "/"}}, ["MA_HOME", "rename"]),
        ({"environment": {"1ST": "x"}}, ["'1ST'", "letters"]),
        ({"environment": {"LONG": "x" * 4097}}, ["LONG", "4096"]),
        ({"environment": {f"V{number}": "" for number in range(101)}}, ["101", "100"]),
    ],
)
def test_what_the_platform_would_refuse_is_refused_first(
    platform: ModelArts, change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageFault) as caught:
        platform.render(replace(RESNET50, **change))
    assert caught.value.advice
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_a_job_without_data_may_have_a_parameter_called_data_url(platform: ModelArts) -> None:
    spec = replace(RESNET50, inputs=None, parameters={"data_url": "/cache"})
    assert platform.render(spec).body["algorithm"]["parameters"] == [{"name": "data_url", "value": "/cache"}]


texts = st.text(max_size=20)


@given(
    name=texts,
    nodes=st.integers(1, 9),
    devices=st.integers(1, 17),
    entry=texts,
    parameters=st.dictionaries(texts, texts, max_size=3),
    environment=st.dictionaries(texts, texts, max_size=3),
    options=st.dictionaries(
        st.sampled_from(["framework_type", "framework_version", "flavor", "pool_id"]), st.one_of(texts, st.integers())
    ),
    max_run_s=st.one_of(st.none(), st.floats(allow_nan=True)),
)
def test_any_spec_renders_or_is_a_usage_fault(platform: ModelArts, nodes: int, devices: int, **fields: Any) -> None:
    spec = replace(RESNET50, shape=Shape(nodes, devices), **fields)
    untouched = copy.deepcopy(spec)
    try:
        request = platform.render(spec)
    except UsageFault:
        return
    assert request == platform.render(spec)
    assert spec == untouched
    json.dumps(request.body, allow_nan=False)


def test_the_region_names_the_endpoints(platform: ModelArts) -> None:
    assert platform.session.endpoint == "https://modelarts.cn-central-221.myhuaweicloud.com"
    assert str(platform.root) == "obs://acceptance/aisbench/"
    assert platform.max_jobs == 8


def test_endpoints_that_cannot_be_derived_are_asked_for() -> None:
    access = replace(ACCESS, region_name="", modelarts_endpoint="https://modelarts.centre.example")
    with pytest.raises(UsageFault, match=r"access.obs_endpoint is missing"):
        ModelArts(Settings(platform="modelarts", access=access))


def test_nothing_shows_the_keys(platform: ModelArts) -> None:
    text = f"{platform.session!r} {platform.render(RESNET50)!r} {vars(platform.session)!r}"
    assert "ACCESSKEYID" not in text
    assert "secret-key" not in text
