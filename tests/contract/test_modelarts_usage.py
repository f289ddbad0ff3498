"""How we read ModelArts' samples of the usage of a node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import BadAnswer
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from tests.contract.conftest import Server


@pytest.fixture
def platform(server: Server) -> Iterator[ModelArts]:
    access = Access(Secret("AK"), Secret("SK"), "", "p", "b", obs_endpoint=server.url, modelarts_endpoint=server.url)
    with contextlib.closing(ModelArts(Settings(platform="modelarts", access=access))) as platform:
        yield platform


def row(metric: str, *value: Any) -> dict[str, Any]:
    return {"metric": metric, "value": list(value)}


def test_minutes_without_a_sample_are_left_out_and_so_is_what_was_never_sampled(
    platform: ModelArts, server: Server
) -> None:
    rows = [row("cpuUsage", -1, -1, 2.43), row("npuUtil", 98, "97.5"), row("gpuUtil", -1), row("fanSpeed", 3)]
    server.answer((200, {"metrics": [*rows, {"metric": "memUsage", "value": None}]}))
    assert platform.usage("j", 3) == {"cpu": [2.43], "npu": [98.0, 97.5]}
    assert server.seen[-1][1] == "/v2/p/training-jobs/j/metrics/worker-3"


@pytest.mark.parametrize(
    "answer",
    [
        (204, b""),
        (200, {"metrics": []}),
        (200, {"metrics": None}),
        (400, {"error_code": "ModelArts.2777", "error_msg": "not ready"}),
    ],
)
def test_samples_that_are_not_ready_are_none(platform: ModelArts, server: Server, answer: tuple[int, Any]) -> None:
    server.answer(answer)
    assert platform.usage("j") == {}


@pytest.mark.parametrize(
    "metrics", [[{"value": [1]}], ["cpuUsage"], [row("cpuUsage", "much")], [row("cpuUsage", None)]]
)
def test_a_form_nobody_knows_is_said(platform: ModelArts, server: Server, metrics: Any) -> None:
    server.answer((200, {"metrics": metrics}))
    with pytest.raises(BadAnswer, match="the use of a node"):
        platform.usage("j")
