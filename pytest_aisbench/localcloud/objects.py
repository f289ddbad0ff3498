"""Buckets and objects on a directory: contents as files, everything else in an SQLite index beside them.

Keys never become file names, so any key is safe; a restarted cloud finds what it had. Losing the machine may lose
the last writes (nothing is fsynced), losing the process does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from pytest_aisbench.localcloud.blobs import Blob, Blobs, Readable
from pytest_aisbench.localcloud.index import COLUMNS, Index, Meta, meta_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Bucket", "Listing", "Meta", "ObjectError", "Objects", "check_digest"]

CONTENT_TYPE = "binary/octet-stream"


class ObjectError(Exception):
    """A refusal, with the code that OBS gives it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Listing:
    entries: list[Meta]
    common_prefixes: list[str]
    next_marker: str
    truncated: bool


class Bucket(NamedTuple):
    name: str
    created: float
    location: str


class Objects:
    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.blobs = Blobs(root / "blobs")
        self.index = Index(root / "index.db")
        with self.index.reading() as db:
            known = db.execute("SELECT blob FROM objects UNION ALL SELECT blob FROM parts")
            self.blobs.sweep({name for (name,) in known})

    def close(self) -> None:
        self.index.close()

    def create_bucket(self, name: str, location: str = "") -> None:
        """The owner may create a bucket again; it stays what it was."""
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
        """Replace the object at once, or not at all. `md5` is the digest that the data must have."""
        self.bucket(bucket)  # before gigabytes are written for nothing
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
        """Make a blob the content of a key, and forget the one it had."""
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
        """The content stays readable while the object is replaced or deleted."""
        with self.index.reading():  # from looking up to opening, so that no replacement comes between
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
        """What is not there is deleted already."""
        where = (bucket, key.encode())
        with self.index.transaction() as db:
            self.bucket(bucket)
            old = db.execute("SELECT blob FROM objects WHERE bucket = ? AND key = ?", where).fetchall()
            db.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", where)
        self.blobs.remove(name for (name,) in old)

    def list(self, bucket: str, prefix: str = "", marker: str = "", delimiter: str = "", limit: int = 1000) -> Listing:
        """Keys after the marker in the order of their UTF-8 bytes; those that share what lies between the prefix
        and the first delimiter after it are rolled into one common prefix."""
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
        """Write the keys below the prefix into the folder; a key that would leave it is refused."""
        prefix = _as_folder(prefix)
        count = 0
        made = set()
        for meta in self.walk(bucket, prefix):
            relative = meta.key[len(prefix) :]
            parts = relative.rstrip("/").split("/")
            if any(part in {".", ".."} or "\0" in part for part in parts):
                raise ObjectError("InvalidObjectName", f"{meta.key!r} cannot be a file below {prefix!r}")
            target = folder.joinpath(*parts)
            parent = target if relative.endswith("/") or not relative else target.parent
            if parent not in made:
                parent.mkdir(parents=True, exist_ok=True)
                made.add(parent)
            if parent is not target:
                with self.open(bucket, meta.key)[1] as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1024 * 1024)
                count += 1
        return count

    def upload(self, folder: Path, bucket: str, prefix: str) -> int:
        """Every file below the folder becomes a key below the prefix. A file that vanishes meanwhile is left out."""
        count = 0
        for path in _files(folder):
            key = _as_folder(prefix) + path.relative_to(folder).as_posix().encode(errors="replace").decode()
            with contextlib.suppress(FileNotFoundError):
                self.put_file(path, bucket, key)
                count += 1
        return count

    def put_file(self, path: Path, bucket: str, key: str) -> Meta:
        with path.open("rb", buffering=0) as file:
            return self.put(bucket, key, file)


def check_digest(actual: bytes, promised: bytes | None) -> None:
    if promised is not None and promised != actual:
        raise ObjectError("BadDigest", "The Content-MD5 you specified did not match what we received.")


def _successor(prefix: bytes) -> bytes:
    """The first byte string that sorts after everything with this prefix (UTF-8 has no byte 255)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _as_folder(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""


def _files(folder: Path) -> Iterable[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.is_file():  # not a pipe, which would wait for ever, nor a dangling link
                yield path
