"""What earlier trials measured: looked up by the traits that make trials comparable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pytest_aisbench.ledger.database import Database
from pytest_aisbench.model.codec import load
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.trial import Trial, TrialRecord
from pytest_aisbench.model.verdict import Ruling

NEWEST = 100  # trials: enough to know the noise; more would dilute the newest level

_NAMES = tuple(field.name for field in dataclasses.fields(TrialRecord))  # columns have the names of the fields
_FIELDS = ", ".join(_NAMES)
_ADD = f"INSERT OR REPLACE INTO measures ({_FIELDS}) VALUES ({', '.join('?' * len(_NAMES))})"  # noqa: S608
_ALL = f"SELECT {_FIELDS} FROM measures"  # noqa: S608 - made of our own words


class History:
    """Trial records that are committed, always the oldest first. `without` leaves out the trials of one run."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(
        self, case_id: str, key: str, limit: int = NEWEST, *, without: str = "", counted: bool = True
    ) -> tuple[TrialRecord, ...]:
        """The newest comparable trials; with `counted`, only those whose accuracy held."""
        where = "WHERE case_id = ? AND key = ? AND counts >= ? AND run != ? ORDER BY at DESC LIMIT ?"
        return self._read(where, case_id, key, int(counted), without, limit)[::-1] if key else ()

    def first(self, case_id: str, key: str, limit: int, *, without: str = "") -> tuple[TrialRecord, ...]:
        """The oldest comparable trials whose accuracy held."""
        where = "WHERE case_id = ? AND key = ? AND counts = 1 AND run != ? ORDER BY at LIMIT ?"
        return self._read(where, case_id, key, without, limit) if key else ()

    def base(self, workload: str, shape: str, family: str, limit: int, *, without: str = "") -> tuple[TrialRecord, ...]:
        """The newest trials of another shape that are alike in every other trait."""
        where = "WHERE family = ? AND workload = ? AND shape = ? AND counts = 1 AND run != ? ORDER BY at DESC LIMIT ?"
        return self._read(where, family, workload, shape, without, limit)[::-1] if family else ()

    def shapes(self, workload: str, family: str, limit: int = NEWEST) -> tuple[str, ...]:
        """The shapes of trials that are alike in every other trait."""
        shapes: list[str] = []
        while family and len(shapes) < limit:  # one step in the index each: DISTINCT would read all rows
            statement = "SELECT min(shape) FROM measures WHERE family = ? AND workload = ? AND shape > ?"
            ((shape,),) = self._database.read_committed(statement, family, workload, shapes[-1] if shapes else "")
            if shape is None:
                break
            shapes.append(shape)
        return tuple(shapes)

    def newest(self, case_id: str, *, without: str = "", key: str = "") -> TrialRecord | None:
        """The newest trial whose traits are known and are not those of `key`."""
        where = "WHERE case_id = ? AND run != ? AND key NOT IN ('', ?) ORDER BY at DESC LIMIT 1"
        return next(iter(self._read(where, case_id, without, key)), None)

    def all(self, case_id: str, limit: int = NEWEST) -> tuple[TrialRecord, ...]:
        """The newest trials, comparable or not."""
        return self._read("WHERE case_id = ? ORDER BY at DESC LIMIT ?", case_id, limit)[::-1]

    def count(self, case_id: str) -> int:
        ((count,),) = self._database.read("SELECT count(*) FROM measures WHERE case_id = ?", case_id)
        return int(count)

    def cases(self) -> tuple[str, ...]:
        return tuple(row[0] for row in self._database.read("SELECT DISTINCT case_id FROM measures ORDER BY case_id"))

    def rulings(self) -> dict[str, dict[Ruling, int]]:
        """How many trials of each case ended how; the cases by their names."""
        counts: dict[str, dict[Ruling, int]] = {}
        statement = "SELECT case_id, ruling, count(*) FROM measures GROUP BY case_id, ruling ORDER BY case_id"
        for case_id, ruling, count in self._database.read(statement):
            counts.setdefault(case_id, {})[Ruling(ruling)] = int(count)
        return counts

    def traits(self, key: str) -> Mapping[str, str]:
        """The traits that the key is made of; empty if unknown."""
        rows = self._database.read_committed("SELECT traits FROM fingerprints WHERE key = ?", key)
        return dict(json.loads(rows[0][0])) if rows else {}

    def whole_trial(self, trial: str) -> Trial | None:
        """All that the ledger keeps of a trial; None if it has the record of its history only."""
        rows = self._database.read_committed("SELECT record FROM trials WHERE trial = ?", trial)
        return load(Trial, json.loads(rows[0][0])) if rows else None

    def _read(self, where: str, *values: Any) -> tuple[TrialRecord, ...]:
        return tuple(_record(row) for row in self._database.read_committed(f"{_ALL} {where}", *values))


def add_record(database: Database, record: TrialRecord, traits: Mapping[str, str]) -> None:
    """Add a trial's record; call it in the transaction that ends the trial."""
    if record.key:
        written = json.dumps(dict(traits), ensure_ascii=False, separators=(",", ":"))
        database.write("INSERT OR IGNORE INTO fingerprints (key, traits) VALUES (?, ?)", record.key, written)
    database.write(_ADD, *_row(record))


def drop_record(database: Database, trial: str) -> None:
    database.write("DELETE FROM measures WHERE trial = ?", trial)


def _row(record: TrialRecord) -> tuple[Any, ...]:
    others = {name: value for name, value in record.metrics.items() if name not in {THROUGHPUT, ACCURACY}}
    metrics = json.dumps(others, allow_nan=False, separators=(",", ":"))
    special = {"ruling": record.ruling.value, "counts": int(record.counts), "metrics": metrics}
    return tuple(special.get(name, getattr(record, name)) for name in _NAMES)


def _record(row: tuple[Any, ...]) -> TrialRecord:
    *plain, ruling, counted, metrics = row
    values: tuple[Any, ...] = (*plain, Ruling(ruling), bool(counted), json.loads(metrics) if metrics != "{}" else {})
    return TrialRecord(*values)
