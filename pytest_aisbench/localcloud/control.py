"""The local cloud's own calls, below /_local/ of the ModelArts endpoint: its faults and its books.

No vendor has them, and no fault strikes them. Who calls shows what every other call wants, a token or a signature,
or simply the account's two keys as user and password of HTTP's Basic scheme.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud import fault
from pytest_aisbench.localcloud.message import Request, Response
from pytest_aisbench.localcloud.refusal import refused
from pytest_aisbench.localcloud.signature import AuthenticationFailed, authenticate

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.accounts import Accounts
    from pytest_aisbench.localcloud.faults import Faults, Faulty
    from pytest_aisbench.localcloud.modelarts import ModelArts

_PREFIX = "/_local/"


class Control:
    """The ModelArts endpoint with the calls of the local cloud beside the vendor's."""

    def __init__(
        self, accounts: Accounts, faults: Faults, modelarts: ModelArts, endpoint: Faulty, others: Iterable[Faulty]
    ) -> None:
        self._accounts = accounts
        self._faults = faults
        self._modelarts = modelarts
        self._endpoint = endpoint
        self._services = [endpoint, *others]

    def answer(self, request: Request) -> Response:
        if not request.path.startswith(_PREFIX):
            return self._endpoint.answer(request)
        try:
            self._admit(request)
            return self._serve(request)
        except AuthenticationFailed as failure:
            return refused(failure.status, failure.code, failure.message, "Use the keys on the card of the cloud.")
        except UsageFault as wrong:
            return refused(400, "Local.0001", str(wrong), "See docs/local-cloud.md.")

    def crash(self, request: Request, error: Exception) -> Response:
        return self._endpoint.crash(request, error)

    def books(self) -> dict[str, Any]:
        """Every job that was accepted, and how many requests of each operation came in."""
        requests = {service.name: service.requests() for service in self._services}
        return {"jobs": self._modelarts.books(), "requests": requests}

    def _serve(self, request: Request) -> Response:
        match request.method, request.path.removeprefix(_PREFIX).rstrip("/"):
            case "GET", "books":
                return Response.json(200, self.books())
            case "GET", "faults":
                return Response.json(200, self._faults.as_json())
            case "PUT", "faults":
                self._faults.set(fault.parse(_json(request)))
                return Response.json(200, self._faults.as_json())
            case "DELETE", "faults":
                self._faults.clear()
                return Response(204)
        return refused(404, "Local.0002", f"{request.method} {request.path} is not served here.", "")

    def _admit(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            authenticate(request, self._accounts)
            return
        try:
            access_key, _, secret_key = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            access_key = secret_key = ""
        account = self._accounts.by_key(access_key)
        if account is None or not hmac.compare_digest(account.secret_key.encode(), secret_key.encode()):
            raise AuthenticationFailed("Local.0003", "These are not the keys of the account.")


def _json(request: Request) -> object:
    try:
        return request.json()
    except ValueError:
        raise UsageFault("the body is not JSON") from None
