"""Taking a parcel in: stored once, told to the audit, in one transaction. Nobody hears 201 before it is on disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from pytest_aisbench.tester_server import audit
from pytest_aisbench.tester_server.derived import Stored, derive
from pytest_aisbench.tester_server.tokens import Holder

CREATED, REPLAYED, CONFLICT = 201, 200, 409
OTHER = "something else was stored under this key"
_INSERT = text("""
INSERT INTO parcels (project, key, kind, testid, run_id, attempt, digest, received, token, body)
VALUES (:project, :key, :kind, :testid, :run_id, :attempt, :digest, :received, :token, :body)
ON CONFLICT (project, key) DO NOTHING RETURNING id
""")
_KNOWN = text("SELECT digest FROM parcels WHERE project = :project AND key = :key")


@dataclass(frozen=True)
class Sent:
    """What somebody sent, checked."""

    holder: Holder
    address: str
    kind: str
    key: str
    content: bytes
    body: dict[str, Any]


def take(connection: Connection, sent: Sent, now: float) -> int:
    """The HTTP status: 201 stored, 200 it was there already, 409 something else has its key."""
    digest = hashlib.sha256(sent.content).hexdigest()
    parcel = _insert(connection, sent, digest, now)
    if parcel is not None:
        status = CREATED
        derive(connection, Stored(parcel, sent.kind, sent.holder.project, sent.body, now))
    else:
        known = connection.execute(_KNOWN, {"project": sent.holder.project, "key": sent.key}).scalar_one()
        status = REPLAYED if known == digest else CONFLICT
    audit.write(
        connection,
        at=now,
        project=sent.holder.project,
        token=sent.holder.id,
        label=sent.holder.label,
        address=sent.address,
        act=sent.kind,
        testid=sent.body["testid"],
        run_id=sent.body["run_id"],
        key=sent.key,
        status=status,
        size=len(sent.content),
        why=OTHER if status == CONFLICT else "",
    )
    return status


def _insert(connection: Connection, sent: Sent, digest: str, now: float) -> int | None:
    """The new row's id. Whoever sends the same key at the same moment waits for us, and is told that it is there."""
    row = {
        "project": sent.holder.project,
        "key": sent.key,
        "kind": sent.kind,
        "testid": sent.body["testid"],
        "run_id": sent.body["run_id"],
        "attempt": sent.body["attempt"],
        "digest": digest,
        "received": now,
        "token": sent.holder.id,
        "body": sent.content.decode(),
    }
    found: int | None = connection.execute(_INSERT, row).scalar_one_or_none()
    return found
