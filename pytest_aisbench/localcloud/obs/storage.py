"""Buckets and objects: an `index` of them, their contents as files or in memory (`Blobs`).

Begin with `Objects`. Keys never become file names, so any key is safe. Where the folder is kept, a restarted cloud
finds what it had; only a crash of the machine may lose the last writes, since nothing is fsynced.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import io
import os
import secrets
import shutil
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from pytest_aisbench.localcloud.messages import BLOCK, new_id
from pytest_aisbench.localcloud.obs.index import Bucket, Index, Meta, ObjectError, Part, Record, Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


CONTENT_TYPE = "binary/octet-stream"
PRECONDITION = "At least one of the preconditions you specified did not hold."
MIN_PART = 100 * 1024
MAX_PARTS = 10_000
MEMORY_EACH = 64 * 1024  # bytes of a content that is kept in memory
MEMORY = 1024 * MEMORY_EACH  # for the small contents of a cloud that keeps nothing; the others are files


class Objects:
    def __init__(self, root: Path, *, kept: bool = True) -> None:
        """`kept`: a later cloud finds everything again. Otherwise nothing is written down, and small contents stay in
        memory, which costs a third."""
        root.mkdir(parents=True, exist_ok=True)
        self.kept = kept
        self.blobs = Blobs(root / "blobs", memory=0 if kept else MEMORY)
        self.index = Index(Record(root / "index.db") if kept else None)
        if kept:
            self.blobs.sweep(self.index.blobs())

    def close(self) -> None:
        self.index.close()

    def create_bucket(self, name: str, location: str = "") -> None:
        """Create a bucket; one that exists stays as it is."""
        self.index.add_bucket(name, location)

    def bucket(self, name: str) -> Bucket:
        return self.index.bucket(name)

    def has_bucket(self, name: str) -> bool:
        return name in self.index.buckets

    def buckets(self) -> list[Bucket]:
        return sorted(self.index.buckets.values(), key=lambda bucket: bucket.name)

    def delete_bucket(self, name: str) -> None:
        self.index.delete_bucket(name)

    def put(
        self,
        bucket: str,
        key: str,
        data: bytes | Readable,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        md5: bytes | None = None,
        unless: Callable[[Meta | None], bool] | None = None,
    ) -> Meta:
        """Store the object, or replace it as a whole. `md5` is the digest that the data must have; `unless` says of
        what the key has whether that forbids it."""
        self.bucket(bucket)  # raises before gigabytes are written for nothing
        blob = self.blobs.write(data)
        try:
            check_digest(blob.md5, md5)
            etag = blob.md5.hex()
            return self.record(
                bucket, key, blob, etag=etag, metadata=metadata, content_type=content_type, unless=unless
            )
        except BaseException:
            self.blobs.remove([blob.name])
            raise

    def record(
        self,
        bucket: str,
        key: str,
        blob: Blob,
        *,
        etag: str,
        metadata: Mapping[str, str] | None,
        content_type: str | None,
        unless: Callable[[Meta | None], bool] | None = None,
    ) -> Meta:
        """Make a blob the content of a key, and remove the blob that it had."""
        meta = Meta(key, blob.size, etag, content_type or CONTENT_TYPE, metadata or {}, time.time(), blob.name)
        if unless is None:
            old = self.index.set_object(bucket, meta)
        else:
            with self.index.lock:
                if unless(self.head(bucket, key)):
                    raise ObjectError("PreconditionFailed", PRECONDITION)
                old = self.index.set_object(bucket, meta)
        if old:
            self.blobs.remove([old.blob])
        return meta

    def open(self, bucket: str, key: str) -> tuple[Meta, BinaryIO]:
        """Open the content, which stays readable when the object is replaced or deleted."""
        with self.index.lock:  # so that the object is not replaced before it is opened
            meta = self.head(bucket, key)
            if meta is None:
                raise ObjectError("NoSuchKey", "The specified key does not exist.")
            return meta, self.blobs.open(meta.blob)

    def head(self, bucket: str, key: str) -> Meta | None:
        return self.bucket(bucket).objects.get(key.encode())

    def delete(self, bucket: str, key: str) -> None:
        """Delete the object; do nothing where it does not exist."""
        old = self.index.delete_object(bucket, key)
        if old:
            self.blobs.remove([old.blob])

    def list(self, bucket: str, prefix: str = "", marker: str = "", delimiter: str = "", limit: int = 1000) -> Listing:
        """List the keys after the marker in the order of their UTF-8 bytes. Keys that share what lies between the
        prefix and the first delimiter after it make one common prefix."""
        below, cut = prefix.encode(), delimiter.encode()
        start = max(below, marker.encode() + b"\0" if marker else b"")
        entries: list[Meta] = []
        commons: list[str] = []
        last = ""
        with self.index.lock:
            listed = self.bucket(bucket)
            keys, place = listed.keys, bisect.bisect_left(listed.keys, start)
            while place < len(keys) and keys[place].startswith(below):
                key = keys[place]
                end = key.find(cut, len(below)) if cut else -1
                common = key[: end + len(cut)].decode() if end >= 0 else ""
                if not common or common != marker:
                    if len(entries) + len(commons) == limit:
                        return Listing(entries, commons, last, truncated=limit > 0)
                    if common:
                        commons.append(common)
                    else:
                        entries.append(listed.objects[key])
                    last = common or entries[-1].key
                place = bisect.bisect_left(keys, _successor(common.encode()), place) if common else place + 1
        return Listing(entries, commons, "", truncated=False)

    def walk(self, bucket: str, prefix: str) -> Iterator[Meta]:
        page = self.list(bucket, prefix)
        yield from page.entries
        while page.truncated:
            page = self.list(bucket, prefix, page.next_marker)
            yield from page.entries

    def download(self, bucket: str, prefix: str, folder: Path) -> int:
        """Write the objects below the prefix into the folder; raise for a key that leads out of it."""
        prefix = _as_folder(prefix)
        count = 0
        created = set()
        for meta in self.walk(bucket, prefix):
            relative = meta.key[len(prefix) :]
            parts = relative.rstrip("/").split("/")
            if any(part in {".", ".."} or "\0" in part for part in parts):
                raise ObjectError("InvalidObjectName", f"{meta.key!r} cannot be a file below {prefix!r}")
            target = folder.joinpath(*parts)
            parent = target if relative.endswith("/") or not relative else target.parent
            if parent not in created:
                parent.mkdir(parents=True, exist_ok=True)
                created.add(parent)
            if parent is not target:
                with self.open(bucket, meta.key)[1] as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1024 * 1024)
                count += 1
        return count

    def put_file(self, path: Path, bucket: str, key: str) -> Meta:
        with path.open("rb", buffering=0) as file:
            return self.put(bucket, key, file)


class Listing(NamedTuple):
    entries: list[Meta]
    common_prefixes: list[str]
    next_marker: str
    truncated: bool


def check_digest(actual: bytes, promised: bytes | None) -> None:
    if promised is not None and promised != actual:
        raise ObjectError("BadDigest", "The Content-MD5 you specified did not match what we received.")


def _successor(prefix: bytes) -> bytes:
    """The first byte string that sorts after all keys with this prefix (UTF-8 has no byte 255)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _as_folder(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""


class Uploads:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._index = objects.index
        self._blobs = objects.blobs

    def begin(
        self, bucket: str, key: str, *, metadata: dict[str, str] | None = None, content_type: str | None = None
    ) -> str:
        upload = Upload(secrets.token_hex(16).upper(), bucket, key, content_type, metadata or {}, time.time(), {})
        self._index.add_upload(upload)
        return upload.id

    def part(
        self, upload: str, bucket: str, key: str, *, number: int, data: bytes | Readable, md5: bytes | None = None
    ) -> Part:
        """Store one part; a part that is sent again replaces the first."""
        if not 1 <= number <= MAX_PARTS:
            raise ObjectError("InvalidArgument", f"partNumber must be between 1 and {MAX_PARTS}")
        self._index.upload(upload, bucket, key)
        blob = self._blobs.write(data)
        try:
            check_digest(blob.md5, md5)
            part = Part(number, blob.md5.hex(), blob.size, time.time(), blob.name)
            old = self._index.set_part(upload, bucket, key, part)  # raises if the upload has ended meanwhile
        except BaseException:
            self._blobs.remove([blob.name])
            raise
        if old:
            self._blobs.remove([old.blob])
        return part

    def parts(self, upload: str, bucket: str, key: str) -> list[Part]:
        with self._index.lock:
            return sorted(self._index.upload(upload, bucket, key).parts.values())

    def uploads(self, bucket: str, prefix: str = "") -> list[Upload]:
        """The uploads that are neither completed nor aborted, by key, then by id."""
        self._objects.bucket(bucket)
        with self._index.lock:
            uploads = [each for each in self._index.uploads.values() if each.bucket == bucket]
        uploads.sort(key=lambda each: (each.key.encode(), each.id))
        return [upload for upload in uploads if upload.key.startswith(prefix)]

    def complete(
        self,
        upload: str,
        bucket: str,
        key: str,
        named: Sequence[tuple[int, str]],
        *,
        unless: Callable[[Meta | None], bool] | None = None,
    ) -> Meta:
        """Make one object of the named parts (number and ETag); drop the other parts."""
        begun = self._index.upload(upload, bucket, key)
        stored = {part.number: part for part in self.parts(upload, bucket, key)}
        if not named or [number for number, _ in named] != sorted({number for number, _ in named}):
            raise ObjectError("InvalidPartOrder", "The list of parts was not in ascending order.")
        if any(number not in stored or stored[number].etag != etag for number, etag in named):
            raise ObjectError("InvalidPart", "One or more of the specified parts could not be found.")
        parts = [stored[number] for number, _ in named]
        if any(part.size < MIN_PART for part in parts[:-1]):
            raise ObjectError("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size.")

        digest = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False)
        with ExitStack() as files:
            # Open all before the first byte is copied: an abort in between then does no harm.
            blob = self._blobs.join([files.enter_context(self._blobs.open(part.blob)) for part in parts])
        try:
            etag = f"{digest.hexdigest()}-{len(parts)}"
            meta = self._objects.record(
                *(bucket, key, blob), etag=etag, metadata=begun.metadata, content_type=begun.content_type, unless=unless
            )
        except BaseException:
            self._blobs.remove([blob.name])
            raise
        self.abort(upload, bucket, key)
        return meta

    def abort(self, upload: str, bucket: str, key: str) -> None:
        parts = self._index.delete_upload(upload, bucket, key)
        self._blobs.remove(part.blob for part in parts)


class Blobs:
    """Contents by name. Up to `memory` bytes of small ones have no file."""

    def __init__(self, root: Path, memory: int = 0) -> None:
        self._root = str(root)
        self._small: dict[str, bytes] = {}
        self._room = memory
        self._lock = threading.Lock()  # of the room

    def write(self, data: bytes | Readable) -> Blob:
        """Write a new blob; an error (the disk is full, the client leaves) leaves no file behind."""
        if isinstance(data, bytes) and len(data) <= MEMORY_EACH and len(data) <= self._room:
            name = new_id()
            with self._lock:
                self._room -= len(data)
            self._small[name] = data
            return Blob(name, len(data), hashlib.md5(data, usedforsecurity=False).digest())
        digest = hashlib.md5(usedforsecurity=False)
        with self._new() as (name, file):
            for block in (data,) if isinstance(data, bytes) else iter(lambda: data.read(BLOCK), b""):
                digest.update(block)
                view = memoryview(block)
                while view:
                    view = view[file.write(view) :]
            return Blob(name, file.tell(), digest.digest())

    def join(self, parts: Iterable[BinaryIO]) -> Blob:
        """Write the parts one after the other. Skips the MD5 of the whole, which is not needed and costs as much as
        the copy."""
        with self._new() as (name, file):
            for part in parts:
                shutil.copyfileobj(part, file, BLOCK)
            return Blob(name, file.tell(), b"")

    def open(self, name: str) -> BinaryIO:
        small = self._small.get(name)
        if small is not None:
            return io.BytesIO(small)
        return open(self._path(name), "rb")  # noqa: PTH123

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            small = self._small.pop(name, None)
            if small is None:
                os.unlink(self._path(name))  # noqa: PTH108
            else:
                with self._lock:
                    self._room += len(small)

    def sweep(self, recorded: Collection[str]) -> None:
        """Remove the blobs that a killed process wrote but did not record."""
        for folder, _, names in os.walk(self._root):
            for name in names:
                if name not in recorded:
                    os.unlink(f"{folder}/{name}")  # noqa: PTH108

    @contextlib.contextmanager
    def _new(self) -> Iterator[tuple[str, io.FileIO]]:
        name = new_id()
        path = self._path(name)
        with self._create(path) as file:
            try:
                yield name, file
            except BaseException:
                os.unlink(path)  # noqa: PTH108
                raise

    def _create(self, path: str) -> io.FileIO:
        try:
            return io.FileIO(path, "xb")
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            return io.FileIO(path, "xb")

    def _path(self, name: str) -> str:
        # Ten thousand files in one folder are slow to list and to delete.
        return f"{self._root}/{name[:2]}/{name}"


class Blob(NamedTuple):
    name: str
    size: int
    md5: bytes


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...
