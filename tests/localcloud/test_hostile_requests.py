"""Requests that no client of the vendor's sends: each gets an answer that says what is wrong, never a crash."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_aisbench.localcloud.conform import Scene
from pytest_aisbench.localcloud.server import LocalCloud

DEEP = b'{"a":' * 100_000
LONG = b"9" * 5000
HOSTILE: tuple[Any, ...] = (
    10**400,
    -(10**400),
    10**20,
    -1,
    1e300,
    0.5,
    True,
    None,
    "",
    "\x00",
    "9" * 500,
    [],
    [[]],
    {},
    {"": None},
    "x" * 9000,
)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with LocalCloud(engine="simulated") as cloud:
        yield Scene(cloud)


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ("modelarts", "/v2/{project}/training-jobs"),
        ("modelarts", "/v2/{project}/training-job-searches"),
        ("modelarts", "/v1/{project}/training-jobs"),
        ("modelarts", "/v1/{project}/training-job-configs"),
        ("iam", "/v3/auth/tokens"),
        ("iam", "/v3.0/OS-CREDENTIAL/securitytokens"),
        ("apulis", "/apis/PostJob"),
        ("apulis", "/custom-user-dashboard-backend/auth/login"),
        ("tester", "/api/v1/tests/t/results"),
    ],
)
@pytest.mark.parametrize(
    "body", [DEEP, LONG, b'{"limit": ' + LONG + b"}", b"[" * 100_000], ids=["deep", "long", "in", "list"]
)
def test_a_body_that_no_parser_likes_is_the_clients_fault(scene: Scene, service: str, path: str, body: bytes) -> None:
    headers = {
        "modelarts": {"X_Auth_Token": scene.token},
        "iam": {"X_Auth_Token": scene.token},
        "apulis": {"Authorization": f"Bearer {scene.apulis_token}"},
        "tester": {"Authorization": f"Bearer {scene.card['tester_token']}", "Idempotency_Key": "key"},
    }[service]
    answer = scene.send(service, "POST", path.format(project=scene.project), body, **headers)
    assert 400 <= answer.status < 500, answer


@pytest.mark.parametrize(
    ("service", "target"),
    [
        ("modelarts", "/v2/{project}/training-jobs/x/tasks/worker-0/logs/preview?limit={long}"),
        ("modelarts", "/v1/{project}/training-jobs?per_page={long}"),
        ("modelarts", "/v1/{project}/training-jobs/{long}/versions/1"),
        ("obs", "/bucket?max-keys={long}"),
        ("apulis", "/apis/GetJobLog?userName=aisbench&jobId=x&page={long}"),
        ("iam", "/v3/projects?page={long}"),
    ],
)
def test_a_number_of_five_thousand_digits_is_the_clients_fault(scene: Scene, service: str, target: str) -> None:
    target = target.format(project=scene.project, long=LONG.decode())
    answer = scene.send(service, "GET", target, X_Auth_Token=scene.token)
    assert 400 <= answer.status < 500, answer


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a body, objects and lists included."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from leaves(part, (*path, key))


def changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    body = copy.deepcopy(body)
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return body


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_no_value_anywhere_in_a_job_breaks_the_platform(scene: Scene, version: str) -> None:
    body = scene.v2_body() if version == "v2" else scene.v1_body()
    crashed = []
    for path in leaves(body):
        for value in HOSTILE if path else ():
            sent = json.dumps(changed(body, path, value)).encode()
            answer = scene.send(
                "modelarts", "POST", f"/{version}/{scene.project}/training-jobs", sent, X_Auth_Token=scene.token
            )
            if answer.status >= 500:
                crashed.append((path, str(value)[:40], answer.text[:100]))
    assert crashed == []
