"""What is known of buckets, objects and uploads: in memory (`Index`), and in SQLite where it is kept (`Record`)."""

from __future__ import annotations

import bisect
import errno
import json
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping
    from pathlib import Path


_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, created REAL, location TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT, key BLOB, blob TEXT, size INTEGER, etag TEXT, content_type TEXT, metadata TEXT, modified REAL,
    PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, bucket TEXT, key BLOB, content_type TEXT, metadata TEXT, started REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    upload TEXT, number INTEGER, blob TEXT, size INTEGER, etag TEXT, modified REAL,
    PRIMARY KEY (upload, number)) WITHOUT ROWID;
"""


class ObjectError(Exception):
    """OBS refuses a call, with this code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Bucket:
    __slots__ = ("created", "keys", "location", "name", "objects")

    def __init__(self, name: str, created: float, location: str) -> None:
        self.name = name
        self.created = created
        self.location = location
        self.objects: dict[bytes, Meta] = {}
        self.keys: list[bytes] = []
        """Of the objects, sorted; as bytes, in whose order OBS lists keys."""


class Meta(NamedTuple):
    key: str
    size: int
    etag: str
    """The MD5 in hex, without quotes; of a multipart object the MD5 of its parts' MD5s, and their number."""
    content_type: str
    metadata: Mapping[str, str]
    modified: float
    blob: str


class Part(NamedTuple):
    number: int
    etag: str
    size: int
    modified: float
    blob: str


class Upload(NamedTuple):
    id: str
    bucket: str
    key: str
    content_type: str | None
    metadata: Mapping[str, str]
    started: float
    parts: dict[int, Part]


class Index:
    """Buckets, objects and uploads, in memory. Every change is written to the record first, where there is one: what
    cannot be written does not happen."""

    def __init__(self, record: Record | None) -> None:
        self.record = record
        self.lock = threading.RLock()
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, Upload] = {}
        if record:
            record.load(self.buckets, self.uploads)

    def close(self) -> None:
        if self.record:
            self.record.close()

    def blobs(self) -> set[str]:
        names = {meta.blob for bucket in self.buckets.values() for meta in bucket.objects.values()}
        return names | {part.blob for upload in self.uploads.values() for part in upload.parts.values()}

    def bucket(self, name: str) -> Bucket:
        bucket = self.buckets.get(name)
        if bucket is None:
            raise ObjectError("NoSuchBucket", "The specified bucket does not exist.")
        return bucket

    def add_bucket(self, name: str, location: str) -> None:
        with self.lock:
            if name not in self.buckets:
                bucket = Bucket(name, time.time(), location)
                if self.record:
                    self.record.write("INSERT INTO buckets VALUES (?, ?, ?)", name, bucket.created, location)
                self.buckets[name] = bucket

    def delete_bucket(self, name: str) -> None:
        with self.lock:
            if self.bucket(name).objects or any(upload.bucket == name for upload in self.uploads.values()):
                raise ObjectError("BucketNotEmpty", "The bucket you tried to delete is not empty.")
            if self.record:
                self.record.write("DELETE FROM buckets WHERE name = ?", name)
            del self.buckets[name]

    def set_object(self, bucket: str, meta: Meta) -> Meta | None:
        """Return what the key had before."""
        key = meta.key.encode()
        with self.lock:
            place = self.bucket(bucket)
            if self.record:
                self.record.write(
                    "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    *(bucket, key, meta.blob, meta.size, meta.etag, meta.content_type),
                    *(json.dumps(dict(meta.metadata)), meta.modified),
                )
            old = place.objects.get(key)
            place.objects[key] = meta
            if old is None:
                bisect.insort(place.keys, key)
            return old

    def delete_object(self, bucket: str, key: str) -> Meta | None:
        """Return what the key had."""
        name = key.encode()
        with self.lock:
            place = self.bucket(bucket)
            if name not in place.objects:
                return None
            if self.record:
                self.record.write("DELETE FROM objects WHERE bucket = ? AND key = ?", bucket, name)
            del place.keys[bisect.bisect_left(place.keys, name)]
            return place.objects.pop(name)

    def upload(self, upload: str, bucket: str, key: str) -> Upload:
        self.bucket(bucket)
        begun = self.uploads.get(upload)
        if begun is None or (begun.bucket, begun.key) != (bucket, key):
            raise ObjectError(
                "NoSuchUpload", "The specified multipart upload does not exist. It may have been aborted or completed."
            )
        return begun

    def add_upload(self, upload: Upload) -> None:
        with self.lock:
            self.bucket(upload.bucket)
            if self.record:
                self.record.write(
                    "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?)",
                    *(upload.id, upload.bucket, upload.key.encode(), upload.content_type),
                    *(json.dumps(dict(upload.metadata)), upload.started),
                )
            self.uploads[upload.id] = upload

    def delete_upload(self, upload: str, bucket: str, key: str) -> Iterable[Part]:
        """Return its parts."""
        with self.lock:
            parts = self.upload(upload, bucket, key).parts.values()
            if self.record:
                self.record.write("DELETE FROM parts WHERE upload = ?", upload)  # first: none is left without upload
                self.record.write("DELETE FROM uploads WHERE id = ?", upload)
            del self.uploads[upload]
            return parts

    def set_part(self, upload: str, bucket: str, key: str, part: Part) -> Part | None:
        """Return the part that had this number before."""
        with self.lock:
            parts = self.upload(upload, bucket, key).parts
            if self.record:
                row = (upload, part.number, part.blob, part.size, part.etag, part.modified)
                self.record.write("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)", *row)
            old = parts.get(part.number)
            parts[part.number] = part
            return old


class Record:
    """The SQLite file of an index that is kept. The lock of the index also guards this."""

    def __init__(self, path: Path) -> None:
        import sqlite3  # a cloud that keeps nothing does without

        # weakref.finalize rather than __del__: it also closes where the owner forgot to.
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.close = weakref.finalize(self, self.connection.close)
        self._full: type[sqlite3.Error] = sqlite3.OperationalError
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.executescript(_SCHEMA)

    def write(self, statement: str, *values: Any) -> None:
        try:
            self.connection.execute(statement, values)
        except self._full as error:
            if "full" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise

    def load(self, buckets: dict[str, Bucket], uploads: dict[str, Upload]) -> None:
        read = self.connection.execute
        for row in read("SELECT name, created, location FROM buckets"):
            buckets[row[0]] = Bucket(*row)
        columns = "bucket, key, size, etag, content_type, metadata, modified, blob"
        for bucket, key, size, etag, kind, metadata, modified, blob in read(
            f"SELECT {columns} FROM objects ORDER BY key"  # noqa: S608 (our own columns)
        ):
            meta = Meta(key.decode(), size, etag, kind, json.loads(metadata), modified, blob)
            buckets[bucket].objects[key] = meta
            buckets[bucket].keys.append(key)
        columns = "id, bucket, key, content_type, metadata, started"
        for name, bucket, key, kind, metadata, started in read(f"SELECT {columns} FROM uploads"):  # noqa: S608
            uploads[name] = Upload(name, bucket, key.decode(), kind, json.loads(metadata), started, {})
        for upload, *fields in read("SELECT upload, number, etag, size, modified, blob FROM parts"):
            uploads[upload].parts[fields[0]] = Part(*fields)
