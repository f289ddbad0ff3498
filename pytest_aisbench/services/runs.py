"""The runs of a ledger, newest first: which one is meant, and what became of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.database import Database
from pytest_aisbench.services.folder import LATEST
from pytest_aisbench.services.lease import is_held

UNJUDGED = "not judged"
_FEW = 5  # runs that a message names
# Written as the index has it, or the long records would be read.
_VERDICT = "json_extract(record, '$.verdict')"
_COUNTS = f"SELECT {_VERDICT}, count(*) FROM cases WHERE run = ? GROUP BY {_VERDICT}"  # noqa: S608


@dataclass(frozen=True)
class RunSummary:
    """One line of a list of runs."""

    run: str
    started: float
    finished: float | None
    exit_code: int | None
    settings: Mapping[str, Any]
    verdicts: Mapping[str, int]  # how many cases have which; UNJUDGED for those without


def newest(database: Database, limit: int, skip: int = 0) -> list[RunSummary]:
    """After the first `skip` of them."""
    rows = database.read(
        "SELECT run, started, finished, exit_code, settings FROM runs ORDER BY started DESC, run DESC LIMIT ? OFFSET ?",
        *(limit, skip),
    )
    return [
        RunSummary(run, started, finished, code, json.loads(settings), _verdicts(database, run))
        for run, started, finished, code, settings in rows
    ]


def _verdicts(database: Database, run: str) -> dict[str, int]:
    return {verdict or UNJUDGED: count for verdict, count in database.read(_COUNTS, run)}


def named(database: Database, text: str) -> str:
    """The id of the one run whose id is, or begins with, `text`; `latest` is the newest."""
    if text in {"", LATEST}:
        rows = database.read("SELECT run FROM runs ORDER BY started DESC, run DESC LIMIT 1")
    else:
        rows = database.read("SELECT run FROM runs WHERE substr(run, 1, ?) = ? ORDER BY run DESC", len(text), text)
    found = [str(row[0]) for row in rows]
    if len(found) == 1 or text in found:
        return text if text in found else found[0]
    if found:
        more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
        raise UsageFault(f"{text!r} is the beginning of {', '.join(found[:_FEW])}{more}", advice="write more of it")
    known = [str(row[0]) for row in database.read("SELECT run FROM runs ORDER BY started DESC LIMIT ?", _FEW)]
    advice = f"the newest are {', '.join(known)}" if known else "there is none yet"
    raise UsageFault(f"the ledger has no run {text!r}", advice=advice)


def is_under_way(database: Database, run: str, now: float) -> bool:
    """Somebody is still at work on it, and writes its reports."""
    rows = database.read("SELECT owner, lease FROM runs WHERE run = ? AND finished IS NULL", run)
    return any(is_held(owner, lease, now) for owner, lease in rows)
