"""Who logs in to the local Apulis: one user with a password, and the signed tokens that stand for him."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.apulis_cluster import ADMIN, VC
from pytest_aisbench.localcloud.message import Response

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.accounts import Account
    from pytest_aisbench.localcloud.message import Request

TOKEN_LIFE = 2 * 24 * 3600
LOGINS, PERIOD = 10, 600.0
_UNAUTHORIZED = {"success": False, "message": "UNAUTHORIZED"}
_PERMISSIONS = ["SUBMIT_TRAINING_JOB", "VIEW_CLUSTER_STATUS"]


class Login:
    def __init__(self, account: Account) -> None:
        self._user = account.user
        self._digest = hashlib.md5(account.password.encode(), usedforsecurity=False).hexdigest()
        self._key = hmac.digest(account.secret_key.encode(), b"apulis", "sha256")
        self._tries: deque[float] = deque()
        self._lock = threading.Lock()

    def is_known(self, user: object) -> bool:
        return user in {self._user, ADMIN}

    def login(self, request: Request) -> Response:
        if not self._may_try():
            return Response.json(429, {"success": False, "message": "Too Many Requests"})
        try:
            given = request.json()
        except ValueError:
            given = None
        given = given if isinstance(given, dict) else {}
        digest = str(given.get("password", "")).encode()
        if given.get("userName") != self._user or not hmac.compare_digest(digest, self._digest.encode()):
            return Response.json(401, _UNAUTHORIZED)
        token = self._token()
        answer = {"success": True, "token": token, "currentRole": ["User"], "permissionList": _PERMISSIONS}
        return Response.json(200, answer, {"Set-Cookie": f"token={token}; path=/"})

    def current_user(self, request: Request) -> Response:
        if self.bearer(request) is None:
            return Response.json(401, _UNAUTHORIZED)
        user = {"success": True, "id": 1, "userName": self._user, "nickName": self._user, "currentRole": ["User"]}
        return Response.json(200, user | {"permissionList": _PERMISSIONS, "currentVC": [VC]})

    def bearer(self, request: Request) -> str | None:
        """The user whose token came with the request; none where it is not one of ours, or too old."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        head, _, rest = token.partition(".")
        claims, _, signature = rest.partition(".")
        signed = hmac.compare_digest(self._sign(f"{head}.{claims}").encode(), signature.encode())
        if scheme.lower() != "bearer" or not signed:
            return None
        content = _decoded(claims)
        return str(content["userName"]) if content and content["exp"] > time.time() else None

    def _may_try(self) -> bool:
        now = time.monotonic()
        with self._lock:
            while self._tries and self._tries[0] <= now - PERIOD:
                self._tries.popleft()
            self._tries.append(now)
            if len(self._tries) > LOGINS:
                self._tries.pop()
                return False
            return True

    def _token(self) -> str:
        claims = {"uid": 1, "userName": self._user, "exp": int(time.time()) + TOKEN_LIFE}
        body = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        return f"{body}.{self._sign(body)}"

    def _sign(self, body: str) -> str:
        return _base64(hmac.digest(self._key, body.encode(), "sha256"))


def _encoded(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content, separators=(",", ":")).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("exp"), int) else None
