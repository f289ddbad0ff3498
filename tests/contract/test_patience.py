"""How long the clients wait for a server, and when they give up; the test moves the clock."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest
from held_time import HeldTime

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import AisbenchError, Throttled, Unreachable
from pytest_aisbench.model.job import Request
from pytest_aisbench.net import retry
from pytest_aisbench.net.http import parse_retry_after
from pytest_aisbench.platforms.modelarts import platform as platform_module
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores import obs

if TYPE_CHECKING:
    from tests.contract.conftest import Server

PATIENCE = 60.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldTime:
    clock = HeldTime()
    monkeypatch.setattr(retry, "time", clock)
    return clock


def platform_at(url: str) -> ModelArts:
    access = Access(Secret("AK"), Secret("SK"), "", "p", "b", obs_endpoint=url, modelarts_endpoint=url)
    return ModelArts(Settings(platform="modelarts", access=access))


@pytest.fixture
def platform(server: Server, clock: HeldTime, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelArts]:
    with contextlib.closing(platform_at(server.url)) as platform:
        monkeypatch.setattr(platform.store._client, "_closed", clock)
        yield platform


def ask_modelarts(platform: ModelArts) -> None:
    platform.session.call("GET", "/v2/{project_id}/training-job-flavors")


def ask_obs(platform: ModelArts) -> None:
    platform.store.read(platform.root / "object")


both = pytest.mark.parametrize("ask", [ask_modelarts, ask_obs])
Ask = Callable[[ModelArts], None]
CREATE = Request("POST", "/v2/{project_id}/training-jobs", {"metadata": {"name": "t-1"}})
GOOD: tuple[Any, ...] = (200, {}, {"x-obs-request-id": "1"})


def throttled(retry_after: str, **headers: str) -> tuple[Any, ...]:
    return (429, b"", {"Retry-After": retry_after, **headers})


@both
def test_the_server_is_left_alone_for_as_long_as_it_asks(
    platform: ModelArts, server: Server, clock: HeldTime, ask: Ask
) -> None:
    server.answer(throttled("40"), GOOD)
    ask(platform)
    assert (len(clock.waits), clock.waits[0]) == (1, 40.0)


@both
def test_it_may_name_a_date_by_its_own_clock(platform: ModelArts, server: Server, clock: HeldTime, ask: Ask) -> None:
    server.answer(throttled(formatdate(5_000_040, usegmt=True), Date=formatdate(5_000_000, usegmt=True)), GOOD)
    ask(platform)
    assert clock.waits == [40.0]


@both
@pytest.mark.parametrize("status", [429, 503])
def test_more_than_our_patience_ends_at_once_and_says_how_long(
    platform: ModelArts, server: Server, clock: HeldTime, ask: Ask, status: int
) -> None:
    server.answer((status, b"", {"Retry-After": "3600"}))
    with pytest.raises(Throttled if status == 429 else Unreachable, match="left alone for 3600 s") as raised:
        ask(platform)
    assert raised.value.pause_s == 3600
    assert (clock.waits, len(server.seen)) == ([], 1)


@pytest.mark.parametrize(
    "nonsense", ["", "soon", "-1", "nan", "1e9", "²", "Mon, 99 Nov 2026", formatdate(0, usegmt=True)]
)
def test_nonsense_and_the_past_ask_for_nothing(nonsense: str) -> None:
    assert parse_retry_after(nonsense, "") == 0.0


def test_what_a_throttled_create_asks_for_is_told_to_who_decides(platform: ModelArts, server: Server) -> None:
    server.answer(throttled("40"))
    with pytest.raises(Throttled) as raised:
        platform.submit(CREATE)
    assert (raised.value.pause_s, len(server.seen)) == (40.0, 1)


@both
def test_pauses_grow_are_never_twice_the_same_and_end(
    platform: ModelArts, server: Server, clock: HeldTime, ask: Ask
) -> None:
    server.answer((503, b""))
    series = []
    for _ in range(2):
        clock.waits.clear()
        began = clock.now
        with pytest.raises(Unreachable):
            ask(platform)
        assert clock.now - began <= PATIENCE
        series.append(list(clock.waits))
    assert series[0] != series[1]
    for waits in series:
        assert max(waits[:2]) <= 1.0 < max(waits) <= 10.0
        assert sum(waits) > PATIENCE / 2


# One call must not hold up those who wait behind it.


@pytest.fixture
def mute() -> Iterator[str]:
    """Takes connections and answers nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("part", ["modelarts", "project", "obs"])
def test_the_check_before_a_run_waits_for_nobody_who_is_silent(
    mute: str, server: Server, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """If it did, this test would take a minute; the threads of the fixtures would not."""
    for module in (platform_module, obs):
        monkeypatch.setattr(module, "CHECK_S", 0.3)
    places: dict[str, Any] = {"modelarts_endpoint": server.url, "obs_endpoint": server.url, "iam_endpoint": server.url}
    places["iam_endpoint" if part == "project" else f"{part}_endpoint"] = mute
    project = "" if part == "project" else "p"
    access = Access(Secret("AK"), Secret("SK"), "r", project, "b", **places)
    ended: list[AisbenchError] = []

    def check() -> None:
        with contextlib.closing(ModelArts(Settings(platform="modelarts", access=access))) as platform:
            try:
                platform.check()
            except AisbenchError as error:
                ended.append(error)

    thread = threading.Thread(target=check, daemon=True)
    thread.start()
    thread.join(15)
    assert [type(error) for error in ended] == [Unreachable]
    assert mute.removeprefix("http://") in str(ended[0])


def test_one_look_sits_out_no_outage(platform: ModelArts, server: Server, clock: HeldTime) -> None:
    server.answer((503, b""))
    for jobs in (["a"], ["a", "b", "c"]):
        began = clock.now
        with pytest.raises(Unreachable):
            platform.inspect(jobs)
        assert clock.now - began <= 5.0
    began = clock.now
    with pytest.raises(Unreachable):
        platform.find(Request("POST", "", {"metadata": {"name": "t-1"}}))
    assert clock.now - began > 5.0
