"""Sign-off, and what helps to decide it: marks of a changed level, noise in comparisons, filters. On both databases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from open_tester import HOUR, LONG_AGO, Answer, Serving, aisbench, bound, case, fill, history, parcel, serving
from sqlalchemy import insert

from pytest_aisbench.model.results import Executor, RunEnd
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.tester.payload import end_upload, result_upload
from pytest_aisbench.tester_server.app import open_database
from pytest_aisbench.tester_server.auth import Kind
from pytest_aisbench.tester_server.schema import SIGNATURES, writing

pytestmark = pytest.mark.slow

GREEN, RED = "green-1", "red-1"


@pytest.fixture(scope="module")
def centre(new_database: Callable[[], str]) -> Iterator[Serving]:
    db = new_database()
    fill(db, "centre", history(40))
    fill(db, "gate", _run(GREEN, 0, Ruling.PASSED, "aaaa1111"))
    fill(db, "gate", _run(RED, 1, Ruling.FAILED, "bbbb2222"))
    with serving(db) as running:
        yield running


def _run(name: str, exit_code: int, verdict: Ruling, commit: str, attempt: int = 1) -> Iterator[Any]:
    at = LONG_AGO + (0 if exit_code == 0 else 48 * HOUR)
    to = replace(bound(), origin=Executor(commit=commit, branch="main"))
    yield result_upload(to, name, case(verdict=verdict, at=at), attempt)
    yield end_upload(to, RunEnd(name, at - 1, at, exit_code, {}, 0.0), attempt)


def _address(run: str) -> str:
    return f"/p/gate/t/{run}/r/{run}"


def _digest(tester: Serving, run: str) -> str:
    page = tester.get(_address(run), Authorization=f"Bearer {tester.token('gate', kind=Kind.SIGN)}")
    digest = re.search(r'name="digest" value="(\w+)"', page.text)
    assert digest
    return digest[1]


def _sign(tester: Serving, run: str, token: str, **fields: str) -> Answer:
    form = {"decision": "accepted", "name": "李伟", "digest": _digest(tester, run), **fields}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return tester.get(f"{_address(run)}/sign", method="POST", data=urlencode(form).encode(), **headers)


def test_a_signature_names_who_when_and_why_and_is_in_the_audit(centre: Serving) -> None:
    signer = centre.token("gate", kind=Kind.SIGN, label="acceptance desk")
    signed = _sign(centre, GREEN, signer)
    assert signed.status == 303
    assert re.fullmatch(rf"{_address(GREEN)}#signature-\d+", signed.headers["location"])
    page = centre.get(_address(GREEN)).text
    assert "李伟" in page
    assert "acceptance desk" in page
    assert "arrived after this signature" not in page
    assert "accepted · 李伟" in centre.get("/p/gate").text
    row = next(row for row in centre.audited("gate") if row["act"] == "signed: accepted")
    assert (row["run_id"], row["label"], row["address"]) == (GREEN, "acceptance desk", "127.0.0.1")
    (exported,) = [row for row in centre.get("/p/gate/signatures?format=json").json["rows"] if row["run"] == GREEN]
    assert (exported["name"], exported["decision"]) == ("李伟", "accepted")
    # A result that arrives later is not what was signed.
    assert "arrived after this signature" not in centre.get("/p/gate").text
    fill(centre.db, "gate", _run(GREEN, 0, Ruling.PASSED, "aaaa1111", attempt=2))
    for page in (_address(GREEN), "/p/gate"):
        assert "arrived after this signature" in centre.get(page).text


def test_a_run_that_is_not_green_is_signed_with_a_remark_only(centre: Serving) -> None:
    signer = centre.token("gate", kind=Kind.SIGN)
    refused = _sign(centre, RED, signer)
    assert refused.status == 400
    assert "Write a remark" in refused.text
    assert _sign(centre, RED, signer, decision="rejected").status == 400
    assert _sign(centre, RED, signer, remark="card 3 was replaced, waived by contract").status == 303
    assert "waived by contract" in centre.get(_address(RED)).text
    # The newest signature counts, the others stay.
    assert _sign(centre, RED, signer, decision="rejected", remark="=not after all").status == 303
    page = centre.get(_address(RED)).text
    assert "waived by contract" in page
    assert "rejected · 李伟" in centre.get("/p/gate").text
    # Also if the others fill the page.
    create = {"project": "gate", "testid": RED, "run": RED, "token": 1, "label": "", "name": "many", "digest": ""}
    with open_database(centre.db) as engine, writing(engine).begin() as connection:
        rows = [{**create, "at": float(at), "decision": "accepted", "remark": ""} for at in range(200)]
        connection.execute(insert(SIGNATURES), rows)
    assert _sign(centre, RED, signer, decision="rejected", remark="the last word").status == 303
    assert "the last word" in centre.get(_address(RED)).text


@pytest.mark.parametrize(
    ("kind", "project", "status"),
    [(Kind.SEND, "gate", 403), (Kind.READ, "gate", 403), (Kind.SIGN, "centre", 403), (None, "gate", 403)],
)
def test_only_a_token_of_the_project_that_may_sign_signs(
    centre: Serving, kind: Kind | None, project: str, status: int
) -> None:
    token = centre.token(project, kind=kind) if kind else ""
    before = centre.get("/p/gate/signatures?format=json").json["rows"]
    assert _sign(centre, GREEN, token, remark="mine").status == status
    assert centre.get("/p/gate/signatures?format=json").json["rows"] == before
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    absent = centre.get("/p/gate/t/x/r/y/sign", method="POST", data=b"", **headers)
    assert absent.status == status, "strangers do not learn which runs there are"


def test_forms_that_cannot_be_signed_are_refused(centre: Serving) -> None:
    signer = centre.token("gate", kind=Kind.SIGN)
    assert _sign(centre, GREEN, signer, digest="0" * 64).status == 409  # another page than the reader saw
    assert _sign(centre, GREEN, signer, name=" ").status == 400
    assert _sign(centre, GREEN, signer, decision="perhaps").status == 400
    assert _sign(centre, GREEN, signer, remark="字" * 1001).status == 400
    other = {"Sec_Fetch_Site": "cross-site", "Authorization": f"Bearer {signer}"}
    assert centre.get(f"{_address(GREEN)}/sign", method="POST", data=b"decision=accepted", **other).status == 403
    headers = {"Authorization": f"Bearer {signer}"}
    assert centre.get("/p/gate/t/x/r/y/sign", method="POST", data=b"decision=accepted", **headers).status == 404


def test_a_sign_token_signs_in_reads_and_sends_nothing(centre: Serving) -> None:
    token = aisbench("tester", "token", "add", "gate", "--sign", "--label", "Wang", "--db", centre.db).stdout.strip()
    form = urlencode({"token": token, "next": _address(GREEN)}).encode()
    entered = centre.get("/login", method="POST", data=form)
    assert (entered.status, entered.headers["location"]) == (303, _address(GREEN))
    cookie = entered.headers["set-cookie"].partition(";")[0]
    page = centre.get(_address(GREEN), Cookie=cookie).text
    assert "I accept this run" in page
    assert 'value="Wang"' in page
    assert "I accept this run" not in centre.get(_address(GREEN)).text
    way = centre.way(token)
    with pytest.raises(Exception, match="may sign, and not send"):
        way.send(parcel("x", case()))
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", ""):
        form = urlencode({"token": token, "next": elsewhere}).encode()
        assert centre.get("/login", method="POST", data=form).headers["location"] == "/"


def test_runs_and_trends_are_filtered_by_day_and_by_commit(centre: Serving) -> None:
    def names(query: str) -> list[str]:
        return [row["name"] for row in centre.get(f"/p/gate?format=json&{query}").json["rows"]]

    assert names("") == [RED, GREEN]
    assert names("commit=aaaa") == [GREEN]
    assert names("commit=%25") == []
    assert names("since=2025-06-16") == [RED]
    assert names("until=2025-06-15") == [GREEN]
    assert 'value="2025-06-16"' in centre.get("/p/gate?since=2025-06-16").text  # the address keeps the filter
    for asked in ("since=yesterday", "until=9999-12-31"):
        refused = centre.get(f"/p/gate?{asked}")
        assert refused.status == 400
        assert "2027-01-31" in refused.text
    trend = centre.get("/p/gate/cases/modelarts/resnet50-2x8?format=json&commit=bbbb").json["rows"]
    assert [row["run_name"] for row in trend] == [RED]


def test_a_trend_marks_where_its_level_changed(centre: Serving) -> None:
    changed = centre.get("/p/centre/cases/modelarts/bert-8x8").text
    assert changed.count('class="level"') == 1
    assert re.search(r"The level changed with <a href=[^>]+>run-000(28|29|30)</a>.*, -[67]\.\d%", changed)
    assert 'class="level"' not in centre.get("/p/centre/cases/modelarts/resnet50-1x8").text


def test_a_comparison_colours_what_is_more_than_noise(centre: Serving) -> None:
    near = centre.get("/p/centre/compare?a=run-00020/run-00020&b=run-00021/run-00021").text
    assert not re.search(r'class="n (worse|better)"', near)  # noise of 0.6 %: the runs differ by chance
    assert "noise ±" in near
    far = centre.get("/p/centre/compare?a=run-00020/run-00020&b=run-00039/run-00039").text
    worse = re.findall(r'class="n worse" data-value="([^"]+)"', far)
    assert len(worse) == 2  # bert on 4 and on 8 nodes lost 7 %
    rows = centre.get("/p/centre/compare?a=run-00020/run-00020&b=run-00039/run-00039&format=json").json["rows"]
    assert all(0.005 < row["throughput_noise"] < 0.05 for row in rows)
