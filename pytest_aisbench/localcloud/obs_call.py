"""One call of OBS: which bucket, which key, and in which of its two dialects.

OBS speaks its own dialect (x-obs-) and that of S3 (x-amz-), and answers in the one it was asked in.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pytest_aisbench.localcloud.objects import ObjectError

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.message import Request

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
