"""What OBS does with one object: whole, in ranges, or as a copy."""

from __future__ import annotations

import re
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.message import Response
from pytest_aisbench.localcloud.objects import Meta, ObjectError, Objects
from pytest_aisbench.localcloud.obs_xml import document, stamp, text, xml_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aisbench.localcloud.obs_call import Call

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_OVERRIDES = ("cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires")


class ObjectCalls:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def put(self, call: Call) -> Response:
        if call.copy_source:
            return self._copy(call)
        meta = self._objects.put(
            call.bucket,
            call.key,
            call.request.body,
            metadata=call.metadata,
            content_type=call.request.headers.get("content-type"),
            md5=call.content_md5(),
        )
        return Response(200, b"", {"ETag": f'"{meta.etag}"'})

    def get(self, call: Call) -> Response:
        meta, file = self._objects.open(call.bucket, call.key)
        try:
            headers = _headers(call, meta)
            if not _wanted(call.request.headers, meta):
                file.close()
                return Response(304, b"", headers)
            part = byte_range(call.request.headers.get("range", ""), meta.size)
        except BaseException:
            file.close()
            raise
        if part is None:
            return Response(200, file, headers, meta.size)
        start, length = part
        file.seek(start)
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{meta.size}"
        return Response(206, file, headers, length)

    def head(self, call: Call) -> Response:
        meta = self._objects.head(call.bucket, call.key)
        if meta is None:
            raise ObjectError("NoSuchKey", "The specified key does not exist.")
        if not _wanted(call.request.headers, meta):
            return Response(304, b"", _headers(call, meta))
        return Response(200, b"", _headers(call, meta), meta.size)

    def delete(self, call: Call) -> Response:
        self._objects.delete(call.bucket, call.key)
        return Response(204)

    def _copy(self, call: Call) -> Response:
        source = call.copy_source or ("", "")
        replace = (call.header("metadata-directive") or "COPY").upper() == "REPLACE"
        if source == (call.bucket, call.key) and not replace:
            raise ObjectError("InvalidRequest", "A copy onto itself must change something: metadata-directive REPLACE")
        meta, file = self._objects.open(*source)
        with file:
            conditions = {name: call.header(f"copy-source-{name}") for name in ("if-match", "if-none-match")}
            if not _wanted({name: value for name, value in conditions.items() if value}, meta):
                raise ObjectError("PreconditionFailed", _PRECONDITION)
            metadata = call.metadata if replace else meta.metadata
            content_type = call.request.headers.get("content-type") if replace else meta.content_type
            copy = self._objects.put(call.bucket, call.key, file, metadata=metadata, content_type=content_type)
        inner = [text("LastModified", stamp(copy.modified)), text("ETag", f'"{copy.etag}"')]
        return xml_response(document("CopyObjectResult", call.dialect, inner))


_PRECONDITION = "At least one of the preconditions you specified did not hold."


def _headers(call: Call, meta: Meta) -> dict[str, str]:
    headers = {
        "ETag": f'"{meta.etag}"',
        "Last-Modified": formatdate(meta.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": meta.content_type,
    }
    headers |= {f"{call.dialect.prefix}meta-{name}": value for name, value in meta.metadata.items()}
    for name in _OVERRIDES:
        if value := call.request.query.get(f"response-{name}"):
            headers[name.title()] = value.replace("\r", "").replace("\n", "")
    return headers


def _wanted(headers: Mapping[str, str], meta: Meta) -> bool:
    """False: what the client has is good enough. Its other conditions fail the call."""
    if "if-match" in headers:
        if not _matches(headers["if-match"], meta):
            raise ObjectError("PreconditionFailed", _PRECONDITION)
    elif "if-unmodified-since" in headers and not _unmodified(headers["if-unmodified-since"], meta):
        raise ObjectError("PreconditionFailed", _PRECONDITION)
    if "if-none-match" in headers:
        return not _matches(headers["if-none-match"], meta)
    return "if-modified-since" not in headers or not _unmodified(headers["if-modified-since"], meta)


def _matches(tags: str, meta: Meta) -> bool:
    return any(tag.strip().strip('"') in {"*", meta.etag} for tag in tags.split(","))


def _unmodified(since: str, meta: Meta) -> bool:
    try:
        return int(meta.modified) <= parsedate_to_datetime(since).timestamp()
    except ValueError:
        return False


def byte_range(asked: str, size: int) -> tuple[int, int] | None:
    """Where to start and how much to send. What is no range is ignored, as RFC 9110 says."""
    found = _RANGE.fullmatch(asked.strip())
    first, last = found.groups() if found else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return None
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end:
        raise ObjectError("InvalidRange", "The requested range cannot be satisfied.")
    return start, end - start + 1
