"""OBS by signed requests: which OBS and with which keys (`store`, `set_auth`), the requests, and the exceptions."""

from __future__ import annotations

import atexit
import base64
import calendar
import contextlib
import errno
import hashlib
import hmac
import http.client
import os
import ssl
import threading
import time
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    Body = bytes | IO[bytes]


_SCHEMES = ("s3://", "obs://")
_BLOCK = 1 << 20
_TRIES = 7
_TRY_AGAIN = {408, 429, 500, 502, 503, 504}
_store: Store | None = None
_lock = threading.Lock()


def is_remote(path: object) -> bool:
    return isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(_SCHEMES)


def split(url: object) -> tuple[str, str]:
    """Split a url into the bucket and the key."""
    bucket, _, key = os.fsdecode(str(url)).partition("://")[2].partition("/")
    if not bucket:
        raise ValueError(f"{url}: a bucket is missing")
    return bucket, key


# Which OBS, and which keys: the environment says it, or `set_auth`.


def store() -> Store:
    global _store  # noqa: PLW0603 - `set_auth` holds for the whole process
    with _lock:
        if _store is None:
            _store = _from_environment()
        return _store


def set_auth(
    ak: str | None = None,
    sk: str | None = None,
    server: str | None = None,
    port: int | None = None,
    is_secure: bool | None = None,
    ssl_verify: bool | None = None,
    **_ignored: object,
) -> None:
    global _store  # noqa: PLW0603
    address = f"{server}:{port}" if server and port else server
    close()
    with _lock:
        _store = _from_environment(ak=ak, sk=sk, server=address, is_secure=is_secure, ssl_verify=ssl_verify)


@atexit.register
def close() -> None:
    """Close the connections; the next request opens new ones."""
    if _store:
        _store.close()


def _from_environment(**options: object) -> Store:
    def setting(name: str, *variables: str) -> str:
        return str(options.get(name) or next((os.environ[v] for v in variables if os.environ.get(v)), ""))

    endpoint = setting("server", "S3_ENDPOINT")
    keys = [
        setting("ak", "ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
        setting("sk", "SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
    ]
    if not (endpoint and all(keys)):
        raise OSError("OBS cannot be reached: S3_ENDPOINT, ACCESS_KEY_ID and SECRET_ACCESS_KEY are not all set")
    if "://" not in endpoint and (options.get("is_secure") is False or os.environ.get("S3_USE_HTTPS") == "0"):
        endpoint = f"http://{endpoint}"
    token = "" if options.get("ak") else os.environ.get("SECURITY_TOKEN", "")
    verify = options.get("ssl_verify") is True or os.environ.get("S3_VERIFY_SSL", "1") != "0"
    return Store(endpoint, keys[0], keys[1], token, verify=verify)


class Store:
    def __init__(
        self, endpoint: str, access_key: str, secret_key: str, token: str = "", *, verify: bool = True
    ) -> None:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        self._secure = parts.scheme == "https"
        self._address = parts.netloc
        self._access_key = access_key
        self._secret_key = secret_key
        self._token = token
        self._context = ssl.create_default_context()
        if not verify:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE
        self._idle: list[http.client.HTTPConnection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def head(self, bucket: str, key: str) -> Entry | None:
        try:
            headers, _ = self._request("HEAD", bucket, key)
        except MoxFileNotExistsException:
            return None
        modified = parsedate_to_datetime(headers["last-modified"]).timestamp()
        return Entry(key, int(headers["content-length"]), modified)

    def read(self, bucket: str, key: str) -> bytes:
        return self._request("GET", bucket, key)[1]

    def download(self, bucket: str, key: str, to: IO[bytes]) -> None:
        self._request("GET", bucket, key, to=to)

    def put(self, bucket: str, key: str, body: Body) -> None:
        self._request("PUT", bucket, key, body=body)

    def copy(self, source: tuple[str, str], bucket: str, key: str) -> None:
        self._request("PUT", bucket, key, headers={"x-obs-copy-source": quote(f"/{source[0]}/{source[1]}")})

    def delete(self, bucket: str, key: str) -> None:
        self._request("DELETE", bucket, key)

    def has_bucket(self, bucket: str) -> bool:
        try:
            self._request("HEAD", bucket)
        except MoxFileNotExistsException:
            return False
        return True

    def list(self, bucket: str, prefix: str, delimiter: str = "", limit: int = 1000) -> Iterator[Entry | str]:
        """Yield the objects, and with a delimiter also the folders, as texts."""
        marker = ""
        while True:
            query = {"prefix": prefix, "marker": marker, "delimiter": delimiter, "max-keys": str(limit)}
            _, answer = self._request("GET", bucket, query={name: value for name, value in query.items() if value})
            page = _without_namespace(ET.fromstring(answer))  # noqa: S314 - OBS's own answer
            for content in page.iter("Contents"):
                key, size = content.findtext("Key") or "", content.findtext("Size") or "0"
                yield Entry(key, int(size), _seconds(content.findtext("LastModified") or ""))
            for folder in page.iter("CommonPrefixes"):
                yield folder.findtext("Prefix") or ""
            marker = page.findtext("NextMarker") or ""
            if page.findtext("IsTruncated") != "true" or not marker:
                return

    def _request(
        self,
        method: str,
        bucket: str,
        key: str = "",
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: Body = b"",
        to: IO[bytes] | None = None,
    ) -> tuple[dict[str, str], bytes]:
        """Retry errors that may pass: carrying out a put or a delete twice does no harm."""
        path = f"/{bucket}/{quote(key, safe='/~')}" if key else f"/{bucket}"
        for remaining in reversed(range(_TRIES)):
            try:
                return self._try(method, path, query or {}, headers or {}, body, to)
            except MoxFileRespException as error:
                if error.resp.status not in _TRY_AGAIN or not remaining:
                    raise
            except (OSError, http.client.HTTPException) as error:
                if not remaining:
                    raise MoxFileReadException(f"{method} s3:/{path}: {error}") from error
            time.sleep(0.05 * 2 ** (_TRIES - 1 - remaining))
        raise AssertionError("the last try returns or raises")

    def _try(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Body, to: IO[bytes] | None
    ) -> tuple[dict[str, str], bytes]:
        size = len(body) if isinstance(body, bytes) else _rewound(body)
        signed = self._sign(method, path, headers)
        signed["Content-Length"] = str(size)
        with self._connection() as connection:
            connection.request(method, path + (f"?{urlencode(query)}" if query else ""), body, signed)
            return self._receive(connection.getresponse(), path, to)

    def _receive(
        self, answer: http.client.HTTPResponse, path: str, to: IO[bytes] | None
    ) -> tuple[dict[str, str], bytes]:
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status >= 300:
            raise _refusal(answer.status, answer.read(), f"s3:/{path}", headers.get("x-obs-request-id", ""))
        if to is None:
            return headers, answer.read()
        to.seek(0)
        to.truncate()
        received = 0
        for block in iter(lambda: answer.read(_BLOCK), b""):
            to.write(block)
            received += len(block)
        if received != int(headers.get("content-length", received)):
            raise http.client.IncompleteRead(b"", int(headers["content-length"]) - received)
        return headers, b""

    def _sign(self, method: str, path: str, headers: dict[str, str]) -> dict[str, str]:
        date = formatdate(usegmt=True)
        signed = dict(headers)
        if self._token:
            signed["x-obs-security-token"] = self._token
        lines = [method, "", "", date, *(f"{name}:{signed[name]}" for name in sorted(signed)), path]
        digest = hmac.new(self._secret_key.encode(), "\n".join(lines).encode(), hashlib.sha1).digest()
        signed["Date"] = date
        signed["Authorization"] = f"OBS {self._access_key}:{base64.b64encode(digest).decode()}"
        return signed

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        """Keep the connection for the next request if all went well; never use one of the parent process."""
        with self._lock:
            if self._owner != os.getpid():
                self.close()
                self._owner = os.getpid()
            connection = self._idle.pop() if self._idle else self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._address, timeout=60, blocksize=_BLOCK, context=self._context)
        return http.client.HTTPConnection(self._address, timeout=60, blocksize=_BLOCK)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class Entry:
    def __init__(self, key: str, size: int, modified: float) -> None:
        self.key = key
        self.size = size
        self.modified = modified


def _rewound(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _refusal(status: int, answer: bytes, path: str, request_id: str) -> MoxFileRespException:
    code = message = ""
    try:
        root = _without_namespace(ET.fromstring(answer))  # noqa: S314
        code, message = root.findtext("Code") or "", root.findtext("Message") or ""
    except ET.ParseError:  # an answer to HEAD, or a gateway's page
        pass
    response = Response(status, code, message, request_id)
    return MoxFileNotExistsException(path, response) if status == 404 else MoxFileRespException(response, path)


def _without_namespace(root: ET.Element) -> ET.Element:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _seconds(stamp: str) -> float:
    return float(calendar.timegm(time.strptime(stamp.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")))


class Response:
    """The answer by which OBS refused a request."""

    def __init__(self, status: int, code: str = "", message: str = "", request_id: str = "") -> None:
        self.status = status
        self.errorCode = code
        self.errorMessage = message
        self.requestId = request_id

    def __repr__(self) -> str:
        return f"{self.status} {self.errorCode}: {self.errorMessage} (request {self.requestId})"


class MoxFileRespException(OSError):
    """OBS refused; `resp` says why."""

    def __init__(self, resp: Response, path: str = "") -> None:
        super().__init__(errno.EIO, f"OBS refused: {resp!r}", path)
        self.resp = resp


class MoxFileNotExistsException(MoxFileRespException, FileNotFoundError):
    def __init__(self, path: str, resp: Response | None = None) -> None:
        OSError.__init__(self, errno.ENOENT, "No such file or directory", path)
        self.resp = resp or Response(404, "NoSuchKey", "The specified key does not exist.")


class MoxFileReadException(OSError):
    """The connection broke in the middle of an answer."""


class MoxFileNameDuplicateException(OSError):
    """A file and a folder have the same name: OBS allows that, a disk does not."""
