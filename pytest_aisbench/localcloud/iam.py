"""IAM, as far as clients of ModelArts need it: the projects of an account, and tokens."""

from __future__ import annotations

import hmac
import secrets
import time
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.accounts import name_id
from pytest_aisbench.localcloud.message import Request, Response
from pytest_aisbench.localcloud.refusal import UNUSUAL, USUAL
from pytest_aisbench.localcloud.signature import AuthenticationFailed, authenticate

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.accounts import Account, Accounts

_SHORTEST, _LONGEST = 15 * 60, 24 * 3600  # seconds that temporary keys may be good for


class Iam:
    operations = ("versions", "projects", "tokens", "securitytokens")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.endpoints: dict[str, str] = {}
        """What the catalog in a token lists: urls by the type of the service, with `{project}` where it belongs."""

    def answer(self, request: Request) -> Response:
        match self.operation(request):
            case "versions":
                return _versions(request)
            case "projects":
                return self._projects(request)
            case "tokens":
                return self._tokens(request)
            case "securitytokens":
                return self._temporary_keys(request)
        return _error(404, "The requested resource could not be found.")

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
        usual, text = USUAL.get(status, UNUSUAL)
        return Response.json(status, {"error_code": code or usual, "error_msg": message or text}, _trace())

    def crash(self, request: Request, error: Exception) -> Response:
        return _error(500, "An unexpected error occurred.")

    def _projects(self, request: Request) -> Response:
        try:
            account = authenticate(request, self._accounts)
        except AuthenticationFailed as failure:
            return Response.json(failure.status, {"error_code": failure.code, "error_msg": failure.message}, _trace())
        name = request.query.get("name", account.region)
        projects = [_project(account)] if name == account.region else []
        links = {"next": None, "previous": None, "self": "/v3/projects"}
        return Response.json(200, {"projects": projects, "links": links}, _trace())

    def _tokens(self, request: Request) -> Response:
        try:
            auth = request.json()["auth"]
            identity = auth["identity"]
            (method,) = identity["methods"]
            account = self._identify(method, identity[method])
            project = _wanted_project(auth.get("scope") or {})
        except (ValueError, LookupError, TypeError, AttributeError):
            return _error(400, "The request body is invalid: auth.identity needs one method and its fields.")
        if account is None or project not in {None, account.region, account.project_id}:
            return _error(401, "The username or password is wrong.")
        token, expires = self._accounts.issue(account)
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
        """Keys for 15 minutes to 24 hours, for whoever signs or brings a token; temporary keys beget no others."""
        try:
            account = authenticate(request, self._accounts)
        except AuthenticationFailed as failure:
            return Response.json(failure.status, {"error_code": failure.code, "error_msg": failure.message}, _trace())
        try:
            identity = request.json()["auth"]["identity"]
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

    def _identify(self, method: str, given: dict[str, Any]) -> Account | None:
        if method == "hw_ak_sk":
            account = self._accounts.by_key(given["access"]["key"])
            right = account.secret_key if account and not account.security_token else None
            secret = given["secret"]["key"]
        elif method == "password":
            user = given["user"]
            account = next((a for a in self._accounts if a.user == user["name"]), None)
            right = account.password if account else None
            domain = user["domain"].get("name") or user["domain"]["id"]
            right = right if account and domain in {account.domain, account.domain_id} else None
            secret = user["password"]
        elif method == "token":
            return self._accounts.by_token(given["id"])
        else:
            raise LookupError(method)
        return account if right and hmac.compare_digest(right.encode(), secret.encode()) else None


def _wanted_project(scope: dict[str, Any]) -> str | None:
    project = scope.get("project") or {}
    wanted = project.get("name") or project.get("id")
    return str(wanted) if wanted else None


def _versions(request: Request) -> Response:
    """What a client of Keystone asks first: there is version 3, and it is here."""
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
    return {"X-IAM-Trace-Id": f"local_{secrets.token_hex(16)}"}


def _error(status: int, message: str) -> Response:
    titles = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 500: "Internal Server Error"}
    content = {"error": {"code": status, "message": message, "title": titles[status]}}
    return Response.json(status, content, _trace())
