"""The OBS client against a scripted server that misbehaves, request by request."""

from __future__ import annotations

import errno
import hashlib
import io
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.errors import (
    AisbenchError,
    BadAnswer,
    OutOfQuota,
    PlatformError,
    Refused,
    Rejected,
    StagingFailed,
    Throttled,
    Unreachable,
    UsageFault,
)
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Upload
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores import obs
from pytest_aisbench.stores.obs import Obs

URL = StoreUrl("bucket", "folder/object")
KEY, SECRET = "AK-that-nobody-sees", "SK-that-nobody-sees"
# Not statuses: close without an answer; answer what is not HTTP; send the body as the whole answer, and close.
CUT, GARBAGE, CUT_HEADERS = -1, -2, -3


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def error(code: str, message: str = "") -> bytes:
    return f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>R-1</RequestId></Error>".encode()


def listing(key: str, *, more: bool = False) -> bytes:
    entry = f"<Contents><Key>{key}</Key><Size>5</Size></Contents>"
    return f"<List><IsTruncated>{str(more).lower()}</IsTruncated>{entry}</List>".encode()


class Script:
    """Replies in turn; after the last, `otherwise`. Notes who asked for what."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, bytes, dict[str, str]]] = []
        self.seen: list[str] = []
        self.bodies: list[bytes] = []
        self.clients: set[Any] = set()
        self.signatures: list[str] = []
        self.lock = threading.Lock()

    def then(self, status: int, body: bytes = b"", **headers: str) -> Script:
        self.replies.append((status, body, {name.replace("_", "-"): value for name, value in headers.items()}))
        return self

    def next(self) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            return self.replies.pop(0) if self.replies else (200, b"", {})


def handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.seen.append(f"{self.command} {self.path}")
            script.bodies.append(body)
            script.clients.add(self.client_address)
            script.signatures.append(self.headers.get("Authorization", "").partition(" ")[0])
            status, content, headers = script.next()
            if status == CUT:
                self.close_connection = True
                return
            if status == GARBAGE:
                self.wfile.write(b"this is not HTTP\r\n\r\n")
                self.close_connection = True
                return
            if status == CUT_HEADERS:
                self.wfile.write(content)
                self.close_connection = True
                return
            self.send_response(status)
            if self.command == "PUT" and status == 200 and "ETag" not in headers:
                self.send_header("ETag", f'"{md5(body)}"')
            usual = {"Content-Length": str(len(content)), "x-obs-request-id": "R-1"}
            for name, value in {**usual, **headers}.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content if self.command != "HEAD" else b"")
            self.close_connection = headers.get("Connection") == "close" or "Truncated" in headers

        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.close_connection = False  # we are the far end of the tunnel as well

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture(autouse=True)
def _only_the_vendors_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obs, "_OBSTORE_FROM", sys.maxsize)


@pytest.fixture
def endpoint(script: Script) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(script)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def connect(endpoint: str) -> Iterator[Callable[[float], Obs]]:
    stores = []

    def connect(patience: float = 20.0) -> Obs:
        stores.append(Obs(endpoint, Secret(KEY), Secret(SECRET), patience=patience))
        return stores[-1]

    yield connect
    for store in stores:
        store.close()


@pytest.fixture
def store(connect: Callable[[float], Obs]) -> Obs:
    return connect(20.0)


@pytest.mark.parametrize("status", [500, 502, 503, 408, 429, 307, CUT, GARBAGE])
def test_what_may_pass_is_asked_again(script: Script, store: Obs, status: int) -> None:
    script.then(status).then(status).then(200)
    store.write(URL, b"data")
    assert script.bodies == [b"data"] * 3


@pytest.mark.slow
def test_retry_after_is_honoured_as_far_as_patience_goes(script: Script, connect: Callable[[float], Obs]) -> None:
    script.then(429, Retry_After="3600")
    with pytest.raises(Throttled):
        connect(5.0).write(URL, b"data")
    assert len(script.seen) == 1
    script.then(503, error("SlowDown"), Retry_After="1").then(200)
    connect(5.0).write(URL, b"data")
    script.then(503, error("SlowDown"), Retry_After="1").then(200)
    with pytest.raises(Throttled):  # a second of waiting is more than it has
        connect(0.5).write(URL, b"data")


def test_patience_ends(script: Script, connect: Callable[[float], Obs]) -> None:
    for _ in range(1000):
        script.then(500)
    with pytest.raises(Unreachable, match="HTTP 500"):
        connect(0.5).read(URL)
    assert 1 < len(script.seen) < 100


def test_nobody_there_is_unreachable(connect: Callable[[float], Obs]) -> None:
    store = Obs("http://127.0.0.1:9", Secret(KEY), Secret(SECRET), patience=0.1)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        store.head(URL)
    store.close()


@pytest.mark.parametrize(
    ("reply", "kind", "advice"),
    [
        ((403, "InvalidAccessKeyId"), Refused, "access_key"),
        ((403, "SignatureDoesNotMatch"), Refused, "secret_access_key"),
        ((403, "AccessDenied"), Refused, "owner of bucket bucket"),
        ((403, "RequestTimeTooSkewed"), UsageFault, "clock"),
        ((404, "NoSuchBucket"), UsageFault, "create bucket bucket"),
        ((400, "BadDigest"), StagingFailed, "try again"),
        ((403, "InsufficientStorageSpace"), OutOfQuota, "quota"),
        ((400, "InvalidArgument"), Rejected, "because *** said so"),
        ((409, ""), Rejected, "HTTP 409"),
        ((501, "NotImplemented"), PlatformError, "does not have the operation"),
        ((501, "NotImplemented"), PlatformError, "because *** said so"),
    ],
)
def test_each_error_says_who_must_do_what(
    script: Script, store: Obs, reply: tuple[int, str], kind: type[AisbenchError], advice: str
) -> None:
    script.then(reply[0], error(reply[1], f"because {KEY} said so") if reply[1] else b"")
    with pytest.raises(AisbenchError) as raised:
        store.write(URL, b"data")
    assert type(raised.value) is kind
    assert advice in str(raised.value)
    assert str(URL) in str(raised.value)
    assert len(script.seen) == 1
    assert_tells_no_secret(raised.value)


def test_an_error_of_ours_below_the_vendors_frames_tells_no_secret(store: Obs, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1")
    with pytest.raises(StagingFailed, match="became shorter") as raised:
        store.upload([Upload(str(tmp_path / "short"), URL, 50_000_000, md5(b""))])
    assert_tells_no_secret(raised.value)


def assert_tells_no_secret(error: BaseException) -> None:
    """Not even as pytest --showlocals tells it."""
    trace = traceback.TracebackException.from_exception(error, capture_locals=True)
    text = "".join(trace.format(chain=True))
    assert "_attempt" not in text  # its frames, and the vendor's below, hold keys
    assert KEY not in text
    assert SECRET not in text


def test_an_empty_error_of_a_head_is_told_by_its_status(script: Script, store: Obs) -> None:
    script.then(403)
    with pytest.raises(Refused, match="rights on bucket"):
        store.head(URL)


def test_a_bucket_that_is_not_there_is_no_missing_object(script: Script, endpoint: str) -> None:
    """Asked which signature to use the service says 404, and the vendor's client hands that on as the answer."""
    store = Obs("http://obs.test-1.test", Secret(KEY), Secret(SECRET), through=endpoint.removeprefix("http://"))
    script.then(404)
    with pytest.raises(UsageFault, match="create bucket bucket"):
        store.head(URL)
    script.then(200, x_obs_api="3.0").then(404)
    assert store.head(URL) is None
    assert script.seen == ["HEAD /?apiversion", "HEAD /?apiversion", "HEAD /folder/object"]
    assert script.signatures == ["", "", "OBS"]  # as the service asked
    store.close()


def test_a_body_that_breaks_off_is_fetched_again(script: Script, store: Obs) -> None:
    tag = f'"{md5(b"0123456789")}"'
    script.then(200, b"0123", Content_Length="10", ETag=tag, Truncated="yes").then(200, b"0123456789", ETag=tag)
    assert store.read(URL) == b"0123456789"
    assert len(script.seen) == 2


@pytest.mark.parametrize(
    "damaged",
    [
        (200, b"ri9ht", {"ETag": f'"{md5(b"right")}"'}),  # a bit
        (200, b"right", {"ETag": f'"{md5(b"right")}"', "Content-Length": "4", "Connection": "close"}),
        (200, b"right", {"ETag": f'"{md5(b"right")}"', "Content-Length": "6", "Truncated": "yes"}),
        (200, b"right", {"Content-Length": "five", "Connection": "close", "ETag": ""}),
        (CUT_HEADERS, b"HTTP/1.1 200 OK\r\nx-obs-request-id: R-1\r\nConte", {}),
        (CUT_HEADERS, b"HTTP/1.1 200 OK\r\nx-obs-request-id: R-1\r\nContent-Length: ", {}),
        (CUT_HEADERS, b"HTTP/1.1 200 OK\r\nx-obs-req", {}),
        (CUT_HEADERS, b"HTTP/1.1 2", {}),
    ],
    ids=str,
)
def test_one_damaged_answer_is_asked_for_again(script: Script, store: Obs, damaged: Any) -> None:
    script.replies.append(damaged)
    script.then(200, b"right", ETag=f'"{md5(b"right")}"')
    assert store.read(URL) == b"right"
    assert len(script.seen) == 2


def test_a_damaged_look_and_listing_are_asked_for_again(script: Script, store: Obs) -> None:
    script.then(200, Content_Length="").then(200, Content_Length="5")
    head = store.head(URL)
    assert head is not None
    assert head.size == 5
    script.then(200, listing("folder/a")[:40]).then(200, listing("folder/a"))
    assert [each.url.key for each in store.objects(StoreUrl("bucket", "folder/"))] == ["folder/a"]


def test_bytes_that_are_never_what_the_store_has_are_refused(
    script: Script, connect: Callable[[float], Obs], tmp_path: Path
) -> None:
    store = connect(0.3)
    for _ in range(20):
        script.then(200, b"wrong", ETag=f'"{md5(b"right")}"')
    with pytest.raises(StagingFailed, match="other bytes"):
        store.read(URL)
    script.replies.insert(0, (200, listing("folder/a"), {}))
    with pytest.raises(StagingFailed, match="other bytes"):
        store.download(StoreUrl("bucket", "folder/"), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_put_is_verified_by_its_etag_or_else_by_its_size(script: Script, store: Obs) -> None:
    script.then(200, ETag=f'"{"0" * 32}"')
    with pytest.raises(StagingFailed, match="other bytes"):
        store.write(URL, b"data")
    # The service encrypts with a key of its own: the ETag is no MD5.
    script.then(200, x_obs_server_side_encryption="kms", ETag=f'"{"0" * 32}"').then(200, Content_Length="4")
    store.write(URL, b"data")
    script.then(200, x_obs_server_side_encryption="kms", ETag=f'"{"0" * 32}"').then(200, Content_Length="3")
    with pytest.raises(StagingFailed, match="has 3 bytes"):
        store.write(URL, b"data")


def test_a_loss_that_calls_itself_200_is_noticed(
    script: Script, store: Obs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obs, "_ONE_PUT", 1)
    (tmp_path / "large").write_bytes(b"data")
    begun = b"<InitiateMultipartUploadResult><UploadId>U</UploadId></InitiateMultipartUploadResult>"
    script.then(200, begun).then(200).then(200, error("InternalError")).then(404)
    with pytest.raises(StagingFailed, match="is not there"):
        store.upload([Upload(str(tmp_path / "large"), URL, 4)])


def test_a_part_that_fails_ends_the_upload_on_the_server_too(
    script: Script, store: Obs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obs, "_ONE_PUT", 1)
    (tmp_path / "large").write_bytes(b"data")
    begun = b"<InitiateMultipartUploadResult><UploadId>U</UploadId></InitiateMultipartUploadResult>"
    script.then(200, begun).then(403, error("AccessDenied")).then(204)
    with pytest.raises(Refused):
        store.upload([Upload(str(tmp_path / "large"), URL, 4)])
    assert script.seen[-1] == "DELETE /bucket/folder/object?uploadId=U"


@pytest.mark.parametrize("page", [b"<html>", b"<html></html>", b"<List><IsTruncated>true</IsTruncated></List>"])
def test_a_listing_that_cannot_be_is_an_error(script: Script, connect: Callable[[float], Obs], page: bytes) -> None:
    for _ in range(20):
        script.then(200, page)
    with pytest.raises(BadAnswer):
        list(connect(0.3).objects(StoreUrl("bucket", "folder/")))


def test_a_listing_in_circles_ends(script: Script, store: Obs) -> None:
    for key in ["a", "b"] * 1000:
        script.then(200, listing(key, more=True))
    with pytest.raises(BadAnswer, match="not after 'a'"):
        list(store.objects(StoreUrl("bucket", "")))


def test_a_listing_that_fails_half_way_brings_nothing_home(script: Script, store: Obs, tmp_path: Path) -> None:
    script.then(200, listing("f/a", more=True)).then(403, error("AccessDenied"))
    with pytest.raises(Refused):
        store.download(StoreUrl("bucket", "f/"), str(tmp_path / "home"))
    assert not (tmp_path / "home").exists()


def test_connections_are_kept_and_dead_ones_cost_one_try(script: Script, store: Obs, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    uploads = [Upload(str(tmp_path / "a"), StoreUrl("bucket", str(number)), 1) for number in range(200)]
    store.upload(uploads)
    assert len(script.clients) <= 32
    pool = store._client._vendors["bucket"].connHolder["connSet"]
    idle = list(pool.queue)
    assert idle
    for connection in idle:  # as a server does with those that were silent for a while
        connection.sock.close()
    before = len(script.seen)
    store.write(URL, b"data")
    assert len(script.seen) == before + 1


def test_a_full_disk_is_this_machines(script: Script, store: Obs) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    script.then(200, b"data")
    with pytest.raises(StagingFailed, match="no space left on this machine"):
        store._fetch(URL, Full())
    assert len(script.seen) == 1


def test_the_first_error_ends_an_upload(script: Script, store: Obs, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    for _ in range(2000):
        script.then(403, error("AccessDenied"))
    with pytest.raises(Refused):
        store.upload([Upload(str(tmp_path / "a"), StoreUrl("bucket", str(n)), 1) for n in range(1000)])
    assert len(script.seen) < 500


@pytest.mark.slow
def test_warnings_as_errors_do_not_reach_us(endpoint: str, tmp_path: Path) -> None:
    """Also at the vendor's first import, and when pytest restores the filters between two tests."""
    program = f"""
import warnings
from pytest_aisbench.stores.obs import Obs
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.secret import Secret
store = Obs({endpoint!r}, Secret("a"), Secret("b"), patience=0.0)
for _ in range(2):
    with warnings.catch_warnings():
        store.write(StoreUrl("bucket", "key"), b"1")
store.close()
tls = Obs("https://127.0.0.1:9", Secret("a"), Secret("b"), patience=0.0)
try:
    tls.head(StoreUrl("bucket", "key"))
except Exception as error:
    print(type(error).__name__)
"""
    command = [sys.executable, "-W", "error", "-X", f"pycache_prefix={tmp_path}", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Unreachable\n", "")


@pytest.mark.parametrize("endpoint", ["obs.example.com", "ftp://obs.example.com", "http://[::1]:80", "https://"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageFault, match="obs_endpoint"):
        Obs(endpoint, Secret(KEY), Secret(SECRET))


def test_the_vendors_warnings_pass_even_where_somebody_asks_for_errors_later() -> None:
    """As pytest does before each test: its filter goes before ours."""
    from pytest_aisbench.stores.obs_vendor import silence_vendor_warnings

    with warnings.catch_warnings():
        silence_vendor_warnings()
        warnings.simplefilter("error")
        silence_vendor_warnings()
        warnings.warn_explicit(
            "ssl.PROTOCOL_TLS is deprecated", DeprecationWarning, "client.py", 379, module="obs.client"
        )
        with pytest.raises(DeprecationWarning):
            warnings.warn_explicit("ours", DeprecationWarning, "ours.py", 1, module="pytest_aisbench.ours")
