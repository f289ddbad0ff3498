"""Who may send to a project, and who may read it."""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, text, update

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.secret import Secret
from pytest_aisbench.tester_server import audit
from pytest_aisbench.tester_server.rows import dicts
from pytest_aisbench.tester_server.tables import AUDIT, TOKENS

PROJECT = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_FIND = text("SELECT id, project, kind, label, revoked FROM tokens WHERE digest = :digest")
_PREFIX = "aisbt_"  # so that a scanner of secrets knows one when it sees it


class Kind(enum.Enum):
    SEND = "send"  # it may read back over the API what its project was sent
    READ = "read"


@dataclass(frozen=True)
class Holder:
    """Whoever showed a token."""

    id: int
    project: str
    kind: Kind
    label: str
    revoked: bool


def add(connection: Connection, project: str, kind: Kind, label: str, now: float) -> Secret:
    """The token, which nobody can be told again."""
    if not PROJECT.fullmatch(project):
        advice = "small letters, digits, '.', '_' and '-', 64 at most"
        raise UsageFault(f"{project[:80]!r} is not the name of a project", advice=advice)
    token = Secret(_PREFIX + secrets.token_urlsafe(32))
    row = {"digest": _digest(token.reveal()), "project": project, "kind": kind.value, "label": label, "created": now}
    number = connection.execute(insert(TOKENS).values(row).returning(TOKENS.c.id)).scalar_one()
    audit.write(connection, at=now, project=project, token=number, label=label, act=f"token added ({kind.value})")
    return token


def revoke(connection: Connection, number: int, now: float) -> None:
    row = connection.execute(select(TOKENS).where(TOKENS.c.id == number)).one_or_none()
    if row is None:
        raise UsageFault(f"there is no token {number}", advice="`aisbench tester token list` shows them")
    if row.revoked is None:
        connection.execute(update(TOKENS).where(TOKENS.c.id == number).values(revoked=now))
        audit.write(connection, at=now, project=row.project, token=number, label=row.label, act="token revoked")


def every(connection: Connection) -> list[dict[str, Any]]:
    """Without their digests; `used` is when the token was last shown by a sender."""
    used = select(func.max(AUDIT.c.at)).where(AUDIT.c.token == TOKENS.c.id, AUDIT.c.address != "").scalar_subquery()
    columns = [column for column in TOKENS.c if column.name != "digest"]
    rows = connection.execute(select(*columns, used.label("used")).order_by(TOKENS.c.id))
    return list(dicts(rows))


def find(connection: Connection, token: str) -> Holder | None:
    """By its digest: nothing is learned from how long it takes."""
    row = connection.execute(_FIND, {"digest": _digest(token)}).one_or_none()
    return Holder(row.id, row.project, Kind(row.kind), row.label, row.revoked is not None) if row else None


def _digest(token: str) -> str:
    """Of 256 random bits: it needs neither salt nor a slow hash."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
