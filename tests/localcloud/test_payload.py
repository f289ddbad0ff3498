"""Payloads in signed chunks, which no client at hand sends by plain HTTP; signed here as S3's documents say."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.localcloud.iam import Account, Accounts
from pytest_aisbench.localcloud.obs.service import Obs
from pytest_aisbench.localcloud.obs.signature import _SUMS
from pytest_aisbench.localcloud.obs.storage import Objects

BUCKET, CHUNKS = "bucket-1", (b"a" * 65536, b"b" * 300_000, b"c")
CONTENT = b"".join(CHUNKS)
CRC = base64.b64encode(zlib.crc32(CONTENT).to_bytes(4, "big")).decode()


class Place(NamedTuple):
    url: str
    account: Account
    objects: Objects


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    accounts = Accounts.generate()
    objects = Objects(tmp_path_factory.mktemp("objects"), kept=False)
    objects.create_bucket(BUCKET, "local-1")
    with Listener(Obs(accounts, objects)) as listener:
        yield Place(listener.url, accounts.first(), objects)
    objects.close()


def put(
    place: Place, kind: str, *, trailer: str = "", change: Callable[[bytes], bytes] = bytes, length: int = len(CONTENT)
) -> tuple[int, bytes]:
    """PUT `key` in chunks; `change` spoils the body after it was signed."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{stamp[:8]}/local-1/s3/aws4_request"
    key = f"AWS4{place.account.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    host = urlsplit(place.url).netloc
    headers = {"host": host, "x-amz-content-sha256": kind, "x-amz-date": stamp}
    headers["x-amz-decoded-content-length"] = str(length)
    headers |= {"x-amz-trailer": "x-amz-checksum-crc32"} if trailer else {}
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        ["PUT", f"/{BUCKET}/key", "", *(f"{n}:{headers[n]}" for n in sorted(headers)), "", names, kind]
    )

    def sign(*lines: str) -> str:
        return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()

    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    signature = last = sign("AWS4-HMAC-SHA256", stamp, scope, digest(canonical.encode()))
    body = b""
    for chunk in (*CHUNKS, b""):
        last = sign("AWS4-HMAC-SHA256-PAYLOAD", stamp, scope, last, digest(b""), digest(chunk))
        body += f"{len(chunk):x};chunk-signature={last}\r\n".encode() + chunk + (b"\r\n" if chunk else b"")
    if trailer:
        line = f"x-amz-checksum-crc32:{trailer}"
        last = sign("AWS4-HMAC-SHA256-TRAILER", stamp, scope, last, digest(f"{line}\n".encode()))
        body += f"{line}\r\nx-amz-trailer-signature:{last}\r\n".encode()
    body = change(body + b"\r\n")
    credential = f"{place.account.access_key}/{scope}"
    headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request("PUT", f"/{BUCKET}/key", body, headers)
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.request("HEAD", "/?apiversion")  # the connection is still good
    assert connection.getresponse().status == 200
    connection.close()
    return result


SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


@pytest.mark.parametrize(("kind", "trailer"), [(SIGNED, ""), (f"{SIGNED}-TRAILER", CRC)])
def test_signed_chunks_are_put_together(place: Place, kind: str, trailer: str) -> None:
    place.objects.delete(BUCKET, "key")
    assert put(place, kind, trailer=trailer)[0] == 200
    with place.objects.open(BUCKET, "key")[1] as stored:
        assert stored.read() == CONTENT


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "SignatureDoesNotMatch": lambda body: body.replace(b"bbbb", b"bbbB", 1),
    "InvalidRequest": lambda body: b"-1_0" + body[5:],
    "IncompleteBody": lambda body: body[:70_000],
}


@pytest.mark.parametrize("code", SPOILT)
def test_spoilt_chunks_store_nothing(place: Place, code: str) -> None:
    place.objects.delete(BUCKET, "key")
    _, answer = put(place, SIGNED, change=SPOILT[code])
    assert f"<Code>{code}</Code>".encode() in answer
    assert place.objects.head(BUCKET, "key") is None


def test_a_length_that_the_chunks_have_not_is_refused(place: Place) -> None:
    assert b"<Code>IncompleteBody</Code>" in put(place, SIGNED, length=len(CONTENT) + 1)[1]


def test_a_trailer_with_another_checksum_is_refused(place: Place) -> None:
    place.objects.delete(BUCKET, "key")
    assert b"<Code>BadDigest</Code>" in put(place, f"{SIGNED}-TRAILER", trailer="AAAAAA==")[1]
    assert place.objects.head(BUCKET, "key") is None


def test_another_kind_of_payload_is_refused_by_its_name(place: Place) -> None:
    kind = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
    status, answer = put(place, kind)
    assert (status, kind.encode() in answer) == (501, True)


@pytest.mark.parametrize(
    ("name", "check"), [("crc32", "cbf43926"), ("crc32c", "e3069283"), ("crc64nvme", "ae8b14860a799888")]
)
def test_checksums_have_the_values_of_their_catalogue(name: str, check: str) -> None:
    checksum = _SUMS[name]()
    checksum.update(b"12345")
    checksum.update(b"6789")
    assert checksum.digest().hex() == check
