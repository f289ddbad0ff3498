"""HTTP for servers without a client library of their own, and what all our HTTP clients share.

A session sends no header and follows no redirect on its own, limits the size and the time of an answer, and keeps
secrets out of errors. `open_session` imports `requests`, which takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_aisbench.config.access import Hosts
from pytest_aisbench.errors import BadAnswer, Unreachable
from pytest_aisbench.model.messages import plain
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    import requests
    from requests.adapters import HTTPAdapter


_LOOPBACK = re.compile(r"127\.[0-9.]+|localhost|::1")
_PART = 65536
_IN_STEP = timedelta(minutes=5)  # the vendor's services bear 15


# Sessions and answers


def open_session(base: str, ca_file: str, hosts: Hosts) -> requests.Session:
    """A session for one server. It takes proxies from the environment, except for loopback, and nothing else."""
    import requests
    from requests.utils import get_environ_proxies

    session = requests.Session()
    adapter = hosts_adapter(hosts)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.trust_env = False  # an entry in ~/.netrc would replace the token
    session.verify = ca_file or True
    if not is_loopback(base):
        session.proxies.update(get_environ_proxies(base))
    return session


def is_loopback(url: str) -> bool:
    return bool(_LOOPBACK.fullmatch(urlsplit(url).hostname or ""))


@contextlib.contextmanager
def translate_errors(place: str, table: str, secrets: Iterable[Secret]) -> Iterator[None]:
    """Raise `Unreachable` for what `requests` raises. The message names the place; if the certificate is not trusted,
    the advice names the table of aisbench.toml in which to trust it."""
    import requests

    try:
        yield
    except requests.exceptions.SSLError as error:
        advice = f"name the certificates to trust with ca_file in [{table}]"
        reason = mask(plain(str(error), 200), secrets)
        raise Unreachable(f"{place}: no trusted connection: {reason}", advice=advice) from None
    except (requests.RequestException, OSError) as error:
        raise Unreachable(f"{place}: no answer: {mask(plain(str(error), 200), secrets)}") from None


def read_content(answer: requests.Response, largest: int, seconds: float) -> bytes:
    """The body, cut off after `largest` bytes or `seconds`: the timeout of `requests` counts anew for each packet."""
    content, deadline = bytearray(), time.monotonic() + seconds
    for part in answer.iter_content(_PART):
        content += part
        if len(content) > largest or time.monotonic() > deadline:
            break
    return bytes(content)


@contextlib.contextmanager
def documented_form(server: str, what: str, advice: str = "") -> Iterator[None]:
    """Raise `BadAnswer` if reading an answer fails: it is JSON, but not of the form that the documents give."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadAnswer(f"{server} gave {what} in a form that its documents do not know", advice=advice) from None


def mask(text: str, secrets: Iterable[Secret]) -> str:
    """The text without the secrets: a server may repeat what we sent."""
    for secret in secrets:
        if secret:
            text = text.replace(secret.reveal(), "***")
    return text


# The [hosts] table


def hosts_adapter(hosts: Hosts, **options: Any) -> HTTPAdapter:
    """An adapter for `requests` that connects to the address which [hosts] has for a name.

    TLS and the header `Host` still use the name. The adapter patches nothing: other users of `requests` and `socket`
    in this process see no difference.
    """
    adapter: HTTPAdapter = _hosts_adapter_class()(hosts, **options)
    return adapter


@functools.cache
def _hosts_adapter_class() -> Any:
    """Defined late, since its base class is in `requests`."""
    from requests.adapters import HTTPAdapter
    from requests.utils import select_proxy
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Connection(HTTPConnection):
        response_class = QuickResponse

    class SecureConnection(HTTPSConnection):
        response_class = QuickResponse

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    class HostsAdapter(HTTPAdapter):
        """Leaves names to the proxy, where there is one, as the system does with /etc/hosts."""

        def __init__(self, hosts: Hosts, **options: Any) -> None:
            self._hosts = hosts
            super().__init__(**options)
            self.poolmanager.pool_classes_by_scheme = {"http": Pool, "https": SecurePool}

        def get_connection_with_tls_context(
            self, request: Any, verify: Any, proxies: Any = None, cert: Any = None
        ) -> Any:
            if not self._hosts.addresses or select_proxy(request.url, proxies):
                return super().get_connection_with_tls_context(request, verify, proxies, cert)
            host, pool = self.build_connection_pool_key_attributes(request, verify, cert)
            name = str(host["host"])
            if not (address := self._hosts.address(name)):
                return super().get_connection_with_tls_context(request, verify, proxies, cert)
            host = {**host, "host": address}
            return self.poolmanager.connection_from_host(**host, pool_kwargs={**pool, "server_hostname": name})

        def add_headers(self, request: Any, **_: Any) -> None:
            """Add the name, which the connection no longer knows. A signed request has it already."""
            request.headers.setdefault("Host", urlsplit(request.url).netloc)

    return HostsAdapter


# Time, as the headers of an answer tell it


class ServerClock:
    """The server's clock, by which we date signatures. It equals this machine's until a refusal shows a difference."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)  # of this machine's clock

    def now(self) -> datetime:
        return datetime.now(timezone.utc) + self.ahead

    def explains_refusal(self, date: str, ahead: timedelta) -> bool:
        """True if the server refused a request because of its date; then signing it again helps.

        `date` is the header of the refusal, `ahead` the difference of the clocks by which the request was signed.
        """
        server_time = parse_date(date)
        if server_time is None:
            return False
        truly_ahead = server_time - datetime.now(timezone.utc)
        if abs(truly_ahead - ahead) < _IN_STEP:
            return False
        self.ahead = truly_ahead
        return True


def parse_retry_after(retry_after: str, date: str) -> float:
    """The seconds that the header `Retry-After` asks for, as a number or a date; 0 if it asks for none."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    until = parse_date(retry_after)
    if until is None:
        return 0.0
    # By the server's own clock: ours may be wrong.
    return max(0.0, (until - (parse_date(date) or datetime.now(timezone.utc))).total_seconds())


def parse_date(header: str) -> datetime | None:
    """The moment that a header names; None if it names none."""
    try:
        moment = parsedate_to_datetime(header)
    except (ValueError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


# The head of an answer, read without Python's parser of e-mail, which takes a tenth of the CPU time of a job.

_STATUS = re.compile(r"HTTP/1\.1 ([2-5][0-9]{2})(?: (.*))?")
_HEADER = re.compile(r"([!-9;-~]+):[ \t]*([^\r\n]*)")
_WITHOUT_BODY = frozenset({204, 304})
_MOST_HEADERS = 100  # http.client refuses more


class QuickResponse(http.client.HTTPResponse):
    """A connection makes its answers of this class when it is its `response_class`.

    It reads an ordinary answer on its own: HTTP/1.1, a length, no folded header, a head that arrived in one piece. Any
    other answer it leaves, unread, to `http.client`. So it adds no rule of its own about odd or broken servers.
    """

    _method: str | None  # of the request, which `http.client` sets

    def begin(self, *args: Any, **options: Any) -> None:
        began: Any = self.headers  # None until the head is read
        if began is not None or self.debuglevel > 0 or not self._read_ordinary_head():
            super().begin(*args, **options)

    def _read_ordinary_head(self) -> bool:
        """False if the answer is another than an ordinary one; then nothing of it is read."""
        head, end, _ = self.fp.peek(1).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        status = _STATUS.fullmatch(first)
        headers = [_HEADER.fullmatch(line) for line in lines]
        if not (end and status) or len(headers) > _MOST_HEADERS:
            return False
        message = http.client.HTTPMessage()
        for header in headers:
            if header is None:
                return False
            message.set_raw(*header.groups())
        length, connection = message.get_all("Content-Length", []), message.get("Connection", "")
        code = int(status[1])
        without_body = code in _WITHOUT_BODY or self._method == "HEAD"
        if "Transfer-Encoding" in message or not (without_body or _is_length(length)):
            return False
        self.fp.read(len(head) + len(end))
        self.version = 11
        self.code = self.status = code
        self.reason = (status[2] or "").strip()
        self.headers = self.msg = message
        self.chunked = False
        self.chunk_left = None
        self.will_close = "close" in connection.lower()
        self.length = 0 if without_body else int(length[0])
        return True


def _is_length(values: list[str]) -> bool:
    return len(values) == 1 and values[0].isascii() and values[0].isdigit()
