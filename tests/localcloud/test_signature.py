"""Signatures of the gateway, with the vendor's own signer as the referee."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import pytest

from pytest_aisbench.localcloud.iam import Accounts, AuthenticationFailed, authenticate
from pytest_aisbench.localcloud.messages import Body, Request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The vendor's signer asks datetime.utcnow() for the time, which Python 3.12 deprecates.
pytestmark = pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Importing the vendor's SDK writes a file below HOME."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def accounts() -> Accounts:
    return Accounts.generate()


def received(method: str, target: str, headers: dict[str, Any], body: bytes) -> Request:
    """What the listener would make of it."""
    path, _, query = target.partition("?")
    fields = {name.lower(): str(value) for name, value in headers.items()}
    stream = Body(io.BufferedReader(io.BytesIO(body)), len(body))
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    return Request(method, unquote(path), target, pairs, fields, stream, len(body))


def signed(
    accounts: Accounts,
    method: str = "POST",
    path: str = "/v2/p/training-jobs",
    query: list[tuple[str, Any]] | None = None,
    body: str = '{"kind": "job"}',
    **headers: str,
) -> Request:
    from huaweicloudsdkcore.auth.credentials import BasicCredentials
    from huaweicloudsdkcore.sdk_request import SdkRequest
    from huaweicloudsdkcore.signer.signer import Signer

    account = accounts.first()
    request = SdkRequest(
        method=method,
        schema="http",
        host="127.0.0.1:1234",
        resource_path=path,
        query_params=query or [],
        header_params={"User-Agent": "x", "Content-Type": "application/json"}
        | {name.replace("_", "-"): value for name, value in headers.items()},
        body=body,
    )
    credentials = BasicCredentials(account.access_key, account.secret_key, account.project_id)
    Signer(credentials).sign(request)
    return received(method, request.uri, request.header_params, request.body or b"")


def stamp(shift: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + shift))


@pytest.mark.parametrize(
    "request_of",
    [
        {},
        {"method": "GET", "body": ""},
        {"method": "GET", "body": "", "query": [("limit", 5), ("b", "ü /~+"), ("a", ""), ("f", True)]},
        {"path": "/v1/p/jobs/with space/ü~"},
        {"method": "DELETE", "path": "/", "body": ""},
        {"Content_Type": "text/plain", "method": "GET", "body": ""},
        {"Content_Type": "application/octet-stream", "body": "not signed"},
        {"body": '{"名": "训练"}', "X_Language": "zh-cn", "X_Note": "训练"},
        {"X_Sdk_Date": -14 * 60},
        {"X_Sdk_Date": +14 * 60},
    ],
)
def test_the_vendors_signature_is_right(accounts: Accounts, request_of: dict[str, Any]) -> None:
    if shift := request_of.get("X_Sdk_Date"):  # from now, not from when the tests were collected
        request_of = {**request_of, "X_Sdk_Date": stamp(shift)}
    assert authenticate(signed(accounts, **request_of), accounts) == accounts.first()


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"raw_path": "/v2/p/training-jobs?limit=6"},
        {"raw_path": "/v2/other/training-jobs?limit=5"},
        {"headers": {"content-type": "text/html"}},
        {"headers": {"x-sdk-date": stamp(-60)}},
        {"headers": {"host": "other"}},
        {"body": b'{"kind": "other"}'},
    ],
)
def test_what_was_changed_on_the_way_is_refused(accounts: Accounts, change: dict[str, Any]) -> None:
    request = signed(accounts, query=[("limit", 5)])
    assert authenticate(request, accounts) == accounts.first()
    headers = dict(request.headers) | change.pop("headers", {})
    body = change.pop("body", request.bytes())
    changed = received(change.get("method", request.method), change.get("raw_path", request.raw_path), headers, body)
    with pytest.raises(AuthenticationFailed) as failure:
        authenticate(changed, accounts)
    assert failure.value.code == "APIGW.0301"
    assert "verify aksk signature fail" in failure.value.message


def test_strangers_are_refused(accounts: Accounts) -> None:
    stranger = signed(Accounts.generate())
    impostor = signed(Accounts([accounts.first()._replace(secret_key="guessed")]))
    for request, why in [
        (stranger, "access key does not exist"),
        (impostor, "verify aksk signature fail"),
        (signed(accounts, X_Sdk_Date=stamp(-16 * 60)), "15 minutes"),
        (signed(accounts, X_Sdk_Date=stamp(+16 * 60)), "15 minutes"),
        (received("GET", "/", {}, b""), "not found"),
        (received("GET", "/", {"Authorization": "Basic abc"}, b""), "format is incorrect"),
    ]:
        with pytest.raises(AuthenticationFailed, match=why):
            authenticate(request, accounts)


def test_the_date_must_be_signed(accounts: Accounts) -> None:
    request = signed(accounts)
    authorization = request.headers["authorization"].replace(";x-sdk-date", "")
    headers = dict(request.headers) | {"authorization": authorization}
    with pytest.raises(AuthenticationFailed, match="must be signed"):
        authenticate(received(request.method, request.raw_path, headers, request.bytes()), accounts)


def test_a_token_is_as_good_as_a_signature(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    token, expires = accounts.issue_token(accounts.first())
    request = received("GET", "/", {"X-Auth-Token": token}, b"")
    assert authenticate(request, accounts) == accounts.first()
    for bad in (token[:-1], ""):
        with pytest.raises(AuthenticationFailed):
            authenticate(received("GET", "/", {"X-Auth-Token": bad}, b""), accounts)
    monkeypatch.setattr(time, "time", lambda: expires + 1)
    with pytest.raises(AuthenticationFailed):
        authenticate(request, accounts)


def test_keys_are_kept_for_the_next_cloud_and_from_everybody_else(tmp_path: Path) -> None:
    path = tmp_path / "accounts.json"
    account = Accounts.load_or_generate(path).first()
    assert Accounts.load_or_generate(path).first() == account
    assert path.stat().st_mode & 0o777 == 0o600
    assert account.secret_key not in repr(account)
    assert account.password not in repr(account)


def test_temporary_keys_need_their_token_and_it_must_be_signed(accounts: Accounts) -> None:
    lent, _ = accounts.lend_for(accounts.first(), 900)
    theirs = Accounts([lent])
    request = signed(theirs, X_Security_Token=lent.security_token)
    assert authenticate(request, accounts) == lent
    unsigned = dict(signed(theirs).headers) | {"x-security-token": lent.security_token}
    stolen = signed(accounts, X_Security_Token=lent.security_token)
    for bad, why in [
        (signed(theirs), "not that of the access key"),
        (signed(theirs, X_Security_Token="another"), "not that of the access key"),
        (stolen, "not that of the access key"),
        (received(request.method, request.raw_path, unsigned, request.bytes()), "x-security-token must be signed"),
    ]:
        with pytest.raises(AuthenticationFailed, match=why):
            authenticate(bad, accounts)
