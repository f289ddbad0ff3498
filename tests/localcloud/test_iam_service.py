"""IAM: projects for whoever signs, tokens for whoever knows the password or the keys."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.localcloud.iam import Account, Accounts, Iam

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


@pytest.fixture
def accounts() -> Accounts:
    return Accounts.generate()


@pytest.fixture
def account(accounts: Accounts) -> Account:
    return accounts.first()


@pytest.fixture
def url(accounts: Accounts) -> Iterator[str]:
    with Listener(Iam(accounts)) as listener:
        yield listener.url


def call(url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers or {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as response:
            return response.status, json.load(response), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), dict(error.headers)


def by_password(account: Account, **changes: str) -> dict[str, Any]:
    given = {"user": account.user, "password": account.password, "domain": account.domain} | changes
    user = {"name": given["user"], "password": given["password"], "domain": {"name": given["domain"]}}
    scope = {"project": {"name": changes.get("project", account.region)}}
    return {"auth": {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}}


def by_keys(access_key: str, secret_key: str) -> dict[str, Any]:
    keys = {"access": {"key": access_key}, "secret": {"key": secret_key}}
    return {"auth": {"identity": {"methods": ["hw_ak_sk"], "hw_ak_sk": keys}}}


def sdk_project(url: str, access_key: str, secret_key: str, region: str) -> str:
    """The vendor's SDK looks for the project of its region, as it does for clients that name none."""
    from huaweicloudsdkcore.auth.credentials import BasicCredentials
    from huaweicloudsdkcore.exceptions.exception_handler import DefaultExceptionHandler
    from huaweicloudsdkcore.http.http_client import HttpClient
    from huaweicloudsdkcore.http.http_config import HttpConfig

    config = HttpConfig(user_agent="test")
    http = HttpClient(config, None, DefaultExceptionHandler(), logging.getLogger(__name__))
    credentials = BasicCredentials(access_key, secret_key).with_iam_endpoint(url)
    credentials.process_auth_params(http, region)
    return str(credentials.project_id)


def test_the_vendors_sdk_finds_its_project(url: str, account: Account) -> None:
    assert sdk_project(url, account.access_key, account.secret_key, account.region) == account.project_id


@pytest.mark.parametrize(("secret", "region", "why"), [("wrong", None, "APIGW.0301"), (None, "mars-1", "mars-1")])
def test_the_vendors_sdk_is_told_why_not(
    url: str, account: Account, secret: str | None, region: str | None, why: str
) -> None:
    from huaweicloudsdkcore.exceptions.exceptions import SdkException

    with pytest.raises(SdkException, match=why):
        sdk_project(url, account.access_key, secret or account.secret_key, region or account.region)


@pytest.mark.parametrize("method", ["password", "hw_ak_sk"])
def test_a_token_opens_the_door(url: str, account: Account, method: str) -> None:
    body = by_password(account) if method == "password" else by_keys(account.access_key, account.secret_key)
    status, content, headers = call(f"{url}/v3/auth/tokens", body)
    assert status == 201
    assert content["token"]["project"] | {"id": account.project_id} == content["token"]["project"]
    assert content["token"]["methods"] == [method]

    status, content, _ = call(f"{url}/v3/projects", headers={"X-Auth-Token": headers["X-Subject-Token"]})
    assert status == 200
    assert [project["id"] for project in content["projects"]] == [account.project_id]


def test_the_wrong_password_does_not(url: str, account: Account) -> None:
    for body in [
        by_password(account, password="wrong"),
        by_password(account, user="nobody"),
        by_password(account, domain="elsewhere"),
        by_password(account, project="mars-1"),
        by_keys(account.access_key, "wrong"),
        by_keys("wrong", account.secret_key),
    ]:
        status, content, headers = call(f"{url}/v3/auth/tokens", body)
        assert (status, content["error"]["code"]) == (401, 401)
        assert "X-Subject-Token" not in headers


@pytest.mark.parametrize(
    "body", [b"no json", b"[]", {"auth": {}}, {"auth": {"identity": {"methods": ["fingerprint"]}}}]
)
def test_nonsense_is_a_bad_request(url: str, body: Any) -> None:
    status, content, _ = call(f"{url}/v3/auth/tokens", body)
    assert (status, content["error"]["title"]) == (400, "Bad Request")


def test_nobody_in_particular_sees_nothing(url: str) -> None:
    status, content, _ = call(f"{url}/v3/projects")
    assert (status, content["error_code"]) == (401, "APIGW.0301")
    assert call(f"{url}/v3/unknown")[0] == 404


def test_what_is_not_served_says_so_and_names_it(url: str) -> None:
    status, content, _ = call(f"{url}/v3/users")
    assert (status, content["error"]["title"]) == (501, "Not Implemented")
    assert "keystone_list_users" in content["error"]["message"]
    for methods, name in ((["assume_role"], "agency_token"), (["password", "totp"], "password_and_mfa")):
        status, content, _ = call(f"{url}/v3/auth/tokens", {"auth": {"identity": {"methods": methods}}})
        assert status == 501
        assert name in content["error"]["message"]


def test_temporary_keys_are_given_for_a_while_and_beget_no_others(
    url: str, accounts: Accounts, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused by the same words as any others that are not known; see the tests of the signatures."""
    token = {"X-Auth-Token": accounts.issue_token(account)[0]}
    place = f"{url}/v3.0/OS-CREDENTIAL/securitytokens"

    def wish(seconds: Any) -> dict[str, Any]:
        return {"auth": {"identity": {"methods": ["token"], "token": {"duration_seconds": seconds}}}}

    status, content, _ = call(place, wish(900), token)
    assert status == 201
    keys = content["credential"]
    lent = accounts.by_key(keys["access"])
    assert lent is not None
    assert (lent.secret_key, lent.security_token) == (keys["secret"], keys["securitytoken"])
    assert lent.project_id == account.project_id
    assert keys["securitytoken"] not in repr(lent)
    for seconds in (899, 86401, "soon", None):
        assert call(place, wish(seconds), token)[0] == 400
    assert call(place, b"[]", token)[0] == 400
    assert call(place, wish(900))[0] == 401
    assert call(place, wish(900), {"X-Auth-Token": accounts.issue_token(lent)[0]})[0] == 403
    assert call(f"{url}/v3/auth/tokens", by_keys(keys["access"], keys["secret"]))[0] == 401  # the token is missing
    monkeypatch.setattr(accounts, "clock_skew", 901.0)
    assert accounts.by_key(keys["access"]) is None
