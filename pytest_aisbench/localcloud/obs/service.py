"""The OBS service: `Obs` checks who sends a request, routes it, words the errors, and answers the calls on buckets.

`ObjectCalls` put, get, copy and delete one object; `UploadCalls` put it in parts.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote

from pytest_aisbench.localcloud.http import SMALL
from pytest_aisbench.localcloud.messages import Request, Response, http_date, new_id
from pytest_aisbench.localcloud.obs.dialect import MIME, OBS, Call, document, element, parse, stamp, text, texts
from pytest_aisbench.localcloud.obs.index import Meta, ObjectError
from pytest_aisbench.localcloud.obs.settings import ABSENT, Settings, refuse_wishes
from pytest_aisbench.localcloud.obs.signature import authenticate, verify_checksums
from pytest_aisbench.localcloud.obs.storage import PRECONDITION, Objects, Uploads, check_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_aisbench.localcloud.iam import Account, Accounts
API_VERSION = "3.0"
MAX_KEYS = 1000
MAX_KEY_BYTES = 1024
_STATUS = {
    **dict.fromkeys(["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"], 403),
    **dict.fromkeys(["NoSuchBucket", "NoSuchKey", "NoSuchUpload", "NoSuchVersion"], 404),
    **{code: 404 for code, _ in ABSENT.values()},
    **dict.fromkeys(["BucketAlreadyExists", "BucketNotEmpty"], 409),
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "PreconditionFailed": 412,
    "InvalidRange": 416,
    "InternalError": 500,
    "NotImplemented": 501,
}
# The code and the message for a status, for errors that a fault sets.
_USUAL = {
    403: ("RequestTimeTooSkewed", "The difference between the request time and the server's time is too large."),
    429: ("SlowDown", "Please reduce your request rate."),
    500: ("InternalError", "We encountered an internal error. Please try again."),
    503: ("ServiceUnavailable", "The server is overloaded or has an internal error."),
}
_BUCKET_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{1,61})[a-z0-9]")
_METHODS = {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}
# Parameters that refine or sign a call; every other one names a resource of its own.
# The last line: boto3 adds the headers that a presigned link of V2 covers.
_PARAMETERS = frozenset(
    """
    accesskeyid awsaccesskeyid signature expires list-type prefix marker delimiter max-keys encoding-type
    continuation-token start-after fetch-owner key-marker version-id-marker versionid upload-id-marker max-uploads
    partnumber part-number-marker max-parts x-id max-buckets bucket-region apiversion
    content-type content-md5
    """.split()  # noqa: SIM905 (as in signature.py)
)
_PARAMETER_KINDS = ("response-", "x-amz-", "x-obs-")
# With one of these headers a key is no object but an extension of the bucket: what fetches from elsewhere.
_EXTENSIONS = frozenset(["x-obs-oef-marker", "x-amz-oef-marker"])
_EXTENSION_KEYS = "v1/"
_FULL = {errno.ENOSPC, errno.EDQUOT}
PAGE = 1000
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_OVERRIDES = ("cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires")


class Obs:
    def __init__(self, accounts: Accounts, objects: Objects) -> None:
        self._accounts = accounts
        self._objects = objects
        calls, parts = ObjectCalls(objects), UploadCalls(objects)
        # By method, target and subresource.
        self._routes: dict[tuple[str, str, str], Callable[[Call], Response]] = {
            ("PUT", "object", ""): calls.put,
            ("GET", "object", ""): calls.get,
            ("HEAD", "object", ""): calls.head,
            ("DELETE", "object", ""): calls.delete,
            ("POST", "object", "uploads"): parts.begin,
            ("PUT", "object", "uploadId"): parts.put_part,
            ("GET", "object", "uploadId"): parts.list_parts,
            ("POST", "object", "uploadId"): parts.complete,
            ("DELETE", "object", "uploadId"): parts.abort,
            ("GET", "bucket", ""): self._list,
            ("HEAD", "bucket", ""): self._head_bucket,
            ("DELETE", "bucket", ""): self._delete_bucket,
            ("GET", "bucket", "versions"): self._list_versions,
            ("GET", "bucket", "uploads"): parts.list_uploads,
            ("POST", "bucket", "delete"): self._delete_many,
            **Settings(objects, accounts.first()).routes(),
        }
        self.operations = {"get-service", "put-bucket", *(_operation(*target) for target in self._routes)}

    def answer(self, request: Request) -> Response:
        call = Call.of(request)
        try:
            if request.method == "HEAD" and "apiversion" in request.query:
                # Clients ask this before they sign, to learn which dialect to sign in.
                return Response(200, b"", {"x-obs-api": API_VERSION, **_trace(call)})
            response = self._route(call, authenticate(call, self._accounts))
        except ObjectError as error:
            return _error(call, error.code, str(error))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return _error(call, "InternalError", "We have no space left on device; nothing was stored.")
        return Response(response.status, response.body, {**response.headers, **_trace(call)}, response.length)

    def quick(self, request: Request) -> bool:
        """Questions; and changes of a cloud that keeps nothing, since others wait for the disk. Copies may be large,
        and so may multipart uploads that are completed."""
        if request.method in {"GET", "HEAD"}:
            return True
        copies = "x-obs-copy-source" in request.headers or "x-amz-copy-source" in request.headers
        return not self._objects.kept and request.method != "POST" and not copies

    def crash(self, request: Request, error: Exception) -> Response:
        return self.refuse(request, 500)

    def operation(self, request: Request) -> str:
        name = _operation(*_target(Call.of(request)))
        return name if name in self.operations else "other"

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        usual, text = _USUAL.get(status, _USUAL[500])
        return _error(Call.of(request), code or usual, message or text)._replace(status=status)

    def _route(self, call: Call, account: Account) -> Response:
        _, about, subresource = _target(call)
        if len(call.key.encode()) > MAX_KEY_BYTES:
            raise ObjectError("KeyTooLong", f"Your key is too long: at most {MAX_KEY_BYTES} bytes.")
        match call.request.method, about, subresource:
            case "GET", "service", "":
                return self._list_buckets(call, account)
            case "PUT", "bucket", "":
                return self._create_bucket(call, account)
        handler = self._routes.get((call.request.method, about, subresource))
        if handler is None:
            what = f"{call.request.method} of the {about}'s {subresource or 'self'}"
            if call.request.method not in _METHODS:
                raise ObjectError("MethodNotAllowed", f"The specified method is not allowed here: {what}.")
            raise _not_served(call, what)
        if call.key.startswith(_EXTENSION_KEYS) and not _EXTENSIONS.isdisjoint(call.request.headers):
            raise _not_served(call, f"{call.request.method} of {call.key}")
        if call.request.query and call.request.query.get("versionId", "null") != "null":
            raise ObjectError("NoSuchVersion", "The specified version does not exist: no bucket here keeps versions.")
        return handler(call)

    def _list_buckets(self, call: Call, account: Account) -> Response:
        buckets = [
            element("Bucket", texts(Name=each.name, CreationDate=stamp(each.created), Location=each.location))
            for each in self._objects.buckets()
        ]
        return call.answer("ListAllMyBucketsResult", [self._owner(), element("Buckets", buckets)])

    def _create_bucket(self, call: Call, account: Account) -> Response:
        refuse_wishes(call)
        if not _BUCKET_NAME.fullmatch(call.bucket):
            raise ObjectError("InvalidBucketName", "The specified bucket is not valid.")
        if content := call.request.bytes():
            root = parse(content)
            location = root.findtext("Location") or root.findtext("LocationConstraint") or account.region
            if location != account.region:
                raise ObjectError("InvalidLocationConstraint", f"This endpoint serves {account.region} only.")
        self._objects.create_bucket(call.bucket, account.region)
        return Response(200, b"", {"Location": f"/{call.bucket}"})

    def _head_bucket(self, call: Call) -> Response:
        location = self._objects.bucket(call.bucket).location
        region = f"{call.dialect.prefix}bucket-" + ("location" if call.dialect is OBS else "region")
        return Response(200, b"", {region: location, "x-obs-version": API_VERSION})

    def _delete_bucket(self, call: Call) -> Response:
        self._objects.delete_bucket(call.bucket)
        return Response(204)

    def _list(self, call: Call) -> Response:
        query, encode = call.request.query, call.encode
        version = query.get("list-type", "1")
        if version not in {"1", "2"}:
            raise ObjectError("InvalidArgument", f"list-type must be 2, not {version!r}")
        marker = query.get("marker", "") if version == "1" else _continued(query)
        page = _Page(call, self._objects, marker)
        if version == "1":
            inner = texts(Marker=encode(marker))
            inner += [text("NextMarker", encode(page.listing.next_marker))] if page.listing.truncated else []
        else:
            given = ("continuation-token", "ContinuationToken", str), ("start-after", "StartAfter", encode)
            inner = [text(name, write(query[key])) for key, name, write in given if key in query]
            inner += texts(KeyCount=len(page.listing.entries) + len(page.listing.common_prefixes))
            token = base64.urlsafe_b64encode(page.listing.next_marker.encode()).decode()
            inner += [text("NextContinuationToken", token)] if page.listing.truncated else []
        owner = [self._owner()] if version == "1" or query.get("fetch-owner", "").lower() == "true" else []
        return call.answer("ListBucketResult", page.inner("Contents", inner, owner))

    def _list_versions(self, call: Call) -> Response:
        """Of each object the only one that there is."""
        query, encode = call.request.query, call.encode
        marker = query.get("key-marker", "")
        page = _Page(call, self._objects, marker)
        inner = texts(KeyMarker=encode(marker), VersionIdMarker=query.get("version-id-marker", ""))
        if page.listing.truncated:
            inner += texts(NextKeyMarker=encode(page.listing.next_marker), NextVersionIdMarker="null")
        each = [*texts(VersionId="null", IsLatest="true"), self._owner()]
        return call.answer("ListVersionsResult", page.inner("Version", inner, each))

    def _owner(self) -> str:
        account = self._accounts.first()
        return element("Owner", texts(ID=account.domain_id, DisplayName=account.domain))

    def _delete_many(self, call: Call) -> Response:
        self._objects.bucket(call.bucket)
        verify_checksums(call.request)
        content = call.request.bytes()
        check_digest(hashlib.md5(content, usedforsecurity=False).digest(), call.content_md5())
        root = parse(content)
        encoded = (root.findtext("EncodingType") or "").lower() == "url"
        keys = [node.findtext("Key") or "" for node in root.findall("Object")]
        if not keys or len(keys) > MAX_KEYS or not all(keys):
            raise ObjectError("MalformedXML", f"Delete needs 1 to {MAX_KEYS} objects, each with a key.")
        quiet = (root.findtext("Quiet") or "").lower() == "true"
        inner = [text("EncodingType", "url")] if encoded else []
        for key in keys:
            self._objects.delete(call.bucket, unquote(key) if encoded else key)
            if not quiet:
                inner.append(element("Deleted", [text("Key", key)]))
        return call.answer("DeleteResult", inner)


class _Page:
    """What all listings of a bucket's objects share."""

    def __init__(self, call: Call, objects: Objects, marker: str) -> None:
        query = call.request.query
        self._call = call
        self._prefix, self._delimiter = query.get("prefix", ""), query.get("delimiter", "")
        self._limit = min(call.integer("max-keys", MAX_KEYS), MAX_KEYS)
        self.listing = objects.list(call.bucket, self._prefix, marker, self._delimiter, self._limit)

    def inner(self, name: str, about: list[str], each: list[str]) -> list[str]:
        """`about` the page, and what `each` of its objects has besides the usual."""
        encode, listing = self._call.encode, self.listing
        inner = texts(Name=self._call.bucket, Prefix=encode(self._prefix), MaxKeys=self._limit)
        inner += [*texts(IsTruncated=str(listing.truncated).lower()), *about]
        inner += [text("Delimiter", encode(self._delimiter))] if self._delimiter else []
        inner += [text("EncodingType", "url")] if "encoding-type" in self._call.request.query else []
        for meta in listing.entries:
            fields = texts(
                Key=encode(meta.key),
                LastModified=stamp(meta.modified),
                ETag=f'"{meta.etag}"',
                Size=meta.size,
                StorageClass="STANDARD",
            )
            inner.append(element(name, fields + each))
        inner += [element("CommonPrefixes", [text("Prefix", encode(p))]) for p in listing.common_prefixes]
        return inner


def _continued(query: Mapping[str, str]) -> str:
    """The key after which a listing of version 2 goes on."""
    token = query.get("continuation-token")
    if token is None:
        return query.get("start-after", "")
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise ObjectError("InvalidArgument", "The continuation token provided is incorrect.") from None


def _target(call: Call) -> tuple[str, str, str]:
    """The method, its target (object, bucket or service) and the subresource."""
    about = "object" if call.key else "bucket" if call.bucket else "service"
    query = call.request.query
    subresource = next((name for name in query if _names_resource(name)), "") if query else ""
    return call.request.method, about, subresource


def _operation(method: str, about: str, subresource: str) -> str:
    return "-".join(filter(None, (method.lower(), about, subresource)))


def _not_served(call: Call, what: str) -> ObjectError:
    from pytest_aisbench.localcloud import vendor_operations as vendor

    path = "/" + "/".join(filter(None, (call.bucket, call.key)))
    names = vendor.names([vendor.OBS], call.request.method, path, call.request.query)
    return ObjectError("NotImplemented", f"{what}{f' ({names})' if names else ''} is not served here.")


def _names_resource(name: str) -> bool:
    """Whatever is not one of the usual parameters: a listing instead of an answer that is not served would be wrong."""
    name = name.lower()
    return name not in _PARAMETERS and (name == "x-obs-accesslabel" or not name.startswith(_PARAMETER_KINDS))


def _trace(call: Call) -> dict[str, str]:
    prefix = call.dialect.prefix
    return {"Server": "OBS", f"{prefix}request-id": new_id().upper(), f"{prefix}id-2": new_id()}


def _error(call: Call, code: str, message: str) -> Response:
    trace = _trace(call)
    request_id, host_id = trace[f"{call.dialect.prefix}request-id"], trace[f"{call.dialect.prefix}id-2"]
    inner = texts(Code=code, Message=message, RequestId=request_id, HostId=host_id, Resource=call.request.path)
    return Response(_STATUS.get(code, 400), document("Error", None, inner), {"Content-Type": MIME, **trace})


# Calls on one object.


class ObjectCalls:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def put(self, call: Call) -> Response:
        if call.copy_source:
            return self._copy(call)
        refuse_wishes(call)
        request = call.request
        sums = verify_checksums(request)
        meta = self._objects.put(
            call.bucket,
            call.key,
            request.bytes() if request.length is not None and request.length <= SMALL else request.body,
            metadata=call.metadata,
            content_type=call.request.headers.get("content-type"),
            md5=call.content_md5(),
            unless=_overwriting(call),
        )
        return Response(200, b"", {"ETag": f'"{meta.etag}"', **sums})

    def get(self, call: Call) -> Response:
        _refuse_part(call)
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
        _refuse_part(call)
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
        refuse_wishes(call)
        source = call.copy_source or ("", "")
        replace = (call.header("metadata-directive") or "COPY").upper() == "REPLACE"
        if source == (call.bucket, call.key) and not replace:
            raise ObjectError("InvalidRequest", "A copy onto itself must change something: metadata-directive REPLACE")
        meta, file = self._objects.open(*source)
        with file:
            conditions = {name: call.header(f"copy-source-{name}") for name in ("if-match", "if-none-match")}
            if not _wanted({name: value for name, value in conditions.items() if value}, meta):
                raise ObjectError("PreconditionFailed", PRECONDITION)
            metadata = call.metadata if replace else meta.metadata
            content_type = call.request.headers.get("content-type") if replace else meta.content_type
            unless = _overwriting(call)
            copy = self._objects.put(
                call.bucket, call.key, file, metadata=metadata, content_type=content_type, unless=unless
            )
        return call.answer("CopyObjectResult", texts(LastModified=stamp(copy.modified), ETag=f'"{copy.etag}"'))


def _headers(call: Call, meta: Meta) -> dict[str, str]:
    headers = {
        "ETag": f'"{meta.etag}"',
        "Last-Modified": http_date(meta.modified),
        "Accept-Ranges": "bytes",
        "Content-Type": meta.content_type,
    }
    for name, value in meta.metadata.items():
        headers[name[1:].title() if name[0] == ":" else f"{call.dialect.prefix}meta-{name}"] = value
    for name in _OVERRIDES:
        if override := call.request.query.get(f"response-{name}"):
            headers[name.title()] = override.replace("\r", "").replace("\n", "")
    return headers


def _wanted(headers: Mapping[str, str], meta: Meta) -> bool:
    """False if the client's copy is still good (304). Raises where another condition of the request does not hold."""
    if "if-match" in headers:
        if not _matches(headers["if-match"], meta):
            raise ObjectError("PreconditionFailed", PRECONDITION)
    elif "if-unmodified-since" in headers and not _unmodified(headers["if-unmodified-since"], meta):
        raise ObjectError("PreconditionFailed", PRECONDITION)
    if "if-none-match" in headers:
        return not _matches(headers["if-none-match"], meta)
    return "if-modified-since" not in headers or not _unmodified(headers["if-modified-since"], meta)


def _overwriting(call: Call) -> Callable[[Meta | None], bool] | None:
    """Whether the conditions of the request forbid to replace what a key has; None where it has no conditions."""
    headers = call.request.headers
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is None and none_match is None:
        return None

    def forbidden(old: Meta | None) -> bool:
        if old is None:
            return match is not None
        return (match is not None and not _matches(match, old)) or bool(none_match and _matches(none_match, old))

    return forbidden


def _refuse_part(call: Call) -> None:
    if "partNumber" in call.request.query:
        raise ObjectError("NotImplemented", "partNumber of GET and HEAD is not served here: use Range.")


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
        refuse_wishes(call)
        upload = self._uploads.begin(
            call.bucket, call.key, metadata=call.metadata, content_type=call.request.headers.get("content-type")
        )
        inner = texts(Bucket=call.bucket, Key=call.encode(call.key), UploadId=upload)
        return call.answer("InitiateMultipartUploadResult", inner)

    def put_part(self, call: Call) -> Response:
        upload, number = call.request.query["uploadId"], call.integer("partNumber", 0)
        if not call.copy_source:
            sums, md5 = verify_checksums(call.request), call.content_md5()
            part = self._uploads.part(upload, call.bucket, call.key, number=number, data=call.request.body, md5=md5)
            return Response(200, b"", {"ETag": f'"{part.etag}"', **sums})
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
        unless = _overwriting(call)
        meta = self._uploads.complete(call.request.query["uploadId"], call.bucket, call.key, named, unless=unless)
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
