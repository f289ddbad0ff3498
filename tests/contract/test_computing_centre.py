"""A computing centre: names only in [hosts], certificates of its own, temporary keys, any kind of signature."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from centre import DOMAIN, SERVICES, Authority, Front, front_of, temporary_keys

from pytest_aisbench.config import access as access_module
from pytest_aisbench.config.access import Access, Hosts
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import Refused, Rejected, Unreachable, UsageFault
from pytest_aisbench.localcloud.server import LocalCloud
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.results import UploadItem
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores.obs import Obs
from pytest_aisbench.tester.transports import make_transport

JOBS = "/v2/{project_id}/training-job-searches"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def cloud(card: Path) -> dict[str, str]:
    return json.loads(card.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def front(authority: Authority, cloud: dict[str, str]) -> Iterator[Front]:
    with front_of(authority, cloud).serving() as front:
        yield front


@pytest.fixture
def access(front: Front, authority: Authority, cloud: dict[str, str]) -> Access:
    front.asked.clear()
    return Access(
        access_key=Secret(cloud["access_key"]),
        secret_access_key=Secret(cloud["secret_key"]),
        region_name=cloud["region"],
        bucket=cloud["bucket"],
        ca_file=str(authority.pem),
        hosts=Hosts({f"{name}.{DOMAIN}": "127.0.0.1" for name in SERVICES}),
        **{f"{name}_endpoint": f"https://{name}.{DOMAIN}:{front.port}" for name in SERVICES},  # type: ignore[arg-type]
    )


@pytest.fixture
def temporary(access: Access, cloud: dict[str, str]) -> Access:
    """By keys that IAM gave out for a quarter of an hour."""
    credential = temporary_keys(cloud)
    return dataclasses.replace(
        access,
        access_key=Secret(credential["access"]),
        secret_access_key=Secret(credential["secret"]),
        security_token=Secret(credential["securitytoken"]),
    )


def use(access: Access) -> None:
    """A call of each service: the project from IAM, jobs from ModelArts, an object to OBS and back."""
    platform = ModelArts(Settings(access=access))
    platform.session.patience_s = 2.0
    try:
        assert "items" in platform.session.call("POST", JOBS, {"offset": 0, "limit": 1})
        platform.store.write(platform.root / "centre/ü+ name", b"there and back", {"note": "ü"})
        head = platform.store.head(platform.root / "centre/ü+ name")
        assert head is not None
        assert head.metadata == {"note": "ü"}
        assert platform.store.read(platform.root / "centre/ü+ name") == b"there and back"
        assert [each.url for each in platform.store.objects(platform.root / "centre/")] == [head.url]
    finally:
        platform.close()


def test_names_that_only_the_table_knows_lead_to_every_service(
    access: Access, front: Front, cloud: dict[str, str]
) -> None:
    use(access)
    assert set(front.asked) == {f"iam.{DOMAIN}", f"modelarts.{DOMAIN}", f"{cloud['bucket']}.obs.{DOMAIN}"}
    with pytest.raises(socket.gaierror):  # nobody else in this process sees them
        socket.getaddrinfo(f"iam.{DOMAIN}", 443)


@pytest.mark.parametrize("signature", ["obs", "v2", "v4"])
def test_each_signature_of_obs_is_accepted_with_temporary_keys(temporary: Access, signature: str) -> None:
    use(dataclasses.replace(temporary, obs_signature=signature))


def test_temporary_keys_are_nothing_without_their_token(temporary: Access) -> None:
    for token in ("", "another"):
        platform = ModelArts(Settings(access=dataclasses.replace(temporary, security_token=Secret(token))))
        try:
            with pytest.raises(Refused, match="security token") as refused:
                platform.session.call("POST", JOBS, {})
            with pytest.raises(Refused, match="InvalidAccessKeyId") as unknown:
                platform.store.check(platform.root)
        finally:
            platform.close()
        assert temporary.access_key.reveal() not in f"{refused.value}{unknown.value}"
        assert ("security_token has expired" in str(unknown.value)) == bool(token)


def test_an_address_by_path_takes_v4_and_tokens_too(temporary: Access, cloud: dict[str, str]) -> None:
    plain = {f"{name}_endpoint": cloud[f"{name}_endpoint"] for name in SERVICES}
    for signature in ("", "v4"):
        use(dataclasses.replace(temporary, obs_signature=signature, hosts=Hosts(), **plain))  # type: ignore[arg-type]


def test_another_authority_is_not_trusted(access: Access, tmp_path: Path) -> None:
    stranger = dataclasses.replace(access, ca_file=str(Authority(tmp_path, "stranger").pem))
    platform = ModelArts(Settings(access=stranger))
    try:
        with pytest.raises(UsageFault, match=r"certificate is not trusted.*ca_file in \[access\]"):
            platform.session.call("POST", JOBS, {})
        with pytest.raises(UsageFault, match=r"not trusted.*ca_file"):
            platform.store.check(platform.root)
    finally:
        platform.close()


def test_the_certificate_is_held_against_the_name_and_not_the_address(access: Access, front: Front) -> None:
    """`*.centre.example` is not for names two levels down, wherever these lead."""
    name = f"deep.iam.{DOMAIN}"
    places: dict[str, Any] = {
        "iam_endpoint": f"https://{name}:{front.port}",
        "obs_endpoint": f"https://{name}:{front.port}",
    }
    platform = ModelArts(Settings(access=dataclasses.replace(access, hosts=Hosts({name: "127.0.0.1"}), **places)))
    try:
        with pytest.raises(UsageFault, match=r"127\.0\.0\.1, as \[hosts\] has it.*certificate is that of another host"):
            _ = platform.session.project_id
        with pytest.raises(UsageFault, match=rf"not trusted.*{name}"):
            platform.store.check(platform.root)
    finally:
        platform.close()


def test_a_name_server_that_does_not_answer_is_asked_again(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | str] = [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")]

    def resolve(name: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(name)
        if answers and isinstance(error := answers.pop(), Exception):
            raise error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]

    asked: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    platform = ModelArts(Settings(access=dataclasses.replace(access, hosts=Hosts(), project_id="p")))
    try:
        platform._require_names()
    finally:
        platform.close()
    assert asked == [f"{access.bucket}.obs.{DOMAIN}"] * 2 + [f"modelarts.{DOMAIN}"]  # nobody asks IAM for the project


def test_an_unknown_name_is_told_where_to_write_its_address(access: Access) -> None:
    platform = ModelArts(Settings(access=dataclasses.replace(access, hosts=Hosts())))
    platform.session.patience_s = 0.0
    try:
        with pytest.raises(Unreachable, match=r"name of the host is not known.*\[hosts\]"):
            _ = platform.session.project_id
    finally:
        platform.close()


def test_a_proxy_resolves_names_itself_unless_no_proxy_says_otherwise(
    access: Access, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        proxy.settimeout(10)
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for spelled in ("no_proxy", "NO_PROXY", "https_proxy"):
            monkeypatch.delenv(spelled, raising=False)
        platform = ModelArts(Settings(access=access))
        platform.session.patience_s = 0.0
        asked: list[bytes] = []

        def hear() -> None:
            connection, _ = proxy.accept()
            with connection:
                asked.append(connection.recv(4096))

        listener = threading.Thread(target=hear)
        listener.start()
        with pytest.raises(Unreachable):
            _ = platform.session.project_id
        listener.join()
        assert asked[0].startswith(f"CONNECT iam.{DOMAIN}:{front.port} ".encode())
        assert front.asked == []
        platform.close()

        monkeypatch.setenv("NO_PROXY", f"other.example,{DOMAIN}")
        use(access)
        assert f"iam.{DOMAIN}" in front.asked


def test_buckets_are_served_by_the_entry_of_the_endpoint_unless_they_have_their_own() -> None:
    hosts = Hosts({"obs.centre.example": "192.0.2.1", "special.obs.centre.example": "2001:db8::7"})
    endpoint = "obs.centre.example"
    assert hosts.address("bucket.OBS.centre.example.", above=endpoint) == "192.0.2.1"
    assert hosts.address("special.obs.centre.example", above=endpoint) == "2001:db8::7"
    assert hosts.address("bucket.obs.centre.example") == ""
    assert hosts.address("myobs.centre.example", above=endpoint) == ""


def test_the_tester_may_have_an_address_too_and_that_may_be_of_ipv6(authority: Authority, server: Any) -> None:
    name = f"tester.{DOMAIN}"
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    server.answer((201, {"key": "k"}))
    parcel = UploadItem("k", "run", "toy-1x1", 1, "results", "t-1", "", "", "{}")
    certificate = authority.certificate("tester", f"DNS:{name}")
    with Front(certificate, {name: server.server_port}, "::1").serving() as front:
        access = access_module.TesterAccess(ca_file=str(authority.pem), hosts=Hosts({name: "::1"}))
        tester = make_transport(f"https://{name}:{front.port}/", access)
        tester.send(parcel)
        tester.close()
    assert front.asked == [name]
    assert server.seen[0][2]["Host"] == f"{name}:{front.port}"


@pytest.mark.parametrize(
    ("signature", "asked", "scheme"),
    [
        ("obs", "obs.centre.example", "OBS AK:"),
        ("v2", "obs.centre.example", "AWS AK:"),
        ("v4", "obs.centre.example", "AWS4-HMAC-SHA256 Credential=AK/"),
        ("v4", "127.0.0.1", "AWS4-HMAC-SHA256 Credential=AK/"),
    ],
)
def test_the_signature_that_was_asked_for_is_sent_and_nothing_is_negotiated(
    server: Any, signature: str, asked: str, scheme: str
) -> None:
    server.answer((200, b"", {"x-obs-request-id": "1"}))
    store = Obs(
        f"http://{asked}:{server.server_port}",
        Secret("AK"),
        Secret("SK"),
        security_token=Secret("of-an-hour"),
        signature=signature,
        region="cn-central-221",
        hosts=Hosts({"obs.centre.example": "127.0.0.1"}),
    )
    try:
        assert store.read(StoreUrl("bucket", "object")) == b""
    finally:
        store.close()
    ((_, _, headers, _),) = server.seen
    assert headers["Authorization"].startswith(scheme)
    assert headers["Host"].startswith(asked if asked[0].isdigit() else f"bucket.{asked}")
    assert headers["x-obs-security-token" if signature == "obs" else "x-amz-security-token"] == "of-an-hour"
    if signature == "v4":
        assert "/cn-central-221/s3/aws4_request" in headers["Authorization"]
        assert "x-amz-date" in headers["Authorization"]


def test_a_clock_that_is_an_hour_off_is_no_matter_to_any_signature(tmp_path: Path) -> None:
    with LocalCloud(tmp_path, engine="simulated", clock_skew=3600.0) as cloud:
        card = cloud.card()
        access = Access(
            access_key=Secret(card["access_key"]),
            secret_access_key=Secret(card["secret_key"]),
            region_name=card["region"],
            bucket=card["bucket"],
            **{f"{name}_endpoint": card[f"{name}_endpoint"] for name in SERVICES},  # type: ignore[arg-type]
        )
        for signature in ("v2", "v4"):
            use(dataclasses.replace(access, obs_signature=signature))


def test_a_refusal_that_quotes_the_token_is_not_quoted(server: Any) -> None:
    quoted = "cannot take T0KEN-OF-A-TEST"
    xml = f"<Error><Code>InvalidRequest</Code><Message>{quoted}</Message></Error>".encode()
    access = Access(Secret("AK"), Secret("SK"), "", "p", "b", security_token=Secret("T0KEN-OF-A-TEST"))
    places: dict[str, Any] = {f"{name}_endpoint": server.url for name in SERVICES}
    platform = ModelArts(Settings(access=dataclasses.replace(access, **places)))
    try:
        server.answer((400, {"error_code": "x", "error_msg": quoted}))
        with pytest.raises(Rejected, match=r"cannot take \*\*\*"):
            platform.session.call("POST", JOBS, {})
        server.answer((400, xml, {"x-obs-request-id": "1", "Content-Type": "application/xml"}))
        with pytest.raises(Rejected, match=r"cannot take \*\*\*"):
            platform.store.check(platform.root)
    finally:
        platform.close()
