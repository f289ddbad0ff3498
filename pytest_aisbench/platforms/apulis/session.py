"""Sends requests to Apulis: logs in once, retries, and raises our errors.

Apulis answers nearly everything with HTTP 200, failures too: the caller must look into the answer. A 5xx, a page of
HTML or half an answer is an outage.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_aisbench.errors import BadAnswer, Garbled, PlatformError, Refused, Rejected, Throttled, Unreachable
from pytest_aisbench.logs import Exchange, get_logger, log_ignored
from pytest_aisbench.model.messages import plain
from pytest_aisbench.net import retry
from pytest_aisbench.net.http import (
    documented_form,
    mask,
    open_session,
    parse_retry_after,
    read_content,
    translate_errors,
)
from pytest_aisbench.platforms.apulis.settings import ApulisAccess
from pytest_aisbench.secret import NO_SECRET, Secret

if TYPE_CHECKING:
    import requests

_LOG = get_logger("platform")

_AUTH = "/custom-user-dashboard-backend/auth"
_CONNECT_S, _READ_S, _ALL_S = 5.0, 30.0, 120.0
_LOGIN_PAUSE_S = 60.0
_LARGEST = 64 * 1024 * 1024  # bytes of an answer; a page of a log has 2,000 lines
_CHECK_ENDPOINT = "check endpoint and api in [apulis]"
_KEYS = "check user, and password or token, in [apulis]"


reading = partial(documented_form, "Apulis", advice=_CHECK_ENDPOINT)


class ApulisHttp:
    """Requests of one user. Safe to share between threads."""

    def __init__(self, access: ApulisAccess, patience_s: float) -> None:
        self.access = access
        self.patience_s = patience_s
        self._base = access.endpoint.rstrip("/")
        self._token = access.token
        self._refused = NO_SECRET  # a token that is no longer good
        self._next_login = 0.0  # no login is tried before
        self._lock = threading.Lock()
        self._session: requests.Session | None = None
        self._closed = False

    def ask(self, name: str, *, patience_s: float | None = None, **query: Any) -> Any:
        """GET a call of the API, and repeat it while there is no answer."""
        path = f"{self.access.api}/{name}"
        return self._send_patiently("GET", path, query, None, self.patience_s if patience_s is None else patience_s)

    def send(self, name: str, body: Mapping[str, Any], patience_s: float = 0.0, **query: Any) -> Any:
        """POST to a call of the API: once, unless `patience_s` says otherwise."""
        return self._send_patiently("POST", f"{self.access.api}/{name}", query, body, patience_s)

    def get(self, path: str, patience_s: float = 0.0, **query: Any) -> Any:
        """GET any path of the platform."""
        return self._send_patiently("GET", path, query, None, patience_s)

    def current_user(self, patience_s: float) -> Mapping[str, Any]:
        """The user of the token; empty if we use the API by name alone, without a token."""
        if not self._current_token():
            return {}
        answer = self.get(f"{_AUTH}/currentUser", patience_s)
        if not isinstance(answer, dict) or answer.get("success") is False:
            raise Refused(f"{self._base} does not know the token of {self.access.user}", advice=_KEYS)
        return answer

    def renew_token(self) -> bool:
        """True if the token had expired and there is a new one; for calls that do not report an expired token."""
        old = self._token
        self.current_user(self.patience_s)
        return self._token != old

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._session:
                self._session.close()
            self._session = None

    def _send_patiently(
        self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None, patience_s: float
    ) -> Any:
        def attempt() -> Any:
            token = self._current_token()
            try:
                return self._once(method, path, query, body, token=token)
            except Refused:
                # A token expires after two days, a run may take longer. Apulis carried out nothing.
                if not self.access.password or self.access.token:
                    raise
            self._refused = token
            return self._once(method, path, query, body, token=self._current_token())

        return retry.call(attempt, patience_s=patience_s)

    def _current_token(self) -> Secret:
        """The token, by a login if there is none yet.

        Apulis takes ten logins in ten minutes, of all our processes. If it takes no more, this returns no token: the
        API accepts the name alone, or refuses it.
        """
        if not self.access.password or self.access.token:
            return self._token
        with self._lock:
            wanted = not self._token or self._token == self._refused
            if wanted and time.monotonic() >= self._next_login:
                try:
                    self._token = self._log_in()
                except Throttled as error:
                    log_ignored(_LOG, error, "a login at %s: the name alone is used", self._base, level=logging.INFO)
                    self._token, self._next_login = NO_SECRET, time.monotonic() + max(_LOGIN_PAUSE_S, error.pause_s)
            return self._token

    def _log_in(self) -> Secret:
        password = self.access.password.reveal().encode()
        digest = hashlib.md5(password, usedforsecurity=False).hexdigest()
        body = {"userName": self.access.user, "password": digest}
        answer = self._once("POST", f"{_AUTH}/login", {}, body, token=NO_SECRET, also=(Secret(digest),))
        token = answer.get("token") if isinstance(answer, dict) else None
        if not token or answer.get("success") is False:
            raise Refused(f"{self._base} does not let {self.access.user} in", advice=_KEYS)
        return Secret(str(token))

    def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Mapping[str, Any] | None,
        *,
        token: Secret,
        also: tuple[Secret, ...] = (),
    ) -> Any:
        headers = {"Accept": "application/json"}
        if token:
            # The API reads the header, the rest of the platform the cookie.
            headers |= {"Authorization": f"Bearer {token.reveal()}", "Cookie": f"token={token.reveal()}"}
        place, secrets = f"{method} {self._base}{path}", (self.access.password, token, *also)
        with (
            Exchange(method, self._base + path) as exchange,
            translate_errors(place, "apulis", secrets),
            self._open().request(
                method,
                self._base + path,
                params={key: value for key, value in query.items() if value is not None},
                json=body,
                headers=headers,
                timeout=(_CONNECT_S, _READ_S),
                allow_redirects=False,  # it would send the token to an address that is not configured
                stream=True,
            ) as answer,
        ):
            exchange.status = answer.status_code
            content = read_content(answer, _LARGEST, _ALL_S)
        return _read_answer(place, answer, content, secrets)

    def _open(self) -> requests.Session:
        if self._closed:
            raise Unreachable(f"the way to {self._base} has been closed")
        if self._session is None:
            self._session = open_session(self._base, self.access.ca_file, self.access.hosts)
        self._session.cookies.clear()  # those of the login: we send the token ourselves
        return self._session


def _read_answer(place: str, answer: requests.Response, content: bytes, secrets: tuple[Secret, ...]) -> Any:
    status, text = answer.status_code, content[:400].decode("utf-8", "replace")
    message = mask(plain(" ".join(text.split()), 200), secrets) or "no reason given"
    if status in {401, 403}:
        raise Refused(f"{place}: {message}", advice=_KEYS, trail=f"HTTP {status}")
    if status == 429:
        pause_s = parse_retry_after(answer.headers.get("Retry-After", ""), answer.headers.get("Date", ""))
        raise Throttled(f"{place}: {message}", trail=f"HTTP {status}", pause_s=pause_s)
    if status == 501:
        raise PlatformError(
            f"{place}: {message}", advice="this platform does not have the call", trail=f"HTTP {status}"
        )
    if status >= 500 or status == 408:
        raise Unreachable(f"{place}: {message}", trail=f"HTTP {status}")
    if status >= 400:
        advice = _CHECK_ENDPOINT if status == 404 else ""
        raise Rejected(f"{place}: {message}", advice=advice, trail=f"HTTP {status}")
    if status != 200:
        raise BadAnswer(f"{place}: HTTP {status}", advice="check endpoint in [apulis]")
    try:
        return json.loads(content)
    except ValueError:
        advice = f"{_CHECK_ENDPOINT}; a login page may stand between"
        raise Garbled(f"{place} answered {message!r}, not JSON", advice=advice) from None
