"""Sends single requests to OBS: verifies certificates, retries, and raises our own errors.

The vendor's client does the HTTP and the signatures. On its own it verifies no certificate, does not retry 408 and 429,
and reports errors as statuses, codes, exceptions of many kinds, or not at all.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_aisbench.config.access import NO_HOSTS, Hosts
from pytest_aisbench.errors import (
    AisbenchError,
    BadAnswer,
    Garbled,
    JobLost,
    OutOfQuota,
    PlatformError,
    Refused,
    Rejected,
    StagingFailed,
    Throttled,
    Unreachable,
    UsageFault,
)
from pytest_aisbench.logs import Exchange, get_logger
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.net import retry
from pytest_aisbench.net.http import ServerClock, mask, parse_retry_after
from pytest_aisbench.net.huawei import retry_after_note
from pytest_aisbench.secret import NO_SECRET, Secret
from pytest_aisbench.stores.obs_vendor import silence_vendor_warnings, vendor_class

if TYPE_CHECKING:
    from obstore.store import S3Store


_LOG = get_logger("store")
# Our error and advice for the vendor's codes. A HEAD's error has only a status; `{bucket}` is filled in.
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
    "NoSuchUpload": (StagingFailed, "another client ended the upload; try again"),
    "BadDigest": (StagingFailed, "the bytes changed on the way or on disk; try again"),
    "InvalidDigest": (StagingFailed, "the bytes changed on the way or on disk; try again"),
}
_STATUSES: Mapping[int, tuple[type[AisbenchError], str]] = {
    # The vendor's client does not redirect streams; a new bucket answers so until DNS knows it.
    307: (Unreachable, "set obs_endpoint to the region of bucket {bucket}, or wait if the bucket is new"),
    401: (Refused, "check access_key and secret_access_key"),
    403: (Refused, "check access_key, secret_access_key, the rights on bucket {bucket} and this machine's clock"),
    404: _CODES["NoSuchBucket"],  # an object that is not there is no error where it may be missing
    408: (Unreachable, ""),
    429: (Throttled, ""),
    501: (PlatformError, "this store does not have the operation"),  # asking again would not help
}
_FAR_S = 0.004
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
        """True if OBS refuses the keys themselves, not what they ask for; the answer to a HEAD leaves that open."""
        return self.code in _KEYS_REFUSED if self.code else self.status in {401, 403}

    @property
    def is_obs(self) -> bool:
        """True for an answer of OBS, which has a request id; a gateway's page has none."""
        return any(name.endswith("-request-id") for name in self.headers)

    @property
    def md5(self) -> str | None:
        """The ETag, if it is the MD5 of the content: after one PUT, without encryption by the server."""
        if any(name.endswith("server-side-encryption") for name in self.headers):
            return None
        return md5_of(self.headers.get("etag"))


def md5_of(etag: str | None) -> str | None:
    text = (etag or "").strip('"').lower()
    return text if re.fullmatch("[0-9a-f]{32}", text) else None


class ObsClient:
    """Sends requests, and repeats them after transient errors for `patience` seconds from the first failure.

    Safe to share between threads. `why_gone` returns why the server will never answer again; empty while it may.
    `through` (`127.0.0.1:PORT`) is a tunnel to a domain's buckets whose names do not resolve.
    """

    def __init__(
        self,
        endpoint: str,
        access_key: Secret,
        secret_key: Secret,
        *,
        ca_file: str = "",
        security_token: Secret = NO_SECRET,
        signature: str = "",
        region: str = "",
        hosts: Hosts = NO_HOSTS,
        through: str = "",
        patience: float = 120.0,
        why_gone: Callable[[], str] = lambda: "",
    ) -> None:
        address = urlsplit(endpoint)
        if address.scheme not in {"http", "https"} or not address.hostname or ":" in address.hostname:
            advice = "write https://host[:port]; the vendor's client takes names and IPv4 addresses"
            raise UsageFault(f"obs_endpoint {endpoint!r} is not an address", advice=advice)
        # A bucket below `localhost` would be a host name that does not resolve; below an address it is a path.
        host = "127.0.0.1" if address.hostname == "localhost" else address.hostname
        self._server = f"{address.scheme}://{host}" + (f":{address.port}" if address.port else "")
        self._keys = (access_key, secret_key, security_token)
        self._signing = _signing(signature, region)
        self._hosts = hosts
        self._through = through
        self._patience = patience
        self._why_gone = why_gone
        self._tls = _verifying_context(ca_file) if address.scheme == "https" else None
        self._vendors: dict[str, Any] = {}
        self._clock = ServerClock()
        self._accepted_by: set[str] = set()  # buckets that accepted these keys once
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._distance_s = float("inf")
        self.small_puts = SmallPuts(
            self._server,
            self._keys,
            self._clock,
            region=region,
            signature=signature,
            ca_file=ca_file,
            hosts=hosts,
            through=through,
        )

    @property
    def is_far(self) -> bool:
        """True if even the quickest answer took so long that most of it was the way to OBS and back."""
        return _FAR_S < self._distance_s < float("inf")

    @property
    def is_near(self) -> bool:
        """True if an answer took no longer than that; neither, before the first answer."""
        return self._distance_s <= _FAR_S

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def ask(
        self,
        action: str,
        url: StoreUrl,
        request: Callable[[Any], Any],
        *,
        allow: Collection[int] = (),
        timeout_s: float | None = None,
    ) -> Answer:
        """Call `request` with the vendor's client and return the answer; statuses in `allow` are no errors.

        `timeout_s` limits the whole, for callers that cannot wait for a slow connection.
        """
        answer = Answer(0)

        def attempt() -> Answer:
            nonlocal answer
            ahead = self._clock.ahead
            answer, fault = self._attempt(action, url, request, allow, timeout_s)
            if fault and answer.doubts_keys and self._clock.explains_refusal(answer.headers.get("date", ""), ahead):
                answer, fault = self._attempt(action, url, request, allow, timeout_s)
            if fault is None:
                self._accepted_by.add(url.bucket)
                return answer
            if fault.retryable and (why := self._why_gone()):
                raise JobLost(f"cannot {action} {url}: {why}")
            raise fault

        def is_transient(error: AisbenchError) -> bool:
            if self._closed.is_set():
                return False
            return error.retryable or (answer.doubts_keys and url.bucket in self._accepted_by)

        return retry.call(
            attempt,
            patience_s=self._patience if timeout_s is None else timeout_s,
            is_transient=is_transient,
            from_first_failure=timeout_s is None,  # one attempt at a large file may take longer than the patience
            sleep=self._closed.wait,
        )

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            vendors, self._vendors = list(self._vendors.values()), {}
        for vendor in vendors:
            vendor.close()

    def _attempt(
        self, action: str, url: StoreUrl, request: Callable[[Any], Any], allow: Collection[int], timeout_s: float | None
    ) -> tuple[Answer, AisbenchError | None]:
        """The answer, and our error if it reports one.

        Returns errors instead of raising them, so that no traceback shows the vendor's frames, which hold keys.
        """
        nothing = Answer(0)
        if self._closed.is_set():
            return nothing, Unreachable(f"cannot {action} {url}: the Store is closed")
        silence_vendor_warnings()
        try:
            vendor = self._vendor(url.bucket)
        except Exception as error:  # noqa: BLE001 - the vendor's constructor raises bare Exceptions
            return nothing, self._error_of_exception(action, url, error)
        vendor.limit_wait(timeout_s)
        began = time.perf_counter()
        with Exchange("", str(url)) as exchange:
            try:
                result = request(vendor)
                exchange.status = result.status
                exchange.request_id = result.requestId or ""
            except Exception as error:  # noqa: BLE001 - the vendor raises bare Exceptions
                vendor.drop()
                exchange.error = fault = self._error_of_exception(action, url, error)
                return nothing, fault
            finally:
                exchange.method = ", ".join(vendor.methods()) or action
        self._distance_s = min(self._distance_s, time.perf_counter() - began)
        answer = Answer(result.status, result.body, vendor.headers(), result.errorCode or "")
        if answer.status < 300 or (answer.status in allow and not vendor.is_about_bucket(url.bucket, result)):
            if answer.is_obs:
                return answer, None
            advice = "check obs_endpoint; a proxy or a login page may stand between"
            return nothing, Garbled(f"cannot {action} {url}: HTTP {answer.status}, but not from OBS", advice=advice)
        answer = replace(answer, body=None)  # it may quote keys
        return answer, self._error_of_answer(action, url, answer, result)

    def _vendor(self, bucket: str) -> Any:
        """The vendor's client for a bucket. Each has its own, since its pool mixes connections to different hosts."""
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

    def _error_of_answer(self, action: str, url: StoreUrl, answer: Answer, result: Any) -> AisbenchError:
        status, code = answer.status, answer.code
        kind, advice = _CODES.get(code) or _STATUSES.get(status) or (Unreachable if status >= 500 else Rejected, "")
        why = f"{code} (HTTP {status})" if code else f"HTTP {status}"
        if kind in {Rejected, PlatformError} and result.errorMessage:
            why += f": {mask(result.errorMessage, self._keys)[:200]}"
        pause_s = parse_retry_after(answer.headers.get("retry-after", ""), answer.headers.get("date", ""))
        trail = ", ".join(filter(None, (result.requestId and f"request {result.requestId}", retry_after_note(pause_s))))
        advice = advice.format(bucket=url.bucket)
        if answer.doubts_keys and self._keys[2]:
            advice += "; and whether security_token has expired"
        return kind(f"cannot {action} {url}: OBS says {why}", advice=advice, trail=trail, pause_s=pause_s)

    def _error_of_exception(self, action: str, url: StoreUrl, error: Exception) -> AisbenchError:
        if isinstance(error, AisbenchError):
            return error.with_traceback(None)
        what = f"cannot {action} {url}"
        if isinstance(error, ImportError):
            advice = "pip install esdk-obs-python"
            return UsageFault(f"{what}: the vendor's client cannot be imported: {error}", advice=advice)
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = "set ca_file to the authority that signed it, or correct obs_endpoint"
            return UsageFault(f"{what}: {self._server} is not trusted: {error.verify_message}", advice=advice)
        why = mask(f"{type(error).__name__}: {error}", self._keys)[:200]
        # A Warning: pytest replaced the warning filters after `silence_vendor_warnings` had set filters.
        if isinstance(error, (OSError, http.client.HTTPException, Warning)):
            return Unreachable(f"{what}: no answer from {self._server}: {why}")
        _LOG.debug("the vendor's OBS client failed", exc_info=error)  # a traceback has no values, and so no keys
        # It stumbles like this over headers that were cut, or changed on the way.
        damaged = isinstance(error, (ValueError, LookupError, AttributeError))
        return (Garbled if damaged else BadAnswer)(f"{what}: {why}")


def _signing(signature: str, region: str) -> dict[str, Any]:
    """Arguments of the vendor's client. Without them it asks each bucket which signature to use, OBS or V2."""
    return {"signature": signature, "is_signature_negotiation": False, "region": region} if signature else {}


def _verifying_context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        advice = "it must be a readable file of certificates in PEM"
        raise UsageFault(f"ca_file {ca_file}: {error}", advice=advice) from None


# Small objects by obstore, where it is installed: a request takes half the CPU of the vendor's client. obstore signs by
# V4. It cannot do all that the vendor's client does, and OBS documents V4 without promising it for every endpoint. So
# it is an attempt: `SmallPuts.put` returns True if OBS has the object with the right MD5. After anything else the
# caller sends the object with the vendor's client, which repeats, explains and verifies, and obstore is not used again.

_TIMEOUT = "60s"
_ADDRESS = re.compile(r"[0-9.]+")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# obstore obeys the environment: a variable may add a token, or send requests elsewhere. It does not read these, or we
# set what they set.
_HARMLESS = {
    "AWS_ACCESS_KEY_ID",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_DEFAULT_OUTPUT",
    "AWS_DEFAULT_REGION",
    "AWS_PAGER",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SHARED_CREDENTIALS_FILE",
}


def why_not(
    endpoint: str, environment: Mapping[str, str], *, signature: str, ca_file: str, hosts: Hosts, through: str
) -> str:
    """Why obstore must not be used for this endpoint; empty if it may."""
    host = urlsplit(endpoint).hostname or ""
    if signature not in {"", "v4"}:
        return f"obs_signature is {signature}, and obstore signs by v4"
    if ca_file:
        return "obstore would trust the system's authorities beside ca_file"
    if through or any(_is_or_is_below(name, host) for name in hosts.addresses):
        return "obstore knows no [hosts]"
    names = {name.lower(): name for name in environment if environment[name]}
    if proxies := [names[name] for name in _PROXIES if name in names]:
        return f"obstore would obey {proxies[0]}, as the vendor's client does not"
    strange = sorted(name for name in environment if name.startswith("AWS_") and name not in _HARMLESS)
    return f"obstore would obey {strange[0]}" if strange else ""


def _is_or_is_below(name: str, host: str) -> bool:
    return name == host or name.endswith(f".{host}")


class SmallPuts:
    """Several threads may put at once. It imports nothing before the first question whether it is `usable`."""

    def __init__(self, endpoint: str, keys: tuple[Secret, Secret, Secret], clock: ServerClock, **options: Any) -> None:
        """`keys` are the access key, the secret key and the security token, which may be empty; `options` are those of
        `why_not`, and `region`."""
        self._server, self._keys, self._clock = endpoint, keys, clock
        self._region = options.pop("region") or "region"  # as the vendor's client
        self._options = options
        self._allowed: bool | None = None  # None: not asked yet
        self._stores: dict[str, S3Store] = {}
        self._lock = threading.Lock()

    @property
    def usable(self) -> bool:
        with self._lock:
            if self._allowed is None:
                self._allowed = importlib.util.find_spec("obstore") is not None
                if self._allowed and (why := why_not(self._server, os.environ, **self._options)):
                    self._end(why)
        # obstore signs by this machine's clock, which is wrong if OBS has refused it once.
        return bool(self._allowed) and not self._clock.ahead

    def put(self, url: StoreUrl, data: bytes, md5: str) -> bool:
        """True if OBS has the object, and says so by its MD5."""
        if not self.usable or url.key.endswith("/"):  # obstore would drop the slash
            return False
        import obstore

        with Exchange("PUT", str(url)) as exchange:
            try:
                answer = obstore.put(self._store(url.bucket), url.key, data, use_multipart=False)
            except Exception as error:  # noqa: BLE001 - the vendor's client finds out what is wrong
                exchange.error = error
                self._end_now(f"it could not write {url}: {mask(_first_line(error), self._keys)}")
                return False
            if (answer["e_tag"] or "").strip('"').lower() != md5:
                exchange.status = "other bytes, or encrypted ones"
                self._end_now(f"the ETag of {url} is not its MD5")
                return False
            exchange.status = "stored"
        return True

    def _end_now(self, why: str) -> None:
        with self._lock:
            self._end(why)

    def _end(self, why: str) -> None:
        was_allowed, self._allowed = self._allowed, False
        if was_allowed:
            _LOG.info("obstore is not used, the vendor's client is: %s", why)

    def _store(self, bucket: str) -> S3Store:
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = self._open(bucket)
            return self._stores[bucket]

    def _open(self, bucket: str) -> S3Store:
        from obstore.store import S3Store

        address = urlsplit(self._server)
        by_path = bool(_ADDRESS.fullmatch(address.hostname or ""))  # as the vendor's client: else the bucket is a host
        server = self._server if by_path else f"{address.scheme}://{bucket}.{address.netloc}"
        token: dict[str, Any] = {"session_token": self._keys[2].reveal()} if self._keys[2] else {}
        return S3Store(
            bucket,
            endpoint=server,
            access_key_id=self._keys[0].reveal(),
            secret_access_key=self._keys[1].reveal(),
            region=self._region,
            virtual_hosted_style_request=not by_path,
            unsigned_payload=True,  # OBS takes no other
            client_options={"allow_http": address.scheme == "http", "timeout": _TIMEOUT, "connect_timeout": _TIMEOUT},
            retry_config={"max_retries": 0},  # net/retry.py is the one policy
            **token,
        )


def _first_line(error: Exception) -> str:
    """Without the dump of obstore's own state that follows."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:400]
