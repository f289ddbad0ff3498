"""What another user of this machine, and a web page in a browser on it, can do to a local cloud: change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apulis_client import Apulis
from cloud_client import send

from pytest_aisbench.localcloud.conform import OPERATION, Answer, Scene, operations, probes
from pytest_aisbench.localcloud.server import LocalCloud
from pytest_aisbench.localcloud.vendor_operations import IAM, OBS

SERVICES = ("modelarts", "obs", "iam", "tester", "apulis")
READS = {"GET", "HEAD", "OPTIONS"}
APULIS_CHANGES = ("SubmitJob", "KillJob", "PauseJob", "ResumeJob", "ApproveJob", "CloneJob")
BODY_HAS_CREDENTIALS = ("/auth/login", "/v3/auth/tokens")
REFUSED = {401, 403}


@pytest.fixture(scope="module")
def cloud() -> Iterator[LocalCloud]:
    with LocalCloud(engine="simulated") as cloud:
        yield cloud


def changes_something(method: str, path: str) -> bool:
    name = path.partition("?")[0]
    if name.endswith(BODY_HAS_CREDENTIALS):
        return False
    return method not in READS or name.endswith(APULIS_CHANGES)


def test_no_route_changes_anything_without_credentials(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation that the local cloud serves, with the names and bodies that its own probes send."""
    answers: list[tuple[str, str, int]] = []

    def send_as_stranger(api: str, scene: Scene, method: str, path: str, body: Any, **headers: str) -> Answer:
        service = {OBS: "obs", IAM: "iam", "Apulis": "apulis"}.get(api, "modelarts")
        if service == "apulis":
            path += f"{'&' if '?' in path else '?'}userName={scene.card['apulis_user']}&vcName=platform"
        answer = scene.send(service, method, path.format(bucket=scene.bucket), body, **headers)
        answers.append((method, f"{service} {path}", answer.status))
        return answer

    monkeypatch.setattr(operations, "_send", send_as_stranger)
    scene = Scene(cloud)
    served = [probe for probe in probes() if probe.kind == OPERATION and probe.served]
    for probe in served:
        probe.fault(scene)
    assert len(answers) >= len(served) > 80
    changing = [answer for answer in answers if changes_something(answer[0], answer[1])]
    assert len(changing) > 30
    assert [answer for answer in changing if answer[2] not in REFUSED] == []


def test_apulis_refuses_what_no_probe_sends(cloud: LocalCloud) -> None:
    """Calls that change something and that the walk above does not meet, also as a signed-in user's name alone."""
    card = cloud.card()
    before = cloud.books()["jobs"]
    query = f"userName={card['apulis_user']}&vcName=platform&jobId=job-1&jobName=stranger&cmd=id&gpuType=x&image=x"
    for method, name in (("GET", "SubmitJob"), ("DELETE", "DeleteJob")):
        status, _, _ = send(card["apulis_endpoint"], method, f"/apis/{name}?{query}")
        assert (name, status) in {(name, refused) for refused in REFUSED}
    assert cloud.books()["jobs"] == before


@pytest.mark.parametrize("kind", ["results", "attachments", "runs"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guessed"}, {"Authorization": "Bearer ü"}])
def test_the_tester_of_the_cloud_takes_nothing_without_its_token(
    cloud: LocalCloud, kind: str, headers: dict[str, str]
) -> None:
    path = f"/api/v1/tests/test/{kind}"
    keyed = {"Idempotency-Key": "key", **{name: value.encode().decode("latin-1") for name, value in headers.items()}}
    status, _, content = send(cloud.card()["tester_endpoint"], "POST", path, "{}", keyed)
    assert status == 401
    assert b"tester_token" in content


@pytest.mark.parametrize(("method", "path"), [("GET", "books"), ("GET", "faults"), ("PUT", "faults")])
def test_books_and_faults_need_the_keys(cloud: LocalCloud, method: str, path: str) -> None:
    assert send(cloud.card()["modelarts_endpoint"], method, f"/_local/{path}", "[]")[0] == 401


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "page.example"},
        {"Host": "127.0.0.1.page.example:80"},
        {"Host": "localhost.page.example"},
        {"Origin": "https://page.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=lambda headers: ":".join(*headers.items()),
)
def test_no_service_answers_a_web_page(cloud: LocalCloud, service: str, headers: dict[str, str]) -> None:
    url = cloud.card()[f"{service}_endpoint"]
    for method in ("GET", "POST", "OPTIONS"):
        status, _, content = send(url, method, "/apis/KillJob", headers=dict(headers))
        assert (status, content.count(b"\n")) == (403, 1), content


def test_the_cookie_of_a_login_signs_in_and_is_not_sent_by_other_sites(cloud: LocalCloud) -> None:
    apulis = Apulis(cloud, Path(cloud.card()["apulis_storage"]))
    status, headers, _ = send(
        cloud.card()["apulis_endpoint"],
        "POST",
        "/custom-user-dashboard-backend/auth/login",
        apulis.login_body(cloud.card()["apulis_password"]),
    )
    cookie = headers["Set-Cookie"]
    assert status == 200
    assert "SameSite=Strict" in cookie
    job = apulis.submit("train --seconds=60")
    query = f"/apis/KillJob?userName={apulis.user}&jobId={job}"
    assert send(cloud.card()["apulis_endpoint"], "GET", query)[0] == 401
    status, _, content = send(
        cloud.card()["apulis_endpoint"], "GET", query, headers={"Cookie": f"theme=dark; {cookie.partition(';')[0]}"}
    )
    assert (status, b"Success" in content) == (200, True)


def test_a_cloud_without_apulis_has_nothing_of_it() -> None:
    with LocalCloud(engine="simulated", apulis=False) as cloud:
        assert [key for key in cloud.card() if key.startswith("apulis")] == []
        assert "apulis" not in cloud.books()["requests"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_runs_no_command_and_reads_no_file(cloud: LocalCloud, tmp_path: Path) -> None:
    card = cloud.card()
    body = Apulis(cloud, Path(card["apulis_storage"])).body(f"touch {tmp_path}/mark")
    script = """
import http.client, json, os, sys

netloc, body, folder = sys.argv[1:]

def status():
    connection = http.client.HTTPConnection(netloc)
    connection.request("POST", "/apis/PostJob", body)
    return connection.getresponse().status

status()  # imports what it needs: the other user may not be let to this Python
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(os.getuid(), status())
try:
    os.listdir(folder)
except PermissionError:
    print("closed")
"""
    with tempfile.TemporaryDirectory() as folder, LocalCloud(Path(folder, "data"), engine="simulated"):
        Path(folder).chmod(0o755)
        netloc = card["apulis_endpoint"].removeprefix("http://")
        ended = subprocess.run(
            [sys.executable, "-S", "-c", script, netloc, json.dumps(body), f"{folder}/data"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.stdout.split() == ["65534", "401", "closed"], ended.stderr
