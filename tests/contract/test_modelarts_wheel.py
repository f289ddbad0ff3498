"""The port Platform by the vendor's `modelarts` wheel: a stand-in of its documented surface, over the real wire."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_aisbench import Access, Settings
from pytest_aisbench.adapters.local import Local
from pytest_aisbench.adapters.modelarts import ModelArts
from pytest_aisbench.domain.case import Shape
from pytest_aisbench.testing import PlatformContract

STANDIN = Path(__file__).parents[1] / "support/modelarts_standin"
OPTIONS = {
    "framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64",
    "flavor": "modelarts.kat1",
}


@pytest.fixture(scope="module", autouse=True)
def _standin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STANDIN))
        yield


@pytest.fixture(scope="module")
def access() -> Iterator[Access]:
    """Of a local cloud."""
    with contextlib.closing(Local(Settings())) as local:
        yield local._card


def by_wheel(access: Access, version: str) -> contextlib.closing[ModelArts]:
    settings = Settings(
        platform="modelarts", access=access, modelarts_version=version, modelarts_client="wheel"
    )
    return contextlib.closing(ModelArts(settings))


@pytest.fixture(scope="module")
def v2(access: Access) -> Iterator[ModelArts]:
    with by_wheel(access, "V2") as modelarts:
        yield modelarts


@pytest.fixture(scope="module")
def v1(access: Access) -> Iterator[ModelArts]:
    with by_wheel(access, "V1") as modelarts:
        yield modelarts


class TestWheelV2(PlatformContract):
    OPTIONS = OPTIONS
    TWO_NODES = Shape(2, 8)

    @pytest.fixture
    def platform(self, v2: ModelArts, access: Access, monkeypatch: pytest.MonkeyPatch) -> ModelArts:
        monkeypatch.setattr(type(self), "SECRETS", (access.access_key.reveal(), access.secret_access_key.reveal()))
        return v2


class TestWheelV1(PlatformContract):
    OPTIONS = OPTIONS
    TWO_NODES = Shape(2, 8)
    UNKNOWN = "4711/1"
    SAVE = "import moxing as mox; mox.file.write(given['train_url'].rstrip('/') + '/' + name, text)"

    @pytest.fixture
    def platform(self, v1: ModelArts, access: Access, monkeypatch: pytest.MonkeyPatch) -> ModelArts:
        monkeypatch.setattr(type(self), "SECRETS", (access.access_key.reveal(), access.secret_access_key.reveal()))
        return v1
