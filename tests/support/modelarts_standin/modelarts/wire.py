"""Requests of the stand-in, signed by itself."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit


def send(
    credentials: dict[str, str], method: str, url: str, body: Any = None, query: dict[str, Any] | None = None
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of the answer. `credentials` are keys, or a token."""
    place = urlsplit(url)
    pairs = sorted((key, str(value)) for key, value in (query or {}).items() if value is not None)
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"Host": place.netloc, "Content-Type": "application/json"}
    if "token" in credentials:
        headers["X-Auth-Token"] = credentials["token"]
    elif credentials:
        headers["X-Sdk-Date"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers["Authorization"] = _signature(credentials, method, place.path, pairs, headers, content)
    connect = HTTPSConnection if place.scheme == "https" else HTTPConnection
    connection = connect(place.netloc, timeout=60)
    try:
        target = place.path + ("?" + urlencode(pairs, quote_via=quote) if pairs else "")
        connection.request(method, target, content, headers)
        response = connection.getresponse()
        data = response.read()
        return response.status, dict(response.headers.items()), json.loads(data) if data.strip() else {}
    finally:
        connection.close()


def _signature(
    credentials: dict[str, str], method: str, path: str, pairs: list[Any], headers: dict[str, str], content: bytes
) -> str:
    signed = sorted(headers, key=str.lower)
    names = ";".join(name.lower() for name in signed)
    canonical = "\n".join(
        [
            method,
            path.rstrip("/") + "/",
            "&".join(f"{quote(key, safe='~')}={quote(value, safe='~')}" for key, value in pairs),
            "".join(f"{name.lower()}:{headers[name].strip()}\n" for name in signed),
            names,
            hashlib.sha256(content).hexdigest(),
        ]
    )
    text = "\n".join(["SDK-HMAC-SHA256", headers["X-Sdk-Date"], hashlib.sha256(canonical.encode()).hexdigest()])
    value = hmac.new(credentials["secret_key"].encode(), text.encode(), hashlib.sha256).hexdigest()
    return f"SDK-HMAC-SHA256 Access={credentials['access_key']}, SignedHeaders={names}, Signature={value}"
