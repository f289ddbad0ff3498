"""The uploads to the Tester, kept in the ledger's file until they are delivered.

There they are on disk when a call returns, several processes may work on them, and the next run or `aisbench flush` can
upload a verdict whose own run was killed a moment after recording it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.lease import is_held
from pytest_aisbench.ledger.ledger import record
from pytest_aisbench.ledger.runs import is_under_way
from pytest_aisbench.model import codec
from pytest_aisbench.model.results import PRIVATE, CaseEntry, Destination, RunEnd, UploadItem, UploadState

_COLUMNS = "key, run, case_id, attempt, kind, testid, tester, label, body, state, why"
_CLOUD_ENDED = "the private local cloud ended with its run"
# Judged cases whose newest upload does not have the case's present record.
_PENDING_RESULTS = """
SELECT c.run, c.record, t.record, r.owner, r.lease, r.finished IS NULL FROM cases c
JOIN testers t USING (run) JOIN runs r USING (run)
WHERE json_extract(c.record, '$.verdict') IS NOT NULL AND c.record IS NOT (
    SELECT u.record FROM uploads u WHERE u.run = c.run AND u.case_id = c.case_id AND u.kind = 'results'
    ORDER BY u.attempt DESC LIMIT 1)
"""
# Runs whose newest upload about their end does not have their present end.
_PENDING_ENDS = """
SELECT r.run, r.started, r.finished, r.exit_code, r.settings, t.record, r.owner, r.lease,
    coalesce(r.exit_code, 'killed') || ' ' || coalesce(r.finished, '') AS run_end
FROM runs r JOIN testers t USING (run)
WHERE run_end IS NOT (
    SELECT u.record FROM uploads u WHERE u.run = r.run AND u.kind = 'runs' ORDER BY u.attempt DESC LIMIT 1)
"""
# `reason.text`: the ledger stores messages with their clauses.
_RULINGS = """
SELECT case_id, json_extract(record, '$.verdict'),
    coalesce(json_extract(record, '$.reason.text'), json_extract(record, '$.reason')),
    json_extract(record, '$.card_hours') FROM cases WHERE run = ? ORDER BY ordinal
"""


class PendingEnd(NamedTuple):
    """The end of a run that is in the ledger and must still be uploaded."""

    end: RunEnd
    record: str
    bound: Destination


class PendingResult(NamedTuple):
    """A case's result that is in the ledger and must still be uploaded."""

    run: str
    entry: CaseEntry
    record: str
    bound: Destination


class Outbox:
    def __init__(self, database: Database) -> None:
        self._database = database

    def set_destination(self, run: str, bound: Destination) -> None:
        """Name the Tester that gets the results of this run; from now on its verdicts are pending uploads."""
        destination = json.dumps(codec.dump(bound))
        self._database.write("INSERT OR REPLACE INTO testers VALUES (?, ?)", run, destination)

    def together(self) -> AbstractContextManager[None]:
        """What is put inside goes to disk by one commit."""
        return self._database.transaction()

    def results_of(self, run: str, entries: Sequence[CaseEntry]) -> list[PendingResult]:
        """The results to upload of judged cases that the ledger was just given."""
        if not entries:
            return []
        ((bound,),) = self._database.read_committed("SELECT record FROM testers WHERE run = ?", run)
        destination = codec.load(Destination, json.loads(bound))
        return [PendingResult(run, entry, record(entry), destination) for entry in entries]

    def pending_results(self, now: float, run: str | None = None) -> list[PendingResult]:
        """The results to upload: of this run, or of all ended runs."""
        own = "" if run is None else " AND c.run = ?"
        rows = self._database.read(
            f"{_PENDING_RESULTS}{own} ORDER BY c.run, c.ordinal", *([] if run is None else [run])
        )
        pending = []
        for of, stored, bound, owner, lease, unfinished in rows:
            if run is None and unfinished and is_held(owner, lease, now):
                continue  # a live run uploads its own results
            entry = codec.load(CaseEntry, json.loads(stored))
            pending.append(PendingResult(of, entry, stored, codec.load(Destination, json.loads(bound))))
        return pending

    def pending_ends(self, now: float, run: str | None = None) -> list[PendingEnd]:
        """The ends to upload: of this run, or of all ended runs; a run without an end in the ledger was killed."""
        own = "" if run is None else " AND r.run = ?"
        pending = []
        for row in self._database.read(f"{_PENDING_ENDS}{own} ORDER BY r.run", *([] if run is None else [run])):
            of, started, finished, exit_code, settings, destination, owner, lease, record_of_end = row
            bound = codec.load(Destination, json.loads(destination))
            if finished is None and (run is not None or (is_held(owner, lease, now))):
                continue  # the run is alive
            if run is None and bound.label == PRIVATE:
                continue  # its Tester ended with the run
            cases = self._database.read(_RULINGS, of)
            judged = {case for case, verdict, *_ in cases if verdict}
            missing = tuple(case for case in json.loads(settings).get("required") or () if case not in judged)
            unjudged = {case: reason for case, _, reason, _ in cases if case not in judged}
            hours = sum(cost for case, *_, cost in cases if case not in judged)
            end = RunEnd(of, started, finished, exit_code, unjudged, round(hours, 6), missing)
            pending.append(PendingEnd(end, record_of_end, bound))
        return pending

    def put(
        self, run: str, name: str, kind: str, record: str, make: Callable[[int], UploadItem], *, now: float
    ) -> UploadItem:
        """Store the next upload of `name`, or return the newest if that was made from the same `record`."""
        with self._database.transaction():
            rows = self._database.read(
                f"SELECT {_COLUMNS}, record FROM uploads WHERE run = ? AND case_id = ? AND kind = ?"  # noqa: S608
                " ORDER BY attempt DESC LIMIT 1",
                *(run, name, kind),
            )
            if rows and rows[0][-1] == record:
                return _upload(rows[0][:-1])
            made = make(rows[0][3] + 1 if rows else 1)
            self._database.write(
                f"INSERT INTO uploads ({_COLUMNS}, record, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                *(made.key, made.run, made.case, made.attempt, made.kind, made.testid, made.tester, made.label),
                *(made.body, made.state.value, made.why, record, now),
            )
        return made

    def waiting(self, run: str | None = None) -> list[UploadItem]:
        """The uploads that are not delivered yet, oldest first."""
        return self._read(
            "state = 'spooled'" + ("" if run is None else " AND run = ?"), *([] if run is None else [run])
        )

    def of(self, run: str, *kinds: str) -> list[UploadItem]:
        """The uploads of a run: those of these kinds, or all."""
        return self._read(f"run = ? AND kind IN ({', '.join('?' * len(kinds))})" if kinds else "run = ?", run, *kinds)

    def dead(self) -> list[UploadItem]:
        return self._read("state = 'dead'")

    def named(self, beginning: str) -> list[UploadItem]:
        """The uploads whose key begins so."""
        return [] if not beginning.isalnum() else self._read("key GLOB ?", f"{beginning}*")

    def set_state(self, key: str, state: UploadState, why: str, now: float) -> None:
        """Set the state of an upload. A delivered one stays delivered: two processes may have sent it at once."""
        statement = "UPDATE uploads SET state = ?, why = ?, updated = ? WHERE key = ? AND state != 'delivered'"
        change = partial(self._database.write, statement, state.value, why, now, key)
        # Soon is enough: an upload whose delivery is forgotten is sent again, and the Tester keeps it once.
        self._database.write_soon(f"upload {key} {state.value}", change)

    def drop_private(self, now: float, run: str | None = None) -> None:
        """Mark uploads to a private cloud that ended as dead: those of this run, or of all ended runs."""
        for upload in self.waiting(run):
            if upload.label == PRIVATE and (run is not None or not is_under_way(self._database, upload.run, now)):
                self.set_state(upload.key, UploadState.DEAD, _CLOUD_ENDED, now)

    def _read(self, where: str, *values: Any) -> list[UploadItem]:
        rows = self._database.read(f"SELECT {_COLUMNS} FROM uploads WHERE {where} ORDER BY rowid", *values)  # noqa: S608
        return [_upload(row) for row in rows]


def _upload(row: tuple[Any, ...]) -> UploadItem:
    key, run, case, attempt, kind, testid, tester, label, body, state, why = row
    return UploadItem(key, run, case, attempt, kind, testid, tester, label, body, UploadState(state), why)
