"""The vendor's OBS client with its holes closed.

Measured on 3.26: a failed request leaks its socket, a pooled connection cannot be tunnelled again, response headers
are dropped or mixed up, half an answer counts as none, and warnings of its own break `-W error`.
"""

from __future__ import annotations

import functools
import re
import socket
import threading
import warnings
from collections.abc import Mapping
from email.utils import format_datetime
from http.client import IncompleteRead
from typing import Any

from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.net.http import ServerClock
from pytest_aisbench.settings.hosts import NO_HOSTS

_LOG = get_logger("store")
# utcnow() with every request, and escapes that are none, told when first compiled: the module is a path then.
_QUIET = (DeprecationWarning, SyntaxWarning)
_LOADING = threading.Lock()
_VENDOR = r"obs\.|.*[/\\]obs[/\\]"


def hush() -> None:
    """Let the vendor's own warnings pass where warnings are errors.

    Not `catch_warnings`: that is not thread safe. And not once for all: pytest restores the filters after each test,
    and puts its own before ours, so that being among them is not enough.
    """
    ours = [("ignore", None, category, re.compile(_VENDOR), 0) for category in _QUIET]
    if not all(each in warnings.filters[: len(ours)] for each in ours):
        for category in _QUIET:
            warnings.filterwarnings("ignore", category=category, module=_VENDOR)


def _connected(address: str, place: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
    return socket.create_connection((address, place[1]), *args, **kwargs)


def vendor_class() -> Any:
    """Imported when first used: 150 ms and 25 MiB that a plain pytest run does not pay; and by one thread only."""
    with _LOADING:
        return _loaded()


@functools.cache
def _loaded() -> Any:
    import obs

    class Vendor(obs.ObsClient):  # type: ignore[misc]
        clock = ServerClock()
        hosts = NO_HOSTS

        def _add_auth_headers(self, headers: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            # The vendor dates by this machine's clock, unless the header is there, which many servers of V4 ask for.
            if self.signature == "v4":
                headers[self.ha.date_header()] = self.clock.now().strftime("%Y%m%dT%H%M%SZ")
            elif self.clock.ahead:
                headers[self.ha.date_header()] = format_datetime(self.clock.now(), usegmt=True)
            return super()._add_auth_headers(headers, *args, **kwargs)

        def hurry(self, seconds: float | None) -> None:
            """Let this thread wait no longer than so for a connection or the next byte; None: as long as others."""
            self.thread_local.seconds = seconds
            self.thread_local.methods = []

        def _send_request(self, server: str, method: str, *args: Any, **kwargs: Any) -> Any:
            self.thread_local.methods = [*self.methods(), method]
            return super()._send_request(server, method, *args, **kwargs)

        def methods(self) -> list[str]:
            """Of the requests that this thread has sent since `hurry`: the vendor may ask what to sign by first."""
            return getattr(self.thread_local, "methods", [])

        def _get_server_connection(self, *args: Any, **kwargs: Any) -> Any:
            connection = super()._get_server_connection(*args, **kwargs)
            self.thread_local.connection = connection
            if address := self.hosts.address(connection.host, above=self.server):
                # Of this connection alone, and below it: the name stays what TLS checks and the signature has.
                connection._create_connection = functools.partial(_connected, address)  # noqa: SLF001
            connection.timeout = getattr(self.thread_local, "seconds", None) or self.timeout
            if connection.sock is not None:  # pooled; http.client refuses to tunnel what is tunnelled already
                connection.set_tunnel = lambda *_: None
                with ignored(_LOG, OSError, "the time limit of a connection"):  # a dead one: told when it is used
                    connection.sock.settimeout(connection.timeout)
            return connection

        def _rename_response_headers(self, headers: dict[str, str]) -> Any:
            self.thread_local.headers = headers  # the vendor drops Retry-After and mixes metadata with the rest
            return super()._rename_response_headers(headers)

        def _prepare_response_data(self, result: Any, *args: Any) -> Any:
            data = super()._prepare_response_data(result, *args)
            if result.length:  # bytes that did not come: the vendor makes nothing of half a listing, and says nothing
                raise IncompleteRead(b"", result.length)
            return data

        def headers(self) -> Mapping[str, str]:
            """Of this thread's last answer."""
            return getattr(self.thread_local, "headers", {})

        def misses(self, bucket: str, result: Any) -> bool:
            """Whether a 404 means the bucket: told by its code, or the question which signature to use failed."""
            negotiated = not self.is_signature_negotiation or self.cache.get(bucket)
            return result.errorCode == "NoSuchBucket" or not negotiated

        def drop(self) -> None:
            """Close the connection that failed, and the idle ones: what ended it has ended them too."""
            pool = self.connHolder["connSet"] if self.connHolder else None
            with ignored(_LOG, Exception, "the closing of connections after an error"):
                self.thread_local.connection.close()
                while pool is not None and not pool.empty():
                    pool.get_nowait().close()

    return Vendor
