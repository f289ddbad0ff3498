"""What OBS does with objects that arrive in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from pytest_aisbench.localcloud.message import Response
from pytest_aisbench.localcloud.objects import ObjectError, Objects
from pytest_aisbench.localcloud.obs_objects import byte_range
from pytest_aisbench.localcloud.obs_xml import document, element, encoder, parse, stamp, text, xml_response
from pytest_aisbench.localcloud.uploads import Uploads

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.obs_call import Call

PAGE = 1000


class UploadCalls:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._uploads = Uploads(objects)

    def begin(self, call: Call) -> Response:
        upload = self._uploads.begin(
            call.bucket,
            call.key,
            metadata=call.metadata,
            content_type=call.request.headers.get("content-type"),
        )
        encode = encoder(call.request.query.get("encoding-type"))
        inner = [text("Bucket", call.bucket), text("Key", encode(call.key)), text("UploadId", upload)]
        return xml_response(document("InitiateMultipartUploadResult", call.dialect, inner))

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
        inner = [text("LastModified", stamp(part.modified)), text("ETag", f'"{part.etag}"')]
        return xml_response(document("CopyPartResult", call.dialect, inner))

    def list_parts(self, call: Call) -> Response:
        upload = call.request.query["uploadId"]
        encode = encoder(call.request.query.get("encoding-type"))
        marker = call.integer("part-number-marker", 0)
        limit = min(call.integer("max-parts", PAGE), PAGE)
        parts = [part for part in self._uploads.parts(upload, call.bucket, call.key) if part.number > marker]
        page = parts[:limit]
        inner = [
            text("Bucket", call.bucket),
            text("Key", encode(call.key)),
            text("UploadId", upload),
            text("StorageClass", "STANDARD"),
            text("PartNumberMarker", marker),
            text("NextPartNumberMarker", page[-1].number if page else marker),
            text("MaxParts", limit),
            text("IsTruncated", str(len(parts) > limit).lower()),
        ]
        for part in page:
            inner.append(
                element(
                    "Part",
                    [
                        text("PartNumber", part.number),
                        text("LastModified", stamp(part.modified)),
                        text("ETag", f'"{part.etag}"'),
                        text("Size", part.size),
                    ],
                )
            )
        return xml_response(document("ListPartsResult", call.dialect, inner))

    def complete(self, call: Call) -> Response:
        root = parse(call.request.bytes())
        try:
            wanted = [
                (int(part.findtext("PartNumber")), part.findtext("ETag").strip().strip('"'))
                for part in root.findall("Part")
            ]
        except (TypeError, ValueError, AttributeError):
            raise ObjectError("MalformedXML", "A part needs a PartNumber and an ETag.") from None
        meta = self._uploads.complete(call.request.query["uploadId"], call.bucket, call.key, wanted)
        encode = encoder(call.request.query.get("encoding-type"))
        host, path = call.request.headers.get("host", ""), call.request.raw_path.partition("?")[0]
        inner = [
            text("Location", f"http://{host}{path}"),
            text("Bucket", call.bucket),
            text("Key", encode(call.key)),
            text("ETag", f'"{meta.etag}"'),
        ]
        return xml_response(document("CompleteMultipartUploadResult", call.dialect, inner))

    def abort(self, call: Call) -> Response:
        self._uploads.abort(call.request.query["uploadId"], call.bucket, call.key)
        return Response(204)

    def list_uploads(self, call: Call) -> Response:
        query = call.request.query
        encode = encoder(query.get("encoding-type"))
        limit = min(call.integer("max-uploads", PAGE), PAGE)
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        found = self._uploads.uploads(call.bucket, query.get("prefix", ""))
        found = [u for u in found if (u.key, u.id) > after and (after[1] or u.key != after[0])]
        page = found[:limit]
        inner = [
            text("Bucket", call.bucket),
            text("Prefix", encode(query.get("prefix", ""))),
            text("KeyMarker", encode(after[0])),
            text("UploadIdMarker", after[1]),
            text("MaxUploads", limit),
            text("IsTruncated", str(len(found) > limit).lower()),
        ]
        if len(found) > limit and page:
            inner += [text("NextKeyMarker", encode(page[-1].key)), text("NextUploadIdMarker", page[-1].id)]
        inner += [text("EncodingType", "url")] if "encoding-type" in query else []
        for upload in page:
            inner.append(
                element(
                    "Upload",
                    [
                        text("Key", encode(upload.key)),
                        text("UploadId", upload.id),
                        text("StorageClass", "STANDARD"),
                        text("Initiated", stamp(upload.started)),
                    ],
                )
            )
        return xml_response(document("ListMultipartUploadsResult", call.dialect, inner))


class _Window:
    """The next `length` bytes of a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data
