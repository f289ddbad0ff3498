"""ModelArts by API V1, by the contract of Platform; and the versions of its jobs."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import Rejected
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, Phase
from pytest_aisbench.platforms.local import Local
from pytest_aisbench.platforms.modelarts.jobs import JobsV1
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.testing import PlatformContract

OPTIONS = {"framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64", "flavor": "modelarts.kat1"}
SAVE = "import moxing as mox; mox.file.write(given['train_url'].rstrip('/') + '/' + name, text)"


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    with contextlib.closing(Local(Settings(modelarts_version="V1"))) as local:
        yield local


@pytest.fixture(scope="module")
def access(local: Local) -> Access:
    return local._card


@pytest.fixture(scope="module")
def modelarts(access: Access) -> Iterator[ModelArts]:
    settings = Settings(platform="modelarts", access=access, modelarts_version="V1")
    with contextlib.closing(ModelArts(settings)) as modelarts:
        yield modelarts


class TestByV1OnTheLocalCloud(PlatformContract):
    UNKNOWN = "4711/1"
    SAVE = SAVE

    @pytest.fixture
    def platform(self, local: Local) -> Local:
        return local


class TestByV1(PlatformContract):
    OPTIONS = OPTIONS
    TWO_NODES = Shape(2, 8)
    UNKNOWN = "4711/1"
    SAVE = SAVE

    @pytest.fixture
    def platform(self, modelarts: ModelArts, access: Access, monkeypatch: pytest.MonkeyPatch) -> ModelArts:
        monkeypatch.setattr(type(self), "SECRETS", (access.access_key.reveal(), access.secret_access_key.reveal()))
        return modelarts


@pytest.fixture
def spec(modelarts: ModelArts) -> JobSpec:
    name = f"job-{uuid.uuid4().hex[:8]}"
    place = modelarts.root / f"{name}/"
    modelarts.store.write(place / "code/train.py", b"import time\ntime.sleep(600)\n")
    options = {**OPTIONS, "job_name": f"shared-{name}"}
    return JobSpec(name, Shape(1, 1), place / "code/", "train.py", place / "out/", place / "log/", options=options)


def other(spec: JobSpec) -> JobSpec:
    """Another trial that shares the job's name."""
    place = replace(spec.code, key=f"{spec.code.key}2/")
    return replace(spec, name=f"{spec.name}-2", outputs=place / "out/", logs=place / "log/")


def test_a_job_of_that_name_gets_another_version(modelarts: ModelArts, spec: JobSpec) -> None:
    one, two = modelarts.render(spec), modelarts.render(other(spec))
    first, second = modelarts.submit(one), modelarts.submit(two)
    assert first != second
    assert first.partition("/")[0] == second.partition("/")[0]
    assert (modelarts.find(one), modelarts.find(two)) == (first, second)
    modelarts.cancel(first)
    while modelarts.inspect([first])[first].phase is not Phase.CANCELLED:
        pass
    assert not modelarts.inspect([second])[second].phase.is_final, modelarts.logs(second).text
    modelarts.cancel(second)


def test_what_is_shown_of_a_request_is_what_was_sent(modelarts: ModelArts, spec: JobSpec) -> None:
    """Numbers for names; and of a version, its own path and no name."""
    one, two = modelarts.render(spec), modelarts.render(other(spec))
    foreseen = modelarts.to_send(one)
    first = modelarts.submit(one)
    assert modelarts.sent(one) == foreseen
    assert modelarts.sent(one) == one, "told once, and nothing of it is kept"
    assert foreseen.path == one.path
    named, numbered = one.body["config"], foreseen.body["config"]
    changed = {key for key in numbered if numbered[key] != named[key]}
    assert changed == {"spec_id", "engine_id"}
    assert all(isinstance(numbered[key], int) for key in changed)
    foreseen = modelarts.to_send(two)
    second = modelarts.submit(two)
    assert modelarts.sent(two) == foreseen
    job, _, version = first.partition("/")
    assert foreseen.path.endswith(f"/training-jobs/{job}/versions")
    assert foreseen.body.keys() == {"job_desc", "config"}
    assert str(foreseen.body["config"]["pre_version_id"]) == version
    for job_id in (first, second):
        modelarts.cancel(job_id)


def test_a_request_that_arrived_is_not_sent_again_as_a_version(modelarts: ModelArts, spec: JobSpec) -> None:
    request = modelarts.render(spec)
    assert modelarts.find(request) is None
    first = modelarts.submit(request)
    assert modelarts.submit(request) == first  # the name is taken, by itself
    assert len(list(modelarts.jobs._versions(first.partition("/")[0]))) == 1  # type: ignore[attr-defined]
    modelarts.cancel(first)


def test_a_name_that_contains_another_is_another_job(modelarts: ModelArts, spec: JobSpec) -> None:
    longer = replace(other(spec), options={**spec.options, "job_name": f"{spec.options['job_name']}-longer"})
    job_id = modelarts.submit(modelarts.render(longer))
    assert modelarts.find(modelarts.render(spec)) is None
    modelarts.cancel(job_id)
    assert isinstance(modelarts.jobs, JobsV1)
    modelarts.jobs.delete(job_id.partition("/")[0])
    assert modelarts.find(modelarts.render(longer)) is None
    modelarts.jobs.delete(job_id)  # what is not there is not missed


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("flavor", "modelarts.vm.gpu.v100", r"no 'modelarts\.vm\.gpu\.v100'; its specs are .*modelarts\.kat1\.8xlarge"),
        ("framework_version", "mindspore_9", r"no 'Ascend-Powered-Engine mindspore_9'; its engines are "),
    ],
)
def test_what_the_platform_does_not_have_is_answered_with_what_it_has(
    modelarts: ModelArts, spec: JobSpec, key: str, value: str, told: str
) -> None:
    with pytest.raises(Rejected, match=told):
        modelarts.submit(modelarts.render(replace(spec, options={**spec.options, key: value})))
