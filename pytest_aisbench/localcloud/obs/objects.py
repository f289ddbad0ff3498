"""The calls of OBS on one object: `ObjectCalls` put, get, copy and delete it, `UploadCalls` put it in parts."""

from __future__ import annotations

import re
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING, BinaryIO

from pytest_aisbench.localcloud.http import Response
from pytest_aisbench.localcloud.obs.dialect import Call, element, parse, stamp, text, texts
from pytest_aisbench.localcloud.obs.storage import Meta, ObjectError, Objects, Uploads

if TYPE_CHECKING:
    from collections.abc import Mapping


PAGE = 1000
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_OVERRIDES = ("cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires")
_PRECONDITION = "At least one of the preconditions you specified did not hold."


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
        return call.answer("CopyObjectResult", texts(LastModified=stamp(copy.modified), ETag=f'"{copy.etag}"'))


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
    """False if the client's copy is still good (304). Raises where another condition of the request does not hold."""
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


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Where to start and how much to send; None where the header is no range, which RFC 9110 says to ignore."""
    match = _RANGE.fullmatch(header.strip())
    first, last = match.groups() if match else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return None
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end:
        raise ObjectError("InvalidRange", "The requested range cannot be satisfied.")
    return start, end - start + 1


class UploadCalls:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._uploads = Uploads(objects)

    def begin(self, call: Call) -> Response:
        upload = self._uploads.begin(
            call.bucket, call.key, metadata=call.metadata, content_type=call.request.headers.get("content-type")
        )
        inner = texts(Bucket=call.bucket, Key=call.encode(call.key), UploadId=upload)
        return call.answer("InitiateMultipartUploadResult", inner)

    def put_part(self, call: Call) -> Response:
        upload, number = call.request.query["uploadId"], call.integer("partNumber", 0)
        if not call.copy_source:
            body, md5 = call.request.body, call.content_md5()
            part = self._uploads.part(upload, call.bucket, call.key, number=number, data=body, md5=md5)
            return Response(200, b"", {"ETag": f'"{part.etag}"'})
        meta, file = self._objects.open(*call.copy_source)
        with file:
            start, length = byte_range(call.header("copy-source-range") or "", meta.size) or (0, meta.size)
            file.seek(start)
            window = _Window(file, length)
            part = self._uploads.part(upload, call.bucket, call.key, number=number, data=window)
        return call.answer("CopyPartResult", texts(LastModified=stamp(part.modified), ETag=f'"{part.etag}"'))

    def list_parts(self, call: Call) -> Response:
        upload = call.request.query["uploadId"]
        marker = call.integer("part-number-marker", 0)
        limit = min(call.integer("max-parts", PAGE), PAGE)
        parts = [part for part in self._uploads.parts(upload, call.bucket, call.key) if part.number > marker]
        page = parts[:limit]
        inner = texts(
            Bucket=call.bucket,
            Key=call.encode(call.key),
            UploadId=upload,
            StorageClass="STANDARD",
            PartNumberMarker=marker,
            NextPartNumberMarker=page[-1].number if page else marker,
            MaxParts=limit,
            IsTruncated=str(len(parts) > limit).lower(),
        )
        for part in page:
            date, etag = stamp(part.modified), f'"{part.etag}"'
            inner.append(element("Part", texts(PartNumber=part.number, LastModified=date, ETag=etag, Size=part.size)))
        return call.answer("ListPartsResult", inner)

    def complete(self, call: Call) -> Response:
        root = parse(call.request.bytes())
        try:
            named = [
                (int(part.findtext("PartNumber")), part.findtext("ETag").strip().strip('"'))
                for part in root.findall("Part")
            ]
        except (TypeError, ValueError, AttributeError):
            raise ObjectError("MalformedXML", "A part needs a PartNumber and an ETag.") from None
        meta = self._uploads.complete(call.request.query["uploadId"], call.bucket, call.key, named)
        url = f"http://{call.request.headers.get('host', '')}{call.request.raw_path.partition('?')[0]}"
        inner = texts(Location=url, Bucket=call.bucket, Key=call.encode(call.key), ETag=f'"{meta.etag}"')
        return call.answer("CompleteMultipartUploadResult", inner)

    def abort(self, call: Call) -> Response:
        self._uploads.abort(call.request.query["uploadId"], call.bucket, call.key)
        return Response(204)

    def list_uploads(self, call: Call) -> Response:
        query, encode = call.request.query, call.encode
        limit = min(call.integer("max-uploads", PAGE), PAGE)
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        uploads = self._uploads.uploads(call.bucket, query.get("prefix", ""))
        uploads = [u for u in uploads if (u.key, u.id) > after and (after[1] or u.key != after[0])]
        page = uploads[:limit]
        inner = texts(
            Bucket=call.bucket,
            Prefix=encode(query.get("prefix", "")),
            KeyMarker=encode(after[0]),
            UploadIdMarker=after[1],
            MaxUploads=limit,
            IsTruncated=str(len(uploads) > limit).lower(),
        )
        if len(uploads) > limit and page:
            inner += texts(NextKeyMarker=encode(page[-1].key), NextUploadIdMarker=page[-1].id)
        inner += [text("EncodingType", "url")] if "encoding-type" in query else []
        for upload in page:
            key, started = encode(upload.key), stamp(upload.started)
            inner.append(
                element("Upload", texts(Key=key, UploadId=upload.id, StorageClass="STANDARD", Initiated=started))
            )
        return call.answer("ListMultipartUploadsResult", inner)


class _Window:
    """The next `length` bytes of a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data
