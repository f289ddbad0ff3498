"""Find out who sends a request to OBS: by its own signature, by those of S3 (V2 and V4), or by a presigned URL."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import time
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qsl, quote, unquote, urlencode

from pytest_aisbench.localcloud.iam import BASIC_TIME, SKEW, UNSIGNED, Account, Accounts, seconds
from pytest_aisbench.localcloud.obs.dialect import OBS, Call
from pytest_aisbench.localcloud.obs.index import ObjectError
from pytest_aisbench.localcloud.obs.payload import Signer, check_kind, verify_payload

# The parameters that V2 and OBS sign, because they name a resource or change the answer.
SUBRESOURCES = frozenset(
    """
    accelerate acl analytics append backtosource cors customdomain defaultobjectacl delete deletebucket
    directcoldaccess dispolicy encryption
    fileinterface inventory length lifecycle location logging metadata metrics mirrorbacktosource modify name
    notification object-lock obsalias obsbucketalias obscompresspolicy obsworkflowtriggerpolicy orchestration partnumber
    policy policystatus position publicaccessblock bucketstatus quota rename replication requestpayment restore
    retention select select-type storageclass storageinfo storagepolicy tagging torrent truncate uploadid uploads
    versionid
    versioning versions website response-cache-control response-content-disposition response-content-encoding
    response-content-language response-content-type response-expires x-image-process x-image-save-bucket
    x-image-save-object x-obs-accesslabel x-obs-security-token x-oss-process x-workflow-execution-state
    x-workflow-execution-type x-workflow-graph-name x-workflow-limit x-workflow-next-marker x-workflow-prefix
    x-workflow-start x-workflow-template-name
    """.split()  # noqa: SIM905 (a list of sixty quoted words is harder to read)
)
_V4 = "AWS4-HMAC-SHA256"
_PAYLOAD = "x-amz-content-sha256"  # signed by its value, at the end of what is signed
_MUST_BE_SIGNED = ("host", "x-amz-")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~-]*")


def authenticate(call: Call, accounts: Accounts) -> Account:
    headers, query = call.request.headers, call.request.query
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme == _V4:
        fields = dict(field.strip().partition("=")[::2] for field in rest.split(","))
        stamp = headers.get("x-amz-date") or time.strftime(
            BASIC_TIME, time.gmtime(_http_seconds(headers.get("date", "")))
        )
        _check_skew(seconds(stamp, BASIC_TIME), accounts)
        return _check_v4(call, accounts, fields, stamp)
    if "X-Amz-Algorithm" in query:
        fields = {name.removeprefix("X-Amz-"): value for name, value in query.items()}
        stamp = query.get("X-Amz-Date", "")
        _check_expiry(seconds(stamp, BASIC_TIME) + _number(query.get("X-Amz-Expires", "")))
        return _check_v4(call, accounts, fields, stamp)
    if scheme == call.dialect.scheme:
        access_key, _, signature = rest.partition(":")
        stamp = call.header("date") or headers.get("date", "")
        _check_skew(_http_seconds(stamp), accounts)
        # A signature covers the date once: as the header of the dialect, where there is one.
        date = "" if call.header("date") else stamp
    elif call.dialect.key_parameter in query:
        access_key, signature = query[call.dialect.key_parameter], query.get("Signature", "")
        date = query.get("Expires", "")
        _check_expiry(_number(date))
    elif call.request.method == "POST" and headers.get("content-type", "").startswith("multipart/form-data"):
        raise ObjectError("NotImplemented", "POST of a browser's form (PostObject) is not served here.")
    else:
        raise ObjectError("AccessDenied", "Access Denied")
    account = _account(call, accounts, access_key)
    text = _text_v2(call, date)
    if call.bucket and not call.key and not call.virtual:
        # Some clients sign "/bucket/" and ask for "/bucket", as S3 itself has it; others sign what they ask for.
        other = _text_v2(call, date, slash="/")
        if hmac.compare_digest(signature.encode(), _hmac_sha1(account, other).encode()):
            return account
    if query and "customdomain" in query:
        # The vendor's documents sign it, its client for Python does not.
        text = text if _hmac_sha1(account, text) == signature else text.partition("?")[0]
    _check(signature, _hmac_sha1(account, text))
    return account


def presign(account: Account, bucket: str, key: str, expires: float = 3600) -> str:
    """The path and query of a URL below OBS's endpoint by which any client may GET it for `expires` seconds."""
    path = f"/{bucket}/{quote(key, safe='/~')}"
    deadline = str(int(time.time() + expires))
    signature = _hmac_sha1(account, f"GET\n\n\n{deadline}\n{path}")
    query = {OBS.key_parameter: account.access_key, "Expires": deadline, "Signature": signature}
    return f"{path}?{urlencode(query)}"


def _text_v2(call: Call, date: str, slash: str = "") -> str:
    headers, prefix = call.request.headers, call.dialect.prefix
    path, _, query = call.request.raw_path.partition("?")
    path += slash if not path.endswith("/") else ""
    resource = f"/{call.bucket}{path}" if call.virtual else path
    signed = []
    for item in filter(None, query.split("&") if query else ()):
        name, equals, value = item.partition("=")
        name = unquote(name)
        if name.lower() in SUBRESOURCES or name.lower().startswith(prefix):
            signed.append((name, f"{name}={unquote(value)}" if equals else name))
    return "\n".join(
        [
            call.request.method,
            headers.get("content-md5", ""),
            headers.get("content-type", ""),
            date,
            *(f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith(prefix)),
            resource + ("?" + "&".join(item for _, item in sorted(signed)) if signed else ""),
        ]
    )


def _check_v4(call: Call, accounts: Accounts, fields: dict[str, str], stamp: str) -> Account:
    request = call.request
    access_key, _, scope = fields.get("Credential", "").partition("/")
    account = _account(call, accounts, access_key)
    payload = request.headers.get(_PAYLOAD, UNSIGNED)
    check_kind(payload)
    signed = fields.get("SignedHeaders", "").split(";")
    unsigned = [name for name in request.headers if name.startswith(_MUST_BE_SIGNED) and name not in signed]
    if unsigned and unsigned != [_PAYLOAD]:
        names = ", ".join(name for name in unsigned if name != _PAYLOAD)
        raise ObjectError("AccessDenied", f"There were headers present in the request which were not signed: {names}")
    path, _, query = request.raw_path.partition("?")
    pairs = sorted(p for p in parse_qsl(query, keep_blank_values=True) if p[0] != "X-Amz-Signature")
    canonical = "\n".join(
        [
            request.method,
            path if _PLAIN_PATH.fullmatch(path) else quote(unquote(path), safe="/~"),
            "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in signed),
            "",
            ";".join(signed),
            payload,
        ]
    )
    key = _key_v4(account.secret_key, scope)
    # Headers were read as Latin-1, which gives their bytes back.
    text = f"{_V4}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode('latin-1')).hexdigest()}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    _check(fields.get("Signature", ""), signature)
    verify_payload(request, Signer(key, stamp, scope, signature))
    return account


@functools.lru_cache(maxsize=64)
def _key_v4(secret_key: str, scope: str) -> bytes:
    """All requests of a day to one service have the same."""
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _hmac_sha1(account: Account, text: str) -> str:
    return base64.b64encode(hmac.digest(account.secret_key.encode(), text.encode(), "sha1")).decode()


def _account(call: Call, accounts: Accounts, access_key: str) -> Account:
    """The account of an access key; temporary keys without their token count as unknown."""
    account = accounts.by_key(access_key)
    token = call.header("security-token") or ""
    if not token and call.request.query:
        query = {name.lower(): value for name, value in call.request.query.items()}
        token = query.get(f"{call.dialect.prefix}security-token", "")
    if account is None or not hmac.compare_digest(token.encode(), account.security_token.encode()):
        raise ObjectError("InvalidAccessKeyId", "The access key Id you provided does not exist in our records.")
    return account


def _check(signature: str, expected: str) -> None:
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise ObjectError(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. "
            "Check your key and signing method.",
        )


def _check_skew(stamp: float, accounts: Accounts) -> None:
    if abs(stamp - accounts.now()) > SKEW:
        raise ObjectError(
            "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large."
        )


def _check_expiry(deadline: float) -> None:
    if time.time() > deadline:
        raise ObjectError("AccessDenied", "Request has expired")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


@functools.lru_cache(maxsize=64)
def _http_seconds(stamp: str) -> float:
    """All requests of a second have the same stamp."""
    try:
        return parsedate_to_datetime(stamp).timestamp()
    except ValueError:
        return seconds(stamp, BASIC_TIME)
