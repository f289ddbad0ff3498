"""Signs and sends HTTP requests with the vendor's SDK, and corrects its flaws. `Session` imports it late: 0.3 seconds.

Uses only `http` and `signer` of huaweicloudsdkcore. Its `client` and `auth` would write an id of this machine to
~/.huaweicloud on import, sign on threads that outlive the client, and repeat a POST after any TypeError.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from huaweicloudsdkcore.exceptions import exceptions as sdk
from huaweicloudsdkcore.exceptions.exception_handler import ExceptionHandler
from huaweicloudsdkcore.http.http_client import HttpClient
from huaweicloudsdkcore.http.http_config import HttpConfig
from huaweicloudsdkcore.sdk_request import SdkRequest
from huaweicloudsdkcore.signer.signer import Signer
from requests.structures import CaseInsensitiveDict
from requests.utils import get_environ_proxies

from pytest_aisbench import __version__
from pytest_aisbench.config.access import Hosts
from pytest_aisbench.errors import AisbenchError, BadAnswer, Unreachable, UsageFault
from pytest_aisbench.logs import Exchange, get_logger
from pytest_aisbench.net.http import ServerClock, hosts_adapter, is_loopback
from pytest_aisbench.net.huawei import Answer, error_for
from pytest_aisbench.secret import Secret

_LOG = get_logger("platform")
# What the SDK logs, it also raises, and `Exchange` logs that. A logger with no parent reaches no handler.
_SILENT = logging.Logger("huaweicloudsdkcore", logging.CRITICAL)  # noqa: LOG001
_CONNECTIONS = 32
_RAISED = (sdk.SdkException, urllib3.exceptions.HTTPError, OSError, TypeError, ValueError, KeyError)
"""All that the SDK, requests (whose errors are OSErrors) and urllib3 may raise."""


class _Keys:
    """The keys in the signer's form. It takes them out of the Secrets only while it signs."""

    def __init__(self, access_key: Secret, secret_key: Secret) -> None:
        self._access_key = access_key
        self._secret_key = secret_key

    @property
    def ak(self) -> str:
        return self._access_key.reveal()

    @property
    def sk(self) -> str:
        return self._secret_key.reveal()


class _IsolatedSession(requests.Session):
    """Takes proxies from the environment except for loopback, and nothing else: an entry in ~/.netrc would replace
    the signature by a password."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        if not is_loopback(url):
            proxies = {**get_environ_proxies(url), **(proxies or {})}
        return super().merge_environment_settings(url, proxies, stream, verify, cert)


class _SignedSession(_IsolatedSession):
    """Sends what the signer made, with nothing merged in: a third of the CPU time of a poll was spent on that.

    It keeps no cookies, follows no redirect, and looks at the environment for proxies once for each server.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit = threading.local()  # `seconds`: this thread's own limit, below the client's timeouts
        self._proxies: dict[str, Any] = {}

    def request(self, method: Any, url: Any, **options: Any) -> Any:  # type: ignore[override]  # as the SDK calls it
        prepared = requests.PreparedRequest()
        prepared.method, prepared.url = method, _prepared_url(url)
        prepared.body = options["data"] or None
        prepared.headers = CaseInsensitiveDict(self.headers)
        prepared.headers.update(options["headers"])
        if prepared.body or method not in {"GET", "HEAD"}:
            prepared.headers["Content-Length"] = str(len(options["data"]))
        timeout, seconds = options["timeout"], getattr(self.limit, "seconds", None)
        if seconds is not None:
            timeout = tuple(min(each, seconds) for each in timeout)
        response = self.get_adapter(prepared.url).send(
            prepared,
            timeout=timeout,
            verify=options["verify"],
            cert=options["cert"],
            proxies=self._proxies_for(prepared.url, options["headers"]["Host"]),
        )
        _ = response.content  # read it, so that the connection is free
        return response

    def _proxies_for(self, url: str, server: str) -> Any:
        if server not in self._proxies:
            self._proxies[server] = self.merge_environment_settings(url, {}, None, None, None)["proxies"]
        return self._proxies[server]


@functools.lru_cache(maxsize=1024)  # most requests of a run are polls, of the same few addresses
def _prepared_url(url: str) -> str:
    prepared = requests.PreparedRequest()
    prepared.prepare_url(url, None)
    assert prepared.url is not None
    return prepared.url


class _CorrectedClient(HttpClient):  # type: ignore[misc]  # the SDK has no types
    def __init__(self, hosts: Hosts, config: HttpConfig) -> None:
        self._hosts = hosts
        super().__init__(config, None, _EveryAnswer(), _SILENT)

    def _init_session(self) -> requests.Session:
        # The SDK's own adapter turns the 429 of a GET into an error without code and Retry-After.
        session = _SignedSession()
        adapter = hosts_adapter(self._hosts, pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS, max_retries=0)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        self.limit = session.limit
        return session


class _EveryAnswer(ExceptionHandler):  # type: ignore[misc]
    """Raises nothing: the SDK's own handler loses Retry-After and V1's messages, and `Answer` reads them all."""

    def handle_exception(self, request: Any, response: Any) -> None:
        return


class VendorHttp:
    """Sends each request once and returns the answer, whatever its status. Safe to share between threads."""

    def __init__(
        self,
        access_key: Secret,
        secret_key: Secret,
        security_token: Secret,
        *,
        ca_file: str,
        hosts: Hosts,
        timeout: tuple[float, float],
        clock: ServerClock,
    ) -> None:
        self._clock = clock
        self._keys = _Keys(access_key, secret_key)
        self._secrets = (access_key, secret_key, security_token)
        self._token = security_token
        self._hosts = hosts
        self._client = _CorrectedClient(hosts, HttpConfig(ssl_ca_cert=ca_file or None, timeout=timeout))

    def send(
        self,
        method: str,
        url: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        *,
        project_id: str = "",
        timeout_s: float | None = None,
    ) -> Answer:
        """`timeout_s` limits the wait for a connection or the next byte, below the client's own timeouts."""
        parts = urlsplit(url)
        path = (
            parts.path.replace(project_id, "{project_id}") if project_id else parts.path
        )  # for errors, without the id
        address = f"{parts.netloc}{path}"
        place = f"{method} {address}"
        request = SdkRequest(
            method=method,
            schema=parts.scheme,
            host=parts.netloc,
            resource_path=parts.path,
            query_params=[(key, value) for key, value in (query or {}).items() if value is not None],
            header_params={
                "Content-Type": "application/json",
                "User-Agent": f"pytest-aisbench/{__version__}",
                # The signer would ask datetime.utcnow(), which Python 3.12 warns of.
                "X-Sdk-Date": self._clock.now().strftime("%Y%m%dT%H%M%SZ"),
                **({"X-Project-Id": project_id} if project_id else {}),
                **({"X-Security-Token": self._token.reveal()} if self._token else {}),  # signed, as all of these
            },
            body="" if body is None else json.dumps(body),
        )
        self._client.limit.seconds = timeout_s
        with Exchange(method, address) as exchange:
            __tracebackhide__ = True  # of this frame and of the signer's: they have the keys in plain
            try:
                response = self._client.do_request_sync(Signer(self._keys).sign(request))
            except _RAISED as error:
                raise translate_error(error, place, self._hosts.address(parts.hostname or "")) from None
            exchange.status = response.status_code
            exchange.request_id = response.headers.get("X-Request-Id", "")
        return Answer(
            place,
            response.status_code,
            self._masked(response.content) if response.status_code >= 400 else response.content,
            exchange.request_id,
            response.headers.get("Retry-After", ""),
            response.headers.get("Date", ""),
        )

    def close(self) -> None:
        self._client.close()

    def _masked(self, content: bytes) -> bytes:
        """The gateway quotes the access key that it refuses."""
        for secret in self._secrets:
            if secret:
                content = content.replace(secret.reveal().encode(), b"***")
        return content


def server_date(endpoint: str, ca_file: str, hosts: Hosts, timeout_s: float) -> str:
    """Ask for nothing, unsigned; returns the header `Date` of the answer."""
    place = urlsplit(endpoint).netloc
    with _IsolatedSession() as session, Exchange("GET", place) as exchange:
        session.mount(endpoint, hosts_adapter(hosts, max_retries=0))
        try:
            timeout = timeout_s, timeout_s
            answer = session.get(endpoint, timeout=timeout, verify=ca_file or True, allow_redirects=False)
        except _RAISED as error:
            raise _translate_requests_error(error, place) from None
        exchange.status = answer.status_code
        return str(answer.headers.get("Date", ""))


def _translate_requests_error(error: Exception, place: str) -> AisbenchError:
    """Our error for what requests raises."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return translate_error(sdk.SslHandShakeException("CERTIFICATE_VERIFY_FAILED"), place)
    return translate_error(error, place)


def translate_error(error: Exception, place: str, address: str = "") -> AisbenchError:
    """Our error for what the SDK or requests raises. `address` is the host's, if [hosts] has it."""
    if address:
        place = f"{place} at {address}, as [hosts] has it"
    if isinstance(error, sdk.ServiceResponseException):
        kind, advice = error_for(error.status_code, str(error.error_code))
        return kind(f"{place}: {error.error_msg}", advice=advice, trail=f"HTTP {error.status_code}")
    if isinstance(error, sdk.SslHandShakeException):
        if "CERTIFICATE_VERIFY_FAILED" in str(error.error_msg):
            if "mismatch" in str(error.error_msg):
                advice = "check the endpoints in [access] and the addresses in [hosts]"
                return UsageFault(f"{place}: the server's certificate is that of another host", advice=advice)
            advice = "name the certificate of its authority: ca_file in [access]"
            return UsageFault(f"{place}: the server's certificate is not trusted", advice=advice)
        return Unreachable(f"{place}: no TLS connection")
    if isinstance(error, sdk.HostUnreachableException):
        advice = "check the endpoints in [access], or write its address to [hosts]"
        return Unreachable(f"{place}: the name of the host is not known", advice=advice)
    if isinstance(error, (sdk.RequestTimeoutException, requests.Timeout)) or "timed out" in str(error):
        return Unreachable(f"{place}: no answer in time")
    if "refused" in str(error):
        return Unreachable(f"{place}: nothing listens there", advice="check the endpoints in [access]")
    if isinstance(error, (sdk.SdkException, urllib3.exceptions.HTTPError, OSError)):
        return Unreachable(f"{place}: the connection broke")
    _LOG.debug("the vendor's HTTP client failed", exc_info=error)
    return BadAnswer(f"{place}: {type(error).__name__} in the vendor's client")
