"""A `Call` is a request to OBS with its bucket, its key and its dialect; the XML of the answers.

OBS has two dialects, its own (x-obs-) and that of S3 (x-amz-), and answers in the one of the request.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from pytest_aisbench.localcloud.messages import Request, Response
from pytest_aisbench.localcloud.obs.index import ObjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# The bucket precedes the endpoint in the name of a virtual host; other hosts have it in the path.
_VIRTUAL_HOST = re.compile(r"(?P<bucket>.+?)\.(obs[.-].+|localhost)")


_KEPT = frozenset(["cache-control", "content-disposition", "content-encoding", "content-language", "expires"])


@dataclass(frozen=True)
class Call:
    request: Request
    bucket: str
    key: str
    dialect: Dialect
    virtual: bool

    @classmethod
    def of(cls, request: Request) -> Call:
        if request.routed is None:
            request.routed = cls._read(request)
        call: Call = request.routed
        return call

    @classmethod
    def _read(cls, request: Request) -> Call:
        host = request.headers.get("host", "").rsplit(":", 1)[0].lower()
        virtual = _VIRTUAL_HOST.fullmatch(host)
        path = request.path.removeprefix("/")
        bucket, _, key = (virtual["bucket"], "", path) if virtual else path.partition("/")
        return cls(request, bucket, key, _dialect(request), virtual=virtual is not None)

    def header(self, name: str) -> str | None:
        """The header with this name behind the prefix of the dialect."""
        return self.request.headers.get(self.dialect.prefix + name)

    @property
    def metadata(self) -> dict[str, str]:
        """What an object keeps besides its content. Headers that HTTP itself defines stand there with a colon before
        their name, which no header of the user can have."""
        prefix = f"{self.dialect.prefix}meta-"
        headers = self.request.headers
        kept = {name[len(prefix) :]: headers[name] for name in headers if name.startswith(prefix)}
        if _KEPT.isdisjoint(headers):
            return kept
        for name in _KEPT.intersection(headers):
            value = headers[name] if name != "content-encoding" else _without_chunking(headers[name])
            if value:
                kept[f":{name}"] = value
        return kept

    @property
    def copy_source(self) -> tuple[str, str] | None:
        source = self.header("copy-source")
        if source is None:
            return None
        bucket, _, key = unquote(source).removeprefix("/").partition("/")
        return bucket, key

    def content_md5(self) -> bytes | None:
        encoded = self.request.headers.get("content-md5")
        if encoded is None:
            return None
        try:
            digest = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            digest = b""
        if len(digest) != 16:
            raise ObjectError("InvalidDigest", "The Content-MD5 you specified was invalid.")
        return digest

    def integer(self, name: str, default: int) -> int:
        value = self.request.query.get(name)
        if not value:
            return default
        if not (value.isascii() and value.isdigit()):
            raise ObjectError("InvalidArgument", f"{name} must be a number, not {value!r}")
        return int(value)

    @property
    def encode(self) -> Callable[[str], str]:
        """How to write keys, as the parameter encoding-type says: XML has no place for control characters."""
        encoding = self.request.query.get("encoding-type")
        if encoding is None:
            return lambda value: value
        if encoding.lower() != "url":
            raise ObjectError("InvalidArgument", "Invalid Encoding Method specified in Request")
        return lambda value: quote(value, safe="/")

    def answer(self, name: str, inner: Iterable[str]) -> Response:
        """200 with an XML document of the dialect's namespace."""
        return Response(200, document(name, self.dialect, inner), {"Content-Type": MIME})


def _without_chunking(encoding: str) -> str:
    """aws-chunked is how the body was sent, not what it is."""
    return ",".join(each for each in (part.strip() for part in encoding.split(",")) if each != "aws-chunked")


@dataclass(frozen=True)
class Dialect:
    prefix: str
    namespace: str
    scheme: str
    """In the Authorization header."""
    key_parameter: str
    """Names the access key in a presigned URL."""


OBS = Dialect("x-obs-", "http://obs.myhwclouds.com/doc/2015-06-30/", "OBS", "AccessKeyId")
AWS = Dialect("x-amz-", "http://s3.amazonaws.com/doc/2006-03-01/", "AWS", "AWSAccessKeyId")


def _dialect(request: Request) -> Dialect:
    scheme = request.headers.get("authorization", "").partition(" ")[0]
    if scheme == OBS.scheme or OBS.key_parameter in request.query:
        return OBS
    if scheme or AWS.key_parameter in request.query or "X-Amz-Algorithm" in request.query:
        return AWS
    return OBS  # not signed at all


# XML, written by hand because it is fast: a listing has a thousand keys.

MIME = "application/xml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})


def text(name: str, value: object) -> str:
    return f"<{name}>{str(value).translate(_ESCAPES)}</{name}>"


def texts(**values: object) -> list[str]:
    """One element for each argument: its name and its text."""
    return [text(name, value) for name, value in values.items()]


def element(name: str, inner: Iterable[str]) -> str:
    return f"<{name}>{''.join(inner)}</{name}>"


def document(name: str, dialect: Dialect | None, inner: Iterable[str]) -> bytes:
    space = f' xmlns="{dialect.namespace}"' if dialect else ""
    return f"{_HEAD}<{name}{space}>{''.join(inner)}</{name}>".encode()


def stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"


def parse(content: bytes) -> Any:
    """The root element, with names without namespaces: some clients send one, others do not."""
    from xml.etree import ElementTree as ET

    try:
        root = ET.fromstring(content)  # noqa: S314 (signed by the account that would harm itself)
    except ET.ParseError as error:
        raise ObjectError("MalformedXML", "The XML you provided was not well-formed.") from error
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    return root
