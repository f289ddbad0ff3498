"""What the vendor's HTTP client does wrong, and ours must not: against a server that counts what arrives."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import AisbenchError, BadAnswer, PlatformError, Refused, Throttled, Unreachable, UsageFault
from pytest_aisbench.model.job import Request
from pytest_aisbench.platforms.modelarts.jobs import JobsV2
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.platforms.modelarts.session import Session
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from tests.contract.conftest import Server

AK, SK, PROJECT = "AKIDOFTHETEST", "the-secret-key-of-the-test", "0123456789abcdef"
JOBS = "/v2/{project_id}/training-jobs"
CREATE = Request("POST", JOBS, {"kind": "job", "metadata": {"name": "t-1"}})


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with contextlib.closing(session_to(server.url)) as session:
        yield session


def session_to(url: str, **changed: Any) -> Session:
    options: dict[str, Any] = {"project_id": PROJECT, "patience_s": 5.0, **changed}
    return Session(url, Secret(AK), Secret(SK), **options)


@pytest.fixture
def platform(server: Server) -> Iterator[ModelArts]:
    access = Access(Secret(AK), Secret(SK), "", PROJECT, "b", obs_endpoint=server.url, modelarts_endpoint=server.url)
    platform = ModelArts(Settings(platform="modelarts", access=access))
    platform.session.close()
    platform.session = session_to(server.url)
    with contextlib.closing(platform):
        yield platform


def job(phase: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"id": "j", "name": "t-1", "create_time": 1000}, "status": {"phase": phase, **status}}


# Nothing is created twice, and what is not known is said to be not known.


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param((0,), id="dropped"),
        pytest.param((201, job("Creating"), {}, 10), id="cut short"),
        pytest.param((500, {"error_code": "ModelArts.0010", "error_msg": "x"}), id="500"),
        pytest.param((502, b"<html>Bad Gateway</html>"), id="502"),
        pytest.param((200, b"<html>Please log in</html>"), id="a login page"),
        pytest.param((201, b'{"metadata": {"id": "a3'), id="half of the JSON"),
        pytest.param((201, {"metadata": {}}), id="no id"),
        pytest.param((201, b""), id="nothing"),
        pytest.param((302, b"", {"Location": "/elsewhere"}), id="302"),
    ],
)
def test_a_create_without_answer_goes_out_once_and_is_unreachable(
    platform: ModelArts, server: Server, reply: tuple[Any, ...]
) -> None:
    server.answer(reply)
    with pytest.raises(Unreachable):
        platform.submit(CREATE)
    assert [(method, path) for method, path, *_ in server.seen] == [("POST", f"/v2/{PROJECT}/training-jobs")]


def test_a_create_that_takes_too_long_goes_out_once_and_is_unreachable(platform: ModelArts, server: Server) -> None:
    late = threading.Event()
    server.answer((201, job("Creating"), {}, 0, late))
    platform.session.close()
    platform.jobs = JobsV2(session_to(server.url, timeout=(5.0, 0.3)), platform._placement)
    with pytest.raises(Unreachable, match="no answer in time"):
        platform.submit(CREATE)
    late.set()
    assert len(server.seen) == 1


def test_a_throttled_create_is_not_repeated_either(platform: ModelArts, server: Server) -> None:
    server.answer((429, {"error_code": "APIGW.0308", "error_msg": "slow"}, {"Retry-After": "1"}))
    with pytest.raises(Throttled, match=r"APIGW\.0308"):
        platform.submit(CREATE)
    assert len(server.seen) == 1


def test_a_suites_own_post_goes_out_once(session: Session, server: Server) -> None:
    server.answer((0,), (200, {}))
    with pytest.raises(Unreachable):
        session.call("POST", JOBS, {"kind": "job"})
    assert len(server.seen) == 1


def test_a_create_is_sent_as_it_was_rendered(platform: ModelArts, server: Server) -> None:
    server.answer((201, job("Creating")))
    assert platform.submit(CREATE) == "j"
    ((_, _, headers, body),) = server.seen
    assert json.loads(body) == CREATE.body
    assert headers["User-Agent"].startswith("pytest-aisbench/")
    assert headers["Authorization"].startswith(f"SDK-HMAC-SHA256 Access={AK}, SignedHeaders=")


# What is harmless is repeated.


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param((0,), id="dropped"),
        pytest.param((200, {"a": 1}, {}, 10), id="cut short"),
        pytest.param((503, b""), id="503"),
        pytest.param((429, {"error_code": "ModelArts.2799", "error_msg": "slow"}), id="429"),
    ],
)
def test_a_get_is_repeated(session: Session, server: Server, reply: tuple[Any, ...]) -> None:
    server.answer(reply, reply, (200, {"done": True}))
    assert session.call("GET", JOBS) == {"done": True}
    assert len(server.seen) == 3


def test_what_the_platform_does_not_have_is_not_asked_for_again(session: Session, server: Server) -> None:
    server.answer((501, {"error_code": "Local.0501", "error_msg": "list_notebooks is not served"}))
    with pytest.raises(PlatformError, match="list_notebooks") as raised:
        session.call("GET", JOBS)
    assert (type(raised.value), len(server.seen)) == (PlatformError, 1)


def test_a_get_that_takes_too_long_is_repeated(server: Server) -> None:
    late = threading.Event()
    server.answer((200, {}, {}, 0, late), (200, {"done": True}))
    with contextlib.closing(session_to(server.url, timeout=(5.0, 0.3))) as session:
        assert session.call("GET", JOBS) == {"done": True}
    late.set()


@pytest.mark.slow
def test_the_server_says_when_to_come_back(session: Session, server: Server) -> None:
    server.answer((429, b"", {"Retry-After": "1"}), (200, {}))
    started = time.monotonic()
    session.call("GET", JOBS)
    assert time.monotonic() - started >= 1


def test_patience_ends_before_a_pause_that_is_longer(session: Session, server: Server) -> None:
    server.answer((429, {"error_code": "APIGW.0308", "error_msg": "slow"}, {"Retry-After": "3600"}))
    with pytest.raises(Throttled, match="slow"):
        session.call("GET", JOBS)
    assert len(server.seen) == 1


def test_searches_and_terminations_are_repeated(platform: ModelArts, server: Server) -> None:
    server.answer((0,), (200, {"items": [job("Running")]}))
    assert platform.find(Request("POST", "", {"metadata": {"name": "t-1"}})) == "j"
    server.answer((503, b""), (202, job("Terminating")))
    platform.cancel("j")
    assert [json.loads(body).get("action_type") for *_, body in server.seen[2:]] == ["terminate", "terminate"]


def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with contextlib.closing(session_to(url, patience_s=0.0)) as session, pytest.raises(Unreachable):
            session.call("GET", JOBS)


def test_an_unknown_host_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with (
        contextlib.closing(session_to("https://modelarts.invalid", patience_s=0.0)) as session,
        pytest.raises(Unreachable, match=r"modelarts\.invalid"),
    ):
        session.call("GET", JOBS)


# The machine's own settings.


def test_netrc_does_not_replace_the_signature(
    session: Session, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    session.call("GET", JOBS)
    assert server.seen[0][2]["Authorization"].startswith("SDK-HMAC-SHA256")


def test_loopback_is_never_reached_through_a_proxy(
    session: Session, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with type(server)() as proxy, proxy.serving():
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        session.call("GET", JOBS)
        with contextlib.closing(session_to(server.url.replace("127.0.0.1", "localhost"))) as by_name:
            by_name.call("GET", JOBS)
    assert (len(server.seen), len(proxy.seen)) == (2, 0)


def test_elsewhere_the_proxy_is_used_and_no_proxy_honoured(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "direct.invalid")
    server.answer((403, b""))
    for host in ("proxied.invalid", "direct.invalid"):
        with contextlib.closing(session_to(f"https://{host}", patience_s=0.0)) as session, pytest.raises(Unreachable):
            session.call("GET", JOBS)
    assert [(method, path) for method, path, *_ in server.seen] == [("CONNECT", "proxied.invalid:443")]


def test_importing_and_calling_leaves_no_trace_at_home(server: Server, tmp_path: Path) -> None:
    code = (
        "from pytest_aisbench.platforms.modelarts.session import Session;"
        "from pytest_aisbench.secret import Secret; import sys;"
        "assert 'requests' not in sys.modules, 'imported too early';"
        f"s = Session({server.url!r}, Secret('a'), Secret('b'), project_id='p'); s.call('GET', '/x'); s.close()"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment)
    assert list(tmp_path.iterdir()) == []
    assert len(server.seen) == 1


def test_a_certificate_is_verified_against_the_named_authority(server: Server, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=here"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with contextlib.closing(session_to(url)) as trusting, pytest.raises(UsageFault, match="ca_file"):
        trusting.call("GET", JOBS)
    with contextlib.closing(session_to(url, ca_file=str(certificate))) as session:
        assert session.call("GET", JOBS) == {}


@pytest.mark.parametrize("content", [b"<html>Please log in</html>", b'{"half', b"7", b'"text"'])
def test_what_is_not_an_object_is_a_bad_answer(session: Session, server: Server, content: bytes) -> None:
    server.answer((200, content))
    with pytest.raises(BadAnswer, match=JOBS):
        session.call("GET", JOBS, patience_s=0.0)


def test_a_redirection_is_a_bad_answer_and_not_followed(session: Session, server: Server) -> None:
    server.answer((302, b"", {"Location": "/elsewhere"}))
    with pytest.raises(BadAnswer, match="302"):
        session.call("GET", JOBS)
    assert len(server.seen) == 1


def test_a_request_has_the_headers_that_were_signed_and_no_cookie(session: Session, server: Server) -> None:
    server.answer((200, {}, {"Set-Cookie": "sticky=1; Path=/"}))
    session.call("GET", JOBS, query={"name": "ä b"})
    session.call("POST", JOBS)
    session.call("POST", JOBS, {"name": "ä"})
    (_, path, read, _), (_, _, empty, _), (_, _, full, body) = server.seen
    assert path.endswith("?name=%C3%A4%20b")
    assert "Content-Length" not in read
    assert (empty["Content-Length"], full["Content-Length"]) == ("0", str(len(body)))
    for headers in (read, empty, full):
        assert "Cookie" not in headers
        signed = headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert {*signed} <= {name.lower() for name in headers}
        assert {"content-type", "host", "user-agent", "x-sdk-date"} <= {*signed}


def test_a_list_and_nothing_are_objects_too(session: Session, server: Server) -> None:
    server.answer((200, [{"task": "worker-0"}]), (204, b""), (202, b'""'))
    assert session.call("GET", JOBS) == {"items": [{"task": "worker-0"}]}
    assert session.call("GET", JOBS) == {}
    assert session.call("POST", JOBS) == {}


def test_keys_that_the_gateway_quotes_are_not_shown(session: Session, server: Server) -> None:
    server.answer((401, {"error_code": "APIGW.0301", "error_msg": f"access key {AK} unknown, {SK}"}))
    with pytest.raises(Refused) as caught:
        session.call("GET", JOBS)
    assert "access key *** unknown, ***" in str(caught.value)
    assert PROJECT not in str(caught.value)


# Every exception of the SDK becomes one of ours.


def vendor_exceptions() -> list[Exception]:
    import requests
    from huaweicloudsdkcore.exceptions import exceptions as sdk

    made: list[Exception] = []
    for module in (sdk, requests.exceptions):
        kinds: list[tuple[str, Any]] = inspect.getmembers(module, inspect.isclass)
        for name, kind in kinds:
            if issubclass(kind, sdk.ServiceResponseException):
                made.append(kind(418, sdk.SdkError("r-1", "C.1", "why")))
            elif issubclass(kind, Exception) and not issubclass(kind, Warning) and "JSONDecode" not in name:
                made.append(kind("why"))
    assert len(made) > 30
    return made


def test_no_exception_of_the_sdk_or_of_requests_leaks(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from huaweicloudsdkcore.http.http_client import HttpClient

    for error in vendor_exceptions():

        def fail(self: Any, request: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(HttpClient, "do_request_sync", fail)
        with pytest.raises(AisbenchError) as caught:
            session.call("POST", JOBS)
        assert caught.value.__suppress_context__, "a traceback of theirs may show what was sent"


# The project is looked up once.


def test_a_missing_project_is_asked_of_iam_once(server: Server) -> None:
    server.answer((200, {"projects": [{"id": PROJECT, "name": "r-1"}]}), (200, {}))
    with contextlib.closing(session_to(server.url, project_id="", region="r-1", iam_endpoint=server.url)) as session:
        session.call("GET", JOBS)
        session.call("GET", JOBS)
        assert session.project_id == PROJECT
    paths = [path for _, path, *_ in server.seen]
    assert paths == ["/v3/projects?name=r-1", *[f"/v2/{PROJECT}/training-jobs"] * 2]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [({"projects": []}, Refused), ({"projects": [{"id": "p", "name": "r-2"}]}, Refused), ({}, BadAnswer)],
)
def test_an_account_without_the_project_is_refused(
    server: Server, answer: dict[str, Any], kind: type[AisbenchError]
) -> None:
    server.answer((200, answer))
    with (
        contextlib.closing(session_to(server.url, project_id="", region="r-1", iam_endpoint=server.url)) as session,
        pytest.raises(kind, match="project_id"),
    ):
        session.call("GET", JOBS)


def test_without_project_and_region_nothing_is_sent(server: Server) -> None:
    with (
        contextlib.closing(session_to(server.url, project_id="")) as session,
        pytest.raises(UsageFault, match="project_id"),
    ):
        session.call("GET", JOBS)
    assert server.seen == []


def test_a_query_in_the_path_is_a_fault(session: Session, server: Server) -> None:
    with pytest.raises(UsageFault, match="query="):
        session.call("GET", JOBS + "?limit=1")
    assert server.seen == []
