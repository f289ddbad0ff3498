"""Reads the answers of Huawei Cloud, and translates its error codes and HTTP statuses to our errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_aisbench.errors import (
    AisbenchError,
    BadAnswer,
    Garbled,
    JobLost,
    OutOfQuota,
    PlatformError,
    Refused,
    Rejected,
    Throttled,
    Unreachable,
)
from pytest_aisbench.net.http import documented_form, parse_retry_after

reading = partial(documented_form, "ModelArts")

_KEYS = "check access_key, secret_access_key and this machine's clock"
_RIGHTS = "ask the account's owner for the right, and check project_id"
_SLOWER = "lower --aisbench-max-jobs"
_ROOM = "stop jobs that are not needed, or have the quota raised"

# The code wins over the status: the gateway and the service do not agree on statuses, and an unknown job is a 400.
_BY_CODE: Mapping[str, tuple[type[AisbenchError], str]] = {
    "APIGW.0301": (Refused, _KEYS),
    "APIG.0301": (Refused, _KEYS),
    "ModelArts.0206": (Refused, _KEYS),
    "ModelArts.0108": (Refused, _RIGHTS),
    "ModelArts.0210": (Refused, _RIGHTS),
    "ModelArts.2784": (Refused, _RIGHTS),
    "ModelArts.2785": (Refused, "authorize ModelArts to use OBS: Global Configuration in its console"),
    "ModelArts.2786": (Refused, _RIGHTS),
    "ModelArts.2837": (Refused, "the account is frozen: settle its bill"),
    "APIGW.0308": (Throttled, _SLOWER),
    "APIG.0308": (Throttled, _SLOWER),
    "ModelArts.2799": (Throttled, _SLOWER),
    "ModelArts.2815": (OutOfQuota, _ROOM),
    "ModelArts.2833": (OutOfQuota, _ROOM),
    "ModelArts.2887": (OutOfQuota, "wait until the pool runs, or choose another pool_id"),
    "ModelArts.2836": (PlatformError, "check modelarts_endpoint in [access]"),
    "ModelArts.2889": (Unreachable, ""),  # the platform failed to look the pool up
    "ModelArts.2775": (JobLost, ""),
    "ModelArts.2878": (Unreachable, ""),  # the job changed while it was asked for something: ask again
    "ModelArts.2763": (Rejected, "change flavor or framework_version in workload.toml"),
    "ModelArts.2780": (Rejected, "change framework_version in workload.toml"),
    "ModelArts.2781": (Rejected, "change flavor in workload.toml"),
    "ModelArts.2791": (Rejected, "check bucket in [access] and data in workload.toml"),
    "ModelArts.2793": (Rejected, "choose fewer --nodes"),
    "ModelArts.2832": (Rejected, "change framework_version in workload.toml"),
    "ModelArts.2840": (Rejected, "change flavor or framework_version in workload.toml"),
    "ModelArts.2886": (Rejected, "change pool_id in workload.toml"),
    "ModelArts.2890": (Rejected, "change pool_id in workload.toml"),
}
_BY_STATUS: Mapping[int, tuple[type[AisbenchError], str]] = {
    401: (Refused, _KEYS),
    403: (Refused, _RIGHTS),
    408: (Unreachable, ""),
    429: (Throttled, _SLOWER),
    501: (PlatformError, "this platform does not have the operation"),  # asking again would not help
}
_SPELLINGS = (
    ("error_code", "error_msg"),
    ("error_code", "error_message"),  # V1
    ("errorCode", "errorMsg"),
    ("code", "message"),  # IAM, inside "error"
)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; `place` names the request and the server."""

    place: str
    status: int
    content: bytes
    request_id: str = ""
    retry_after: str = ""
    date: str = ""

    def read(self) -> dict[str, Any]:
        """The JSON object; `{}` for no content, `{"items": […]}` for a bare list. Raises our error for an error."""
        if self.status >= 400:
            raise self._fault()
        if not 200 <= self.status < 300:
            raise BadAnswer(f"{self.place} answered with HTTP {self.status}", advice="check the endpoints in [access]")
        if self.status == 204 or not self.content.strip():
            return {}
        try:
            data = json.loads(self.content)
        except ValueError:
            advice = "check the endpoints in [access]; a proxy or a login page may stand between"
            raise Garbled(f"{self.place} answered {_line(self.content)!r}, not JSON", advice=advice) from None
        if isinstance(data, list):
            return {"items": data}
        if data in ("", None):
            return {}
        if not isinstance(data, dict):
            raise BadAnswer(f"{self.place} answered {_line(self.content)!r}, not an object")
        return data

    @property
    def code(self) -> str:
        """The vendor's code of an error; empty if it gave none."""
        return self._code_and_message()[0]

    @property
    def doubts_keys(self) -> bool:
        """True if the server refuses the keys themselves, not what they ask for."""
        return self.status >= 400 and error_for(self.status, self.code) == (Refused, _KEYS)

    def _fault(self) -> AisbenchError:
        code, message = self._code_and_message()
        kind, advice = error_for(self.status, code)
        if kind is Rejected and not code and self._is_cut():
            kind = Garbled  # what the error means is in the half that is missing
        pause_s = parse_retry_after(self.retry_after, self.date)
        details = (
            f"HTTP {self.status}",
            code,
            self.request_id and f"request {self.request_id}",
            retry_after_note(pause_s),
        )
        trail = ", ".join(filter(None, details))
        return kind(f"{self.place}: {message or 'no reason given'}", advice=advice, trail=trail, pause_s=pause_s)

    def _is_cut(self) -> bool:
        """True for JSON that ends in the middle."""
        try:
            json.loads(self.content)
        except ValueError:
            return self.content.lstrip().startswith((b"{", b"["))
        return False

    def _code_and_message(self) -> tuple[str, str]:
        if self.status < 400:
            return "", ""
        try:
            data = json.loads(self.content)
        except ValueError:
            return "", _line(self.content)
        tables = [data, *data.values()] if isinstance(data, dict) else []
        for table in tables:
            if isinstance(table, dict):
                for code, message in _SPELLINGS:
                    if code in table and message in table:
                        return str(table[code]), _line(str(table[message]).encode())
        return "", _line(self.content)


def error_for(status: int, code: str) -> tuple[type[AisbenchError], str]:
    """The class of our error, and the advice."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return (Unreachable if status >= 500 else Rejected), ""


def retry_after_note(pause_s: float) -> str:
    return f"asks to be left alone for {pause_s:.0f} s" if pause_s else ""


def _line(content: bytes) -> str:
    text = " ".join(content[:4096].decode(errors="replace").split())
    return text if len(text) <= 300 else text[:299] + "…"
