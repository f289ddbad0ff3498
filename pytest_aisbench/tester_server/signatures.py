"""Sign-off: a person accepts or rejects a run, with a remark. Signatures are added, never changed or removed.

A signature holds the digest of the results that the signer saw. If a result of the run arrives later, the page says
that the run has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select, tuple_

from pytest_aisbench.model.messages import plain
from pytest_aisbench.tester_server.auth import Holder, write_audit
from pytest_aisbench.tester_server.schema import CHUNK, PARCELS, RESULTS, SIGNATURES, Rows, dicts

ACCEPTED, REJECTED = "accepted", "rejected"
DECISIONS = (ACCEPTED, REJECTED)
COLUMNS = tuple(column.name for column in SIGNATURES.c)
_NAME = 80
_REMARK = 1000


class Unsigned(Exception):
    """The form cannot be signed; the text says why, and `status` is that of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Form:
    """What the signer entered, and the digest of what the signer saw."""

    decision: str
    name: str
    remark: str
    digest: str

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> Form:
        decision, name = fields.get("decision", ""), plain(fields.get("name", "").strip())
        remark = plain(fields.get("remark", "").strip())
        if decision not in DECISIONS:
            raise Unsigned(400, "Choose whether you accept or reject the run.")
        if not name:
            raise Unsigned(400, "Enter your name.")
        if len(name) > _NAME or len(remark) > _REMARK:
            raise Unsigned(400, "The name has at most 80 characters, the remark 1,000.")
        return cls(decision, name, remark, fields.get("digest", ""))


def digest_of(connection: Connection, run: Any) -> str:
    """What a signature stands for: the end of the run, and every upload that its results come from."""
    return _digests(connection, [run])[run.testid, run.name]


def _digests(connection: Connection, runs: Sequence[Any]) -> dict[tuple[str, str], str]:
    """The digest of each run, by testid and name."""
    uploads: dict[int, list[tuple[str, str]]] = {run.id: [] for run in runs}
    query = select(RESULTS.c.run, RESULTS.c.name, PARCELS.c.digest).join(PARCELS, PARCELS.c.id == RESULTS.c.parcel)
    for row in connection.execute(query.where(RESULTS.c.run.in_(uploads))):
        uploads[row.run].append((row.name, row.digest))
    digests = {}
    for run in runs:
        content = json.dumps([run.testid, run.name, run.told, run.exit_code, run.unjudged, sorted(uploads[run.id])])
        digests[run.testid, run.name] = hashlib.sha256(content.encode()).hexdigest()
    return digests


def is_green(run: Any) -> bool:
    """Whether every case passed and the run itself ended well."""
    return bool(run.cases) and run.passed == run.cases and not run.unjudged and run.exit_code == 0


def sign(connection: Connection, run: Any, form: Form, signer: Holder, *, address: str, now: float) -> int:
    """Store the signature and its line of the audit in one transaction; return the number of the signature."""
    if form.digest != digest_of(connection, run):
        raise Unsigned(409, "A result of this run arrived after you opened the page; read it again, then sign.")
    if not form.remark and (form.decision == REJECTED or not is_green(run)):
        raise Unsigned(400, "Write a remark: only a run in which everything passed is accepted without one.")
    names = {"project": run.project, "testid": run.testid, "token": signer.id, "label": signer.label}
    row = {**names, "run": run.name, "at": now, "name": form.name, "decision": form.decision, "remark": form.remark}
    statement = insert(SIGNATURES).values(**row, digest=form.digest).returning(SIGNATURES.c.id)
    number = int(connection.execute(statement).scalar_one())
    write_audit(
        connection,
        at=now,
        act=f"signed: {form.decision}",
        run_id=run.name,
        status=201,
        address=address,
        why=": ".join(filter(None, (form.name, form.remark))),
        **names,
    )
    return number


def signatures_of(connection: Connection, run: Any) -> Rows:
    """The last 200 of one run, oldest first: the last one counts, so it is never left out."""
    where = SIGNATURES.c.project == run.project, SIGNATURES.c.testid == run.testid, SIGNATURES.c.run == run.name
    return connection.execute(select(SIGNATURES).where(*where).order_by(SIGNATURES.c.id.desc()).limit(200)).all()[::-1]


class LastSignature(NamedTuple):
    signature: Any
    digest: str  # of the run as it is now


def last_signatures(connection: Connection, project: str, runs: Iterable[Any]) -> dict[tuple[str, str], LastSignature]:
    """The last signature of each run that has one, by testid and name."""
    by_key = {(run.testid, run.name): run for run in runs}
    if not by_key:
        return {}
    query = select(SIGNATURES).where(SIGNATURES.c.project == project)
    query = query.where(tuple_(SIGNATURES.c.testid, SIGNATURES.c.run).in_(list(by_key))).order_by(SIGNATURES.c.id)
    last = {(row.testid, row.run): row for row in connection.execute(query)}
    digests = _digests(connection, [by_key[key] for key in last])
    return {key: LastSignature(row, digests[key]) for key, row in last.items()}


def every_signature(connection: Connection, project: str) -> Iterator[dict[str, Any]]:
    """Of a project, oldest first, a chunk at a time."""
    last = 0
    query = select(SIGNATURES).where(SIGNATURES.c.project == project).order_by(SIGNATURES.c.id).limit(CHUNK)
    while rows := connection.execute(query.where(SIGNATURES.c.id > last)).all():
        yield from dicts(rows)
        last = rows[-1].id
