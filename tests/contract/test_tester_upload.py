"""The ways to a Tester against servers and folders that misbehave."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from upload_victims import CASE

from pytest_aisbench.config import access as access_module
from pytest_aisbench.errors import AisbenchError, Garbled, Refused, Rejected, Throttled, Unreachable
from pytest_aisbench.localcloud import tester as service
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.faulty import Faults, Faulty
from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.model.results import Destination, RunEnd, Transport, UploadItem, Value
from pytest_aisbench.secret import Secret
from pytest_aisbench.tester import transports
from pytest_aisbench.tester.payload import attachment_upload, end_upload, result_upload
from pytest_aisbench.tester.transports import StubsTransport, make_transport

TOKEN = "a-token-that-nobody-may-see"
BOUND = Destination("", "local", "", testid="t:1")
PARCEL = result_upload(BOUND, "run-1", CASE, 1)


def way_to(address: str, **access: Any) -> Transport:
    return make_transport(address, access_module.TesterAccess(**access))


def test_a_request_is_what_the_contract_says(server: Any) -> None:
    server.answer((201, {"key": PARCEL.key}))
    way_to(f"{server.url}/centre/", token=Secret(TOKEN)).send(PARCEL)
    ((method, path, headers, content),) = server.seen
    assert (method, path) == ("POST", "/centre/api/v1/tests/t%3A1/results")
    assert headers["Idempotency-Key"] == PARCEL.key
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert json.loads(content)["train_result_info"]["throughput_ratio"] == "10.0"


def test_the_token_goes_to_the_tester_it_was_written_beside_and_to_no_other(server: Any) -> None:
    server.answer((201, {"key": PARCEL.key}))
    way_to(server.url, url="https://tester.example/", token=Secret(TOKEN)).send(PARCEL)
    way_to(server.url, url=f"{server.url}/", token=Secret(TOKEN)).send(PARCEL)
    assert ["Authorization" in headers for _, _, headers, _ in server.seen] == [False, True]


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ((500, b"oops"), Unreachable, "oops"),
        ((503, b"", {"Retry-After": "7"}), Unreachable, "no reason given"),
        ((429, b"", {"Retry-After": "9"}), Throttled, "HTTP 429"),
        ((408, b""), Throttled, "HTTP 408"),
        ((0,), Unreachable, "no answer"),
        ((201, b"{}", {}, 10), Unreachable, "no answer"),
        ((401, {"error": f"unknown token {TOKEN}"}), Refused, r"unknown token \*\*\* \(HTTP 401\); check token"),
        ((403, b""), Refused, "HTTP 403"),
        ((409, {"error": "other content"}), Rejected, "other content .HTTP 409.; the Tester has another parcel"),
        ((413, b""), Rejected, "take larger results"),
        ((422, {"error": "status is missing"}), Rejected, r"status is missing \(HTTP 422\)$"),
        ((404, b"<html>\nno such page"), Rejected, "<html> .HTTP 404.; check the address"),
        ((302, b"", {"Location": "https://elsewhere.example/"}), Rejected, "HTTP 302"),
        ((200, b"<html>Log in, please</html>"), Garbled, "Log in, please"),
        ((201, {"key": "another"}), Garbled, "not the answer of a Tester"),
        ((204, b""), Rejected, "HTTP 204"),
    ],
)
def test_every_answer_means_one_thing(server: Any, reply: Any, kind: type[AisbenchError], said: str) -> None:
    server.answer(reply)
    way = way_to(server.url, token=Secret(TOKEN))
    with pytest.raises(AisbenchError, match=said) as met:
        way.send(PARCEL)
    assert type(met.value) is kind
    assert TOKEN not in str(met.value)
    assert met.value.pause_s == float(dict(reply[2]).get("Retry-After", 0)) if len(reply) > 2 else True
    assert len(server.seen) == 1  # a redirect is not followed


def test_a_tester_that_never_answers_costs_a_timeout(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_READ_S", 0.2)
    never = threading.Event()
    server.answer((200, b"", {}, 0, never))
    with pytest.raises(Unreachable, match=r"no answer: .*[Tt]imed? ?out"):
        way_to(server.url).send(PARCEL)
    never.set()


def test_nobody_there_is_one_line() -> None:
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9: no answer"):
        way_to("http://127.0.0.1:9").send(PARCEL)


def test_a_certificate_is_believed_only_if_it_is_named(server: Any, tmp_path: Path) -> None:
    certificate, key = tmp_path / "tester.pem", tmp_path / "tester.key"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=tester"
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.answer((201, {"key": PARCEL.key}))
    address = server.url.replace("http:", "https:")
    with pytest.raises(Unreachable, match=r"no trusted connection: .*; name the certificates to trust with ca_file"):
        way_to(address).send(PARCEL)
    assert server.seen == []
    way_to(address, ca_file=str(certificate)).send(PARCEL)
    assert len(server.seen) == 1


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def local(tmp_path: Path, faults: Faults) -> Any:
    listener = Listener(Faulty("tester", lambda: service.Tester(tmp_path / "tester", TOKEN), faults))
    listener.start()
    yield listener.url
    listener.stop()


def shown(url: str, path: str) -> Any:
    import requests

    return requests.get(f"{url}/api/v1/tests{path}", timeout=10).json()


def test_an_answer_that_was_lost_after_storing_stores_nothing_twice(local: str, faults: Faults) -> None:
    faults.set([Fault(service="tester", operation="post-results", drop="answer", times=2)])
    way = way_to(local, token=Secret(TOKEN))
    for _ in range(2):
        with pytest.raises(Unreachable):
            way.send(PARCEL)
    for _ in range(2):
        way.send(PARCEL)
    assert shown(local, "/t:1/results")["results"] == [json.loads(PARCEL.body)]
    assert shown(local, f"/t:1/results/run-1.{CASE.id}")["results"][0]["attempt"] == 1
    assert shown(local, "") == {"tests": ["t:1"]}


def test_another_content_under_the_same_key_is_refused(local: str) -> None:
    way_to(local, token=Secret(TOKEN)).send(PARCEL)
    forged = UploadItem(**{**PARCEL.__dict__, "body": PARCEL.body.replace('"OK"', '"FAILED"')})
    with pytest.raises(Rejected, match=r"something else was stored under this key \(HTTP 409\)"):
        way_to(local, token=Secret(TOKEN)).send(forged)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"ais-tester/1"', '"ais-tester/9"', "not a ais-tester/1 object"),
        ('"status"', '"statue"', "status is missing"),
        ('"testid":"t:1"', '"testid":"t:2"', "testid of the body and of the path differ"),
        ('"max_power":{"null_reason":"', '"max_power":{"reason":"', "measured.max_power needs a value"),
        ("{", "", "not JSON"),
    ],
)
def test_the_local_tester_takes_nothing_else(local: str, old: str, new: str, said: str) -> None:
    body = PARCEL.body.replace(old, new, 1)
    assert body != PARCEL.body
    with pytest.raises(Rejected, match=said):
        way_to(local, token=Secret(TOKEN)).send(UploadItem(**{**PARCEL.__dict__, "body": body}))


def test_what_a_cloud_stored_the_next_one_on_its_data_knows(tmp_path: Path) -> None:
    for _ in range(2):
        listener = Listener(service.Tester(tmp_path, TOKEN))
        listener.start()
        way_to(listener.url, token=Secret(TOKEN)).send(PARCEL)
        way_to(listener.url, token=Secret(TOKEN)).send(attachment_upload(BOUND, "run-1", "room", 1, {"celsius": 21}))
        assert len(shown(listener.url, "/t:1/results")["results"]) == 1
        assert shown(listener.url, "/t:1/attachments")["attachments"][0]["data"] == {"celsius": 21}
        listener.stop()


def test_a_folder_gets_each_parcel_whole_and_once(tmp_path: Path) -> None:
    way = way_to(f"file://{tmp_path}/a%20folder")
    for _ in range(2):
        way.send(PARCEL)
    (file,) = (path for path in (tmp_path / "a folder").rglob("*") if path.is_file())
    assert file.relative_to(tmp_path / "a folder").parts[:2] == ("t_1", "results")
    assert file.read_text() == PARCEL.body
    file.write_text("something else")
    with pytest.raises(Rejected, match="holds something else"):
        way.send(PARCEL)


def test_a_folder_that_cannot_be_made_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable, match="cannot be written: Not a directory"):
        way_to(f"file://{tmp_path}/file/below").send(PARCEL)


FAKE = """import json, os, sys
if len(sys.argv) != 5 or sys.argv[1] != "set_result":
    sys.exit("usage: ais_utils.py set_result mode key value")
if os.path.exists("broken"):
    sys.exit("no stub listens")
with open("told.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[2:]) + "\\n")
"""


def test_inside_a_package_results_are_set_by_its_own_script(tmp_path: Path) -> None:
    place = tmp_path / "code"
    place.mkdir()
    (place / "ais_utils.py").write_text(FAKE)
    metrics = {**CASE.metrics, "average_power": Value(2.0, "W")}
    parcel = result_upload(BOUND, "run-1", replace(CASE, metrics=metrics), 1)
    for _ in range(2):
        StubsTransport(tmp_path).send(parcel)
    StubsTransport(tmp_path).send(
        end_upload(BOUND, RunEnd("run-1", 1.0, 2.0, 0, {}, 0.0), 1)
    )  # `benchmark.sh` says that itself
    lines = [json.loads(line) for line in (place / "told.jsonl").read_text().splitlines()]
    assert lines == [
        ["training", "accuracy", "0.9"],
        ["training", "average_power", "2.0"],
        ["training", "throughput_ratio", "10.0"],
        ["training", "result", "OK"],
    ]
    with pytest.raises(Rejected, match="takes one result, and has that of toy-1x1; select one case"):
        StubsTransport(tmp_path).send(result_upload(BOUND, "run-1", replace(CASE, id="bert-2x1"), 1))
    (place / "broken").touch()
    with pytest.raises(Unreachable, match="ended with 1: no stub listens"):
        StubsTransport(tmp_path).send(result_upload(BOUND, "run-2", CASE, 1))
    with pytest.raises(Rejected, match=r"there is no ais_utils\.py"):
        StubsTransport(tmp_path / "elsewhere").send(parcel)
