"""The vendor's OBS client with our corrections: what it gets wrong, and what costs CPU and brings us nothing.

`vendor_class` is the only way to it. The corrections override methods of the vendor's class. They patch nothing, so
that other users of the SDK in this process see no difference.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import re
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import format_datetime
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from typing import Any
from urllib.parse import unquote_plus

from pytest_aisbench.config.access import NO_HOSTS
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.net.http import QuickResponse, ServerClock

_LOG = get_logger("store")
_LOADING = threading.Lock()
_VENDOR = re.compile(r"obs\.|.*[/\\]obs[/\\]")  # its modules; while Python compiles one, a warning has its path
# The vendor's client calls utcnow() with every request, and has invalid escapes.
_SILENCED = [("ignore", None, category, _VENDOR, 0) for category in (DeprecationWarning, SyntaxWarning)]
_ONE_PACKET = 65536  # bytes of a body that are sent together with the headers


def silence_vendor_warnings() -> None:
    """Ignore the vendor's own warnings, also where warnings are errors.

    `catch_warnings` is not thread-safe. Call this before each request: pytest restores the filters after each test,
    and puts its own in front of filters.
    """
    first = warnings.filters[: len(_SILENCED)]
    if not all(each in first for each in _SILENCED):
        for _, _, category, _, _ in _SILENCED:
            warnings.filterwarnings("ignore", category=category, module=_VENDOR.pattern)


def vendor_class() -> Any:
    """The vendor's client with our corrections. Imports the SDK (150 ms, 25 MiB) at the first call, in one thread."""
    with _LOADING:
        return _loaded()


# Only the vendor's client that encrypts uses these modules, and to load them takes a third of the import's time.
_CIPHERS = frozenset(
    f"Crypto.{name}" for name in ("Cipher.AES", "Cipher.PKCS1_OAEP", "PublicKey.RSA", "Util.Counter", "Util.number")
)


class _CipherFinder:
    """Finds the modules of `Crypto` that the SDK imports, and loads each at its first use."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _CIPHERS else None
        if spec and spec.loader:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextlib.contextmanager
def _ciphers_on_first_use() -> Iterator[None]:
    sys.meta_path.insert(0, _CipherFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(_CipherFinder)


# Connections


class _Connection(http.client.HTTPConnection):
    """Sends the headers of a PUT together with the beginning of its body: half the packets for a small object."""

    response_class = QuickResponse
    _holds = False
    _headers = b""

    def hold_headers(self) -> None:
        """Keep what is sent next, the headers, until the body begins."""
        self._holds = True

    def send(self, data: Any) -> None:
        if self._holds:
            self._holds, self._headers = False, data
            return
        if self._headers:
            headers, self._headers = self._headers, b""
            if len(data) <= _ONE_PACKET:
                data = headers + data
            else:
                super().send(headers)
        super().send(data)

    def close(self) -> None:
        self._holds, self._headers = False, b""
        super().close()


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    pass


def _connect_to(address: str, place: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
    return socket.create_connection((address, place[1]), *args, **kwargs)


@dataclass
class Body:
    """The content of an object, to be read from `result`. Call `close` after reading it to its end."""

    result: http.client.HTTPResponse
    size: int | None
    _connection: Any
    _pool: Any

    def close(self) -> None:
        """Let other requests use the connection."""
        from obs import util

        util.do_close(self.result, self._connection, self._pool)


@dataclass
class _Fetched:
    """The answer to a GET, with the attributes of the vendor's own, which takes a third of the CPU of a GET."""

    status: int
    body: Body
    requestId: str  # noqa: N815 - the vendor's name
    errorCode: None = None  # noqa: N815
    errorMessage: None = None  # noqa: N815


@dataclass
class Listing:
    """A page of a listing: keys, sizes and ETags in key order. The vendor's own model takes five times the CPU."""

    contents: list[tuple[str, int, str]]
    is_truncated: bool


def _read_listing(document: bytes) -> Listing | None:
    """None for what is no listing."""
    from xml.etree import ElementTree as ET

    try:
        root = ET.fromstring(document)  # noqa: S314 - as the vendor's client; expat limits what entities grow to
        space = root.tag.rpartition("}")[0]
        space += "}" if space else ""
        decoded = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
        contents = [
            (
                decoded(entry.findtext(f"{space}Key", "")),
                int(entry.findtext(f"{space}Size", "")),
                entry.findtext(f"{space}ETag", ""),
            )
            for entry in root.iterfind(f"{space}Contents")
        ]
        is_truncated = {"true": True, "false": False}[root.findtext(f"{space}IsTruncated", "").lower()]
        return Listing(contents, is_truncated)
    except (ET.ParseError, KeyError, ValueError) as error:
        log_ignored(_LOG, error, "a listing")
        return None


@functools.cache
def _loaded() -> Any:
    with _ciphers_on_first_use():
        import obs

    class Vendor(obs.ObsClient):  # type: ignore[misc]
        clock = ServerClock()
        hosts = NO_HOSTS

        # Requests

        def _add_auth_headers(self, headers: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            # Without the header the vendor's client uses this machine's clock, and many V4 servers require it.
            if self.signature == "v4":
                headers[self.ha.date_header()] = self.clock.now().strftime("%Y%m%dT%H%M%SZ")
            elif self.clock.ahead:
                headers[self.ha.date_header()] = format_datetime(self.clock.now(), usegmt=True)
            return super()._add_auth_headers(headers, *args, **kwargs)

        def limit_wait(self, seconds: float | None) -> None:
            """Limit how long this thread waits for a connection or the next byte; None: as long as other threads."""
            self.thread_local.seconds = seconds
            self.thread_local.methods = []

        def _send_request(self, server: str, method: str, *args: Any, **kwargs: Any) -> Any:
            self.thread_local.methods = [*self.methods(), method]
            return super()._send_request(server, method, *args, **kwargs)

        def methods(self) -> list[str]:
            """The methods that this thread sent since `limit_wait`; the first may ask for the signature."""
            return getattr(self.thread_local, "methods", [])

        @staticmethod
        def _parse_connection_chunked_mode(
            connection: _Connection, chunked: Any, method: str, path: str, headers: dict[str, Any]
        ) -> None:
            if method == "PUT" and "Content-MD5" in headers:  # only a body has one, and the vendor sends it next
                connection.hold_headers()
            obs.ObsClient._parse_connection_chunked_mode(connection, chunked, method, path, headers)  # noqa: SLF001

        def _get_server_connection_use_http1x(
            self, secure: Any, server: str, port: int, proxy_host: str | None, proxy_port: int | None
        ) -> _Connection:
            if proxy_host is not None and proxy_port is not None:
                server, port = proxy_host, proxy_port
            if secure:
                return _SecureConnection(server, port, timeout=self.timeout, context=self.context)
            return _Connection(server, port, timeout=self.timeout)

        def _get_server_connection(self, *args: Any, **kwargs: Any) -> Any:
            connection = super()._get_server_connection(*args, **kwargs)
            self.thread_local.connection = connection
            if address := self.hosts.address(connection.host, above=self.server):
                # Only this connection uses the address; TLS and the signature still use the name.
                connection._create_connection = functools.partial(_connect_to, address)  # noqa: SLF001
            connection.timeout = getattr(self.thread_local, "seconds", None) or self.timeout
            if connection.sock is not None:  # from the pool; http.client refuses a second tunnel
                connection.set_tunnel = lambda *_: None
                if connection.sock.gettimeout() != connection.timeout:
                    with ignored(_LOG, OSError, "the time limit of a connection"):  # its first use reports its death
                        connection.sock.settimeout(connection.timeout)
            return connection

        def drop(self) -> None:
            """Close the connection that failed and the idle ones, which the same outage has ended."""
            pool = self.connHolder["connSet"] if self.connHolder else None
            with ignored(_LOG, Exception, "the closing of connections after an error"):
                self.thread_local.connection.close()
                while pool is not None and not pool.empty():
                    pool.get_nowait().close()

        # Answers

        def _rename_response_headers(self, headers: dict[str, str]) -> Any:
            self.thread_local.headers = headers  # the vendor's client drops Retry-After
            return list(headers.items())  # without the decoding, which no caller needs

        def _prepare_response_data(self, result: Any, *args: Any) -> Any:
            data = super()._prepare_response_data(result, *args)
            if result.length:  # bytes are missing; the vendor's client would silently return an empty listing
                raise http.client.IncompleteRead(b"", result.length)
            return data

        def _prepare_body(self, method: str | None, data: Any, *args: Any) -> Any:
            if not data:  # it would make a model of the headers, attribute by attribute
                return data, None
            if method == "listObjects":
                return data, _read_listing(data)
            return super()._prepare_body(method, data, *args)

        def _generate_object_url(self, *_: Any) -> None:
            """Does nothing: no caller reads it."""

        def _parse_content(self, key: str, connection: Any, response: Any, **options: Any) -> Any:
            if response.status >= 300:
                return super()._parse_content(key, connection, response, **options)
            headers = {name.lower(): value for name, value in response.getheaders()}
            self._rename_response_headers(headers)
            size = headers.get("content-length", "")
            body = Body(response, int(size) if size.isdecimal() else None, connection, self.connHolder)
            return _Fetched(response.status, body, self._prepare_request_id(None, headers))

        def headers(self) -> Mapping[str, str]:
            """The headers of this thread's last answer."""
            return getattr(self.thread_local, "headers", {})

        def is_about_bucket(self, bucket: str, result: Any) -> bool:
            """True if a 404 is about the bucket: its code says so, or the question for the signature got it."""
            negotiated = not self.is_signature_negotiation or self.cache.get(bucket)
            return result.errorCode == "NoSuchBucket" or not negotiated

    return Vendor
