"""The error that we raise for each answer of Huawei Cloud."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_aisbench.errors import (
    AisbenchError,
    Garbled,
    JobLost,
    OutOfQuota,
    Refused,
    Rejected,
    Throttled,
    Unreachable,
)
from pytest_aisbench.net.huawei import Answer


def refusal(status: int, code: str = "", message: str = "because", **headers: str) -> Answer:
    body = {"error_code": code, "error_msg": message} if code else {}
    return Answer("GET host/path", status, json.dumps(body).encode(), **headers)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "APIGW.0301", Refused),
        (401, "ModelArts.0201", Refused),
        (401, "", Refused),
        (403, "ModelArts.0206", Refused),
        (403, "ModelArts.2785", Refused),
        (403, "", Refused),
        (404, "ModelArts.2786", Refused),
        (429, "ModelArts.2799", Throttled),
        (429, "", Throttled),
        (400, "ModelArts.2815", OutOfQuota),
        (400, "ModelArts.2775", JobLost),
        (409, "ModelArts.2878", Unreachable),
        (500, "ModelArts.2950", Unreachable),
        (503, "", Unreachable),
        (400, "ModelArts.2781", Rejected),
        (404, "ModelArts.2890", Rejected),
        (409, "ModelArts.2796", Rejected),
        (418, "", Rejected),
    ],
)
def test_each_refusal_blames_whom_it_should(status: int, code: str, kind: type[AisbenchError]) -> None:
    with pytest.raises(AisbenchError) as caught:
        refusal(status, code, request_id="r-1").read()
    assert type(caught.value) is kind
    assert caught.value.trail == ", ".join(part for part in (f"HTTP {status}", code, "request r-1") if part)


@pytest.mark.parametrize(
    "body",
    [
        {"error_code": "C.1", "error_msg": "why"},
        {"error_code": "C.1", "error_message": "why", "is_success": False},
        {"errorCode": "C.1", "errorMsg": "why"},
        {"error": {"code": "C.1", "message": "why", "title": "Bad Request"}},
    ],
)
def test_every_spelling_of_an_error_is_read(body: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match=r"why.*C\.1"):
        Answer("POST host/path", 400, json.dumps(body).encode()).read()


def test_a_refusal_that_was_cut_is_no_refusal() -> None:
    """Its code was cut off: `Job name:… is existed.` is answered by another version of the job, not by a red case."""
    whole = b'{"is_success": false, "error_message": "Job name:x is existed.", "error_code": "ModelArts.0101"}'
    for length in range(1, len(whole)):
        with pytest.raises(Garbled):
            Answer("POST host/path", 400, whole[:length]).read()
    with pytest.raises(Rejected):
        Answer("POST host/path", 400, whole).read()
    with pytest.raises(Rejected):  # a proxy's page says all that it has to say
        Answer("POST host/path", 400, b"<html>Bad request").read()
