"""What pytest said of each test of a run: with it an old run is told again as it was told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_aisbench.services.database import Database

MOST_RUNS = 20  # that a history shows


class Told(NamedTuple):
    """One test. Its reports are as pytest serializes them for another process."""

    nodeid: str
    case: str  # the id of its case; empty for a test of nothing of ours
    status: str  # passed, failed, broken or skipped
    started: float
    stopped: float
    reports: Sequence[Mapping[str, Any]] = ()


class Past(NamedTuple):
    """An earlier run: the tests of its cases, without their reports."""

    run: str
    started: float
    tests: Sequence[Told]
    metrics: Mapping[str, float]  # by `<case>.<metric>`; empty where nobody asked


class Transcript:
    """Of one run. A test that is told again, because another worker judged it, has only the last word."""

    def __init__(self, database: Database, run: str) -> None:
        self._database, self._run = database, run
        self._ordinals: dict[str, int] = {}

    def add(self, tests: Iterable[Told]) -> None:
        with self._database.transaction():
            for test in tests:
                ordinal = self._ordinals.setdefault(test.nodeid, len(self._ordinals))
                # Plugins hang all kinds of things on a report: what JSON does not know is kept as a text.
                said = json.dumps(test.reports, separators=(",", ":"), default=str)
                row = (self._run, test.nodeid, ordinal, *test[1:5], said)
                self._database.write("INSERT OR REPLACE INTO tests VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)


def read(database: Database, run: str) -> list[Told]:
    """In the order in which they ended."""
    rows = database.read(
        "SELECT nodeid, case_id, status, started, stopped, record FROM tests WHERE run = ? ORDER BY ordinal", run
    )
    return [
        Told(nodeid, case, status, started, stopped, json.loads(reports))
        for nodeid, case, status, started, stopped, reports in rows
    ]


def past(database: Database, run: str, *, measured: bool = False) -> list[Past]:
    """The newest runs before this one that tested a case; newest first."""
    rows = database.read(
        "SELECT run, started FROM runs r WHERE started < (SELECT started FROM runs WHERE run = ?)"
        " AND EXISTS (SELECT 1 FROM tests t WHERE t.run = r.run AND t.case_id > '')"
        " ORDER BY started DESC, run DESC LIMIT ?",
        *(run, MOST_RUNS),
    )
    return [
        Past(name, started, _brief(database, name), _metrics(database, name) if measured else {})
        for name, started in rows
    ]


def _brief(database: Database, run: str) -> list[Told]:
    rows = database.read(
        "SELECT nodeid, case_id, status, started, stopped FROM tests WHERE run = ? AND case_id > '' ORDER BY nodeid",
        run,
    )
    return [Told(*row) for row in rows]


def _metrics(database: Database, run: str) -> dict[str, float]:
    """As the run itself told them."""
    rows = database.read(
        "SELECT case_id, json_extract(record, '$.metrics'), json_extract(record, '$.card_hours'),"
        " json_extract(record, '$.nodes'), json_extract(record, '$.devices_per_node') FROM cases WHERE run = ?",
        run,
    )
    found: dict[str, float] = {}
    for case, metrics, hours, nodes, devices in rows:
        told = {f"{case}.{name}": metric["value"] for name, metric in json.loads(metrics).items()}
        found |= {key: value for key, value in told.items() if value is not None}
        found[f"{case}.{JOB_TIME}"] = job_time(hours, nodes, devices)
    return found


JOB_TIME = "job_time"


def job_time(card_hours: float, nodes: int, devices: int) -> float:
    """How many seconds the jobs of a case ran, all trials together."""
    return round(card_hours * 3600 / (nodes * devices), 3)
