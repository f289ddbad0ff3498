"""Puts small objects with obstore, where it is installed: a request takes half the CPU of the vendor's client.

obstore signs by V4. It cannot do all that the vendor's client does, and OBS documents V4 without promising it for every
endpoint. So it is an attempt: `SmallPuts.put` returns True if OBS has the object with the right MD5. After anything
else the caller sends the object with the vendor's client, which repeats, explains and verifies, and obstore is not used
again.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_aisbench.config.access import Hosts
from pytest_aisbench.logs import Exchange, get_logger
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.net.http import ServerClock, mask
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from obstore.store import S3Store

_LOG = get_logger("store")
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
