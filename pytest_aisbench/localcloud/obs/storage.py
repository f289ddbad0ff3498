"""Buckets and objects in a folder: contents as files (`Blobs`), everything else in an SQLite `Index` beside them.

Begin with `Objects`. Keys never become file names, so any key is safe. A restarted cloud finds what it had; only a
crash of the machine may lose the last writes, since nothing is fsynced.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import threading
import time
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from pytest_aisbench.localcloud.messages import BLOCK

if TYPE_CHECKING:
    import io
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


CONTENT_TYPE = "binary/octet-stream"
MIN_PART = 100 * 1024
MAX_PARTS = 10_000
# Keys are BLOBs because BLOBs sort as bytes, the order in which OBS lists keys.
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
COLUMNS = "key, blob, size, etag, content_type, metadata, modified"


class ObjectError(Exception):
    """OBS refuses a call, with this code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Objects:
    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.blobs = Blobs(root / "blobs")
        self.index = Index(root / "index.db")
        with self.index.reading() as db:
            recorded = db.execute("SELECT blob FROM objects UNION ALL SELECT blob FROM parts")
            self.blobs.sweep({name for (name,) in recorded})

    def close(self) -> None:
        self.index.close()

    def create_bucket(self, name: str, location: str = "") -> None:
        """Create a bucket; one that exists stays as it is."""
        with self.index.transaction() as db:
            db.execute("INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)", (name, time.time(), location))

    def bucket(self, name: str) -> Bucket:
        with self.index.reading() as db:
            row = db.execute("SELECT name, created, location FROM buckets WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise ObjectError("NoSuchBucket", "The specified bucket does not exist.")
        return Bucket(*row)

    def has_bucket(self, name: str) -> bool:
        with contextlib.suppress(ObjectError):
            return bool(self.bucket(name))
        return False

    def buckets(self) -> list[Bucket]:
        with self.index.reading() as db:
            return [Bucket(*row) for row in db.execute("SELECT name, created, location FROM buckets")]

    def delete_bucket(self, name: str) -> None:
        self.bucket(name)
        with self.index.transaction() as db:
            for table in ("objects", "uploads"):
                query = f"SELECT 1 FROM {table} WHERE bucket = ? LIMIT 1"  # noqa: S608 (our own table names)
                if db.execute(query, (name,)).fetchone():
                    raise ObjectError("BucketNotEmpty", "The bucket you tried to delete is not empty.")
            db.execute("DELETE FROM buckets WHERE name = ?", (name,))

    def put(
        self,
        bucket: str,
        key: str,
        data: bytes | Readable,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        md5: bytes | None = None,
    ) -> Meta:
        """Store the object, or replace it as a whole. `md5` is the digest that the data must have."""
        self.bucket(bucket)  # raises before gigabytes are written for nothing
        blob = self.blobs.write(data)
        try:
            check_digest(blob.md5, md5)
            return self.record(bucket, key, blob, etag=blob.md5.hex(), metadata=metadata, content_type=content_type)
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
    ) -> Meta:
        """Make a blob the content of a key, and remove the blob that it had."""
        meta = Meta(key, blob.size, etag, content_type or CONTENT_TYPE, dict(metadata or {}), time.time(), blob.name)
        where = (bucket, key.encode())
        with self.index.transaction() as db:
            self.bucket(bucket)
            old = db.execute("SELECT blob FROM objects WHERE bucket = ? AND key = ?", where).fetchall()
            db.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*where, blob.name, blob.size, etag, meta.content_type, json.dumps(meta.metadata), meta.modified),
            )
        self.blobs.remove(name for (name,) in old)
        return meta

    def open(self, bucket: str, key: str) -> tuple[Meta, BinaryIO]:
        """Open the content, which stays readable when the object is replaced or deleted."""
        with self.index.reading():  # holds the lock, so that the object is not replaced before it is opened
            meta = self.head(bucket, key)
            if meta is None:
                raise ObjectError("NoSuchKey", "The specified key does not exist.")
            return meta, self.blobs.open(meta.blob)

    def head(self, bucket: str, key: str) -> Meta | None:
        query = f"SELECT {COLUMNS} FROM objects WHERE bucket = ? AND key = ?"  # noqa: S608
        with self.index.reading() as db:
            row = db.execute(query, (bucket, key.encode())).fetchone()
            if row is None:
                self.bucket(bucket)
        return meta_of(row) if row else None

    def delete(self, bucket: str, key: str) -> None:
        """Delete the object; do nothing where it does not exist."""
        where = (bucket, key.encode())
        with self.index.transaction() as db:
            self.bucket(bucket)
            old = db.execute("SELECT blob FROM objects WHERE bucket = ? AND key = ?", where).fetchall()
            db.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", where)
        self.blobs.remove(name for (name,) in old)

    def list(self, bucket: str, prefix: str = "", marker: str = "", delimiter: str = "", limit: int = 1000) -> Listing:
        """List the keys after the marker in the order of their UTF-8 bytes. Keys that share what lies between the
        prefix and the first delimiter after it make one common prefix."""
        self.bucket(bucket)
        below, cut = prefix.encode(), delimiter.encode()
        start = max(below, marker.encode() + b"\0" if marker else b"")
        query = f"SELECT {COLUMNS} FROM objects WHERE bucket = ? AND key >= ? ORDER BY key"  # noqa: S608
        entries: list[Meta] = []
        commons: list[str] = []
        last = ""
        with self.index.reading() as db:
            rows = db.execute(query, (bucket, start))
            while (row := rows.fetchone()) and row[0].startswith(below):
                end = row[0].find(cut, len(below)) if cut else -1
                common = row[0][: end + len(cut)].decode() if end >= 0 else ""
                if not common or common != marker:
                    if len(entries) + len(commons) == limit:
                        return Listing(entries, commons, last, truncated=limit > 0)
                    if common:
                        commons.append(common)
                    else:
                        entries.append(meta_of(row))
                    last = common or entries[-1].key
                if common:
                    rows = db.execute(query, (bucket, _successor(common.encode())))
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


class Bucket(NamedTuple):
    name: str
    created: float
    location: str


@dataclass(frozen=True)
class Meta:
    key: str
    size: int
    etag: str
    """The MD5 in hex, without quotes; of a multipart object the MD5 of its parts' MD5s, and their number."""
    content_type: str
    metadata: Mapping[str, str]
    modified: float
    blob: str = field(repr=False)


def meta_of(row: Any) -> Meta:
    key, blob, size, etag, content_type, metadata, modified = row
    return Meta(key.decode(), size, etag, content_type, json.loads(metadata), modified, blob)


@dataclass(frozen=True)
class Listing:
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
        self._objects.bucket(bucket)
        name = secrets.token_hex(16).upper()
        row = (name, bucket, key.encode(), content_type, json.dumps(metadata or {}), time.time())
        with self._index.transaction() as db:
            db.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?)", row)
        return name

    def part(
        self, upload: str, bucket: str, key: str, *, number: int, data: bytes | Readable, md5: bytes | None = None
    ) -> Part:
        """Store one part; a part that is sent again replaces the first."""
        if not 1 <= number <= MAX_PARTS:
            raise ObjectError("InvalidArgument", f"partNumber must be between 1 and {MAX_PARTS}")
        self._find(upload, bucket, key)
        blob = self._blobs.write(data)
        try:
            check_digest(blob.md5, md5)
            part = Part(number, blob.md5.hex(), blob.size, time.time(), blob.name)
            with self._index.transaction() as db:
                self._find(upload, bucket, key)  # the upload may have ended while the data came in
                where = (upload, number)
                old = db.execute("SELECT blob FROM parts WHERE upload = ? AND number = ?", where).fetchall()
                row = (*where, part.blob, part.size, part.etag, part.modified)
                db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)", row)
        except BaseException:
            self._blobs.remove([blob.name])
            raise
        self._blobs.remove(name for (name,) in old)
        return part

    def parts(self, upload: str, bucket: str, key: str) -> list[Part]:
        self._find(upload, bucket, key)
        query = "SELECT number, etag, size, modified, blob FROM parts WHERE upload = ? ORDER BY number"
        with self._index.reading() as db:
            return [Part(*row) for row in db.execute(query, (upload,))]

    def uploads(self, bucket: str, prefix: str = "") -> list[Upload]:
        """The uploads that are neither completed nor aborted, by key, then by id."""
        self._objects.bucket(bucket)
        query = "SELECT id, key, started FROM uploads WHERE bucket = ? ORDER BY key, id"
        with self._index.reading() as db:
            uploads = [Upload(name, key.decode(), started) for name, key, started in db.execute(query, (bucket,))]
        return [upload for upload in uploads if upload.key.startswith(prefix)]

    def complete(self, upload: str, bucket: str, key: str, named: Sequence[tuple[int, str]]) -> Meta:
        """Make one object of the named parts (number and ETag); drop the other parts."""
        metadata, content_type = self._find(upload, bucket, key)
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
                bucket, key, blob, etag=etag, metadata=json.loads(metadata), content_type=content_type
            )
        except BaseException:
            self._blobs.remove([blob.name])
            raise
        self.abort(upload, bucket, key)
        return meta

    def abort(self, upload: str, bucket: str, key: str) -> None:
        with self._index.transaction() as db:
            self._find(upload, bucket, key)
            parts = db.execute("SELECT blob FROM parts WHERE upload = ?", (upload,)).fetchall()
            db.execute("DELETE FROM parts WHERE upload = ?", (upload,))
            db.execute("DELETE FROM uploads WHERE id = ?", (upload,))
        self._blobs.remove(name for (name,) in parts)

    def _find(self, upload: str, bucket: str, key: str) -> tuple[str, str | None]:
        self._objects.bucket(bucket)
        query = "SELECT metadata, content_type FROM uploads WHERE id = ? AND bucket = ? AND key = ?"
        with self._index.reading() as db:
            row = db.execute(query, (upload, bucket, key.encode())).fetchone()
        if row is None:
            raise ObjectError(
                "NoSuchUpload", "The specified multipart upload does not exist. It may have been aborted or completed."
            )
        return row[0], row[1]


class Upload(NamedTuple):
    id: str
    key: str
    started: float


class Part(NamedTuple):
    number: int
    etag: str
    size: int
    modified: float
    blob: str


class Blobs:
    def __init__(self, root: Path) -> None:
        self._root = str(root)
        for fan in range(256):  # ten thousand files in one folder are slow to list and to delete
            os.makedirs(f"{root}/{fan:02x}", exist_ok=True)  # noqa: PTH103 (Path costs a third of the start)

    def write(self, data: bytes | Readable) -> Blob:
        """Write a new blob; an error (the disk is full, the client leaves) leaves no file behind."""
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
        return open(self._path(name), "rb")  # noqa: PTH123

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            os.unlink(self._path(name))  # noqa: PTH108

    def sweep(self, recorded: Collection[str]) -> None:
        """Remove the blobs that a killed process wrote but did not record."""
        for fan in range(256):
            self.remove(name for name in os.listdir(f"{self._root}/{fan:02x}") if name not in recorded)  # noqa: PTH208

    @contextlib.contextmanager
    def _new(self) -> Iterator[tuple[str, io.FileIO]]:
        name = secrets.token_hex(16)
        with open(self._path(name), "xb", buffering=0) as file:  # noqa: PTH123
            try:
                yield name, file
            except BaseException:
                os.unlink(self._path(name))  # noqa: PTH108
                raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"


@dataclass(frozen=True)
class Blob:
    name: str
    size: int
    md5: bytes


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


class Index:
    """The SQLite file. One connection under one lock: a statement takes some twenty microseconds."""

    def __init__(self, path: Path) -> None:
        # weakref.finalize rather than __del__: it also closes where the owner forgot to.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.close = weakref.finalize(self, connection.close)
        self._connection = connection
        self._lock = threading.RLock()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(_SCHEMA)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._connection
