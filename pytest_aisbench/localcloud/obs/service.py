"""The OBS service: `Obs` checks who sends a request, routes it, and words the errors; the calls on buckets are here
too.
"""

from __future__ import annotations

import errno
import hashlib
import re
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pytest_aisbench.localcloud.http import Request, Response
from pytest_aisbench.localcloud.obs.dialect import MIME, OBS, Call, document, element, parse, stamp, text, texts
from pytest_aisbench.localcloud.obs.objects import ObjectCalls, UploadCalls
from pytest_aisbench.localcloud.obs.signature import SUBRESOURCES, authenticate
from pytest_aisbench.localcloud.obs.storage import ObjectError, Objects, check_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_aisbench.localcloud.iam import Account, Accounts

API_VERSION = "3.0"
MAX_KEYS = 1000
MAX_KEY_BYTES = 1024

_STATUS = {
    **dict.fromkeys(["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"], 403),
    **dict.fromkeys(["NoSuchBucket", "NoSuchKey", "NoSuchUpload"], 404),
    **dict.fromkeys(["BucketAlreadyExists", "BucketNotEmpty"], 409),
    "MethodNotAllowed": 405,
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
_FULL = {errno.ENOSPC, errno.EDQUOT}


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
            ("GET", "bucket", "location"): self._location,
            ("GET", "bucket", "uploads"): parts.list_uploads,
            ("POST", "bucket", "delete"): self._delete_many,
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

    def crash(self, request: Request, error: Exception) -> Response:
        return self.refuse(request, 500)

    def operation(self, request: Request) -> str:
        name = _operation(*_target(Call.of(request)))
        return name if name in self.operations else "other"

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        usual, text = _USUAL.get(status, _USUAL[500])
        return replace(_error(Call.of(request), code or usual, message or text), status=status)

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
            raise ObjectError("MethodNotAllowed", f"The specified method is not allowed here: {what}.")
        return handler(call)

    def _list_buckets(self, call: Call, account: Account) -> Response:
        buckets = [
            element("Bucket", texts(Name=each.name, CreationDate=stamp(each.created), Location=each.location))
            for each in self._objects.buckets()
        ]
        owner = element("Owner", texts(ID=account.domain_id, DisplayName=account.domain))
        return call.answer("ListAllMyBucketsResult", [owner, element("Buckets", buckets)])

    def _create_bucket(self, call: Call, account: Account) -> Response:
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

    def _location(self, call: Call) -> Response:
        location = self._objects.bucket(call.bucket).location
        if call.dialect is OBS:
            return call.answer("Location", [location])
        return call.answer("CreateBucketConfiguration", [text("LocationConstraint", location)])

    def _delete_bucket(self, call: Call) -> Response:
        self._objects.delete_bucket(call.bucket)
        return Response(204)

    def _list(self, call: Call) -> Response:
        query, encode = call.request.query, call.encode
        prefix, marker, delimiter = (query.get(name, "") for name in ("prefix", "marker", "delimiter"))
        limit = min(call.integer("max-keys", MAX_KEYS), MAX_KEYS)
        listing = self._objects.list(call.bucket, prefix, marker, delimiter, limit)
        truncated = str(listing.truncated).lower()
        inner = texts(
            Name=call.bucket, Prefix=encode(prefix), Marker=encode(marker), MaxKeys=limit, IsTruncated=truncated
        )
        inner += [text("Delimiter", encode(delimiter))] if delimiter else []
        inner += [text("NextMarker", encode(listing.next_marker))] if listing.truncated else []
        inner += [text("EncodingType", "url")] if "encoding-type" in query else []
        for meta in listing.entries:
            fields = texts(
                Key=encode(meta.key),
                LastModified=stamp(meta.modified),
                ETag=f'"{meta.etag}"',
                Size=meta.size,
                StorageClass="STANDARD",
            )
            inner.append(element("Contents", fields))
        inner += [element("CommonPrefixes", [text("Prefix", encode(p))]) for p in listing.common_prefixes]
        return call.answer("ListBucketResult", inner)

    def _delete_many(self, call: Call) -> Response:
        self._objects.bucket(call.bucket)
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


def _target(call: Call) -> tuple[str, str, str]:
    """The method, its target (object, bucket or service) and the subresource."""
    about = "object" if call.key else "bucket" if call.bucket else "service"
    subresource = next((name for name in call.request.query if _names_resource(name)), "")
    return call.request.method, about, subresource


def _operation(method: str, about: str, subresource: str) -> str:
    return "-".join(filter(None, (method.lower(), about, subresource)))


def _names_resource(name: str) -> bool:
    return name.lower() in SUBRESOURCES and name != "partNumber" and not name.startswith(("response-", "x-"))


def _trace(call: Call) -> dict[str, str]:
    prefix = call.dialect.prefix
    return {
        "Server": "OBS",
        f"{prefix}request-id": secrets.token_hex(16).upper(),
        f"{prefix}id-2": secrets.token_hex(16),
    }


def _error(call: Call, code: str, message: str) -> Response:
    trace = _trace(call)
    request_id, host_id = trace[f"{call.dialect.prefix}request-id"], trace[f"{call.dialect.prefix}id-2"]
    inner = texts(Code=code, Message=message, RequestId=request_id, HostId=host_id, Resource=call.request.path)
    return Response(_STATUS.get(code, 400), document("Error", None, inner), {"Content-Type": MIME, **trace})
