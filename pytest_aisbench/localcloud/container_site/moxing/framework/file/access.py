"""Which OBS, and by which keys: the environment says it, or `set_auth`."""

from __future__ import annotations

import atexit
import os
import threading

from .store import Store

_store: Store | None = None
_lock = threading.Lock()


def store() -> Store:
    global _store  # noqa: PLW0603 - `set_auth` is of the whole process
    with _lock:
        if _store is None:
            _store = _from_environment()
        return _store


def _from_environment(**given: object) -> Store:
    def setting(name: str, *variables: str) -> str:
        return str(given.get(name) or next((os.environ[v] for v in variables if os.environ.get(v)), ""))

    endpoint = setting("server", "S3_ENDPOINT")
    keys = [
        setting("ak", "ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
        setting("sk", "SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
    ]
    if not (endpoint and all(keys)):
        raise OSError("OBS cannot be reached: S3_ENDPOINT, ACCESS_KEY_ID and SECRET_ACCESS_KEY are not all set")
    if "://" not in endpoint and (given.get("is_secure") is False or os.environ.get("S3_USE_HTTPS") == "0"):
        endpoint = f"http://{endpoint}"
    token = "" if given.get("ak") else os.environ.get("SECURITY_TOKEN", "")
    verify = given.get("ssl_verify") is True or os.environ.get("S3_VERIFY_SSL", "1") != "0"
    return Store(endpoint, keys[0], keys[1], token, verify=verify)


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
    """What is asked next, connects anew."""
    if _store:
        _store.close()
