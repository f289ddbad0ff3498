"""The open contract of the Tester over HTTP: POST {address}/api/v1/tests/{testid}/results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.upload import Parcel
from pytest_aisbench.errors import AisbenchError, Garbled, Refused, Rejected, Throttled, Unreachable
from pytest_aisbench.logs import Exchange
from pytest_aisbench.net.http import masked, open_session, parse_retry_after, reaching, read_content
from pytest_aisbench.secret import Secret
from pytest_aisbench.settings.hosts import NO_HOSTS, Hosts

if TYPE_CHECKING:
    import requests

_CONNECT_S, _READ_S, _ALL_S = 5.0, 20.0, 30.0
_LARGEST_ANSWER = 64 * 1024


class Http:
    """Transport. Safe to send twice: the Tester stores one parcel per key."""

    def __init__(self, address: str, token: Secret, ca_file: str = "", hosts: Hosts = NO_HOSTS) -> None:
        self._base = address.rstrip("/")
        self._token = token
        self._ca_file = ca_file
        self._hosts = hosts
        self._session: requests.Session | None = None

    def send(self, parcel: Parcel) -> None:
        url = f"{self._base}/api/v1/tests/{quote(parcel.testid, safe='')}/{parcel.kind}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": parcel.key}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token.reveal()}"
        with (
            Exchange("POST", url) as exchange,
            reaching(self._base, "tester", (self._token,)),
            self._open().post(
                url,
                data=parcel.body.encode(),
                headers=headers,
                timeout=(_CONNECT_S, _READ_S),
                allow_redirects=False,  # it would carry the token to a place that nobody wrote down
                stream=True,
            ) as answer,
        ):
            exchange.status = answer.status_code
            content = read_content(answer, _LARGEST_ANSWER, _ALL_S)
        self._judge(parcel, answer, content)

    def close(self) -> None:
        if self._session:
            self._session.close()

    def _open(self) -> requests.Session:
        if self._session is None:
            self._session = open_session(self._base, self._ca_file, self._hosts)
        return self._session

    def _judge(self, parcel: Parcel, answer: requests.Response, content: bytes) -> None:
        status = answer.status_code
        if status in {200, 201}:
            # A login page is a 200 too; only the Tester knows the key.
            if _document(content).get("key") != parcel.key:
                raise Garbled(f"{self._base}: HTTP {status}, and not the answer of a Tester: {self._line(content)!r}")
            return
        pause_s = parse_retry_after(answer.headers.get("Retry-After", ""), answer.headers.get("Date", ""))
        kind, advice = _kind(status)
        said = _document(content).get("error") or self._line(content) or "no reason given"
        message = f"{self._base}: {masked(plain(str(said), 200), (self._token,))}"
        raise kind(message, advice=advice, trail=f"HTTP {status}", pause_s=pause_s)

    def _line(self, content: bytes) -> str:
        text = content[:400].decode("utf-8", "replace").strip()
        return masked(plain(text.splitlines()[0] if text else "", 120), (self._token,))


def _document(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _kind(status: int) -> tuple[type[AisbenchError], str]:
    if status in {401, 403}:
        return Refused, "check token in [tester], then `aisbench flush`"
    if status in {408, 425, 429}:
        return Throttled, ""
    if status >= 500:
        return Unreachable, ""
    if status == 409:
        return Rejected, "the Tester has another parcel under this key"
    if status == 413:
        return Rejected, "have the Tester take larger results, then `aisbench flush --requeue`"
    return Rejected, "" if status == 422 else "check the address of the Tester"
