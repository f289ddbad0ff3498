"""OBS, with the vendor's client as the referee, in every way that it can be asked to sign."""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.localcloud.iam import Account, Accounts
from pytest_aisbench.localcloud.messages import Request, Response
from pytest_aisbench.localcloud.obs.service import Obs
from pytest_aisbench.localcloud.obs.signature import presign
from pytest_aisbench.localcloud.obs.storage import Blobs, Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The vendor's client asks datetime.utcnow() on every call, and one of its patterns has an invalid escape.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*invalid escape sequence"),
    pytest.mark.filterwarnings(r"ignore:.*'return' in a 'finally' block:SyntaxWarning"),
]

BUCKET = "bucket-1"
MODES = ["address", "default", "v4", "v4-virtual"]
DOMAIN = "http://obs.local-1.test"


@pytest.fixture(scope="module")
def accounts() -> Accounts:
    return Accounts.generate()


@pytest.fixture(scope="module")
def account(accounts: Accounts) -> Account:
    return accounts.first()


@pytest.fixture(scope="module")
def url(accounts: Accounts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    objects = Objects(tmp_path_factory.mktemp("objects"))
    objects.create_bucket(BUCKET, accounts.first().region)
    with Listener(Obs(accounts, objects)) as listener:
        yield listener.url
    objects.close()


@pytest.fixture
def connect(url: str, account: Account) -> Iterator[Callable[..., Any]]:
    """By address the client signs V2 and asks path style. By domain, through the listener as its proxy, it does
    what it does by default: it negotiates, asks a virtual host, and signs OBS's own way."""
    from obs import ObsClient

    opened = []

    def open_client(mode: str, **changes: Any) -> Any:
        proxy = {"proxy_host": "127.0.0.1", "proxy_port": int(url.rpartition(":")[2])}
        how: dict[str, dict[str, Any]] = {
            "address": {"server": url},
            "default": {"server": DOMAIN, **proxy},
            "v4": {"server": url, "signature": "v4"},
            "v4-virtual": {"server": DOMAIN, "signature": "v4", **proxy},
        }
        keys = {"access_key_id": account.access_key, "secret_access_key": account.secret_key}
        opened.append(ObsClient(**{**keys, **how[mode], "max_retry_count": 0, "timeout": 20, **changes}))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture(params=MODES)
def client(request: pytest.FixtureRequest, connect: Callable[..., Any]) -> Any:
    # Keep-alive where the client can: not through a proxy.
    return connect(request.param, long_conn_mode=request.param == "address")


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/"


def read(client: Any, key: str, **options: Any) -> bytes:
    answer = client.getObject(BUCKET, key, loadStreamInMemory=True, **options)
    assert answer.status < 300, answer.errorMessage
    return bytes(answer.body.buffer or b"")


KEYS = ["plain", "deep/er/file.bin", "with space & ü+%41.txt", "a//b", "训练/日志.log", "tilde~'()*", "q?x=1&uploads"]


@pytest.mark.parametrize("key", KEYS)
def test_what_goes_in_comes_out(client: Any, prefix: str, key: str) -> None:
    data = f"content of {key}".encode()
    put = client.putContent(BUCKET, prefix + key, data, metadata={"owner": "Zoë", "n": "1"})
    assert put.status == 200, put.errorMessage
    assert put.body.etag == f'"{hashlib.md5(data).hexdigest()}"'
    assert read(client, prefix + key) == data

    head = client.getObjectMetadata(BUCKET, prefix + key)
    assert (head.status, head.body.contentLength, head.body.etag) == (200, len(data), put.body.etag)
    assert {"owner": "Zoë", "n": "1"}.items() <= dict(head.header).items()
    listed = client.listObjects(BUCKET, prefix=prefix + key)
    assert [(entry.key, entry.size, entry.etag) for entry in listed.body.contents] == [
        (prefix + key, len(data), put.body.etag)
    ]
    assert client.deleteObject(BUCKET, prefix + key).status == 204
    assert client.getObjectMetadata(BUCKET, prefix + key).status == 404


def test_default_mode_is_what_it_says(connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests of the default mode would be tests of something else."""
    seen: list[Request] = []
    answer = Obs.answer

    def watched(self: Obs, request: Request) -> Response:
        seen.append(request)
        return answer(self, request)

    monkeypatch.setattr(Obs, "answer", watched)
    assert connect("default").putContent(BUCKET, "k", "x", metadata={"a": "b"}).status == 200
    negotiation, put = seen
    assert (negotiation.method, "apiversion" in negotiation.query) == ("HEAD", True)
    assert put.headers["authorization"].startswith("OBS ")
    assert put.headers["host"] == f"{BUCKET}.obs.local-1.test"
    assert put.headers["x-obs-meta-a"] == "b"


@pytest.mark.parametrize("mode", MODES)
def test_the_answer_is_in_the_dialect_of_the_question(connect: Callable[..., Any], mode: str) -> None:
    client = connect(mode)
    assert client.headBucket(BUCKET).status == 200
    missing = client.getObject(BUCKET, "nothing", loadStreamInMemory=True)
    assert (missing.status, missing.errorCode) == (404, "NoSuchKey")
    assert missing.requestId
    assert missing.resource.endswith("/nothing")
    assert client.getBucketMetadata(BUCKET).body.location == "local-1"
    assert client.getBucketLocation(BUCKET).body.location == "local-1"


@pytest.mark.parametrize("mode", MODES)
def test_wrong_keys(connect: Callable[..., Any], account: Account, mode: str) -> None:
    for changes, code in [
        ({"secret_access_key": "x" * 40}, "SignatureDoesNotMatch"),
        ({"access_key_id": "NOBODY"}, "InvalidAccessKeyId"),
        ({"access_key_id": "", "secret_access_key": ""}, "AccessDenied"),
    ]:
        answer = connect(mode, **changes).putContent(BUCKET, "intruder", "x")
        assert (answer.status, answer.errorCode) == (403, code)
        assert account.secret_key not in str(answer)
    assert connect(mode).getObjectMetadata(BUCKET, "intruder").status == 404


@pytest.mark.parametrize("mode", ["address", "default", "v4"])
@pytest.mark.parametrize("shift", [-16 * 60, 16 * 60])
def test_a_wrong_clock(connect: Callable[..., Any], mode: str, shift: int) -> None:
    stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + shift))
    client = connect(mode)
    sign = client._add_auth_headers

    def sign_at_another_time(headers: dict[str, str], *rest: Any, **options: Any) -> Any:
        signed = sign(headers, *rest, **options)
        signed["Date"] = stamp
        return signed

    client._add_auth_headers = sign_at_another_time
    answer = client.listObjects(BUCKET)
    assert (answer.status, answer.errorCode) == (403, "RequestTimeTooSkewed")


@pytest.mark.parametrize(("mode", "name"), [("address", "x-amz-date"), ("default", "x-obs-date")])
def test_the_date_may_stand_in_the_dialects_own_header(connect: Callable[..., Any], mode: str, name: str) -> None:
    now = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    answer = connect(mode).listObjects(BUCKET, extensionHeaders={name: now})
    assert answer.status == 200, answer.errorMessage


def test_ranges(client: Any, prefix: str) -> None:
    from obs import GetObjectHeader

    key, data = f"{prefix}range", bytes(range(200))
    client.putContent(BUCKET, key, data)
    for asked, expected in [("0-9", data[:10]), ("190-", data[190:]), ("-5", data[-5:]), ("0-999", data)]:
        answer = client.getObject(BUCKET, key, loadStreamInMemory=True, headers=GetObjectHeader(range=f"bytes={asked}"))
        assert (answer.status, answer.body.buffer) == (206, expected)
    beyond = client.getObject(BUCKET, key, loadStreamInMemory=True, headers=GetObjectHeader(range="bytes=200-"))
    assert (beyond.status, beyond.errorCode) == (416, "InvalidRange")


def test_conditions(client: Any, prefix: str) -> None:
    from obs import GetObjectHeader

    etag = client.putContent(BUCKET, f"{prefix}k", "x").body.etag.strip('"')

    def status(**conditions: Any) -> int:
        headers = GetObjectHeader(**conditions)
        return int(client.getObject(BUCKET, f"{prefix}k", loadStreamInMemory=True, headers=headers).status)

    assert status(if_match=etag) == 200
    assert status(if_match="other") == 412
    assert status(if_none_match=etag) == 304
    assert status(if_none_match="other") == 200


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_listing(client: Any, prefix: str, page: int) -> None:
    for name in ["a", "b/1", "b/2", "c/1", "d&<>.txt", "ü"]:
        client.putContent(BUCKET, prefix + name, "x")
    keys, commons, marker = [], [], None
    for _ in range(10):
        answer = client.listObjects(BUCKET, prefix=prefix, marker=marker, max_keys=page, delimiter="/")
        keys += [entry.key.removeprefix(prefix) for entry in answer.body.contents]
        commons += [entry.prefix.removeprefix(prefix) for entry in answer.body.commonPrefixs]
        marker = answer.body.next_marker
        if not answer.body.is_truncated:
            break
    assert keys == ["a", "d&<>.txt", "ü"]
    assert commons == ["b/", "c/"]


def test_listing_of_keys_that_xml_cannot_hold(client: Any, prefix: str) -> None:
    client.putContent(BUCKET, f"{prefix}bell\x07", "x")
    answer = client.listObjects(BUCKET, prefix=prefix, encoding_type="url")
    assert [entry.key for entry in answer.body.contents] == [f"{prefix}bell\x07"]


def test_content_is_checked_against_its_md5(client: Any, prefix: str) -> None:
    from obs import PutObjectHeader

    def put(md5: str) -> tuple[int, str | None]:
        answer = client.putContent(BUCKET, f"{prefix}k", "content", headers=PutObjectHeader(md5=md5))
        return answer.status, answer.errorCode

    assert put(base64.b64encode(hashlib.md5(b"other").digest()).decode()) == (400, "BadDigest")
    assert put("no digest") == (400, "InvalidDigest")
    assert client.getObjectMetadata(BUCKET, f"{prefix}k").status == 404
    assert put(base64.b64encode(hashlib.md5(b"content").digest()).decode()) == (200, None)


def test_copies(client: Any, prefix: str) -> None:
    from obs import CopyObjectHeader

    source = f"{prefix}sourcé +1"
    client.putContent(BUCKET, source, "content", metadata={"a": "1"})
    copy = client.copyObject(BUCKET, source, BUCKET, f"{prefix}copy")
    assert (copy.status, copy.body.etag) == (200, f'"{hashlib.md5(b"content").hexdigest()}"')
    assert dict(client.getObjectMetadata(BUCKET, f"{prefix}copy").header)["a"] == "1"

    headers = CopyObjectHeader(directive="REPLACE")
    client.copyObject(BUCKET, source, BUCKET, source, metadata={"b": "2"}, headers=headers)
    header = dict(client.getObjectMetadata(BUCKET, source).header)
    assert (header.get("a"), header.get("b")) == (None, "2")
    assert read(client, source) == b"content"
    for where, code in [((BUCKET, source), "InvalidRequest"), ((BUCKET, "nothing"), "NoSuchKey")]:
        assert client.copyObject(*where, BUCKET, source).errorCode == code


def test_batch_delete(client: Any, prefix: str) -> None:
    from obs import DeleteObjectsRequest, Object

    keys = [f"{prefix}{name}" for name in ("a", "b & ü", "never there")]
    for key in keys[:2]:
        client.putContent(BUCKET, key, "x")
    answer = client.deleteObjects(BUCKET, DeleteObjectsRequest(quiet=False, objects=[Object(key) for key in keys]))
    assert sorted(entry.key for entry in answer.body.deleted) == sorted(keys)
    assert client.listObjects(BUCKET, prefix=prefix).body.contents == []


@pytest.mark.parametrize("mode", MODES)
def test_large_files_travel_in_parts(connect: Callable[..., Any], mode: str, prefix: str, tmp_path: Path) -> None:
    client = connect(mode)
    data = bytes(range(256)) * 4096 + b"end"
    (tmp_path / "big").write_bytes(data)
    sent = client.uploadFile(BUCKET, f"{prefix}big", str(tmp_path / "big"), partSize=256 * 1024, taskNum=3)
    assert sent.status == 200
    assert sent.body.etag.strip('"').endswith("-5")
    assert read(client, f"{prefix}big") == data
    got = client.downloadFile(BUCKET, f"{prefix}big", str(tmp_path / "copy"), partSize=256 * 1024, taskNum=3)
    assert got.status == 200
    assert (tmp_path / "copy").read_bytes() == data


def test_parts_one_by_one(client: Any, prefix: str) -> None:
    from obs import CompleteMultipartUploadRequest, CompletePart

    key = f"{prefix}k"
    upload = client.initiateMultipartUpload(BUCKET, key, metadata={"a": "1"}, contentType="x/y").body.uploadId
    client.putContent(BUCKET, f"{prefix}source", b"0" * 10 + b"1" * 102400)
    copied = client.copyPart(BUCKET, key, 1, upload, f"{BUCKET}/{prefix}source", copySourceRange="bytes=10-102409")
    last = client.uploadPart(BUCKET, key, 2, upload, content="2")
    assert (copied.status, last.status) == (200, 200)

    listed = client.listParts(BUCKET, key, upload, maxParts=1).body
    assert (listed.isTruncated, listed.nextPartNumberMarker) == (True, 1)
    listed = client.listParts(BUCKET, key, upload, partNumberMarker=1).body
    assert [(part.partNumber, part.size) for part in listed.parts] == [(2, 1)]
    waiting = [entry for entry in client.listMultipartUploads(BUCKET).body.upload if entry.key == key]
    assert [entry.uploadId for entry in waiting] == [upload]

    def complete(*parts: tuple[int, str]) -> Any:
        wanted = CompleteMultipartUploadRequest([CompletePart(number, etag) for number, etag in parts])
        return client.completeMultipartUpload(BUCKET, key, upload, wanted)

    assert complete((1, "wrong")).errorCode == "InvalidPart"
    assert complete((1, copied.body.etag), (2, last.body.etag)).status == 200
    assert read(client, key) == b"1" * 102400 + b"2"
    head = client.getObjectMetadata(BUCKET, key)
    assert (head.body.contentType, dict(head.header)["a"]) == ("x/y", "1")


def test_parts_that_are_too_small_or_given_up(client: Any, prefix: str) -> None:
    from obs import CompleteMultipartUploadRequest, CompletePart

    key = f"{prefix}k"
    upload = client.initiateMultipartUpload(BUCKET, key).body.uploadId
    etags = [client.uploadPart(BUCKET, key, number, upload, content="x").body.etag for number in (1, 2)]
    wanted = CompleteMultipartUploadRequest([CompletePart(n, etag) for n, etag in enumerate(etags, 1)])
    assert client.completeMultipartUpload(BUCKET, key, upload, wanted).errorCode == "EntityTooSmall"
    assert client.abortMultipartUpload(BUCKET, key, upload).status == 204
    assert client.uploadPart(BUCKET, key, 1, upload, content="x").errorCode == "NoSuchUpload"
    assert client.getObjectMetadata(BUCKET, key).status == 404


def test_buckets(client: Any) -> None:
    name = "made-by-the-test"
    assert client.headBucket(name).status == 404
    assert client.putContent(name, "k", "x").errorCode == "NoSuchBucket"
    assert client.createBucket(name, location="local-1").status == 200
    assert client.createBucket(name).status == 200
    assert name in [bucket.name for bucket in client.listBuckets().body.buckets]
    client.putContent(name, "k", "x")
    refused = client.deleteBucket(name)
    assert (refused.status, refused.errorCode) == (409, "BucketNotEmpty")
    client.deleteObject(name, "k")
    assert client.deleteBucket(name).status == 204
    assert client.createBucket("elsewhere", location="mars-1").errorCode == "InvalidLocationConstraint"


def test_what_is_not_there_is_refused_and_harms_nothing(client: Any, prefix: str) -> None:
    client.putContent(BUCKET, f"{prefix}k", "content")
    answer = client.setObjectMetadata(BUCKET, f"{prefix}k", metadata={"a": "1"})
    assert (answer.status, answer.errorCode) == (501, "NotImplemented")
    assert "PUT of the object's metadata" in answer.errorMessage
    assert read(client, f"{prefix}k") == b"content"


def fetch(url: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("mode", ["address", "v4"])
def test_urls_signed_by_the_client(connect: Callable[..., Any], prefix: str, mode: str) -> None:
    client, key = connect(mode), f"{prefix}log ü.txt"
    client.putContent(BUCKET, key, "content")
    signed = client.createSignedUrl("GET", BUCKET, key, expires=60).signedUrl
    assert fetch(signed) == (200, b"content")
    assert b"SignatureDoesNotMatch" in fetch(signed.replace("log", "dog"))[1]
    expired = client.createSignedUrl("GET", BUCKET, key, expires=-1).signedUrl
    assert fetch(expired)[0] == 403


def test_urls_signed_by_the_cloud(
    url: str, connect: Callable[..., Any], account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("address").putContent(BUCKET, "logs/worker 0.log", "line\n")
    signed = url + presign(account, BUCKET, "logs/worker 0.log", 60)
    assert fetch(signed) == (200, b"line\n")
    assert fetch(signed.replace("Expires=1", "Expires=2"))[0] == 403
    assert account.secret_key not in signed
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    status, body = fetch(signed)
    assert (status, b"expired" in body) == (403, True)


def test_a_full_disk_is_said_so_and_keeps_what_was_there(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect("address")
    client.putContent(BUCKET, "full", "old")

    def no_room(self: Blobs, data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Blobs, "write", no_room)
        answer = client.putContent(BUCKET, "full", "new")
    assert (answer.status, answer.errorCode) == (500, "InternalError")
    assert "no space" in answer.errorMessage
    assert read(client, "full") == b"old"


def test_a_bug_is_an_error_in_the_vendors_words(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect("address", long_conn_mode=True)

    def broken(self: Objects, *_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "list", broken)
        answer = client.listObjects(BUCKET)
    assert (answer.status, answer.errorCode) == (500, "InternalError")
    assert "ZeroDivisionError" in caplog.text
    assert client.listObjects(BUCKET).status == 200


def test_an_upload_that_breaks_off_leaves_nothing(url: str, connect: Callable[..., Any]) -> None:
    client = connect("address")
    client.putContent(BUCKET, "broken-off", "old")
    signed = client.createSignedUrl("PUT", BUCKET, "broken-off", expires=60).signedUrl
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.putrequest("PUT", signed.removeprefix(url))
    connection.putheader("Content-Length", "1000000")
    connection.endheaders(b"only this much")
    connection.close()
    assert read(client, "broken-off") == b"old"
