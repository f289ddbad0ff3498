"""What the store knows of its contents: an SQLite file, so that a listing is a range of a sorted table."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Keys are BLOBs because they sort as bytes, which is the order that OBS lists them in.
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


class Index:
    """The SQLite file. One connection under one lock: a statement takes some twenty microseconds."""

    def __init__(self, path: Path) -> None:
        # weakref.finalize rather than __del__: closed in time also where the owner was forgotten.
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
