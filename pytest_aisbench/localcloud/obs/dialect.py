"""One call of OBS: which bucket, which key, and in which of its two dialects.

OBS speaks its own dialect (x-obs-) and that of S3 (x-amz-), and answers in the one it was asked in.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from pytest_aisbench.localcloud.http import Response
from pytest_aisbench.localcloud.obs.storage import ObjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_aisbench.localcloud.http import Request

# What precedes the endpoint in the name of a virtual host. Addresses and bare endpoints are asked path style.
_VIRTUAL_HOST = re.compile(r"(?P<bucket>.+?)\.(obs[.-].+|localhost)")


@dataclass(frozen=True)
class Dialect:
    prefix: str
    namespace: str
    scheme: str
    """Of the Authorization header."""
    key_parameter: str
    """Of a presigned URL."""


OBS = Dialect("x-obs-", "http://obs.myhwclouds.com/doc/2015-06-30/", "OBS", "AccessKeyId")
AWS = Dialect("x-amz-", "http://s3.amazonaws.com/doc/2006-03-01/", "AWS", "AWSAccessKeyId")


@dataclass(frozen=True)
class Call:
    request: Request
    bucket: str
    key: str
    dialect: Dialect
    virtual: bool

    @classmethod
    def of(cls, request: Request) -> Call:
        host = request.headers.get("host", "").rsplit(":", 1)[0].lower()
        found = _VIRTUAL_HOST.fullmatch(host)
        path = request.path.removeprefix("/")
        bucket, _, key = (found["bucket"], "", path) if found else path.partition("/")
        return cls(request, bucket, key, _dialect(request), virtual=found is not None)

    def header(self, name: str) -> str | None:
        """A header that bears the prefix of the dialect."""
        return self.request.headers.get(self.dialect.prefix + name)

    @property
    def metadata(self) -> dict[str, str]:
        prefix = f"{self.dialect.prefix}meta-"
        headers = self.request.headers
        return {name[len(prefix) :]: headers[name] for name in headers if name.startswith(prefix)}

    @property
    def copy_source(self) -> tuple[str, str] | None:
        source = self.header("copy-source")
        if source is None:
            return None
        bucket, _, key = unquote(source).removeprefix("/").partition("/")
        return bucket, key

    def content_md5(self) -> bytes | None:
        given = self.request.headers.get("content-md5")
        if given is None:
            return None
        try:
            digest = base64.b64decode(given, validate=True)
        except binascii.Error:
            digest = b""
        if len(digest) != 16:
            raise ObjectError("InvalidDigest", "The Content-MD5 you specified was invalid.")
        return digest

    def integer(self, name: str, default: int) -> int:
        given = self.request.query.get(name)
        if not given:
            return default
        if not (given.isascii() and given.isdigit()):
            raise ObjectError("InvalidArgument", f"{name} must be a number, not {given!r}")
        return int(given)


def _dialect(request: Request) -> Dialect:
    scheme = request.headers.get("authorization", "").partition(" ")[0]
    if scheme == OBS.scheme or OBS.key_parameter in request.query:
        return OBS
    if scheme or AWS.key_parameter in request.query or "X-Amz-Algorithm" in request.query:
        return AWS
    return OBS  # nobody has signed: in the cloud's own words


# -- The XML that OBS speaks, written by hand because a thousand keys are listed at a time.

MIME = "application/xml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})


def text(name: str, value: object) -> str:
    return f"<{name}>{str(value).translate(_ESCAPES)}</{name}>"


def element(name: str, inner: Iterable[str]) -> str:
    return f"<{name}>{''.join(inner)}</{name}>"


def document(name: str, dialect: Dialect | None, inner: Iterable[str]) -> bytes:
    space = f' xmlns="{dialect.namespace}"' if dialect else ""
    return f"{_HEAD}<{name}{space}>{''.join(inner)}</{name}>".encode()


def xml_response(content: bytes) -> Response:
    return Response(200, content, {"Content-Type": MIME})


def stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"


def encoder(encoding: str | None) -> Callable[[str], str]:
    """How keys are written, as the parameter encoding-type asks: XML has no place for control characters."""
    if encoding is None:
        return lambda value: value
    if encoding.lower() != "url":
        raise ObjectError("InvalidArgument", "Invalid Encoding Method specified in Request")
    return lambda value: quote(value, safe="/")


def parse(content: bytes) -> Any:
    """The root element; names without namespaces, since clients differ in whether they send one."""
    from xml.etree import ElementTree as ET

    try:
        root = ET.fromstring(content)  # noqa: S314 (signed by the account that would harm itself)
    except ET.ParseError as error:
        raise ObjectError("MalformedXML", "The XML you provided was not well-formed.") from error
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    return root
