"""Who sends this? The gateway's answer for ModelArts and IAM: a signature with AK/SK, or a token.

SDK-HMAC-SHA256 signs the canonical request with the secret key itself; no date or region is derived into it.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from calendar import timegm
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import parse_qsl, quote, unquote

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.accounts import Account, Accounts
    from pytest_aisbench.localcloud.message import Request

SKEW = 15 * 60
BASIC_TIME = "%Y%m%dT%H%M%SZ"

_ALGORITHM = "SDK-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"


class AuthenticationFailed(Exception):
    """401, in the words of the gateway."""

    status = 401

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def authenticate(request: Request, accounts: Accounts) -> Account:
    token = request.headers.get("x-auth-token")
    if token is not None:
        return accounts.by_token(token) or _fail("decrypt token fail")

    algorithm, _, rest = request.headers.get("authorization", "").partition(" ")
    if not algorithm:
        _fail("x-auth-token not found")
    fields = dict(field.strip().partition("=")[::2] for field in rest.split(","))
    if algorithm != _ALGORITHM or not fields.keys() >= {"Access", "SignedHeaders", "Signature"}:
        _fail("authorization format is incorrect")
    account = accounts.by_key(fields["Access"]) or _fail("aksk verify fail, the access key does not exist")

    signed = fields["SignedHeaders"].split(";")
    stamp = request.headers.get("x-sdk-date", "")
    if "x-sdk-date" not in signed or "host" not in signed:
        _fail("x-sdk-date and host must be signed")
    token = request.headers.get("x-security-token", "")
    if token and "x-security-token" not in signed:
        _fail("x-security-token must be signed")
    if not hmac.compare_digest(token.encode(), account.security_token.encode()):
        _fail("aksk verify fail, the security token is not that of the access key")
    if abs(seconds(stamp, BASIC_TIME) - accounts.now()) > SKEW:
        _fail("the timestamp of the request is more than 15 minutes off")
    if not any(
        hmac.compare_digest(fields["Signature"], _signature(request, signed, payload, account.secret_key))
        for payload in _payloads(request)
    ):
        _fail("verify aksk signature fail")
    return account


def seconds(stamp: str, form: str) -> float:
    """A time in UTC as seconds since 1970; what cannot be read is as old as can be."""
    try:
        return timegm(time.strptime(stamp, form))
    except ValueError:
        return 0.0


def _signature(request: Request, signed: list[str], payload: str, secret_key: str) -> str:
    path, _, query = request.raw_path.partition("?")
    uri = "/".join(quote(segment, safe="~") for segment in unquote(path).split("/"))
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    canonical = "\n".join(
        [
            request.method,
            uri if uri.endswith("/") else f"{uri}/",
            "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in pairs),
            *(f"{name}:{_utf8(request.headers.get(name, '')).strip()}" for name in signed),
            "",
            ";".join(signed),
            payload,
        ]
    )
    stamp = request.headers.get("x-sdk-date", "")
    text = f"{_ALGORITHM}\n{stamp}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    return hmac.new(secret_key.encode(), text.encode(), hashlib.sha256).hexdigest()


def _payloads(request: Request) -> list[str]:
    """What the client may have signed for the body. It may leave the body out of the signature, by name, and the
    vendor's signer names it so but hashes the empty text where there is no body."""
    content = hashlib.sha256(request.bytes()).hexdigest()
    if request.headers.get("x-sdk-content-sha256") == _UNSIGNED:
        return [_UNSIGNED] if request.bytes() else [_UNSIGNED, content]
    return [content]


def _utf8(value: str) -> str:
    """Headers travel as Latin-1; the vendor's signer signs the UTF-8 text behind it."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _fail(why: str) -> NoReturn:
    raise AuthenticationFailed("APIGW.0301", f"Incorrect IAM authentication information: {why}")
