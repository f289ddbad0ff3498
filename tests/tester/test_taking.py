"""The upload contract, spoken by the adapter that runs use, on both databases."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from open_tester import LONG_AGO, Answer, Serving, bound, case, parcel, serving

from pytest_aisbench.errors import Refused, Rejected, Throttled
from pytest_aisbench.model.results import RunEnd, Straggler, UploadItem
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.tester.payload import attachment_upload, end_upload, stub_upload
from pytest_aisbench.tester_server import auth
from pytest_aisbench.tester_server.app import transaction

SENT = parcel("run-1", case())


def post(
    tester: Serving, token: str, body: str, *, key: str = "k", testid: str = "run-1", kind: str = "results"
) -> Answer:
    headers = {"Authorization": f"Bearer {token}", "Idempotency_Key": key}
    return tester.get(f"/api/v1/tests/{testid}/{kind}", method="POST", data=body.encode(), **headers)


def runs(tester: Serving, project: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tester.get(f"/p/{project}?format=json").json["rows"]
    return found


def test_a_result_is_created_once_and_replayed_ever_after(tester: Serving) -> None:
    token = tester.token("once", label="jenkins")
    for _ in range(3):
        tester.send(token, SENT)
    first = post(tester, token, SENT.body, key=SENT.key)
    assert (first.status, first.json) == (200, {"schema": "ais-tester/1", "key": SENT.key})
    back = tester.get("/api/v1/tests/run-1/results/run-1.resnet50-2x8", Authorization=f"Bearer {token}")
    assert back.json["results"] == [json.loads(SENT.body)]
    audited = tester.audited("once")
    assert [row["status"] for row in audited] == [201, 200, 200, 200]
    assert {(row["label"], row["address"], row["run_id"], row["key"], row["size"]) for row in audited} == {
        ("jenkins", "127.0.0.1", "run-1.resnet50-2x8", SENT.key, len(SENT.body))
    }


def test_other_content_under_a_known_key_is_a_conflict(tester: Serving) -> None:
    token = tester.token("conflict")
    tester.send(token, SENT)
    with pytest.raises(Rejected, match=r"something else was stored under this key \(HTTP 409\)"):
        tester.send(token, replace(SENT, body=SENT.body.replace("14000.0", "15000.0")))
    assert [row["status"] for row in tester.audited("conflict")] == [201, 409]
    assert runs(tester, "conflict")[0]["cases"] == 1


def test_two_who_send_the_same_at_once_store_it_once(tester: Serving) -> None:
    token, answers = tester.token("at-once"), list[int]()
    threads = [
        threading.Thread(target=lambda: answers.append(post(tester, token, SENT.body, key=SENT.key).status))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 7 + [201]
    assert runs(tester, "at-once")[0]["cases"] == 1


def test_cases_of_a_run_that_come_at_once_are_all_counted(tester: Serving) -> None:
    token = tester.token("counted")
    parcels = [parcel("run-1", case(nodes=nodes, verdict=ruling)) for nodes, ruling in enumerate(Ruling, 1)] * 2
    threads = [threading.Thread(target=tester.send, args=(token, each)) for each in parcels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (run,) = runs(tester, "counted")
    counted = {name: run[name] for name in ("cases", "passed", "failed", "broken", "inconclusive")}
    assert counted == {"cases": 4, "passed": 1, "failed": 1, "broken": 1, "inconclusive": 1}
    assert run["card_hours"] == 8.0 * (1 + 2 + 3 + 4)


def test_what_is_said_again_of_a_case_replaces_what_is_shown_whatever_the_order(tester: Serving) -> None:
    token = tester.token("again")
    slow = (Straggler(1, 3, 11, 0.8, 0.02),)
    first = parcel("run-1", case(stragglers=slow))
    second = parcel("run-1", case(verdict=Ruling.FAILED, reason="its test failed"), attempt=2)
    tester.send(token, first, second, first)
    assert [(run["cases"], run["passed"], run["failed"]) for run in runs(tester, "again")] == [(1, 0, 1)]
    assert tester.get("/p/again/stragglers?format=json").json["rows"] == []
    late = tester.token("late")
    tester.send(late, second, first)
    assert [(run["cases"], run["passed"], run["failed"]) for run in runs(tester, "late")] == [(1, 0, 1)]
    back = tester.get("/api/v1/tests/run-1/results", Authorization=f"Bearer {late}").json["results"]
    assert [body["attempt"] for body in back] == [2, 1]  # nothing that was said is gone
    page = "/p/late/t/run-1/r/run-1/c/resnet50-2x8"
    assert "its test failed" in tester.get(page).text
    assert "said before" not in tester.get(page).text
    assert "What follows was said before, in attempt 1" in tester.get(f"{page}?attempt=1").text


def test_how_a_run_ended_is_shown_whatever_came_first(tester: Serving) -> None:
    """A run whose cases all passed, as far as they were judged, is not one that ended well."""
    first, second = (
        end_upload(
            bound(),
            RunEnd("run-1", LONG_AGO, LONG_AGO + 60, code, {"late-1x1": "<b>stopped"}, 0.25, ("never-1x1",)),
            attempt,
        )
        for attempt, code in ((1, 2), (2, 143))
    )
    killed = end_upload(bound(), RunEnd("run-2", LONG_AGO, None, None, {}, 0.0), 1)
    for project, parcels in {"early": (second, first, SENT), "ended-late": (SENT, first, second)}.items():
        tester.send(tester.token(project), *parcels, killed)
        told = {run["name"]: run for run in runs(tester, project)}
        names = ("exit_code", "cases", "passed", "unjudged", "card_hours")
        assert [told["run-1"][name] for name in names] == [143, 1, 1, 1, 16.25]
        assert [told["run-2"][name] for name in names] == [None, 0, 0, 0, 0.0]
        page = tester.get(f"/p/{project}/t/run-1/r/run-1").text
        assert "143 · terminated" in page
        assert "&lt;b&gt;stopped" in page
        assert "never-1x1" in page
        assert "killed" in tester.get(f"/p/{project}").text
        assert len(tester.get(f"/p/{project}?bad=1&format=json").json["rows"]) == 2


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"exit_code":2', '"exit_code":-1', "exit_code"),
        ('"exit_code":2', '"exit_code":"2"', "exit_code"),
        ('"unjudged":{}', '"unjudged":{"a":1}', "unjudged"),
        ('"missing":[]', '"missing":[[]]', "missing"),
        ('"card_hours":0.0', '"card_hours":-1', "card_hours"),
    ],
)
def test_an_end_that_is_none_is_told_which_field(tester: Serving, old: str, new: str, field: str) -> None:
    body = end_upload(bound(), RunEnd("run-1", LONG_AGO, LONG_AGO, 2, {}, 0.0), 1).body
    assert old in body
    answer = post(tester, _once(tester, "unfit"), body.replace(old, new), kind="runs")
    assert (answer.status, answer.json.get("field", "")) == (422, field)


def test_attachments_and_the_result_of_a_stub_are_kept_too(tester: Serving) -> None:
    token = tester.token("more")
    room = attachment_upload(bound(), "run-1", "room", 1, {"celsius": 21.5, "note": "<script>"})
    stub = stub_upload(
        bound(), {"Model": "resnet50_v1.5", "testid": "t:1"}, {"throughput_ratio": "12.5", "accuracy": "0.7"}
    )
    tester.send(token, SENT, room, stub)
    page = tester.get("/p/more/t/run-1/r/run-1").text
    assert "celsius" in page
    assert "<script>" not in page.partition("</head>")[2]
    assert {run["testid"] for run in runs(tester, "more")} == {"run-1", "t:1"}
    assert "12.5" in tester.get("/p/more/cases").text


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"ais-tester/1"', '"ais-tester/9"', "schema"),
        ('"testid":"run-1"', '"testid":"run-2"', "testid"),
        ('"run_id":"run-1.resnet50-2x8"', '"run_id":"../x"', "run_id"),
        ('"attempt":1', '"attempt":0', "attempt"),
        ('"attempt":1', '"attempt":true', "attempt"),
        ('"attempt":1', '"attempt":1e999', "attempt"),
        ('"status":"OK"', '"status":"GREAT"', "status"),
        ('"status":"OK"', '"status":"FAILED"', "status"),
        ('"verdict":"PASSED"', '"verdict":"GREEN"', "case.verdict"),
        ('"verdict":"PASSED"', '"verdict":[]', "case.verdict"),
        ('"nodes":2,', '"nodes":"two",', "case.nodes"),
        ('"system":{}', '"system":[]', "system"),
        ('"value":14000.0', '"value":null', "measured.throughput_ratio"),
        ('"card_hours":16.0', '"card_hours":NaN', ""),
        ("{", "", ""),
        ('{"artifacts"', "[" * 100_000, ""),
    ],
)
def test_a_body_that_is_not_the_contract_is_told_which_field(tester: Serving, old: str, new: str, field: str) -> None:
    token = _once(tester, "unfit")
    body = SENT.body.replace(old, new)
    assert body != SENT.body
    answer = post(tester, token, body)
    assert (answer.status, answer.json.get("field", "")) == (422, field)
    assert tester.audited("unfit")[-1]["status"] == 422
    assert runs(tester, "unfit") == []


_TOKENS: dict[tuple[str, str], str] = {}


def _once(tester: Serving, project: str) -> str:
    return _TOKENS.setdefault((tester.url, project), tester.token(project))


def test_a_key_is_needed(tester: Serving) -> None:
    assert post(tester, _once(tester, "unfit"), SENT.body, key="").status == 400


def test_only_the_holder_of_a_live_send_token_may_send(tester: Serving) -> None:
    token, reader = tester.token("door"), tester.token("door", read=True)
    assert post(tester, "", SENT.body).headers["www-authenticate"] == "Bearer"
    with pytest.raises(Refused, match=r"unknown token \(HTTP 401\)"):
        tester.send("aisbt_made-up", SENT)
    with pytest.raises(Refused, match=r"may read, and not send \(HTTP 403\)"):
        tester.send(reader, SENT)
    tester.send(token, SENT)
    with transaction(tester.db) as connection:
        mine = [
            each["id"] for each in auth.every_token(connection) if each["project"] == "door" and each["kind"] == "send"
        ]
        auth.revoke_token(connection, mine[0], 1.0)
    with pytest.raises(Refused, match=r"was revoked \(HTTP 403\)"):
        tester.send(token, replace(SENT, key="another"))
    assert [row["status"] for row in tester.audited("door")] == [403, 201, 403]


def test_a_token_reads_its_own_project_back_and_no_other(tester: Serving) -> None:
    mine, other = tester.token("mine"), tester.token("other")
    tester.send(mine, SENT)
    path = "/api/v1/tests/run-1/results/run-1.resnet50-2x8"
    assert tester.get(path, Authorization=f"Bearer {mine}").status == 200
    assert tester.get(path, Authorization=f"Bearer {other}").status == 404
    reader = tester.token("other", read=True)
    assert tester.get("/p/mine", Authorization=f"Bearer {reader}").status == 404


@pytest.fixture(scope="module")
def strict(new_database: Callable[[], str]) -> Iterator[Serving]:
    with serving(new_database(), "--max-body", "0.01", "--rate", "0.1", "--closed") as running:
        yield running


def test_who_sends_too_often_is_told_when_to_come_again(strict: Serving) -> None:
    token, other = strict.token("often"), strict.token("often")
    strict.send(token, SENT)
    with pytest.raises(Throttled, match="too often") as met:
        strict.send(token, SENT)
    assert 1 <= met.value.pause_s <= 10
    strict.send(other, SENT)  # each token has a stock of its own


def test_what_is_too_large_is_refused_however_much_of_it_is_sent(strict: Serving) -> None:
    large = parcel("run-1", case(reason="x" * 900))
    body = large.body.replace('"system":{}', f'"system":{{"x":"{"y" * 6_000_000}"}}')
    with pytest.raises(Rejected, match=r"more than 10485 bytes \(HTTP 413\)"):
        strict.send(strict.token("large"), replace(large, body=body))
    assert [row["status"] for row in strict.audited("large")] == [413]


def test_where_it_is_closed_pages_are_for_holders_of_a_read_token(strict: Serving) -> None:
    send, read = strict.token("closed"), strict.token("closed", read=True)
    strict.send(send, SENT)
    assert strict.get("/p/closed").status == 401
    assert strict.get("/").status == 401
    refused = strict.get("/login", method="POST", data=f"token={send}".encode())
    assert (refused.status, "set-cookie" in refused.headers) == (401, False)
    entered = strict.get("/login", method="POST", data=f"token={read}".encode())
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    page = strict.get("/p/closed", Cookie=cookie.partition(";")[0])
    assert "run-1" in page.text
    assert strict.get("/p/large", Cookie=cookie.partition(";")[0]).status == 404
    assert read not in cookie
    assert strict.get("/p/closed", Authorization=f"Bearer {read}").status == 200
    assert strict.get("/p/closed", Authorization=f"Bearer {send}").status == 401  # it reads back over the API only


def test_leaving_ends_the_session_also_for_a_copy_of_the_cookie(strict: Serving) -> None:
    form = f"token={strict.token('leaving', read=True)}".encode()
    cookie = strict.get("/login", method="POST", data=form).headers["set-cookie"].partition(";")[0]
    assert strict.get("/p/leaving", Cookie=cookie).status == 200
    other = strict.get("/logout", method="POST", data=b"", Cookie=cookie, Origin="https://page.example")
    assert (other.status, strict.get("/p/leaving", Cookie=cookie).status) == (403, 200)
    assert strict.get("/logout", method="POST", data=b"", Cookie=cookie).status == 303
    assert strict.get("/p/leaving", Cookie=cookie).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://page.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 303),
        ({"Origin": "http://localhost:1"}, 303),  # a name of its own: a proxy may have another port
    ],
)
def test_no_page_of_another_site_signs_a_reader_in(strict: Serving, headers: dict[str, str], status: int) -> None:
    form = f"token={strict.token('sites', read=True)}".encode()
    assert strict.get("/login", method="POST", data=form, **headers).status == status


def test_results_of_one_run_may_be_of_two_platforms(tester: Serving) -> None:
    token = tester.token("two")
    one, other = parcel("run-1", case()), parcel("run-1", case("bert", 2))
    body = json.loads(other.body)
    body["job"]["platform"] = "elsewhere"
    tester.send(token, one, replace(other, body=json.dumps(body)))
    rows = tester.get("/p/two/results?format=json").json["rows"]
    assert sorted(row["platform"] for row in rows) == ["elsewhere", "modelarts"]
    for row in rows:
        assert tester.get(f"/p/two/t/run-1/r/run-1/c/{row['name']}").status == 200
        assert tester.get(f"/p/two/cases/{row['platform']}/{row['name']}").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("values", [(5e-323,), (1e-300, 9e17), (0.0, 5e-324), (1e-310, 1e-309)])
def test_numbers_at_the_ends_of_all_numbers_are_shown(tester: Serving, values: tuple[float, ...]) -> None:
    project = f"ends-{abs(hash(values)) % 10**9}"
    token = tester.token(project)
    for number, value in enumerate(values):
        sent = parcel(f"run-{number}", case())
        body = json.loads(sent.body)
        body["measured"]["throughput_ratio"]["value"] = value
        body["measured"]["accuracy"]["value"] = value
        tester.send(token, replace(sent, body=json.dumps(body)))
    name = tester.get(f"/p/{project}/results?format=json").json["rows"][0]["name"]
    last = len(values) - 1
    for path in (
        f"/p/{project}",
        f"/p/{project}/cases",
        f"/p/{project}/cases/modelarts/{name}",
        f"/p/{project}/scaling",
        f"/p/{project}/t/run-0/r/run-0/c/{name}",
        f"/p/{project}/compare?a=run-0/run-0&b=run-{last}/run-{last}",
        f"/p/{project}/compare?a=run-0/run-0&b=run-{last}/run-{last}&format=json",
    ):
        assert tester.get(path).status == 200, path


def test_an_object_with_a_key_twice_is_refused(tester: Serving) -> None:
    body = SENT.body.replace('"status":', '"status":"OK","status":', 1)
    with pytest.raises(Rejected, match="'status' twice"):
        tester.send(tester.token("twice"), replace(SENT, body=body))


def test_many_connections_that_send_nothing_close_the_tester_to_nobody_else(strict: Serving) -> None:
    host, _, port = strict.url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            silent = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            silent.sendall(b"GET / HTTP/1.1\r\nHost")
        assert strict.get("/").status == 401


def test_a_clock_that_runs_ahead_does_not_put_a_result_in_the_future(tester: Serving) -> None:
    token = tester.token("clock")
    tester.send(token, parcel("ahead", case(at=9_000_000_000.0)), parcel("behind", case(at=LONG_AGO)))
    ahead, behind = runs(tester, "clock")
    assert (ahead["name"], behind["name"]) == ("ahead", "behind")
    assert ahead["ended"] < "2200"
    assert behind["ended"] == "2025-06-15T15:06:40Z"


def hostile(text: str) -> UploadItem:
    body = json.loads(parcel("run-1", case(reason=text)).body)
    body["case"]["reason"] = text
    body["case"]["findings"][0]["text"] = text
    body["case"]["traits"] = {text: text}
    body["config"]["Model"] = text
    body["job"]["job_id"] = text
    return replace(SENT, body=json.dumps(body))


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "\x00\ud800\x1b[31m"]
)
def test_hostile_words_are_stored_and_shown_as_words(tester: Serving, text: str) -> None:
    project = f"hostile-{len(text)}"
    token = tester.token(project)
    tester.send(token, hostile(text))
    for path in (
        f"/p/{project}/t/run-1/r/run-1",
        f"/p/{project}/t/run-1/r/run-1/c/resnet50-2x8",
        f"/p/{project}/cases",
    ):
        page = tester.get(path)
        assert page.status == 200
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "\x00" not in page.text


def test_what_the_contract_leaves_open_is_shown_whatever_it_is(tester: Serving) -> None:
    body = json.loads(SENT.body)
    body["measured"]["power"] = {"null_reason": "nobody asked"}  # and no value at all
    body["case"]["stragglers"] = [{"node": 0, "card": 1, "ratio": 10**400, "cost": "much"}]
    body["case"] |= {"scaling": [7], "warnings": "few", "findings": [{"metric": {}, "outcome": []}]}
    tester.send(tester.token("open"), replace(SENT, body=json.dumps(body)))
    page = tester.get("/p/open/t/run-1/r/run-1/c/resnet50-2x8")
    assert page.status == 200
    assert "<td>power<td>nobody asked" in page.text
    assert tester.get("/p/open/stragglers?format=json").json["rows"] == []


def test_a_text_that_a_spreadsheet_would_run_is_not_run(tester: Serving) -> None:
    tester.send(tester.token("sheet"), hostile('=HYPERLINK("http://evil.example")'))
    assert "\"'=HYPERLINK" in tester.get("/p/sheet/results?format=csv").text


@pytest.mark.parametrize("text", ["\uff1dcmd()", " =cmd()"])
def test_spellings_that_a_spreadsheet_takes_for_a_formula_are_quoted(tester: Serving, text: str) -> None:
    project = f"spelling-{ord(text[0])}"
    tester.send(tester.token(project), hostile(text))
    assert f"\"'{text}" in tester.get(f"/p/{project}/results?format=csv").text


def test_a_text_does_not_become_two_cells_where_columns_end_at_semicolons(tester: Serving) -> None:
    tester.send(tester.token("semicolon"), hostile("x;=cmd()"))
    assert ',"x;=cmd()",' in tester.get("/p/semicolon/results?format=csv").text
