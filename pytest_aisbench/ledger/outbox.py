"""What is to be uploaded, kept in the ledger's own file.

There it is on disk when the call returns, as everything in the ledger is, on whatever file system that lies; several
processes may work on it at once; and a verdict that is recorded there can be spooled by whoever comes next, if its
own run was killed a moment later.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.ledger import is_held
from pytest_aisbench.ledger.runs import is_under_way
from pytest_aisbench.model import codec
from pytest_aisbench.model.results import PRIVATE, CaseEntry, Destination, RunEnd, UploadItem, UploadState

_COLUMNS = "key, run, case_id, attempt, kind, testid, tester, label, body, state, why"
_CLOUD_ENDED = "the private local cloud ended with its run"
# Judged, and what was judged is not what was spooled last.
_PENDING_RESULTS = """
SELECT c.run, c.record, t.record, r.owner, r.lease, r.finished IS NULL FROM cases c
JOIN testers t USING (run) JOIN runs r USING (run)
WHERE json_extract(c.record, '$.verdict') IS NOT NULL AND c.record IS NOT (
    SELECT u.record FROM uploads u WHERE u.run = c.run AND u.case_id = c.case_id AND u.kind = 'results'
    ORDER BY u.attempt DESC LIMIT 1)
"""
# Over, and how it ended is not what was spooled last.
_PENDING_ENDS = """
SELECT r.run, r.started, r.finished, r.exit_code, r.settings, t.record, r.owner, r.lease,
    coalesce(r.exit_code, 'killed') || ' ' || coalesce(r.finished, '') AS told
FROM runs r JOIN testers t USING (run)
WHERE told IS NOT (
    SELECT u.record FROM uploads u WHERE u.run = r.run AND u.kind = 'runs' ORDER BY u.attempt DESC LIMIT 1)
"""
# The text of a message that the ledger stores with its clauses.
_RULINGS = """
SELECT case_id, json_extract(record, '$.verdict'),
    coalesce(json_extract(record, '$.reason.text'), json_extract(record, '$.reason')),
    json_extract(record, '$.card_hours') FROM cases WHERE run = ? ORDER BY ordinal
"""


class PendingEnd(NamedTuple):
    """An end in the ledger that is to be uploaded."""

    end: RunEnd
    record: str
    bound: Destination


class PendingResult(NamedTuple):
    """A verdict in the ledger that is to be uploaded."""

    run: str
    entry: CaseEntry
    record: str
    bound: Destination


class Outbox:
    def __init__(self, database: Database) -> None:
        self._database = database

    def set_destination(self, run: str, bound: Destination) -> None:
        """The results of this run go there; from now on each of its verdicts counts as something to be uploaded."""
        record = json.dumps(codec.dump(bound))
        self._database.write("INSERT OR REPLACE INTO testers VALUES (?, ?)", run, record)

    def pending_results(self, now: float, run: str | None = None) -> list[PendingResult]:
        """Of this run, or of all runs that are over."""
        own = "" if run is None else " AND c.run = ?"
        rows = self._database.read(
            f"{_PENDING_RESULTS}{own} ORDER BY c.run, c.ordinal", *([] if run is None else [run])
        )
        found = []
        for of, record, bound, owner, lease, unfinished in rows:
            if run is None and unfinished and is_held(owner, lease, now):
                continue  # it lives, and spools its own
            entry = codec.load(CaseEntry, json.loads(record))
            found.append(PendingResult(of, entry, record, codec.load(Destination, json.loads(bound))))
        return found

    def pending_ends(self, now: float, run: str | None = None) -> list[PendingEnd]:
        """The end of this run, or of all runs that are over; one that nobody ended was killed."""
        own = "" if run is None else " AND r.run = ?"
        found = []
        for row in self._database.read(f"{_PENDING_ENDS}{own} ORDER BY r.run", *([] if run is None else [run])):
            of, started, finished, exit_code, settings, record, owner, lease, told = row
            bound = codec.load(Destination, json.loads(record))
            if finished is None and (run is not None or (is_held(owner, lease, now))):
                continue  # it lives
            if run is None and bound.label == PRIVATE:
                continue  # nobody is left to be told
            cases = self._database.read(_RULINGS, of)
            judged = {case for case, verdict, *_ in cases if verdict}
            missing = tuple(case for case in json.loads(settings).get("required") or () if case not in judged)
            unjudged = {case: reason for case, _, reason, _ in cases if case not in judged}
            hours = sum(cost for case, *_, cost in cases if case not in judged)
            end = RunEnd(of, started, finished, exit_code, unjudged, round(hours, 6), missing)
            found.append(PendingEnd(end, told, bound))
        return found

    def put(
        self, run: str, name: str, kind: str, record: str, make: Callable[[int], UploadItem], *, now: float
    ) -> UploadItem:
        """Make the next attempt at `name` and keep it; `record`, what it tells of, is not spooled twice in a row."""
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
        """Oldest first."""
        return self._read(
            "state = 'spooled'" + ("" if run is None else " AND run = ?"), *([] if run is None else [run])
        )

    def of(self, run: str) -> list[UploadItem]:
        return self._read("run = ?", run)

    def dead(self) -> list[UploadItem]:
        return self._read("state = 'dead'")

    def named(self, beginning: str) -> list[UploadItem]:
        """By the first digits of the key."""
        return [] if not beginning.isalnum() else self._read("key GLOB ?", f"{beginning}*")

    def set_state(self, key: str, state: UploadState, why: str, now: float) -> None:
        """What was delivered stays so, whoever says otherwise later: two may have sent it at once."""
        statement = "UPDATE uploads SET state = ?, why = ?, updated = ? WHERE key = ? AND state != 'delivered'"
        self._database.write(statement, state.value, why, now, key)

    def drop_private(self, now: float, run: str | None = None) -> None:
        """What was bound for a private cloud that is gone: of this run, or of all runs that are over."""
        for parcel in self.waiting(run):
            if parcel.label == PRIVATE and (run is not None or not is_under_way(self._database, parcel.run, now)):
                self.set_state(parcel.key, UploadState.DEAD, _CLOUD_ENDED, now)

    def _read(self, where: str, *values: Any) -> list[UploadItem]:
        rows = self._database.read(f"SELECT {_COLUMNS} FROM uploads WHERE {where} ORDER BY rowid", *values)  # noqa: S608
        return [_upload(row) for row in rows]


def _upload(row: tuple[Any, ...]) -> UploadItem:
    key, run, case, attempt, kind, testid, tester, label, body, state, why = row
    return UploadItem(key, run, case, attempt, kind, testid, tester, label, body, UploadState(state), why)
