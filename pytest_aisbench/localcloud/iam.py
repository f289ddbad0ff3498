"""IAM as far as clients of ModelArts need it: the account of the local cloud, its keys and tokens, and its projects.

ModelArts, OBS and Apulis take accounts from here; `authenticate` checks the requests to IAM and ModelArts.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import string
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, quote, unquote

from pytest_aisbench.localcloud.messages import Request, Response, new_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Accounts, tokens and temporary keys.

REGION = "local-1"
BUCKET = "aisbench"
TOKEN_LIFE = 24 * 3600.0


class Account(NamedTuple):
    access_key: str
    secret_key: str
    project_id: str
    region: str
    domain: str
    user: str
    password: str
    bucket: str
    security_token: str = ""
    """Only of temporary keys: requests that use them must carry it."""

    def __repr__(self) -> str:
        """Without its secrets."""
        return f"Account({self.access_key!r}, project_id={self.project_id!r}, user={self.user!r})"

    @property
    def tester_token(self) -> str:
        """What uploads to the cloud's Tester must carry."""
        return hmac.digest(self.secret_key.encode(), b"tester", "sha256").hex()

    @property
    def domain_id(self) -> str:
        return name_id(self.domain)

    @classmethod
    def generate(cls, region: str = REGION, bucket: str = BUCKET) -> Account:
        return cls(
            access_key=_random(20, string.ascii_uppercase + string.digits),
            secret_key=_random(40, string.ascii_letters + string.digits),
            project_id=secrets.token_hex(16),
            region=region,
            domain="aisbench",
            user="aisbench",
            password=secrets.token_urlsafe(16),
            bucket=bucket,
        )


class Accounts:
    clock_skew = 0.0
    """Seconds by which this clock, which checks signatures, is ahead of the machine's."""

    def __init__(self, accounts: list[Account]) -> None:
        self._by_key = {account.access_key: account for account in accounts}
        self._tokens: dict[str, tuple[Account, float]] = {}
        self._lent: dict[str, tuple[Account, float]] = {}
        self._lock = threading.Lock()

    @classmethod
    def generate(cls) -> Accounts:
        return cls([Account.generate()])

    @classmethod
    def load_or_generate(cls, path: Path) -> Accounts:
        """Read the accounts that an earlier cloud wrote to the file, or generate and write them."""
        if path.exists():
            return cls([Account(**fields) for fields in json.loads(path.read_text())])
        accounts = cls.generate()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump([account._asdict() for account in accounts], file)
        return accounts

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_key.values())

    def first(self) -> Account:
        return next(iter(self))

    def by_key(self, access_key: str) -> Account | None:
        account, expires = self._lent.get(access_key, (None, 0.0))
        return self._by_key.get(access_key) or (account if self.now() < expires else None)

    def lend(self) -> Account:
        """Return the first account with new keys, valid until `take_back`."""
        return self._with_other_keys(self.first(), math.inf)

    def lend_for(self, account: Account, seconds: float) -> tuple[Account, float]:
        """Return the account with temporary keys and a security token, and the time at which they expire."""
        expires = self.now() + seconds
        return self._with_other_keys(account, expires, secrets.token_urlsafe(192)), expires

    def _with_other_keys(self, account: Account, expires: float, token: str = "") -> Account:
        keys = Account.generate()
        other = {"access_key": keys.access_key, "secret_key": keys.secret_key, "security_token": token}
        lent = account._replace(**other)
        self._lent[lent.access_key] = (lent, expires)
        return lent

    def take_back(self, access_key: str) -> None:
        self._lent.pop(access_key, None)

    def now(self) -> float:
        return time.time() + self.clock_skew

    def issue_token(self, account: Account) -> tuple[str, float]:
        """Return a new token, and the time at which it expires."""
        token, expires = secrets.token_urlsafe(96), self.now() + TOKEN_LIFE
        with self._lock:
            self._tokens[token] = (account, expires)
        return token, expires

    def by_token(self, token: str) -> Account | None:
        with self._lock:
            account, expires = self._tokens.get(token, (None, 0.0))
        return account if self.now() < expires else None


def name_id(name: str) -> str:
    """The id of a domain, a user or a service: 32 hex digits, as the vendor's."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def _random(length: int, alphabet: str) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))


# How the gateway in front of IAM and ModelArts checks who sends a request: a signature with AK/SK, or a token.

SKEW = 15 * 60  # seconds by which the time of a signature may be off
BASIC_TIME = "%Y%m%dT%H%M%SZ"
_ALGORITHM = "SDK-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]*").fullmatch  # nothing in it is quoted in a signature


# The gateway's code and message for a status, for errors that no service words better.
_USUAL_ERRORS = {
    401: ("APIGW.0307", "The token must be updated."),
    403: ("APIGW.0302", "The IAM user is not authorized to access the API."),
    429: ("APIGW.0308", "The throttling threshold has been reached: policy user over ratelimit,limit:10,time:1 second"),
    500: ("ModelArts.2950", "Internal error."),
    502: ("APIGW.0202", "Backend unavailable."),
    503: ("APIGW.0202", "Backend unavailable."),
    504: ("APIGW.0203", "Backend timeout."),
}


def gateway_error(status: int, code: str = "", message: str = "") -> tuple[str, str]:
    """Complete the code and the message of an error by the usual ones for its status."""
    usual_code, usual_message = _USUAL_ERRORS.get(status, ("APIGW.9999", "System error."))
    return code or usual_code, message or usual_message


class AuthenticationFailed(Exception):
    """A 401 with the gateway's code and message."""

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


@functools.lru_cache(maxsize=64)
def seconds(stamp: str, form: str) -> float:
    """Read a time in UTC as seconds since 1970; 0 where it cannot be read. All requests of a second have the same."""
    from calendar import timegm

    try:
        return timegm(time.strptime(stamp, form))
    except ValueError:
        return 0.0


def _signature(request: Request, signed: list[str], payload: str, secret_key: str) -> str:
    path, _, query = request.raw_path.partition("?")
    uri = path if _PLAIN(path) else "/".join(quote(segment, safe="~") for segment in unquote(path).split("/"))
    pairs = sorted(parse_qsl(query, keep_blank_values=True)) if query else []
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
    return hmac.digest(secret_key.encode(), text.encode(), "sha256").hex()


def _payloads(request: Request) -> list[str]:
    """The hashes of the body that the client may have signed. A client may leave the body out of its signature by
    naming it UNSIGNED-PAYLOAD; the vendor's signer does so too, but hashes the empty text where there is no body."""
    content = hashlib.sha256(request.bytes()).hexdigest()
    if request.headers.get("x-sdk-content-sha256") == UNSIGNED:
        return [UNSIGNED] if request.bytes() else [UNSIGNED, content]
    return [content]


def _utf8(value: str) -> str:
    """Undo the Latin-1 in which headers travel: the vendor's signer signs the UTF-8 text."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _fail(why: str) -> NoReturn:
    raise AuthenticationFailed("APIGW.0301", f"Incorrect IAM authentication information: {why}")


# The service.

_OTHER_METHODS = {  # of getting a token, which the vendor has, and the names of its SDK for them
    "assume_role": "keystone_create_agency_token",
    "totp": "keystone_create_user_token_by_password_and_mfa",
}
_SHORTEST, _LONGEST = 15 * 60, 24 * 3600  # seconds that temporary keys may be valid


class Iam:
    operations = ("versions", "projects", "tokens", "securitytokens")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.endpoints: dict[str, str] = {}
        """Urls by the type of the service, for the catalog in a token; `{project}` stands for the project id."""

    def answer(self, request: Request) -> Response:
        try:
            match self.operation(request):
                case "versions":
                    return _versions(request)
                case "projects":
                    return self._projects(request)
                case "tokens":
                    return self._tokens(request)
                case "securitytokens":
                    return self._temporary_keys(request)
        except AuthenticationFailed as failure:
            return self.refuse(request, failure.status, failure.code, failure.message)
        return _unserved(request)

    def operation(self, request: Request) -> str:
        match request.method, request.path.rstrip("/"):
            case "GET", "" | "/v3":
                return "versions"
            case "GET", "/v3/projects" | "/v3/auth/projects":
                return "projects"
            case "POST", "/v3/auth/tokens":
                return "tokens"
            case "POST", "/v3.0/OS-CREDENTIAL/securitytokens":
                return "securitytokens"
        return "other"

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        code, message = gateway_error(status, code, message)
        return Response.json(status, {"error_code": code, "error_msg": message}, _trace())

    def quick(self, request: Request) -> bool:
        return True

    def crash(self, request: Request, error: Exception) -> Response:
        return _error(500, "An unexpected error occurred.")

    def _projects(self, request: Request) -> Response:
        account = authenticate(request, self._accounts)
        name = request.query.get("name", account.region)
        projects = [_project(account)] if name == account.region else []
        links = {"next": None, "previous": None, "self": "/v3/projects"}
        return Response.json(200, {"projects": projects, "links": links}, _trace())

    def _tokens(self, request: Request) -> Response:
        try:
            auth = request.json()["auth"]
            identity = auth["identity"]
            if other := _OTHER_METHODS.keys() & identity["methods"]:
                return _not_served(", ".join(_OTHER_METHODS[method] for method in other))
            (method,) = identity["methods"]
            account = self._identify(method, identity[method])
            project = _wanted_project(auth.get("scope") or {})
        except (ValueError, LookupError, TypeError, AttributeError):
            return _error(400, "The request body is invalid: auth.identity needs one method and its fields.")
        if account is None or project not in {None, account.region, account.project_id}:
            return _error(401, "The username or password is wrong.")
        token, expires = self._accounts.issue_token(account)
        content = {
            "token": {
                "methods": [method],
                "issued_at": _stamp(time.time()),
                "expires_at": _stamp(expires),
                "project": _project(account),
                "user": {
                    "id": name_id(account.user),
                    "name": account.user,
                    "domain": {"id": account.domain_id, "name": account.domain},
                },
                "roles": [{"id": "0", "name": "te_admin"}],
                "catalog": [_service(kind, url, account) for kind, url in self.endpoints.items()],
            }
        }
        return Response.json(201, content, {"X-Subject-Token": token, **_trace()})

    def _temporary_keys(self, request: Request) -> Response:
        """Issue keys for 15 minutes to 24 hours; a request that is signed with temporary keys gets none."""
        account = authenticate(request, self._accounts)
        try:
            identity = request.json()["auth"]["identity"]
            if identity["methods"] == ["assume_role"]:
                return _not_served("create_temporary_access_key_by_agency")
            seconds = (identity.get("token") or {}).get("duration_seconds", _SHORTEST)
            good = identity["methods"] == ["token"] and _SHORTEST <= int(seconds) <= _LONGEST
        except (ValueError, LookupError, TypeError, AttributeError):
            good = False
        if not good:
            return _error(400, f"The request body is invalid: duration_seconds is {_SHORTEST} to {_LONGEST}.")
        if account.security_token:
            return _error(403, "Temporary access keys cannot be used to obtain others.")
        lent, expires = self._accounts.lend_for(account, int(seconds))
        keys = {"access": lent.access_key, "secret": lent.secret_key, "securitytoken": lent.security_token}
        return Response.json(201, {"credential": keys | {"expires_at": _stamp(expires)}}, _trace())

    def _identify(self, method: str, fields: dict[str, Any]) -> Account | None:
        if method == "hw_ak_sk":
            account = self._accounts.by_key(fields["access"]["key"])
            right = account.secret_key if account and not account.security_token else None
            secret = fields["secret"]["key"]
        elif method == "password":
            user = fields["user"]
            account = next((a for a in self._accounts if a.user == user["name"]), None)
            right = account.password if account else None
            domain = user["domain"].get("name") or user["domain"]["id"]
            right = right if account and domain in {account.domain, account.domain_id} else None
            secret = user["password"]
        elif method == "token":
            return self._accounts.by_token(fields["id"])
        else:
            raise LookupError(method)
        return account if right and hmac.compare_digest(right.encode(), secret.encode()) else None


def _wanted_project(scope: dict[str, Any]) -> str | None:
    project = scope.get("project") or {}
    name = project.get("name") or project.get("id")
    return str(name) if name else None


def _versions(request: Request) -> Response:
    """Tell a client of Keystone, which asks this first, that there is version 3 and where it is."""
    here = f"http://{request.headers.get('host', '')}/v3/"
    links = [{"rel": "self", "href": here}]
    version = {"id": "v3.6", "status": "stable", "updated": "2016-04-04T00:00:00Z", "links": links}
    if request.path.startswith("/v3"):
        return Response.json(200, {"version": version}, _trace())
    return Response.json(300, {"versions": {"values": [version]}}, _trace())


def _service(kind: str, url: str, account: Account) -> dict[str, Any]:
    place = {"region": account.region, "region_id": account.region, "interface": "public", "id": name_id(kind)}
    endpoint = place | {"url": url.format(project=account.project_id)}
    return {"id": name_id(kind), "type": kind, "name": kind, "endpoints": [endpoint]}


def _project(account: Account) -> dict[str, Any]:
    domain = account.domain_id
    return {
        "id": account.project_id,
        "name": account.region,
        "domain_id": domain,
        "parent_id": domain,
        "domain": {"id": domain, "name": account.domain},
        "enabled": True,
        "is_domain": False,
        "description": "",
    }


def _stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(moment))


def _trace() -> dict[str, str]:
    return {"X-IAM-Trace-Id": f"local_{new_id()}"}


def _unserved(request: Request) -> Response:
    from pytest_aisbench.localcloud import vendor_operations as vendor

    if names := vendor.names([vendor.IAM], request.method, request.path):
        return _not_served(names)
    return _error(404, "The requested resource could not be found.")


def _not_served(names: str) -> Response:
    """The vendor has the operation, the local cloud does not. An answer to HEAD has headers only."""
    answer = _error(501, f"{names} is not served by the local cloud.")
    return answer._replace(headers={**answer.headers, "X-Not-Served": names})


def _error(status: int, message: str) -> Response:
    titles = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 500: "Internal Server Error"}
    titles[501] = "Not Implemented"
    content = {"error": {"code": status, "message": message, "title": titles[status]}}
    return Response.json(status, content, _trace())
