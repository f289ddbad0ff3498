"""Objects that arrive in parts."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from pytest_aisbench.localcloud.objects import Meta, ObjectError, Objects, check_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_aisbench.localcloud.blobs import Readable

MIN_PART = 100 * 1024
MAX_PARTS = 10_000


class Part(NamedTuple):
    number: int
    etag: str
    size: int
    modified: float
    blob: str


class Upload(NamedTuple):
    id: str
    key: str
    started: float


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
        """Sent again, a part replaces its predecessor."""
        if not 1 <= number <= MAX_PARTS:
            raise ObjectError("InvalidArgument", f"partNumber must be between 1 and {MAX_PARTS}")
        self._find(upload, bucket, key)
        blob = self._blobs.write(data)
        try:
            check_digest(blob.md5, md5)
            part = Part(number, blob.md5.hex(), blob.size, time.time(), blob.name)
            with self._index.transaction() as db:
                self._find(upload, bucket, key)  # it may have ended while the data came in
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
        """Those that are neither complete nor aborted, in the order of their keys, then of their ids."""
        self._objects.bucket(bucket)
        query = "SELECT id, key, started FROM uploads WHERE bucket = ? ORDER BY key, id"
        with self._index.reading() as db:
            found = [Upload(name, key.decode(), started) for name, key, started in db.execute(query, (bucket,))]
        return [upload for upload in found if upload.key.startswith(prefix)]

    def complete(self, upload: str, bucket: str, key: str, wanted: Sequence[tuple[int, str]]) -> Meta:
        """Make one object of the named parts; parts that were sent but not named are dropped."""
        metadata, content_type = self._find(upload, bucket, key)
        there = {part.number: part for part in self.parts(upload, bucket, key)}
        if not wanted or [number for number, _ in wanted] != sorted({number for number, _ in wanted}):
            raise ObjectError("InvalidPartOrder", "The list of parts was not in ascending order.")
        if any(number not in there or there[number].etag != etag for number, etag in wanted):
            raise ObjectError("InvalidPart", "One or more of the specified parts could not be found.")
        parts = [there[number] for number, _ in wanted]
        if any(part.size < MIN_PART for part in parts[:-1]):
            raise ObjectError("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size.")

        digest = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False)
        with ExitStack() as files:
            # Opened before the first byte is copied: an abort in between then does no harm.
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
                "NoSuchUpload",
                "The specified multipart upload does not exist. It may have been aborted or completed.",
            )
        return row[0], row[1]
