"""Parts of the open Tester that need no server: access, the rate, words, numbers, and a database that is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the Tester comes with the extra [tester]")

from pytest_aisbench.cli import main
from pytest_aisbench.tester_server import api, app, auth, charts, formatting
from pytest_aisbench.tester_server.api import RateLimit
from pytest_aisbench.tester_server.app import ServeOptions, access_policy, open_database, transaction
from pytest_aisbench.tester_server.auth import AccessPolicy, is_loopback
from pytest_aisbench.tester_server.pages import chosen_language
from pytest_aisbench.tester_server.schema import Mark, address, open_engine


def answered(
    application: Any, path: str, method: str = "GET", *, ends: bool = True, **headers: str
) -> tuple[int, dict[str, str], str]:
    """One request, without a socket; one that does not end says two bytes of its body, and then nothing."""
    sent: list[dict[str, Any]] = []
    heard: list[bool] = []
    told = {"host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in told.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def receive() -> dict[str, Any]:
        if heard:
            await asyncio.Event().wait()
        heard.append(True)
        return {"type": "http.request", "body": b"{}", "more_body": not ends}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], given, b"".join(message.get("body", b"") for message in sent[1:]).decode()


def test_a_database_that_is_away_is_said_and_may_be_asked_again(tmp_path: Path) -> None:
    application = app.make_application(
        open_engine(address(f"postgresql:///none?host={tmp_path}")), AccessPolicy(open=True)
    )
    status, headers, text = answered(application, "/api/v1/tests/t/results", "POST", Authorization="Bearer x")
    assert (status, headers["retry-after"]) == (503, "5")
    assert "does not answer" in text
    for path, method in (("/p/centre", "GET"), ("/login", "POST")):
        status, _, page = answered(application, path, method, Accept_Language="zh")
        assert status == 503
        assert "数据库没有应答" in page


def test_a_body_that_never_comes_to_its_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_BODY_S", 0.1)
    db = f"{tmp_path}/tester.db"
    with transaction(db) as connection:
        token = auth.add_token(connection, "p", auth.Kind.SEND, "", 1.0).reveal()
    with open_database(db) as engine:
        application = app.make_application(engine, AccessPolicy(open=True))
        head = {"Authorization": f"Bearer {token}", "Idempotency_Key": "k"}
        status, headers, text = answered(application, "/api/v1/tests/t/results", "POST", ends=False, **head)
    assert (status, headers["connection"]) == (408, "close")
    assert "did not arrive within" in text


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_loopback_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_pages_are_open_on_loopback_alone_and_only_if_nobody_closed_them() -> None:
    assert access_policy(ServeOptions("db")).open
    assert not access_policy(ServeOptions("db", closed=True)).open
    assert not access_policy(ServeOptions("db", host="0.0.0.0")).open
    assert not access_policy(ServeOptions("db")).answers_to("tester.example")
    assert access_policy(ServeOptions("db", names=("Tester.example",))).answers_to("tester.example:443")
    assert access_policy(ServeOptions("db", host="0.0.0.0")).answers_to("tester.example")


def test_another_address_than_loopback_is_told_to_be_plain_http(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "serve", lambda offer, show: show(f"http://{offer.host}:1"))
    assert main(["tester", "--host", "0.0.0.0"]) == 0
    told = capsys.readouterr()
    assert told.out == "The Tester serves http://0.0.0.0:1 until it is stopped (Ctrl-C).\n"
    assert "this is plain http" in told.err
    assert main(["tester"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["tester", "--rate", "-1"]) == 4
    assert main(["tester", "--max-body", "0"]) == 4


def test_a_door_knows_its_names() -> None:
    access = AccessPolicy(open=True, names=("127.0.0.1", "[::1]", "tester.example"))
    assert all(map(access.answers_to, ("127.0.0.1:9527", "[::1]:9527", "Tester.Example:443", "[::1]")))
    assert not any(map(access.answers_to, ("evil.example", "", "[::2]:1", "127.0.0.1.evil.example")))
    assert AccessPolicy(open=False).answers_to("anything")


def test_a_token_has_a_stock_and_gets_more_with_time() -> None:
    now = [0.0]
    rate = RateLimit(2.0, lambda: now[0])
    assert [rate.wait_s(1) for _ in range(21)] == [0] * 20 + [1]
    assert rate.wait_s(2) == 0
    now[0] = 0.5
    assert [rate.wait_s(1), rate.wait_s(1)] == [0, 1]
    now[0] = 1e6
    assert [rate.wait_s(1) for _ in range(21)][-1] == 1
    assert {RateLimit(0.0, lambda: 0.0).wait_s(1) for _ in range(1000)} == {0}


@pytest.mark.parametrize(
    ("asked", "kept", "accepted", "language"),
    [
        ("", "", "", "en"),
        ("zh", "en", "en", "zh"),
        ("xx", "zh", "en", "zh"),
        ("", "", "xx, zh-TW;q=0.5, en;q=0.4", "zh"),
        ("", "", "zh;q=0, en;q=0.1", "en"),
        ("", "", "zh;q=nonsense", "en"),
    ],
)
def test_a_language_is_asked_for_kept_or_liked(asked: str, kept: str, accepted: str, language: str) -> None:
    assert chosen_language(asked, kept, accepted) == language


def test_numbers_are_short_and_true() -> None:
    told = [formatting.format_number(value) for value in (None, 14151.53, 1_234_567.8, 0.76121, 0.0, 1.25e-7, 8)]
    assert told == ["–", "14152", "1234568", "0.76121", "0", "1.25e-07", "8"]
    assert (
        formatting.relative_change(100.0, 93.0),
        formatting.relative_change(0.0, 1.0),
        formatting.relative_change(None, 1.0),
    ) == (-0.07, None, None)
    assert formatting.path("p", "a b/c", "ü") == "/p/a%20b%2Fc/%C3%BC"


def test_a_mark_that_was_tampered_with_is_none() -> None:
    assert Mark.parse(str(Mark(1.5, 3))) == Mark(1.5, 3)
    assert [Mark.parse(text) for text in ("", "x_y", "1", "1_", "nan_1", "1_-1", f"1_{2**63}")] == [None] * 7


def test_charts_hold_whatever_was_sent() -> None:
    assert charts.round_values(*charts.span([1e17, -1e17]))
    assert charts.round_values(*charts.span([0.0])) == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert charts.sparkline([1.0]) == ""
    assert charts.trend([]) is None
