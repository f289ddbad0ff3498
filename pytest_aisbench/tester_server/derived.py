"""What is shown of a result, made of what was sent; the same body makes the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.upload import RESULTS, RUNS
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.tester_server.contract import number

_MOST = 256  # slow cards of one result

# Plain statements, made once: this is what every upload waits for.
_RUN = text("""
INSERT INTO runs
    (project, testid, name, platform, started, ended, card_hours, cases, passed, failed, broken, inconclusive)
VALUES (:project, :testid, :run, :platform, :started, :ended, 0, 0, 0, 0, 0, 0)
ON CONFLICT (project, testid, name) DO UPDATE SET platform = excluded.platform RETURNING id
""")
_END = text("""
INSERT INTO runs
    (project, testid, name, platform, started, ended, card_hours, cases, passed, failed, broken, inconclusive,
     told, exit_code, unjudged, unjudged_hours)
VALUES
    (:project, :testid, :run, :platform, :started, :ended, :hours, 0, 0, 0, 0, 0, :told, :exit_code, :unjudged, :hours)
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
_KNOWN = text("SELECT id, attempt FROM results WHERE run = :run AND name = :name")
_COLUMNS = (
    "project", "run", "series", "parcel", "attempt", "name", "verdict", "status", "reason", "job_id", "unit",
    "throughput", "accuracy", "reference", "low", "high", "target", "card_hours", "started", "ended",
)  # fmt: skip
_INSERT = text(f"""
INSERT INTO results ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in _COLUMNS)}) RETURNING id
""")  # noqa: S608 - our own names
_REPLACE = text(f"UPDATE results SET {', '.join(f'{name} = :{name}' for name in _COLUMNS)} WHERE id = :known")  # noqa: S608
_FORGET = text("DELETE FROM stragglers WHERE result = :known")
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
UPDATE runs SET cases = found.cases, passed = found.passed, failed = found.failed, broken = found.broken,
    inconclusive = found.inconclusive, card_hours = found.card_hours + unjudged_hours,
    started = found.started, ended = found.ended
FROM (SELECT count(*) AS cases, {_COUNTED}, sum(card_hours) AS card_hours, min(started) AS started, max(ended) AS ended
      FROM results WHERE run = :run) AS found
WHERE id = :run
""")  # noqa: S608 - our own names


class Stored(NamedTuple):
    """A parcel that was taken."""

    id: int
    kind: str
    project: str
    body: Mapping[str, Any]
    received: float


def derive(connection: Connection, parcel: Stored) -> None:
    if parcel.kind == RESULTS:
        _result(connection, parcel)
    elif parcel.kind == RUNS:
        _end(connection, parcel)


def _end(connection: Connection, parcel: Stored) -> None:
    """The last word on how a run ended; where it has no result, this is all that is known of it."""
    body, received = parcel.body, parcel.received
    ended = min(_seconds(body.get("finished")) or received, received)
    told = {
        "project": parcel.project,
        "testid": body["testid"],
        "run": body["run_id"],
        "platform": _platform(body["platform"]),
        "started": min(_seconds(body.get("started")) or ended, ended),
        "ended": ended,
        "told": body["attempt"],
        "exit_code": body.get("exit_code"),
        "unjudged": len(body["unjudged"]),
        "hours": number(body.get("card_hours")) or 0.0,
    }
    connection.execute(_END, told)


def _result(connection: Connection, parcel: Stored) -> None:
    """One row for a case in a run, that of its last attempt. The run's row is locked first: its counts are exact."""
    body = parcel.body
    head = {"project": parcel.project, "testid": body["testid"], "attempt": body["attempt"]}
    told = {**head, **_told(body, parcel.received)}
    run = connection.execute(_RUN, told).scalar_one()
    known = connection.execute(_KNOWN, {"run": run, "name": told["name"]}).one_or_none()
    if known and known.attempt >= body["attempt"]:
        return
    series = connection.execute(_SERIES, {**told, "new": 0 if known else 1}).scalar_one()
    row = {**told, "run": run, "series": series, "parcel": parcel.id}
    if known:
        connection.execute(_FORGET, {"known": known.id})
        connection.execute(_REPLACE, {**row, "known": known.id})
    result = known.id if known else connection.execute(_INSERT, row).scalar_one()
    connection.execute(_LAST, {"result": result, "series": series, "ended": told["ended"]})
    if told["stragglers"]:
        connection.execute(_SLOW, [{**row, "result": result, **each} for each in told["stragglers"]])
    connection.execute(_RECOUNT, {"run": run})


def _told(body: Mapping[str, Any], received: float) -> dict[str, Any]:
    case_, config, job = _object(body.get("case")), _object(body.get("config")), _object(body.get("job"))
    measured, band = _object(body.get("measured")), _object(case_.get("band"))
    name = str(case_.get("id") or plain(str(config.get("Model") or "stub").replace("/", "_"), 80))
    run_id = str(body["run_id"])
    suffix = f".{name}"
    ended = min(_moment(measured, "total_end_time") or received, received)  # a clock may be wrong, ours is one
    throughput = _object(measured.get("throughput_ratio"))
    return {
        "run": run_id.removesuffix(suffix) or run_id,
        "name": name,
        "platform": _platform(job.get("platform")),
        "workload": str(case_.get("workload") or name),
        "mode": str(case_.get("mode") or ""),
        "nodes": case_.get("nodes"),
        "devices": case_.get("devices_per_node"),
        "verdict": case_.get("verdict"),
        "status": body["status"],
        "reason": _text(case_.get("reason"), 1000),
        "job_id": _text(job.get("job_id"), 200) or None,
        "throughput": number(throughput.get("value")),
        "unit": _text(throughput.get("unit"), 40),
        "accuracy": number(_object(measured.get("accuracy")).get("value")),
        "target": number(_object(measured.get("target_accuracy")).get("value")),
        **{edge: number(band.get(edge)) for edge in ("reference", "low", "high")},
        "card_hours": number(case_.get("card_hours")) or 0.0,
        "started": min(_moment(measured, "total_start_time") or ended, ended),
        "ended": ended,
        "stragglers": _stragglers(case_.get("stragglers")),
    }


def _stragglers(told: Any) -> list[dict[str, Any]]:
    found = []
    for each in told[:_MOST] if isinstance(told, list) else ():
        node, card = _object(each).get("node"), _object(each).get("card")
        ratio, cost = number(_object(each).get("ratio")), number(_object(each).get("cost"))
        if _counted(node) and (card is None or _counted(card)) and ratio is not None and cost is not None:
            found.append({"node": node, "card": card, "ratio": ratio, "cost": cost})
    return found


def _counted(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _moment(measured: Mapping[str, Any], key: str) -> float | None:
    return _seconds(_object(measured.get(key)).get("value"))


def _seconds(value: Any) -> float | None:
    """Since the epoch; a time without a zone is the sender's own, and nobody knows which."""
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
    """It stands in addresses."""
    return _text(value, 80).replace("/", "_") or "unknown"


def _text(value: Any, limit: int) -> str:
    return plain(str(value), limit) if value is not None else ""
