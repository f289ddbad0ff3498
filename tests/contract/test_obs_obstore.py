"""Uploads by obstore: used only where it does what the vendor's client does, and never the last word of an upload."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.config.access import NO_HOSTS, Hosts
from pytest_aisbench.errors import Refused, StagingFailed, Unreachable
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Upload
from pytest_aisbench.net.http import ServerClock
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores import obs, obs_client
from pytest_aisbench.stores.obs import Obs
from pytest_aisbench.stores.obs_client import why_not

pytest.importorskip("obstore", reason="pip install 'pytest-aisbench[obstore]'")
KEY, SECRET, TOKEN = "AK-that-nobody-sees", "SK-that-nobody-sees", "token-that-nobody-sees"
ENDPOINT = "https://obs.region-1.example.com"
PLAIN: dict[str, Any] = {"signature": "", "ca_file": "", "hosts": NO_HOSTS, "through": ""}


class Server(ThreadingHTTPServer):
    """Answers a PUT as `reply` says: the status, and the ETag if it is not the MD5 of the body."""

    daemon_threads = True

    def __init__(self) -> None:
        self.reply: Callable[[BaseHTTPRequestHandler, bytes], tuple[int, str]] = lambda *_: (200, "")
        self.by: list[str] = []  # who sent each request
        self.kept: dict[str, bytes] = {}
        self.by_obstore: list[str] = []  # the paths
        self.tokens: set[str | None] = set()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        by = "vendor" if self.headers["User-Agent"].startswith("obs-sdk") else "obstore"
        self.server.by.append(by)
        if by == "obstore":
            self.server.by_obstore.append(self.path)
        self.server.tokens.add(self.headers.get("x-amz-security-token"))
        status, etag = self.server.reply(self, body)
        if status == 200:
            self.server.kept[self.path] = body
        self.send_response(status)
        self.send_header("ETag", f'"{etag or hashlib.md5(body).hexdigest()}"')
        self.send_header("x-amz-request-id", "R-1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def store(server: Server) -> Iterator[Obs]:
    store = Obs(server.endpoint, Secret(KEY), Secret(SECRET), security_token=Secret(TOKEN), patience=2.0)
    yield store
    store.close()


@pytest.fixture
def uploads(tmp_path: Path) -> list[Upload]:
    """Enough files for obstore to be worth its import."""
    made = []
    for number in range(obs._OBSTORE_FROM):
        data = f"file {number}".encode()
        (tmp_path / str(number)).write_bytes(data)
        url = StoreUrl("bucket", f"folder/{number}")
        made.append(Upload(str(tmp_path / str(number)), url, len(data), hashlib.md5(data).hexdigest()))
    return made


def all_arrived(server: Server, uploads: list[Upload]) -> bool:
    return server.kept == {f"/bucket/{each.url.key}": Path(each.path).read_bytes() for each in uploads}


def test_many_small_files_go_by_obstore(server: Server, store: Obs, uploads: list[Upload]) -> None:
    store.upload(uploads)
    assert all_arrived(server, uploads)
    assert set(server.by) == {"obstore"}
    assert server.tokens == {TOKEN}


def test_few_files_and_large_files_do_not(
    server: Server, store: Obs, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upload(uploads[:-1])
    monkeypatch.setattr(obs, "_SMALL", 6)
    store.upload(uploads)  # the ten with a digit at the end are small, and too few
    assert set(server.by) == {"vendor"}


@pytest.mark.slow
def test_without_obstore_nothing_changes(
    server: Server, store: Obs, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    store.upload(uploads)
    assert all_arrived(server, uploads)
    assert set(server.by) == {"vendor"}


@pytest.mark.slow
def test_a_server_that_takes_no_v4_gets_all_from_the_vendors_client(
    server: Server, store: Obs, uploads: list[Upload], caplog: pytest.LogCaptureFixture
) -> None:
    server.reply = lambda handler, _: (403 if "AWS4" in handler.headers["Authorization"] else 200, "")
    with caplog.at_level(logging.INFO, logger="aisbench"):
        store.upload(uploads)
        store.upload(uploads)
    assert all_arrived(server, uploads)
    assert 1 <= server.by.count("obstore") <= obs._NEAR  # those that were under way when the first was refused
    assert server.by.count("vendor") == 2 * len(uploads)
    assert caplog.text.count("obstore is not used") == 1
    assert "403" in caplog.text
    for secret in (KEY, SECRET, TOKEN):
        assert secret not in caplog.text


@pytest.mark.slow
def test_what_fails_is_told_as_by_the_vendors_client(server: Server, store: Obs, uploads: list[Upload]) -> None:
    server.reply = lambda *_: (403, "")
    with pytest.raises(Refused, match="secret_access_key") as refused:
        store.upload(uploads)
    assert SECRET not in str(refused.value)
    server.reply = lambda *_: (503, "")
    with pytest.raises(Unreachable, match="HTTP 503"):
        store.upload(uploads)


@pytest.mark.slow
def test_what_may_pass_is_asked_again(server: Server, store: Obs, uploads: list[Upload]) -> None:
    failures = iter([503, 503])
    server.reply = lambda *_: (next(failures, 200), "")
    store.upload(uploads)
    assert all_arrived(server, uploads)
    assert len(set(server.by_obstore)) == len(server.by_obstore)  # not by obstore, which has another policy


@pytest.mark.slow
def test_an_etag_that_is_not_the_md5_is_no_proof(
    server: Server, store: Obs, uploads: list[Upload], caplog: pytest.LogCaptureFixture
) -> None:
    """Of an object that the service encrypts, say. The vendor's client sends the MD5 for the server to check."""
    checked = []

    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> tuple[int, str]:
        if "Content-MD5" not in handler.headers:
            return 200, "0" * 32
        checked.append(handler.path)
        return 200, ""

    server.reply = reply
    with caplog.at_level(logging.INFO, logger="aisbench"):
        store.upload(uploads)
    assert len(checked) == len(uploads)
    assert "is not its MD5" in caplog.text


@pytest.mark.slow
def test_bytes_that_are_never_what_was_sent_are_an_error(server: Server, store: Obs, uploads: list[Upload]) -> None:
    server.reply = lambda *_: (200, "0" * 32)
    with pytest.raises(StagingFailed, match="other bytes"):
        store.upload(uploads)


@pytest.mark.slow
def test_a_file_that_changed_since_it_was_read_is_noticed(server: Server, store: Obs, uploads: list[Upload]) -> None:
    Path(uploads[0].path).write_bytes(b"f1le 0")
    with pytest.raises(StagingFailed, match="other bytes"):
        store.upload(uploads)


def test_a_closed_store_sends_nothing(server: Server, store: Obs, uploads: list[Upload]) -> None:
    store.close()
    with pytest.raises(Unreachable, match="closed"):
        store.upload(uploads)
    assert server.by == []


@pytest.mark.parametrize(
    ("changes", "environment", "reason"),
    [
        ({}, {}, ""),
        ({"signature": "v4"}, {"AWS_CA_BUNDLE": "/x", "NO_PROXY": "*", "https_proxy": ""}, ""),
        ({"hosts": Hosts({"iam.region-1.example.com": "192.0.2.7"})}, {}, ""),
        ({"signature": "obs"}, {}, "obs_signature is obs"),
        ({"signature": "v2"}, {}, "obs_signature is v2"),
        ({"ca_file": "ca.pem"}, {}, "ca_file"),
        ({"hosts": Hosts({"obs.region-1.example.com": "192.0.2.7"})}, {}, "[hosts]"),
        ({"hosts": Hosts({"bucket.obs.region-1.example.com": "192.0.2.7"})}, {}, "[hosts]"),
        ({"through": "127.0.0.1:80"}, {}, "[hosts]"),
        ({}, {"HTTPS_PROXY": "http://proxy"}, "HTTPS_PROXY"),
        ({}, {"all_proxy": "http://proxy"}, "all_proxy"),
        ({}, {"AWS_SESSION_TOKEN": "t"}, "AWS_SESSION_TOKEN"),
        ({}, {"AWS_ENDPOINT_URL": "http://x"}, "AWS_ENDPOINT_URL"),
    ],
)
def test_it_is_used_only_where_it_does_the_same(
    changes: dict[str, Any], environment: dict[str, str], reason: str
) -> None:
    why = why_not(ENDPOINT, environment, **{**PLAIN, **changes})
    assert reason in why if reason else why == ""


def test_the_reason_is_in_the_log(
    server: Server, store: Obs, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-cloud")
    with caplog.at_level(logging.INFO, logger="aisbench"):
        store.upload(uploads)
    assert set(server.by) == {"vendor"}
    assert "obstore would obey AWS_SESSION_TOKEN" in caplog.text
    assert "of-another-cloud" not in caplog.text


def test_a_domain_has_the_bucket_in_its_name() -> None:
    """An address has it in the path: the other tests see it there."""
    puts = obs_client.SmallPuts(
        ENDPOINT, (Secret(KEY), Secret(SECRET), Secret("")), ServerClock(), region="region-1", **PLAIN
    )
    config: Mapping[str, Any] = dict(puts._open("bucket").config)
    assert config["endpoint"] == "https://bucket.obs.region-1.example.com"
    assert config["virtual_hosted_style_request"] == "true"
    assert config["region"] == "region-1"


def test_a_store_that_nobody_uploads_to_imports_nothing() -> None:
    before = set(sys.modules)
    Obs(ENDPOINT, Secret(KEY), Secret(SECRET)).close()
    assert not [name for name in set(sys.modules) - before if name.partition(".")[0] in {"obstore", "obs"}]
