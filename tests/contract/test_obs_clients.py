"""The local OBS under clients that others wrote, with their default settings."""

from __future__ import annotations

import base64
import hashlib
import http.client
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from centre import Authority, Front
from obs_clients import CLIENTS, Access, Client, Obstore, boto3_client

from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.localcloud.iam import Accounts
from pytest_aisbench.localcloud.obs.service import Obs
from pytest_aisbench.localcloud.obs.storage import Objects

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utc:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*Boto3 will no longer support Python"),
]
BUCKET = "bucket-1"
MANY = 2345  # three pages
AT_ONCE, IN_PARTS = 10_000, 9 * 1024 * 1024 + 1


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    store = Objects(tmp_path_factory.mktemp("objects"), kept=False)
    store.create_bucket(BUCKET, "local-1")
    for number in range(MANY):
        store.put(BUCKET, f"many/{number % 7}/{number:05d}", b"x")
    yield store
    store.close()


@pytest.fixture(scope="module")
def access(objects: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    accounts = Accounts.generate()
    account = accounts.first()
    with Listener(Obs(accounts, objects)) as listener:
        home = tmp_path_factory.mktemp("home")
        yield Access(listener.url, account.access_key, account.secret_key, account.region, home)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, access: Access) -> Client:
    return CLIENTS[request.param](access)


@pytest.fixture
def boto3(access: Access) -> Any:
    return boto3_client(access)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, AT_ONCE, IN_PARTS])
def test_what_a_client_puts_is_what_it_gets(client: Client, objects: Objects, tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(content)
    key = f"folder of {type(client).__name__}/häßlich (1)+{size}=x.bin"
    client.put(source, BUCKET, key)
    with objects.open(BUCKET, key)[1] as stored:
        assert stored.read() == content
    client.get(BUCKET, key, copy)
    assert copy.read_bytes() == content
    client.delete(BUCKET, key)
    assert objects.head(BUCKET, key) is None


@pytest.mark.slow
def test_a_listing_has_every_key_once(client: Client) -> None:
    assert sorted(client.keys(BUCKET, "many/")) == sorted(f"many/{n % 7}/{n:05d}" for n in range(MANY))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("size", [1000, 100, 2])
def test_pages_of_boto3_come_to_an_end(boto3: Any, version: str, size: int) -> None:
    prefix = "many/" if size > 2 else "many/3/0000"
    pages = list(
        boto3.get_paginator(version).paginate(Bucket=BUCKET, Prefix=prefix, PaginationConfig={"PageSize": size})
    )
    keys = [entry["Key"] for page in pages for entry in page["Contents"]]
    assert keys == sorted(f"many/{n % 7}/{n:05d}" for n in range(MANY) if f"many/{n % 7}/{n:05d}".startswith(prefix))
    assert len(pages) == -(-len(keys) // size)


def test_folders_are_pages_of_prefixes(boto3: Any) -> None:
    pages = boto3.get_paginator("list_objects_v2").paginate(
        Bucket=BUCKET, Prefix="many/", Delimiter="/", PaginationConfig={"PageSize": 3}
    )
    answers = list(pages)
    folders = [each["Prefix"] for page in answers for each in page.get("CommonPrefixes", [])]
    assert folders == [f"many/{number}/" for number in range(7)]
    assert [page["KeyCount"] for page in answers] == [3, 3, 1]


def test_a_listing_starts_after_a_key_and_names_the_owner(boto3: Any) -> None:
    answer = boto3.list_objects_v2(
        Bucket=BUCKET, Prefix="many/6/", StartAfter="many/6/02337", MaxKeys=5, FetchOwner=True
    )
    assert [(entry["Key"], entry["Owner"]["DisplayName"]) for entry in answer["Contents"]] == [
        ("many/6/02344", "aisbench")
    ]
    assert not answer["IsTruncated"]


def test_a_strange_token_is_refused(boto3: Any) -> None:
    assert _code(lambda: boto3.list_objects_v2(Bucket=BUCKET, ContinuationToken="ä")) == (400, "InvalidArgument")


ABSENT = {
    "get_bucket_tagging": "NoSuchTagSet",
    "get_bucket_policy": "NoSuchBucketPolicy",
    "get_bucket_cors": "NoSuchCORSConfiguration",
    "get_bucket_lifecycle_configuration": "NoSuchLifecycleConfiguration",
    "get_bucket_website": "NoSuchWebsiteConfiguration",
    "get_bucket_encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "get_bucket_replication": "ReplicationConfigurationNotFoundError",
    "get_public_access_block": "NoSuchPublicAccessBlockConfiguration",
    "get_object_lock_configuration": "ObjectLockConfigurationNotFoundError",
}


@pytest.mark.parametrize("question", ABSENT)
def test_what_nobody_has_set_up_is_not_there(boto3: Any, question: str) -> None:
    assert _code(lambda: getattr(boto3, question)(Bucket=BUCKET)) == (404, ABSENT[question])
    assert _code(lambda: getattr(boto3, question)(Bucket="no-such-bucket")) == (404, "NoSuchBucket")


def test_questions_that_every_bucket_can_answer(boto3: Any) -> None:
    boto3.put_object(Bucket=BUCKET, Key="asked", Body=b"x")
    assert boto3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == "local-1"
    assert "Status" not in boto3.get_bucket_versioning(Bucket=BUCKET)
    assert boto3.get_object_tagging(Bucket=BUCKET, Key="asked")["TagSet"] == []
    assert "LoggingEnabled" not in boto3.get_bucket_logging(Bucket=BUCKET)
    assert boto3.get_bucket_request_payment(Bucket=BUCKET)["Payer"] == "BucketOwner"
    acls = [boto3.get_bucket_acl(Bucket=BUCKET), boto3.get_object_acl(Bucket=BUCKET, Key="asked")]
    for acl in acls:
        [grant] = acl["Grants"]
        assert (grant["Grantee"]["ID"], grant["Permission"]) == (acl["Owner"]["ID"], "FULL_CONTROL")
    [version] = boto3.list_object_versions(Bucket=BUCKET, Prefix="asked")["Versions"]
    assert (version["VersionId"], version["IsLatest"]) == ("null", True)
    assert _code(lambda: boto3.get_object_tagging(Bucket=BUCKET, Key="nobody")) == (404, "NoSuchKey")


REFUSED: dict[str, Callable[[Any], Any]] = {
    "versioning": lambda c: c.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"}),
    "tagging": lambda c: c.put_object_tagging(Bucket=BUCKET, Key="asked", Tagging={"TagSet": []}),
    "policy": lambda c: c.put_bucket_policy(Bucket=BUCKET, Policy="{}"),
    "accelerate": lambda c: c.get_bucket_accelerate_configuration(Bucket=BUCKET),
    "analytics": lambda c: c.list_bucket_analytics_configurations(Bucket=BUCKET),
    "attributes": lambda c: c.get_object_attributes(Bucket=BUCKET, Key="asked", ObjectAttributes=["ETag"]),
    "x-amz-acl": lambda c: c.put_object(Bucket=BUCKET, Key="public", Body=b"x", ACL="public-read"),
    "x-amz-tagging": lambda c: c.put_object(Bucket=BUCKET, Key="tagged", Body=b"x", Tagging="a=b"),
    "x-amz-server-side-encryption": lambda c: c.put_object(
        Bucket=BUCKET, Key="secret", Body=b"x", ServerSideEncryption="aws:kms"
    ),
    "partNumber": lambda c: c.get_object(Bucket=BUCKET, Key="asked", PartNumber=1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_by_its_name(boto3: Any, objects: Objects, name: str) -> None:
    boto3.put_object(Bucket=BUCKET, Key="asked", Body=b"x")
    errors = pytest.importorskip("botocore.exceptions")
    with pytest.raises(errors.ClientError, match=f"NotImplemented.*{name}"):
        REFUSED[name](boto3)
    assert not any(objects.head(BUCKET, key) for key in ("public", "tagged", "secret"))


def test_conditional_puts_are_obeyed(boto3: Any, access: Access) -> None:
    boto3.delete_object(Bucket=BUCKET, Key="once")
    etag = boto3.put_object(Bucket=BUCKET, Key="once", Body=b"1", IfNoneMatch="*")["ETag"]
    assert _code(lambda: boto3.put_object(Bucket=BUCKET, Key="once", Body=b"2", IfNoneMatch="*"))[0] == 412
    assert _code(lambda: boto3.put_object(Bucket=BUCKET, Key="once", Body=b"2", IfMatch='"0"'))[0] == 412
    boto3.put_object(Bucket=BUCKET, Key="once", Body=b"3", IfMatch=etag)
    assert boto3.get_object(Bucket=BUCKET, Key="once")["Body"].read() == b"3"
    obstore = pytest.importorskip("obstore")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(Obstore(access).store(BUCKET), "once", b"4", mode="create")


def test_headers_and_metadata_come_back(boto3: Any) -> None:
    kept = {"CacheControl": "no-cache", "ContentEncoding": "gzip", "ContentDisposition": "inline"}
    boto3.put_object(Bucket=BUCKET, Key="kept", Body=b"x", Metadata={"one": "1  2"}, ContentType="text/x", **kept)
    answer = boto3.head_object(Bucket=BUCKET, Key="kept")
    assert {name: answer[name] for name in kept} == kept
    assert (answer["Metadata"], answer["ContentType"]) == ({"one": "1  2"}, "text/x")
    boto3.copy_object(Bucket=BUCKET, Key="copied", CopySource={"Bucket": BUCKET, "Key": "kept"})
    assert boto3.head_object(Bucket=BUCKET, Key="copied")["ContentEncoding"] == "gzip"


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_of_boto3_are_confirmed(boto3: Any, algorithm: str) -> None:
    answer = boto3.put_object(Bucket=BUCKET, Key="summed", Body=b"123456789", ChecksumAlgorithm=algorithm)
    digest = {
        "CRC32": zlib.crc32(b"123456789").to_bytes(4, "big"),
        "SHA1": hashlib.sha1(b"123456789").digest(),
        "SHA256": hashlib.sha256(b"123456789").digest(),
    }[algorithm]
    assert answer[f"Checksum{algorithm}"] == base64.b64encode(digest).decode()


@pytest.mark.slow
def test_a_wrong_checksum_stores_nothing(boto3: Any, objects: Objects) -> None:
    wrong = base64.b64encode(b"1234").decode()
    assert _code(lambda: boto3.put_object(Bucket=BUCKET, Key="wrong", Body=b"x", ChecksumCRC32=wrong)) == (
        400,
        "BadDigest",
    )
    assert objects.head(BUCKET, "wrong") is None


def test_presigned_links_of_boto3_open(boto3: Any) -> None:
    boto3.put_object(Bucket=BUCKET, Key="linked", Body=b"content")
    url = boto3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "linked"})
    assert _answer("GET", url) == (200, b"content")


@pytest.mark.parametrize("signature", ["s3", "s3v4"])
def test_a_presigned_link_to_put_takes_what_it_signs(access: Access, objects: Objects, signature: str) -> None:
    config = pytest.importorskip("botocore.config").Config(signature_version=signature)
    wish = {"Bucket": BUCKET, "Key": "by-link", "ContentType": "text/plain"}
    url = boto3_client(access, config=config).generate_presigned_url("put_object", Params=wish)
    objects.delete(BUCKET, "by-link")
    kind = {"Content-Type": "text/plain"}
    assert _answer("PUT", url, b"text", {"Content-Type": "text/html"})[0] == 403
    assert _answer("PUT", url, b"text", {**kind, "x-amz-meta-more": "than was signed"})[0] == 403
    assert objects.head(BUCKET, "by-link") is None
    assert _answer("PUT", url, b"text", kind) == (200, b"")
    with objects.open(BUCKET, "by-link")[1] as stored:
        assert stored.read() == b"text"


def test_the_form_of_a_browser_is_refused_by_its_name(boto3: Any) -> None:
    url = boto3.generate_presigned_post(BUCKET, "by-form")["url"]
    status, text = _answer("POST", url, b"--x--", {"Content-Type": "multipart/form-data; boundary=x"})
    assert (status, b"PostObject" in text) == (501, True)


@pytest.mark.parametrize("algorithm", ["", "CRC32", "SHA256"])
def test_boto3_sends_trailers_where_there_is_tls(
    access: Access, objects: Objects, tmp_path: Path, algorithm: str
) -> None:
    """In its own chunks, with the checksum behind the last: what it does by default at https."""
    authority = Authority(tmp_path)
    certificate = authority.certificate("address", "IP:127.0.0.1")
    with Front(certificate, {"": urlsplit(access.endpoint).port or 0}).serving() as front:
        secure = Access(
            f"https://127.0.0.1:{front.port}", access.access_key, access.secret_key, access.region, tmp_path
        )
        client = boto3_client(secure, verify=str(authority.pem))
        sent: list[Any] = []
        client.meta.events.register("before-send.s3.PutObject", lambda request, **_: sent.append(request.headers))
        content = random.Random(1).randbytes(3_000_000)
        wish = {"ChecksumAlgorithm": algorithm} if algorithm else {}
        client.put_object(Bucket=BUCKET, Key="by-trailer", Body=content, **wish)
        client.close()
    assert sent[0]["X-Amz-Content-SHA256"].decode() == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    with objects.open(BUCKET, "by-trailer")[1] as stored:
        assert stored.read() == content


def _answer(method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)
    connection.request(method, f"{address.path}?{address.query}", body, headers or {})
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result


def _code(act: Callable[[], Any]) -> tuple[int, str]:
    errors = pytest.importorskip("botocore.exceptions")
    with pytest.raises(errors.ClientError) as refused:
        act()
    answer = refused.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]
