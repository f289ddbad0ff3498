"""Checks the body of an upload, and turns it into the rows that pages show.

The check is the server's own reading of the contract: it shares nothing with the code that writes the bodies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Connection, text

from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import ATTACHMENTS, RESULTS, RUNS, UPLOAD_SCHEMA
from pytest_aisbench.model.verdict import Ruling

KINDS = (RESULTS, ATTACHMENTS, RUNS)
_NAME = 300
_KEY = re.compile(r"[!-~]{1,200}")
_TESTID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_STATUS = ("OK", "FAILED")
_RULINGS = (None, *(ruling.value for ruling in Ruling))  # no set: a value of a body may be unhashable
_REQUIRED: Mapping[str, Mapping[str, type]] = {
    RESULTS: {
        "config": dict,
        "status": str,
        "train_result_info": dict,
        "measured": dict,
        "system": dict,
        "artifacts": list,
        "job": dict,
    },
    ATTACHMENTS: {"name": str},
    RUNS: {"platform": str, "unjudged": dict, "missing": list},
}
_TYPE_NAMES = {dict: "an object", list: "a list", str: "text", int: "a whole number"}
_LARGEST = 2**53  # the largest whole number that every reader of JSON reads exactly
_ABSURD = 1e18


class InvalidBody(ValueError):
    """The body breaks the contract; `field` says where."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def is_key(text: str) -> bool:
    return bool(_KEY.fullmatch(text))


def parse_body(content: bytes, testid: str, kind: str) -> dict[str, Any]:
    """The body of an upload, checked."""
    try:
        body = json.loads(content.decode(), parse_constant=_no_number, object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise InvalidBody("", f"the body is not JSON: {str(error)[:100]}") from None
    if not isinstance(body, dict) or body.get("schema") != UPLOAD_SCHEMA:
        raise InvalidBody("schema", f"the body is not a {UPLOAD_SCHEMA} object")
    if body.get("testid") != testid:
        raise InvalidBody("testid", "testid of the body and of the path differ")
    if not _TESTID.fullmatch(testid):
        raise InvalidBody("testid", "testid: letters, digits, '.', '_', ':' and '-', 128 at most")
    _require_name(body, "run_id")
    _require_whole(body, "attempt", least=1)
    for name, type_ in _REQUIRED[kind].items():
        _require(body, name, type_)
    _CHECKS[kind](body)
    return body


def _result(body: dict[str, Any]) -> None:
    if body["status"] not in _STATUS:
        raise InvalidBody("status", f"status is none of {', '.join(_STATUS)}")
    for name, value in body["measured"].items():
        if not isinstance(value, dict) or (value.get("value") is None) == (value.get("null_reason") is None):
            raise InvalidBody(f"measured.{name}", f"measured.{name} needs a value or a null_reason, and not both")
    case = body.get("case")
    if case is None:  # a test that ais-bench-stubs ran has none
        return
    _require(body, "case", dict)
    for name in ("id", "workload", "mode"):
        _require_name(case, name, "case.")
    for name in ("nodes", "devices_per_node"):
        _require_whole(case, name, "case.", least=1)
    if case.get("verdict") not in _RULINGS:
        raise InvalidBody("case.verdict", f"case.verdict is none of {', '.join(filter(None, _RULINGS))}")
    if (case.get("verdict") == Ruling.PASSED.value) != (body["status"] == "OK"):
        raise InvalidBody("status", "status and case.verdict contradict each other")


def _attachment(body: dict[str, Any]) -> None:
    _require_name(body, "name")


def _run(body: dict[str, Any]) -> None:
    if (number(body.get("card_hours")) or 0.0) < 0:
        raise InvalidBody("card_hours", "card_hours is below 0")
    if body.get("exit_code") is not None:
        _require_whole(body, "exit_code", least=0)
    for case, reason in body["unjudged"].items():
        if not isinstance(reason, str):
            raise InvalidBody("unjudged", f"unjudged.{case[:80]} is not text")
    if not all(isinstance(case, str) for case in body["missing"]):
        raise InvalidBody("missing", "missing is not a list of cases")


_CHECKS: Mapping[str, Callable[[dict[str, Any]], None]] = {RESULTS: _result, ATTACHMENTS: _attachment, RUNS: _run}


def _require(body: Mapping[str, Any], name: str, kind: type, within: str = "") -> None:
    if not isinstance(body.get(name), kind):
        raise InvalidBody(within + name, f"{within}{name} is missing, or not {_TYPE_NAMES[kind]}")


def _require_name(body: Mapping[str, Any], name: str, within: str = "") -> None:
    """A name stands in addresses and in tables."""
    _require(body, name, str, within)
    text = body[name]
    if not text or len(text) > _NAME or not text.isprintable() or "/" in text or text in {".", ".."}:
        raise InvalidBody(within + name, f"{within}{name}: 1 to {_NAME} printable characters, none of them '/'")


def _require_whole(body: Mapping[str, Any], name: str, within: str = "", *, least: int) -> None:
    _require(body, name, int, within)
    if isinstance(body[name], bool) or not least <= body[name] <= _LARGEST:
        raise InvalidBody(within + name, f"{within}{name} is no whole number from {least} on")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Programs differ in which of two equal keys they read, so that what one checks another may not see."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twice[:40]!r} twice")
    return members


def number(value: Any) -> float | None:
    """The value if it is a finite number of sensible size, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if abs(result) < _ABSURD else None  # also None for nan and inf


# From a body to rows: the same body makes the same rows

_MOST = 256  # slow cards of one result

# Plain statements, compiled once: every upload waits for them.
_RUN = text("""
INSERT INTO runs
    (project, testid, name, platform, commit_id, branch, started, ended, card_hours, cases, passed, failed, broken,
     inconclusive)
VALUES (:project, :testid, :run, :platform, :commit_id, :branch, :started, :ended, 0, 0, 0, 0, 0, 0)
ON CONFLICT (project, testid, name) DO UPDATE
    SET platform = excluded.platform, commit_id = excluded.commit_id, branch = excluded.branch RETURNING id
""")
_END = text("""
INSERT INTO runs
    (project, testid, name, platform, started, ended, card_hours, cases, passed, failed, broken, inconclusive,
     told, exit_code, unjudged, unjudged_hours, commit_id, branch)
VALUES
    (:project, :testid, :run, :platform, :started, :ended, :hours, 0, 0, 0, 0, 0, :told, :exit_code, :unjudged, :hours,
     :commit_id, :branch)
ON CONFLICT (project, testid, name) DO UPDATE
    SET told = excluded.told, exit_code = excluded.exit_code, unjudged = excluded.unjudged,
        card_hours = runs.card_hours - runs.unjudged_hours + excluded.unjudged_hours,
        unjudged_hours = excluded.unjudged_hours
    WHERE runs.told < excluded.told
""")
_SERIES = text("""
INSERT INTO series (project, platform, name, workload, mode, unit, nodes, devices, results)
VALUES (:project, :platform, :name, :workload, :mode, :unit, :nodes, :devices, :new)
ON CONFLICT (project, platform, name) DO UPDATE SET unit = excluded.unit, results = series.results + excluded.results
RETURNING id
""")
_STORED = text("SELECT id, attempt FROM results WHERE run = :run AND name = :name")
_COLUMNS = (
    "project", "run", "series", "parcel", "attempt", "name", "verdict", "status", "reason", "job_id", "unit",
    "throughput", "accuracy", "reference", "low", "high", "target", "card_hours", "started", "ended",
)  # fmt: skip
_INSERT = text(f"""
INSERT INTO results ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in _COLUMNS)}) RETURNING id
""")  # noqa: S608 - our own names
_REPLACE = text(f"UPDATE results SET {', '.join(f'{name} = :{name}' for name in _COLUMNS)} WHERE id = :old")  # noqa: S608
_FORGET = text("DELETE FROM stragglers WHERE result = :old")
_LAST = text("""
UPDATE series SET last = :result, last_ended = :ended
WHERE id = :series AND (last_ended IS NULL OR last_ended <= :ended)
""")
_SLOW = text("""
INSERT INTO stragglers (result, series, project, platform, ended, node, card, ratio, cost)
VALUES (:result, :series, :project, :platform, :ended, :node, :card, :ratio, :cost)
""")
_COUNTED = ", ".join(
    f"sum(CASE WHEN verdict = '{each.value}' THEN 1 ELSE 0 END) AS {each.value.lower()}" for each in Ruling
)
_RECOUNT = text(f"""
UPDATE runs SET cases = counted.cases, passed = counted.passed, failed = counted.failed, broken = counted.broken,
    inconclusive = counted.inconclusive, card_hours = counted.card_hours + unjudged_hours,
    started = counted.started, ended = counted.ended
FROM (SELECT count(*) AS cases, {_COUNTED}, sum(card_hours) AS card_hours, min(started) AS started, max(ended) AS ended
      FROM results WHERE run = :run) AS counted
WHERE id = :run
""")  # noqa: S608 - our own names


class StoredUpload(NamedTuple):
    """An upload in the table `parcels`."""

    id: int
    kind: str
    project: str
    body: Mapping[str, Any]
    received: float


def derive_rows(connection: Connection, upload: StoredUpload) -> None:
    """Write the rows of runs, series, results and stragglers that follow from an upload."""
    if upload.kind == RESULTS:
        _store_result(connection, upload)
    elif upload.kind == RUNS:
        _store_end(connection, upload)


def _store_end(connection: Connection, upload: StoredUpload) -> None:
    """How a run ended, by the last attempt to say so; of a run without results this is all there is."""
    body, received = upload.body, upload.received
    ended = min(_seconds(body.get("finished")) or received, received)
    row = {
        "project": upload.project,
        "testid": body["testid"],
        "run": body["run_id"],
        "platform": _platform(body["platform"]),
        **_commit(body),
        "started": min(_seconds(body.get("started")) or ended, ended),
        "ended": ended,
        "told": body["attempt"],
        "exit_code": body.get("exit_code"),
        "unjudged": len(body["unjudged"]),
        "hours": number(body.get("card_hours")) or 0.0,
    }
    connection.execute(_END, row)


def _store_result(connection: Connection, upload: StoredUpload) -> None:
    """One row for a case in a run, from its last attempt. Locking the run's row first keeps its counts exact."""
    body = upload.body
    head = {"project": upload.project, "testid": body["testid"], "attempt": body["attempt"]}
    values = {**head, **_result_values(body, upload.received)}
    run = connection.execute(_RUN, values).scalar_one()
    old = connection.execute(_STORED, {"run": run, "name": values["name"]}).one_or_none()
    if old and old.attempt >= body["attempt"]:
        return
    series = connection.execute(_SERIES, {**values, "new": 0 if old else 1}).scalar_one()
    row = {**values, "run": run, "series": series, "parcel": upload.id}
    if old:
        connection.execute(_FORGET, {"old": old.id})
        connection.execute(_REPLACE, {**row, "old": old.id})
    result = old.id if old else connection.execute(_INSERT, row).scalar_one()
    connection.execute(_LAST, {"result": result, "series": series, "ended": values["ended"]})
    if values["stragglers"]:
        connection.execute(_SLOW, [{**row, "result": result, **each} for each in values["stragglers"]])
    connection.execute(_RECOUNT, {"run": run})


def _result_values(body: Mapping[str, Any], received: float) -> dict[str, Any]:
    case, config, job = _object(body.get("case")), _object(body.get("config")), _object(body.get("job"))
    measured, band = _object(body.get("measured")), _object(case.get("band"))
    name = str(case.get("id") or plain(str(config.get("Model") or "stub").replace("/", "_"), 80))
    run_id = str(body["run_id"])
    suffix = f".{name}"
    ended = min(_moment(measured, "total_end_time") or received, received)  # the sender's clock may be wrong
    throughput = _object(measured.get("throughput_ratio"))
    return {
        "run": run_id.removesuffix(suffix) or run_id,
        "name": name,
        "platform": _platform(job.get("platform")),
        **_commit(body),
        "workload": str(case.get("workload") or name),
        "mode": str(case.get("mode") or ""),
        "nodes": case.get("nodes"),
        "devices": case.get("devices_per_node"),
        "verdict": case.get("verdict"),
        "status": body["status"],
        "reason": _text(case.get("reason"), 1000),
        "job_id": _text(job.get("job_id"), 200) or None,
        "throughput": number(throughput.get("value")),
        "unit": _text(throughput.get("unit"), 40),
        "accuracy": number(_object(measured.get("accuracy")).get("value")),
        "target": number(_object(measured.get("target_accuracy")).get("value")),
        **{edge: number(band.get(edge)) for edge in ("reference", "low", "high")},
        "card_hours": number(case.get("card_hours")) or 0.0,
        "started": min(_moment(measured, "total_start_time") or ended, ended),
        "ended": ended,
        "stragglers": _stragglers(case.get("stragglers")),
    }


def _commit(body: Mapping[str, Any]) -> dict[str, str]:
    """The commit and branch that the run was started from; empty if the sender does not know them."""
    origin = _object(body.get("origin"))
    return {"commit_id": _text(origin.get("commit"), 64), "branch": _text(origin.get("branch"), 200)}


def _stragglers(value: Any) -> list[dict[str, Any]]:
    rows = []
    for each in value[:_MOST] if isinstance(value, list) else ():
        node, card = _object(each).get("node"), _object(each).get("card")
        ratio, cost = number(_object(each).get("ratio")), number(_object(each).get("cost"))
        if _is_count(node) and (card is None or _is_count(card)) and ratio is not None and cost is not None:
            rows.append({"node": node, "card": card, "ratio": ratio, "cost": cost})
    return rows


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _moment(measured: Mapping[str, Any], key: str) -> float | None:
    return _seconds(_object(measured.get(key)).get("value"))


def _seconds(value: Any) -> float | None:
    """Seconds since the epoch; None for a time without a zone, because the sender's zone is unknown."""
    if not isinstance(value, str) or not value.endswith("Z"):
        return None
    try:
        moment = datetime.fromisoformat(value[:-1] + "+00:00").timestamp()
    except (ValueError, OverflowError):
        return None
    return moment if moment >= 0 else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _platform(value: Any) -> str:
    """The name of a platform as addresses may hold it."""
    return _text(value, 80).replace("/", "_") or "unknown"


def _text(value: Any, limit: int) -> str:
    return plain(str(value), limit) if value is not None else ""
