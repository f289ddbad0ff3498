"""Asking OBS: verified TLS, patience of our own, and errors of our tree.

What the vendor's client leaves open: certificates are not verified, 408 and 429 are not retried, errors are statuses,
codes, exceptions of many kinds, or nothing at all.
"""

from __future__ import annotations

import functools
import http.client
import re
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from email.utils import format_datetime
from http.client import IncompleteRead
from typing import Any
from urllib.parse import urlsplit

from pytest_aisbench.config.access import NO_HOSTS, Hosts
from pytest_aisbench.errors import (
    AisbenchError,
    BadAnswer,
    Garbled,
    JobLost,
    OutOfQuota,
    Refused,
    Rejected,
    StagingFailed,
    Throttled,
    Unreachable,
    UsageFault,
)
from pytest_aisbench.logs import Exchange, get_logger, ignored
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.net import retry
from pytest_aisbench.net.http import ServerClock, parse_retry_after
from pytest_aisbench.net.huawei import retry_after_note
from pytest_aisbench.secret import Secret

# -- The vendor's OBS client with its holes closed.

_LOG = get_logger("store")
# utcnow() with every request, and escapes that are none, told when first compiled: the module is a path then.
_QUIET = (DeprecationWarning, SyntaxWarning)
_LOADING = threading.Lock()
_VENDOR = r"obs\.|.*[/\\]obs[/\\]"


def silence_vendor_warnings() -> None:
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


# What the vendor's codes mean to us, and what to do. A HEAD's error has a status only; `{bucket}` is filled in.
_CODES: Mapping[str, tuple[type[AisbenchError], str]] = {
    "InvalidAccessKeyId": (Refused, "check access_key"),
    "SignatureDoesNotMatch": (Refused, "check secret_access_key"),
    "AccessDenied": (Refused, "ask the owner of bucket {bucket} to let these keys list, read and write it"),
    "RequestTimeTooSkewed": (UsageFault, "set the clock of this machine; OBS allows 15 minutes"),
    "NoSuchBucket": (UsageFault, "create bucket {bucket}, or correct its name and region"),
    "InvalidBucketName": (UsageFault, "correct the name of bucket {bucket}"),
    "PermanentRedirect": (UsageFault, "set obs_endpoint to the region of bucket {bucket}"),
    "KeyTooLong": (UsageFault, "shorten the path; a key has at most 1,024 bytes"),
    "InsufficientStorageSpace": (OutOfQuota, "make room in bucket {bucket}, or raise its quota"),
    "SlowDown": (Throttled, ""),
    "RequestTimeout": (Unreachable, ""),  # 400s that were not our fault
    "IncompleteBody": (Unreachable, ""),
    "OperationAborted": (Unreachable, ""),
    "NoSuchUpload": (StagingFailed, "the upload was ended by somebody else; try again"),
    "BadDigest": (StagingFailed, "the bytes changed on the way or on disk; try again"),
    "InvalidDigest": (StagingFailed, "the bytes changed on the way or on disk; try again"),
}
_STATUSES: Mapping[int, tuple[type[AisbenchError], str]] = {
    # Streams are not redirected by the vendor's client; a bucket that is minutes old answers so until DNS knows it.
    307: (Unreachable, "set obs_endpoint to the region of bucket {bucket}, or wait if the bucket is new"),
    401: (Refused, "check access_key and secret_access_key"),
    403: (Refused, "check access_key, secret_access_key, the rights on bucket {bucket} and this machine's clock"),
    404: _CODES["NoSuchBucket"],  # an object that is not there is no error where it may be missing
    408: (Unreachable, ""),
    429: (Throttled, ""),
}
_KEYS_REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"}


@dataclass(frozen=True)
class Answer:
    """`headers` have lower-case names."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    code: str = ""

    @property
    def doubts_keys(self) -> bool:
        """Whether the keys are refused, and not what they are used for; a HEAD's answer does not tell."""
        return self.code in _KEYS_REFUSED if self.code else self.status in {401, 403}

    @property
    def is_obs(self) -> bool:
        """Every answer of the service has the number of its request; a gateway's page has none."""
        return any(name.endswith("-request-id") for name in self.headers)

    @property
    def md5(self) -> str | None:
        """The ETag where it is the MD5 of the content: one PUT, and no key management behind it."""
        if any(name.endswith("server-side-encryption") for name in self.headers):
            return None
        return md5_of(self.headers.get("etag"))


def md5_of(etag: str | None) -> str | None:
    text = (etag or "").strip('"').lower()
    return text if re.fullmatch("[0-9a-f]{32}", text) else None


class ObsClient:
    """Asks again what may pass, from any thread; `patience` is in seconds, from the first failure on. `gone` says why
    the server will never answer again, and nothing while it may."""

    def __init__(
        self,
        endpoint: str,
        access_key: Secret,
        secret_key: Secret,
        *,
        ca_file: str,
        security_token: Secret,
        signature: str,
        region: str,
        hosts: Hosts,
        through: str,
        patience: float,
        gone: Callable[[], str],
    ) -> None:
        address = urlsplit(endpoint)
        if address.scheme not in {"http", "https"} or not address.hostname or ":" in address.hostname:
            advice = "write https://host[:port]; the vendor's client takes names and IPv4 addresses"
            raise UsageFault(f"obs_endpoint {endpoint!r} is not an address", advice=advice)
        # Below `localhost` a bucket would be a host name that nobody resolves; an address means paths instead.
        host = "127.0.0.1" if address.hostname == "localhost" else address.hostname
        self._server = f"{address.scheme}://{host}" + (f":{address.port}" if address.port else "")
        self._keys = (access_key, secret_key, security_token)
        self._signing = _signing(signature, region)
        self._hosts = hosts
        self._through = through
        self._patience = patience
        self._gone = gone
        self._tls = _verified(ca_file) if address.scheme == "https" else None
        self._vendors: dict[str, Any] = {}
        self._clock = ServerClock()
        self._welcome: set[str] = set()  # buckets that accepted these keys once
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def ask(
        self,
        doing: str,
        url: StoreUrl,
        request: Callable[[Any], Any],
        *,
        allow: Collection[int] = (),
        within: float | None = None,
    ) -> Answer:
        """What `request`, called with the vendor's client, is answered; statuses in `allow` are no errors.

        `within` so many seconds there is an answer or an error, for those who cannot wait for a slow connection."""
        answer = Answer(0)

        def attempt() -> Answer:
            nonlocal answer
            ahead = self._clock.ahead
            answer, fault = self._attempt(doing, url, request, allow, within)
            if fault and answer.doubts_keys and self._clock.explains_refusal(answer.headers.get("date", ""), ahead):
                answer, fault = self._attempt(doing, url, request, allow, within)
            if fault is None:
                self._welcome.add(url.bucket)
                return answer
            if fault.retryable and (why := self._gone()):
                raise JobLost(f"cannot {doing} {url}: {why}")
            raise fault

        def is_transient(error: AisbenchError) -> bool:
            if self._closed.is_set():
                return False
            return error.retryable or (answer.doubts_keys and url.bucket in self._welcome)

        return retry.call(
            attempt,
            patience_s=self._patience if within is None else within,
            is_transient=is_transient,
            from_first_failure=within is None,  # a large file may take longer than the patience by itself
            sleep=self._closed.wait,
        )

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            vendors, self._vendors = list(self._vendors.values()), {}
        for vendor in vendors:
            vendor.close()

    def _attempt(
        self, doing: str, url: StoreUrl, request: Callable[[Any], Any], allow: Collection[int], within: float | None
    ) -> tuple[Answer, AisbenchError | None]:
        """An answer, and our error if it is one.

        Errors are returned, not raised, so that no traceback shows the vendor's frames: they hold keys.
        """
        nothing = Answer(0)
        if self._closed.is_set():
            return nothing, Unreachable(f"cannot {doing} {url}: the Store is closed")
        silence_vendor_warnings()
        try:
            vendor = self._vendor(url.bucket)
        except Exception as error:  # noqa: BLE001 - the vendor's constructor raises bare Exceptions
            return nothing, self._broke(doing, url, error)
        vendor.hurry(within)
        with Exchange("", str(url)) as exchange:
            try:
                result = request(vendor)
                exchange.status = result.status
                exchange.request_id = result.requestId or ""
            except Exception as error:  # noqa: BLE001 - the vendor raises bare Exceptions
                vendor.drop()
                exchange.error = broke = self._broke(doing, url, error)
                return nothing, broke
            finally:
                exchange.method = ", ".join(vendor.methods()) or doing
        answer = Answer(result.status, result.body, vendor.headers(), result.errorCode or "")
        if answer.status < 300 or (answer.status in allow and not vendor.misses(url.bucket, result)):
            if answer.is_obs:
                return answer, None
            advice = "check obs_endpoint; a proxy or a login page may stand between"
            return nothing, Garbled(f"cannot {doing} {url}: HTTP {answer.status}, but not from OBS", advice=advice)
        answer = replace(answer, body=None)  # it may quote keys
        return answer, self._unwell(doing, url, answer, result)

    def _vendor(self, bucket: str) -> Any:
        """One client per bucket: the vendor's pool of connections does not know which host they lead to."""
        with self._lock:
            if bucket not in self._vendors:
                host, _, port = self._through.partition(":")
                tunnel = {"proxy_host": host, "proxy_port": int(port)} if self._through else {}
                self._vendors[bucket] = vendor = vendor_class()(
                    access_key_id=self._keys[0].reveal(),
                    secret_access_key=self._keys[1].reveal(),
                    security_token=self._keys[2].reveal() or None,
                    server=self._server,
                    long_conn_mode=True,
                    chunk_size=1024 * 1024,
                    max_retry_count=0,
                    max_redirect_count=3,
                    **self._signing,
                    **tunnel,
                )
                vendor.context = self._tls  # the vendor's own verifies nothing
                vendor.clock = self._clock
                vendor.hosts = self._hosts
            return self._vendors[bucket]

    def _unwell(self, doing: str, url: StoreUrl, answer: Answer, result: Any) -> AisbenchError:
        status, code = answer.status, answer.code
        kind, advice = _CODES.get(code) or _STATUSES.get(status) or (Unreachable if status >= 500 else Rejected, "")
        why = f"{code} (HTTP {status})" if code else f"HTTP {status}"
        if kind is Rejected and result.errorMessage:
            why += f": {self._masked(result.errorMessage)[:200]}"
        pause_s = parse_retry_after(answer.headers.get("retry-after", ""), answer.headers.get("date", ""))
        trail = ", ".join(filter(None, (result.requestId and f"request {result.requestId}", retry_after_note(pause_s))))
        advice = advice.format(bucket=url.bucket)
        if answer.doubts_keys and self._keys[2]:
            advice += "; and whether security_token has expired"
        return kind(f"cannot {doing} {url}: OBS says {why}", advice=advice, trail=trail, pause_s=pause_s)

    def _broke(self, doing: str, url: StoreUrl, error: Exception) -> AisbenchError:
        if isinstance(error, AisbenchError):
            return error.with_traceback(None)
        what = f"cannot {doing} {url}"
        if isinstance(error, ImportError):
            advice = "pip install esdk-obs-python"
            return UsageFault(f"{what}: the vendor's client cannot be imported: {error}", advice=advice)
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = "set ca_file to the authority that signed it, or correct obs_endpoint"
            return UsageFault(f"{what}: {self._server} is not trusted: {error.verify_message}", advice=advice)
        why = self._masked(f"{type(error).__name__}: {error}")[:200]
        # A warning that is an error here is ours to hush: the filters were swapped after we had looked.
        if isinstance(error, (OSError, http.client.HTTPException, Warning)):
            return Unreachable(f"{what}: no answer from {self._server}: {why}")
        _LOG.debug("the vendor's OBS client failed", exc_info=error)  # a traceback has no values, and so no keys
        return BadAnswer(f"{what}: {why}")

    def _masked(self, text: str) -> str:
        for key in self._keys:
            if key:
                text = text.replace(key.reveal(), "***")
        return text


def _signing(signature: str, region: str) -> dict[str, Any]:
    """For the vendor's client, which asks each bucket what it speaks, OBS or V2, unless it is told not to."""
    return {"signature": signature, "is_signature_negotiation": False, "region": region} if signature else {}


def _verified(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        advice = "it must be a readable file of certificates in PEM"
        raise UsageFault(f"ca_file {ca_file}: {error}", advice=advice) from None
