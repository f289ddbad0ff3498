"""The store behind OBS: any key is safe, replacing is atomic, and a restart forgets nothing."""

from __future__ import annotations

import errno
import hashlib
import io
import threading
from typing import TYPE_CHECKING

import pytest

from pytest_aisbench.localcloud.obs import storage
from pytest_aisbench.localcloud.obs.index import ObjectError
from pytest_aisbench.localcloud.obs.storage import MEMORY_EACH, MIN_PART, Objects, Uploads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    store = Objects(tmp_path / "store")
    store.create_bucket("b")
    yield store
    store.close()


def content(objects: Objects, key: str, bucket: str = "b") -> bytes:
    with objects.open(bucket, key)[1] as file:
        return file.read()


def blobs(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "store" / "blobs").rglob("*") if path.is_file()]


HOSTILE = [
    "../../etc/passwd",
    "/",
    "//x//",
    "a",
    "a/",
    "a/b",
    ".",
    "..",
    "k" * 1024,
    "ключ/键",
    "\x01\n",
    "%2e%2e",
    "C:\\x",
]


def test_any_key_is_its_own_object(objects: Objects) -> None:
    for key in HOSTILE:
        objects.put("b", key, key.encode())

    assert {key: content(objects, key) for key in HOSTILE} == {key: key.encode() for key in HOSTILE}
    assert [meta.key for meta in objects.list("b").entries] == sorted(HOSTILE, key=str.encode)


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    first = Objects(tmp_path / "store")
    first.create_bucket("b", "region-1")
    written = first.put("b", "k", b"data", metadata={"who": "me"}, content_type="text/plain")
    first.close()

    second = Objects(tmp_path / "store")
    assert second.head("b", "k") == written
    assert written.etag == hashlib.md5(b"data").hexdigest()
    assert content(second, "k") == b"data"
    assert [bucket.location for bucket in second.buckets()] == ["region-1"]
    second.close()


def test_what_a_killed_cloud_left_half_written_is_swept(tmp_path: Path) -> None:
    first = Objects(tmp_path / "store")
    first.create_bucket("b")
    first.put("b", "k", b"data")
    first.blobs.write(b"written, never recorded")
    first.close()
    assert len(blobs(tmp_path)) == 2

    second = Objects(tmp_path / "store")
    assert len(blobs(tmp_path)) == 1
    assert content(second, "k") == b"data"
    second.close()


def test_a_reader_is_not_disturbed_by_a_writer(objects: Objects, tmp_path: Path) -> None:
    objects.put("b", "k", b"old")
    _, reader = objects.open("b", "k")
    objects.put("b", "k", b"new")
    with reader:
        assert reader.read() == b"old"
    assert content(objects, "k") == b"new"
    objects.delete("b", "k")
    assert blobs(tmp_path) == []


def test_many_writers_of_one_key_leave_one_whole_object(objects: Objects, tmp_path: Path) -> None:
    versions = [bytes([n]) * 50_000 for n in range(8)]
    failures: list[BaseException] = []

    def write_and_read(data: bytes) -> None:
        try:
            for _ in range(20):
                objects.put("b", "k", io.BytesIO(data))
                assert content(objects, "k") in versions
        except BaseException as error:  # noqa: BLE001 (told below, where the test can fail)
            failures.append(error)

    threads = [threading.Thread(target=write_and_read, args=(data,)) for data in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(blobs(tmp_path)) == 1


class FullDisk(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_could_not_be_stored_leaves_nothing(objects: Objects, tmp_path: Path) -> None:
    objects.put("b", "k", b"old")
    with pytest.raises(OSError, match="No space"):
        objects.put("b", "k", FullDisk())
    with pytest.raises(ObjectError) as refusal:
        objects.put("b", "k", b"new", md5=b"x" * 16)
    assert refusal.value.code == "BadDigest"
    assert content(objects, "k") == b"old"
    assert len(blobs(tmp_path)) == 1


def test_an_index_without_room_is_a_full_disk(objects: Objects, tmp_path: Path) -> None:
    assert objects.index.record
    db = objects.index.record.connection
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for n in range(1000):
            objects.put("b", f"{n}", b"", metadata={"long": "x" * 1000})

    with pytest.raises(OSError, match="No space") as full:
        fill()
    assert full.value.errno == errno.ENOSPC
    assert len(blobs(tmp_path)) == len(objects.list("b").entries)


def test_refusals(objects: Objects) -> None:
    with pytest.raises(ObjectError) as refusal:
        objects.put("other", "k", b"")
    assert refusal.value.code == "NoSuchBucket"
    with pytest.raises(ObjectError) as refusal:
        objects.open("b", "k")
    assert refusal.value.code == "NoSuchKey"
    assert objects.head("b", "k") is None
    objects.put("b", "k", b"")
    with pytest.raises(ObjectError) as refusal:
        objects.delete_bucket("b")
    assert refusal.value.code == "BucketNotEmpty"


KEYS = ["a", "a/1", "a/2", "a/x/3", "b", "b-1", "c/1", "d"]


@pytest.mark.parametrize(
    ("prefix", "delimiter", "expected"),
    [
        ("", "", (KEYS, [])),
        ("", "/", (["a", "b", "b-1", "d"], ["a/", "c/"])),
        ("a/", "/", (["a/1", "a/2"], ["a/x/"])),
        ("a", "", (["a", "a/1", "a/2", "a/x/3"], [])),
        ("b", "/", (["b", "b-1"], [])),
        ("zz", "/", ([], [])),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_pages_add_up(
    objects: Objects, prefix: str, delimiter: str, expected: tuple[list[str], list[str]], limit: int
) -> None:
    for key in KEYS:
        objects.put("b", key, b"")
    seen: list[str] = []
    rolled: list[str] = []
    marker = ""
    for _ in range(len(KEYS) + 1):
        page = objects.list("b", prefix, marker, delimiter, limit)
        assert len(page.entries) + len(page.common_prefixes) <= limit
        seen += [meta.key for meta in page.entries]
        rolled += page.common_prefixes
        marker = page.next_marker
        if not page.truncated:
            break
    assert (seen, rolled) == expected


def test_a_prefix_is_downloaded_as_a_folder(objects: Objects, tmp_path: Path) -> None:
    objects.put("b", "x/y/a.txt", b"a")
    objects.put("b", "x/y/deep/er/b.bin", bytes(3_000_000))
    objects.put("b", "x/yonder", b"not below x/y")
    objects.put("b", "x/y/empty/", b"")

    assert objects.download("b", "x/y", tmp_path / "copy") == 2
    assert (tmp_path / "copy" / "a.txt").read_text() == "a"
    assert (tmp_path / "copy" / "deep" / "er" / "b.bin").stat().st_size == 3_000_000
    assert (tmp_path / "copy" / "empty").is_dir()
    assert not (tmp_path / "yonder").exists()


@pytest.mark.parametrize("key", ["p/../../escaped", "p/..", "p/a/../../../escaped"])
def test_no_key_leaves_the_folder(objects: Objects, tmp_path: Path, key: str) -> None:
    objects.put("b", key, b"x")
    with pytest.raises(ObjectError, match=r"\.\."):
        objects.download("b", "p", tmp_path / "folder" / "below")
    assert not list(tmp_path.rglob("escaped"))


def test_parts_become_one_object(objects: Objects, tmp_path: Path) -> None:
    uploads = Uploads(objects)
    upload = uploads.begin("b", "k", metadata={"who": "me"}, content_type="x/y")
    first = uploads.part(upload, "b", "k", number=1, data=b"1" * MIN_PART)
    uploads.part(upload, "b", "k", number=2, data=b"old")
    second = uploads.part(upload, "b", "k", number=2, data=b"new")
    uploads.part(upload, "b", "k", number=3, data=b"not wanted")
    meta = uploads.complete(upload, "b", "k", [(1, first.etag), (2, second.etag)])

    assert content(objects, "k") == b"1" * MIN_PART + b"new"
    assert meta.etag.endswith("-2")
    assert objects.head("b", "k") == meta
    assert (meta.metadata, meta.content_type) == ({"who": "me"}, "x/y")
    assert len(blobs(tmp_path)) == 1
    assert uploads.uploads("b") == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ([(2, 1), (1, 0)], "InvalidPartOrder"),
        ([], "InvalidPartOrder"),
        ([(1, 0), (9, 0)], "InvalidPart"),
        ([(1, 1)], "InvalidPart"),
        ([(1, 0), (2, 1)], "EntityTooSmall"),
    ],
)
def test_parts_that_do_not_fit(objects: Objects, wanted: list[tuple[int, int]], code: str) -> None:
    uploads = Uploads(objects)
    upload = uploads.begin("b", "k")
    etags = [uploads.part(upload, "b", "k", number=n, data=f"{n}".encode()).etag for n in (1, 2)]
    with pytest.raises(ObjectError) as refusal:
        uploads.complete(upload, "b", "k", [(number, etags[which]) for number, which in wanted])
    assert refusal.value.code == code
    assert objects.head("b", "k") is None
    uploads.abort(upload, "b", "k")
    with pytest.raises(ObjectError, match="aborted or completed"):
        uploads.part(upload, "b", "k", number=1, data=b"late")


def test_a_cloud_that_keeps_nothing_writes_nothing_small(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "store", kept=False)
    objects.create_bucket("b")
    objects.put("b", "small", b"data")
    assert content(objects, "small") == b"data"
    objects.put("b", "large", bytes(MEMORY_EACH + 1))
    assert len(content(objects, "large")) == MEMORY_EACH + 1
    assert [path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file()] == [MEMORY_EACH + 1]
    objects.delete("b", "large")
    assert blobs(tmp_path) == []


def test_what_does_not_fit_into_memory_becomes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MEMORY", 10_000)
    objects = Objects(tmp_path / "store", kept=False)
    objects.create_bucket("b")
    for n in range(4):
        objects.put("b", f"{n}", bytes([n]) * 4000)
    assert [content(objects, f"{n}")[:1] for n in range(4)] == [bytes([n]) for n in range(4)]
    assert len(blobs(tmp_path)) == 2
    for n in range(4):
        objects.put("b", f"{n}", b"")
    objects.put("b", "after", bytes(8000))
    assert blobs(tmp_path) == []


def test_uploads_survive_a_restart(tmp_path: Path) -> None:
    first = Objects(tmp_path / "store")
    first.create_bucket("b")
    upload = Uploads(first).begin("b", "k", metadata={"who": "me"})
    part = Uploads(first).part(upload, "b", "k", number=1, data=b"data")
    gone = Uploads(first).begin("b", "gone")
    Uploads(first).part(gone, "b", "gone", number=1, data=b"gone")
    Uploads(first).abort(gone, "b", "gone")
    first.close()

    second = Objects(tmp_path / "store")
    assert [each.id for each in Uploads(second).uploads("b")] == [upload]
    meta = Uploads(second).complete(upload, "b", "k", [(1, part.etag)])
    assert (content(second, "k"), meta.metadata) == (b"data", {"who": "me"})
    second.close()
    third = Objects(tmp_path / "store")
    assert (content(third, "k"), Uploads(third).uploads("b")) == (b"data", [])
    assert len(blobs(tmp_path)) == 1
    third.close()
