"""Taking a parcel in: stored once, told to the audit, in one transaction. Nobody hears 201 before it is on disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from pytest_aisbench.domain.upload import RESULTS
from pytest_aisbench.tester_server import audit
from pytest_aisbench.tester_server.database import is_sqlite
from pytest_aisbench.tester_server.derived import derive
from pytest_aisbench.tester_server.tables import PARCELS
from pytest_aisbench.tester_server.tokens import Holder

CREATED, REPLAYED, CONFLICT = 201, 200, 409
OTHER = "something else was stored under this key"


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
        if sent.kind == RESULTS:
            derive(connection, parcel, sent.holder.project, sent.body, now)
    else:
        where = PARCELS.c.project == sent.holder.project, PARCELS.c.key == sent.key
        same = connection.execute(select(PARCELS.c.digest).where(*where)).scalar_one() == digest
        status = REPLAYED if same else CONFLICT
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
    made: Any = sqlite.insert(PARCELS) if is_sqlite(connection) else postgresql.insert(PARCELS)
    made = made.values(row).on_conflict_do_nothing(index_elements=["project", "key"])
    found: int | None = connection.execute(made.returning(PARCELS.c.id)).scalar_one_or_none()
    return found
